"""The lifecycle of strategies: order, errors, cancellation, handlers."""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

from capgraph.compat.strategy import (
    Strategy,
    StrategyContext,
    StrategyConverterConfig,
    StrategyEvent,
    StrategyEventData,
    StrategyEventHandler,
    StrategyLogAdapter,
)

ORDER = [
    "on_pre_validate",
    "on_post_validate",
    "on_pre_setup",
    "on_post_setup",
    "on_pre_execute",
    "on_post_execute",
    "on_pre_teardown",
    "on_post_teardown",
]


@dataclass
class Asked(StrategyContext):
    text: str = ""
    fails: tuple[str, ...] = ()
    seen: list[str] = field(default_factory=list)
    lock: Any = field(default_factory=threading.Lock, metadata={"duplicate": False})


class Shout(Strategy[Asked, str]):
    def _validate_context(self, *, context: Asked) -> None:
        self._step("validate", context)

    async def _setup_async(self, *, context: Asked) -> None:
        self._step("setup", context)

    async def _perform_async(self, *, context: Asked) -> str:
        self._step("perform", context)
        if "wait" in context.fails:
            await asyncio.Event().wait()
        return context.text.upper()

    async def _teardown_async(self, *, context: Asked) -> None:
        await asyncio.sleep(0)
        self._step("teardown", context)

    def _step(self, name: str, context: Asked) -> None:
        context.seen.append(name)
        if name in context.fails:
            raise KeyError(f"{name} broke") if name == "teardown" else OSError(f"{name} broke")


class ShoutLater(Shout):
    async def _validate_context(self, *, context: Asked) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super()._validate_context(context=context)


class Notes(StrategyEventHandler[Asked, str]):
    def __init__(self) -> None:
        self.told: list[StrategyEventData[Asked, str]] = []

    async def on_event(self, event_data: StrategyEventData[Asked, str]) -> None:
        self.told.append(event_data)

    @property
    def names(self) -> list[str]:
        return [data.event.value for data in self.told]


def watched(cls: type[Shout] = Shout) -> tuple[Shout, Notes]:
    notes = Notes()
    return cls(context_type=Asked, event_handler=notes), notes


@pytest.mark.row("P2", "P4", "P5", "P7", "P17")
@pytest.mark.parametrize("cls", [Shout, ShoutLater])
async def test_phases_run_in_order_and_report_durations(cls: type[Shout]) -> None:
    strategy, notes = watched(cls)
    assert await strategy.execute_async(text="hello") == "HELLO"
    assert notes.names == ORDER
    after = notes.told[5]
    assert (after.result, after.strategy_name) == ("HELLO", cls.__name__)
    assert after.strategy_id == strategy.get_identifier()["id"]
    assert all((data.duration is None) == ("pre" in data.event.value) for data in notes.told)
    assert all(data.timestamp.tzinfo is not None for data in notes.told)


@pytest.mark.row("P3")
async def test_invalid_arguments_are_a_validation_error() -> None:
    with pytest.raises(ValueError, match="colour"):
        await watched()[0].execute_async(colour="red")


@pytest.mark.row("P10")
async def test_an_invalid_context_is_refused_before_setup() -> None:
    strategy, notes = watched()
    context = Asked(fails=("validate",))
    with pytest.raises(ValueError, match="Strategy context validation failed for Shout: validate"):
        await strategy.execute_with_context_async(context=context)
    assert context.seen == ["validate"]
    assert notes.names == ["on_pre_validate", "on_error"]
    assert isinstance(notes.told[-1].error, OSError)


@pytest.mark.row("P11")
@pytest.mark.parametrize("phase", ["setup", "perform"])
async def test_a_failure_is_reported_after_the_teardown(phase: str) -> None:
    strategy, notes = watched()
    context = Asked(fails=(phase,))
    with pytest.raises(RuntimeError, match=f"failed for Shout: {phase} broke") as caught:
        await strategy.execute_with_context_async(context=context)
    assert isinstance(caught.value.__cause__, OSError)
    assert context.seen[-1] == "teardown"
    assert notes.names[-3:] == ["on_pre_teardown", "on_post_teardown", "on_error"]


