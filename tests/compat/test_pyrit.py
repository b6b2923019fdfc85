"""The document of PyRIT's executor core: its classes with their imports changed, and what its rows promise."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import pytest

from capgraph.base import ValidationError
from capgraph.compat.strategy import (
    Strategy,
    StrategyContext,
    StrategyConverterConfig,
    StrategyEvent,
    StrategyEventData,
    StrategyEventHandler,
)


@dataclass
class Ask(StrategyContext):
    question: str = ""
    replies: list[str] = field(default_factory=list)


class Asker(Strategy[Ask, list[str]]):
    def _validate_context(self, *, context: Ask) -> None:
        if not context.question:
            raise ValueError("no question")

    async def _setup_async(self, *, context: Ask) -> None: ...

    async def _perform_async(self, *, context: Ask) -> list[str]:
        context.replies.append(context.question)
        return context.replies

    async def _teardown_async(self, *, context: Ask) -> None: ...


class Seen(StrategyEventHandler[Ask, list[str]]):
    def __init__(self) -> None:
        self.events: list[StrategyEvent] = []

    async def on_event(self, event_data: StrategyEventData[Ask, list[str]]) -> None:
        self.events.append(event_data.event)


# The document


@pytest.mark.row("P1", "P3", "P4", "P5")
async def test_signatures_and_order_of_the_document() -> None:
    assert list(inspect.signature(Strategy).parameters)[:3] == [
        "context_type", "event_handler", "logger"
    ]  # fmt: skip
    seen = Seen()
    asker = Asker(context_type=Ask, event_handler=seen, logger=logging.getLogger("asker"))
    assert await asker.execute_async(question="Who?") == ["Who?"]
    assert [event.value for event in seen.events] == [
        f"on_{moment}_{phase}"
        for phase in ("validate", "setup", "execute", "teardown")
        for moment in ("pre", "post")
    ]
    context = Ask("Who?")
    assert await asker.execute_with_context_async(context=context) is context.replies


@pytest.mark.row("P10", "P11")
async def test_errors_of_the_document() -> None:
    with pytest.raises(ValueError, match="Strategy context validation failed for Asker"):
        await Asker(context_type=Ask).execute_async()

    class Broken(Asker):
        async def _perform_async(self, *, context: Ask) -> list[str]:
            raise OSError("gone")

    with pytest.raises(RuntimeError, match="Strategy execution failed for Broken") as caught:
        await Broken(context_type=Ask).execute_async(question="Who?")
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.row("P15")
def test_converter_configurations_are_separate_lists() -> None:
    first, second = StrategyConverterConfig(), StrategyConverterConfig()
    first.request_converters.append("upper")
    assert (second.request_converters, second.response_converters) == ([], [])


# P8: names of the handler's method


class Later(StrategyEventHandler[Ask, list[str]]):
    """A handler with the method name of later versions."""

    def __init__(self) -> None:
        self.events: list[StrategyEvent] = []

    async def on_event_async(self, event_data: StrategyEventData[Ask, list[str]]) -> None:
        self.events.append(event_data.event)


class Plain(StrategyEventHandler[Ask, list[str]]):
    """A handler whose method is not asynchronous."""

    def __init__(self) -> None:
        self.events: list[StrategyEvent] = []

    def on_event(self, event_data: StrategyEventData[Ask, list[str]]) -> None:  # type: ignore[override]
        self.events.append(event_data.event)


class Structural:
    """A handler that inherits nothing."""

    def __init__(self) -> None:
        self.events: list[StrategyEvent] = []

    async def on_event_async(self, event_data: Any) -> None:
        self.events.append(event_data.event)


@pytest.mark.row("P8", "P9")
@pytest.mark.parametrize("kind", [Later, Plain, Structural])
async def test_handlers_of_every_form_are_called(kind: type[Any]) -> None:
    handler = kind()
    await Asker(context_type=Ask, event_handler=handler).execute_async(question="Who?")
    assert len(handler.events) == 8


@pytest.mark.row("P8")
def test_an_object_without_a_handler_method_is_refused_when_it_is_added() -> None:
    with pytest.raises(ValidationError):
        Asker(context_type=Ask, event_handler=object())  # type: ignore[arg-type]
    with pytest.raises(ValidationError):
        Asker(context_type=Ask).add_event_handler(object())  # type: ignore[arg-type]


# P9: handlers that do not end


@pytest.mark.row("P9")
async def test_a_handler_that_swallows_its_cancellation_does_not_delay_the_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    release = asyncio.Event()

    class Stubborn(Seen):
        async def on_event(self, event_data: StrategyEventData[Ask, list[str]]) -> None:
            with contextlib.suppress(asyncio.CancelledError):
                await release.wait()
            await release.wait()

    asker = Asker(context_type=Ask, event_handler=Stubborn(), handler_timeout=0.01)
    started_at = time.perf_counter()
    async with asyncio.timeout(5):
        assert await asker.execute_async(question="Who?") == ["Who?"]
    assert time.perf_counter() - started_at < 2
    assert len(caplog.records) == 8
    release.set()
    await asyncio.sleep(0)


# P14: contexts


@dataclass
class Guarded(StrategyContext):
    name: str = ""
    lock: Any = field(default_factory=threading.Lock)


@dataclass
class Shared(StrategyContext):
    lock: Any = field(default_factory=threading.Lock, metadata={"duplicate": False})


@pytest.mark.row("P14")
def test_a_field_that_cannot_be_copied_is_named_with_the_way_to_share_it() -> None:
    with pytest.raises(ValidationError) as caught:
        Guarded().duplicate()
    assert caught.value.facts["field"] == "lock"
    assert 'metadata={"duplicate": False}' in str(caught.value.fix)
    assert (shared := Shared()).duplicate().lock is shared.lock


# P18: labels


@pytest.mark.row("P18")
async def test_subclasses_read_the_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    class Labeled(Asker):
        async def _perform_async(self, *, context: Ask) -> list[str]:
            return [f"{name}={value}" for name, value in self._memory_labels.items()]

    monkeypatch.setenv("GLOBAL_MEMORY_LABELS", "{'operator': 'ann'}")
    assert await Labeled(context_type=Ask).execute_async(question="Who?") == ["operator=ann"]
