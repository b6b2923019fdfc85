"""An effect that is done is never done again because of what comes after it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from capgraph import BaseCapability, capability_node
from capgraph.base import CapabilityError, ErrorClassification, ErrorSeverity
from capgraph.stores import open_saver
from tests.support.doors import Gauge, Instead, last_words, question, soon, status


@pytest.fixture
def sent() -> list[str]:
    return []


@pytest.fixture
def make(sent: list[str]) -> Any:
    def make(effect: str = "once", gives: Any = None, **more: Any) -> Any:
        class Send(BaseCapability):
            name = "send"
            description = "Send a letter"
            provides = ["GAUGE"]

            async def execute(self) -> dict[str, Any]:
                sent.append(self.step["context_key"])
                if more.get("waits"):
                    await asyncio.Event().wait()
                return {"GAUGE": gives or {"value": len(sent)}}

            @staticmethod
            def classify_error(exc: Exception, context: dict[str, Any]) -> ErrorClassification:
                return ErrorClassification(ErrorSeverity.RETRIABLE, str(exc))

            @staticmethod
            def get_retry_policy() -> dict[str, Any]:
                return {"max_attempts": 3, "delay_seconds": 1.0, "backoff_factor": 1.0}

        Send.effect = effect  # type: ignore[assignment]
        Send.timeout_seconds = more.get("timeout_seconds")
        return capability_node(Send)

    return make


async def _refuse_output(attempt: Any, call_next: Any) -> Any:
    result = await call_next()
    if attempt.capability == "send":
        raise CapabilityError("The output is not nice.", severity=ErrorSeverity.RETRIABLE)
    return result


@pytest.mark.parametrize("how", ["wrong output", "guard in finalize", "guard in acquire"])
async def test_after_a_finished_once_effect_there_is_no_other_try(
    agent: Any, step: Any, make: Any, sent: list[str], how: str
) -> None:
    capability = make(gives={"value": "much"}) if how == "wrong output" else make()
    guards = [] if how == "wrong output" else [Instead(how.split()[-1], _refuse_output)]
    options = {"behaviors": guards} if guards else {}
    it = agent(
        Gauge, capability, plans=[[step("a", "send")]], checkpointer=InMemorySaver(), **options
    )
    out = await soon(it.ask())
    assert sent == ["a"]
    assert not out.get("__interrupt__"), "its end is known"
    assert status(out) == "failed"
    assert out["execution_step_results"]["a"]["success"] is False
    assert out["control_error_info"]["classification"]["severity"] == "critical"
    said = last_words(out) + str(out["control_error_info"]).lower()
    assert "done" in said or "happened" in said, "the user learns that the effect is done"


@pytest.mark.parametrize("effect", ["none", "idempotent"])
async def test_other_steps_are_tried_again_for_their_output(
    agent: Any, step: Any, make: Any, sent: list[str], effect: str
) -> None:
    it = agent(
        Gauge,
        make(effect),
        plans=[[step("a", "send")]],
        checkpointer=InMemorySaver(),
        behaviors=[Instead("finalize", _refuse_output)],
    )
    assert status(await soon(it.ask())) == "failed"
    assert sent == ["a", "a", "a"]


@pytest.mark.may_block
@pytest.mark.parametrize("where", ["memory", "sqlite"])
@pytest.mark.parametrize("stage", ["acquire", "finalize", "observe"])
async def test_the_end_is_kept_before_anything_looks_at_the_result(
    agent: Any, step: Any, make: Any, sent: list[str], tmp_path: Any, where: str, stage: str
) -> None:
    """Stopped when the call has returned and nothing else is through: the result comes back."""
    returned, first = asyncio.Event(), [True]

    async def hold(attempt: Any, call_next: Any) -> Any:
        result = await call_next()
        if attempt.capability == "send" and first:
            first.clear()
            returned.set()
            await asyncio.Event().wait()
        return result

    async def stopped(saver: Any) -> None:
        it = agent(
            Gauge,
            make(),
            plans=[[step("a", "send")]],
            checkpointer=saver,
            behaviors=[Instead(stage, hold)],
        )
        running = asyncio.ensure_future(it.ask())
        await soon(returned.wait())
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        out = await soon(it.graph.ainvoke(None, it.config()))
        assert not out.get("__interrupt__"), "the end was written, so nobody has to be asked"
        assert (status(out), sent) == ("completed", ["a"])
        assert out["capability_context_data"]["GAUGE"]["a"]["value"] == 1

    if where == "memory":
        await stopped(InMemorySaver())
    else:
        async with open_saver(f"sqlite:///{tmp_path}/threads.db") as saver:
            await stopped(saver)


async def test_a_time_limit_leaves_an_effect_unknown(
    agent: Any, step: Any, make: Any, sent: list[str]
) -> None:
    capability = make(waits=True, timeout_seconds=0.05)
    it = agent(Gauge, capability, plans=[[step("a", "send")]], checkpointer=InMemorySaver())
    out = await soon(it.ask())
    assert question(out)["steps"][0]["kind"] == "unknown_outcome"
    assert sent == ["a"]


async def test_all_tries_of_an_effect_have_one_key(
    agent: Any, step: Any, make: Any, sent: list[str]
) -> None:
    keys: dict[str, list[str]] = {}

    async def note(attempt: Any, call_next: Any) -> Any:
        if attempt.capability == "send":
            keys.setdefault(attempt.key, []).append(attempt.idempotency_key)
            if attempt.number < 3:
                raise CapabilityError("busy", severity=ErrorSeverity.RETRIABLE)
        return await call_next()

    it = agent(
        Gauge,
        make("idempotent"),
        plans=[[step("a", "send"), step("b", "send")]],
        checkpointer=InMemorySaver(),
        behaviors=[Instead("timeout", note)],
    )
    assert status(await soon(it.ask())) == "completed"
    assert {len(found) for found in keys.values()} == {3}
    names = {key: set(found) for key, found in keys.items()}
    assert all(len(found) == 1 and "" not in found for found in names.values())
    assert names["a"] != names["b"], "equal steps of one plan are two effects"


@pytest.mark.parametrize("then", ["raises", "calls again"])
@pytest.mark.parametrize("stage", ["idempotency", "timeout", "call"])
@pytest.mark.parametrize("saver", [None, InMemorySaver()], ids=["unsaved", "saved"])
async def test_what_stands_inside_the_ledger_cannot_repeat_an_effect(
    agent: Any, step: Any, saver: Any, stage: str, then: str
) -> None:
    paid: list[int] = []

    @capability_node(effect="once")
    async def pay() -> Gauge:
        """Pay."""
        paid.append(1)
        return Gauge(value=1)

    async def act(attempt: Any, call_next: Any) -> Any:
        found = await call_next()
        if then == "raises":
            raise ConnectionError("the audit is away")
        return await call_next() or found

    behaviors: Any = [Instead(stage, act)]
    it = agent(Gauge, pay, plans=[[step("a", "pay")]], checkpointer=saver, behaviors=behaviors)
    out = await soon(it.ask(thread=f"{stage} {then}"))
    assert paid == [1]
    assert status(out) == "failed"
    assert "effect of" in last_words(out)
    assert "done" in last_words(out)
