"""Middleware of the operator around model calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from capgraph.base import CapabilityError, LimitError, ModelError
from capgraph.base.ports import STAGES, Attempt
from capgraph.configs.settings import load_settings
from capgraph.models import RoleModel, model_strategies
from capgraph.models.calls import generate_structured, stream_text
from capgraph.selection import Candidate, LexicalSelector
from capgraph.testing import ScriptedModel
from tests.support.readings import sensor_registry

ASK = [HumanMessage("one"), HumanMessage("two")]
SCHEMA = {"title": "Answer", "type": "object", "properties": {}}


class Around:
    """Writes down when it is entered and left; ``change`` may do anything in between."""

    def __init__(
        self,
        stage: str,
        log: list[str],
        change: Callable[[Attempt], Attempt] | None = None,
    ) -> None:
        self.stage = stage
        self._log = log
        self._change = change

    async def wrap_model_call(self, attempt: Attempt, call_next: Any) -> Any:
        self._log.append(f"{self.stage} {attempt.kind} {attempt.capability}")
        result = await (call_next(self._change(attempt)) if self._change else call_next())
        self._log.append(f"left {self.stage}")
        return result


async def test_middleware_runs_in_stage_order() -> None:
    log: list[str] = []
    around = [
        Around(stage, log) for stage in ("call", "authorize", "timeout", "acquire", "idempotency")
    ]
    role = RoleModel("planning", ScriptedModel(responses=[{"a": 1}]), behaviors=around)
    assert await generate_structured(role, SCHEMA, ASK) == {"a": 1}
    order = [stage for stage in STAGES if stage in {middleware.stage for middleware in around}]
    entered = [f"{stage} model planning" for stage in order]
    assert order[0] == "authorize"
    assert log == [*entered, *(f"left {stage}" for stage in reversed(order))]


async def test_middleware_can_replace_model_and_messages() -> None:
    first, second = ScriptedModel(responses=[]), ScriptedModel(responses=["From the second."])
    change = Around(
        "call",
        [],
        lambda a: replace(a, inputs={"model": second, "messages": a.inputs["messages"][-1:]}),
    )
    answer = await stream_text(RoleModel("answer", first, behaviors=[change]), ASK)
    assert answer.text == "From the second."
    assert (len(first.calls), second.calls[0].messages) == (0, (ASK[1],))


async def test_waiting_for_a_slot_does_not_count_toward_the_timeout() -> None:
    class Slow(ScriptedModel):
        async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
            await asyncio.Event().wait()

    class Waits:
        stage = "acquire"

        async def wrap_model_call(self, attempt: Attempt, call_next: Any) -> Any:
            await asyncio.sleep(1.1)
            return await call_next()

    quick = RoleModel("planning", ScriptedModel(responses=[{}]), 1, [Waits()])
    assert await generate_structured(quick, SCHEMA, ASK) == {}
    stuck = RoleModel("planning", Slow(responses=[]), 0.02, [Waits()])
    with pytest.raises(ModelError, match=r"within 0\.02 s"):
        await generate_structured(stuck, SCHEMA, ASK)


@pytest.mark.parametrize("error", [LimitError("Too much."), CapabilityError("Not now.")])
async def test_middleware_errors_are_not_wrapped(error: Exception) -> None:
    class Refuses:
        stage = "call"

        async def wrap_model_call(self, attempt: Attempt, call_next: Any) -> Any:
            raise error

    with pytest.raises(type(error)) as caught:
        await stream_text(
            RoleModel("answer", ScriptedModel(responses=[]), behaviors=[Refuses()]), ASK
        )
    assert caught.value is error


async def test_behaviors_apply_to_every_role() -> None:
    log: list[str] = []
    model = ScriptedModel(responses=[{"reason": "", "capabilities": ["a"]}, AIMessage("Hm.")])
    found = model_strategies(
        model,
        sensor_registry(),
        load_settings(selection={"strategy": "model"}),
        LexicalSelector(),
        [Around("call", log)],
    )
    assert (await found["selector"].select("x", [Candidate("a", "Does a.")])).names == ("a",)
    assert log[0] == "call model selection"