@pytest.mark.row("P12")
async def test_the_first_error_has_later_ones_as_notes() -> None:
    strategy, _ = watched()
    with pytest.raises(RuntimeError, match="perform broke") as caught:
        await strategy.execute_with_context_async(context=Asked(fails=("perform", "teardown")))
    cause = caught.value.__cause__
    assert isinstance(cause, OSError)
    assert "teardown broke" in cause.__notes__[0]


@pytest.mark.row("P12")
async def test_a_failed_teardown_is_a_failure() -> None:
    strategy, notes = watched()
    with pytest.raises(RuntimeError, match="teardown broke") as caught:
        await strategy.execute_with_context_async(context=Asked(fails=("teardown",)))
    assert isinstance(caught.value.__cause__, KeyError)
    assert notes.names[-2:] == ["on_pre_teardown", "on_error"]


@pytest.mark.row("P19")
async def test_the_message_names_the_root_cause() -> None:
    class Deep(Shout):
        async def _perform_async(self, *, context: Asked) -> str:
            try:
                raise ConnectionError("port closed")
            except ConnectionError as exc:
                raise LookupError("no page") from exc

    with pytest.raises(RuntimeError, match=r"no page .*ConnectionError: port closed"):
        await watched(Deep)[0].execute_async()


@pytest.mark.row("P6", "P13")
async def test_a_cancellation_is_raised_after_the_teardown() -> None:
    strategy, notes = watched()
    context = Asked(fails=("wait",))
    task = asyncio.create_task(strategy.execute_with_context_async(context=context))
    while context.seen != ["validate", "setup", "perform"]:
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()  # once more, in the middle of the teardown
    with pytest.raises(asyncio.CancelledError):
        await task
    assert context.seen[-1] == "teardown"
    assert notes.names[-1] == "on_cancelled"
    assert "on_error" not in notes.names


@pytest.mark.row("P1", "P8", "P9")
async def test_handlers_run_in_parallel_and_cannot_fail_the_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(Notes):
        async def on_event(self, event_data: StrategyEventData[Asked, str]) -> None:
            raise ValueError("handler broke")

    class Hanging(Notes):
        async def on_event(self, event_data: StrategyEventData[Asked, str]) -> None:
            await asyncio.Event().wait()

    strategy = Shout(context_type=Asked, event_handler=Broken(), handler_timeout=0.001)
    first, second, hanging = Notes(), Notes(), Hanging()
    for handler in (first, first, second, hanging):
        strategy.add_event_handler(handler)
    assert await strategy.execute_async(text="a") == "A"
    assert first.names == second.names == ORDER
    assert "handler broke" in caplog.text
    assert "took longer" in caplog.text
    strategy.remove_event_handler(hanging)
    strategy.remove_event_handler(second)
    await strategy.execute_async(text="b")
    assert len(first.told) == 2 * len(second.told)
    with pytest.raises(ValueError, match="not registered"):
        strategy.remove_event_handler(second)


@pytest.mark.row("P14")
def test_a_copy_shares_only_marked_fields() -> None:
    context = Asked(seen=["a"])
    copied = context.duplicate()
    copied.seen.append("b")
    assert context.seen == ["a"]
    assert copied.lock is context.lock


@pytest.mark.row("P18")
@pytest.mark.parametrize(
    ("text", "labels"), [("{'op': 'x'}", {"op": "x"}), ("{broken", {}), ("[1]", {}), ("", {})]
)
def test_labels_come_from_the_environment(
    text: str, labels: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOBAL_MEMORY_LABELS", text)
    assert Shout(context_type=Asked)._memory_labels == labels


@pytest.mark.row("P15")
def test_converter_lists_are_not_shared() -> None:
    first, second = StrategyConverterConfig(), StrategyConverterConfig()
    first.request_converters.append("base64")
    assert second.request_converters == second.response_converters == []


@pytest.mark.row("P16")
def test_a_strategy_is_abstract_and_prefixes_its_logs() -> None:
    with pytest.raises(TypeError):
        Strategy(context_type=Asked)  # type: ignore[abstract]
    adapter = StrategyLogAdapter(
        logging.getLogger("x"), {"strategy_name": "Shout", "strategy_id": "12345678-9"}
    )
    assert adapter.process("ready", {}) == ("[Shout (ID: 12345678)] ready", {})
    assert StrategyEvent.ON_ERROR.value == "on_error"
