"""The audit of whole graphs: who did what, in the saver's database or a file."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, ClassVar

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command

from capgraph import (
    BaseCapability,
    CapabilityContext,
    Verdict,
    bind,
    build_graph,
    capability_node,
)
from capgraph.base.errors import PersistenceError
from capgraph.behaviors import (
    BaseBehavior,
    CircuitBreakerBehavior,
    GuardrailBehavior,
    GuardrailOutcome,
    RateLimitBehavior,
)
from capgraph.configs.errors import ConfigurationError
from capgraph.configs.settings import Settings
from capgraph.governance import Budget, stop
from capgraph.state import AgentState
from capgraph.stores import open_saver
from capgraph.stores.persistence import Persistence
from capgraph.telemetry import AuditLog
from capgraph.telemetry.audit_log import AuditTable
from capgraph.testing import ScriptedModel

SECRET = "pay Ms Miller for her hip"


class Paid(CapabilityContext):
    amount: float


@pytest.fixture
async def saver(tmp_path: Path) -> Any:
    async with open_saver(f"sqlite:///{tmp_path / 't.db'}") as opened:
        yield opened


@pytest.fixture
def pay() -> Any:
    @capability_node
    class Pay(BaseCapability):
        name = "pay"
        description = "Pays"
        provides = [Paid]
        effect = "once"
        done: ClassVar[list[str]] = []

        async def execute(self) -> Paid:
            self.done.append(self.idempotency_key)
            model = self.chat_model()
            if model is not None:
                await model.ainvoke(SECRET)
            return Paid(amount=3.0)

    return Pay


def step(key: str, capability: str) -> dict[str, Any]:
    return {"context_key": key, "capability": capability, "task_objective": SECRET}


PLAN = {"steps": [step("a", "pay"), step("z", "respond")]}
GIVEN: Any = {"messages": [("user", SECRET)], "planning_execution_plan": PLAN}


def told(records: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    return [
        (r["kind"], r["data"].get("status") or r["data"].get("decision") or r["data"].get("role"))
        for r in records
    ]


async def records_of(saver: Any) -> list[dict[str, Any]]:
    rows = Persistence.of(saver).tables
    assert rows is not None
    table = AuditTable(rows)
    assert (await table.averify()).valid
    return [json.loads(line) for line in await table.aread_lines()]


async def test_what_happened_is_kept_beside_the_threads(tmp_path: Path, pay: Any) -> None:
    class Careful:
        async def decide(self, step: Any, view: Any) -> Verdict:
            return Verdict("allow")

    async with open_saver(f"sqlite:///{tmp_path / 't.db'}") as saver:
        model = ScriptedModel(responses=lambda _: SECRET)
        graph = build_graph(
            [Paid, pay], model=model, checkpointer=saver, audit=True, policies=[Careful()]
        )
        config: Any = {"configurable": {"thread_id": "t", "user_id": "ada", "role": "clerk"}}
        await graph.ainvoke(GIVEN, config)
        records = await records_of(saver)
    kinds = told(records)
    assert ("policy", "allow") in kinds
    assert [kind for kind, _ in kinds].index("plan") < kinds.index(("effect", "begun"))
    assert kinds.index(("effect", "begun")) < kinds.index(("effect", "finished"))
    assert ("model", "capability") in kinds
    assert {r["data"].get("thread_id") for r in records} == {"t"}
    assert {r["data"]["by"]["user_id"] for r in records} == {"ada"}
    begun = next(r for r in records if r["data"].get("status") == "begun")
    assert begun["data"]["step_id"] == "a"
    assert SECRET not in json.dumps(records), "digests, not content"


@pytest.mark.row("T35")
async def test_who_agreed_is_kept(tmp_path: Path, pay: Any) -> None:
    @capability_node
    class Ask(pay):  # type: ignore[misc]
        name = "ask"
        description = "Asks first"
        requires_approval = True

    plan = {"steps": [step("a", "ask"), step("z", "respond")]}
    async with open_saver(f"sqlite:///{tmp_path / 't.db'}") as saver:
        graph = build_graph([Paid, Ask], checkpointer=saver, audit=True)
        config: Any = {"configurable": {"thread_id": "t", "user_id": "ada"}}
        await graph.ainvoke({**GIVEN, "planning_execution_plan": plan}, config)
        config = {"configurable": {"thread_id": "t", "user_id": "bob"}}
        await graph.ainvoke(Command(resume={"a": {"decision": "approve"}}), config)
        records = await records_of(saver)
    [approval] = [r["data"] for r in records if r["kind"] == "approval"]
    assert approval["decision"] == "approve"
    assert approval["by"]["user_id"] == "bob"
    assert approval["step"] == "a"
    order = [(r["kind"], r["data"].get("status")) for r in records]
    assert order.index(("approval", None)) < order.index(("effect", "begun"))


@pytest.mark.may_block
async def test_a_refusal_is_kept(tmp_path: Path, pay: Any) -> None:
    class Never:
        async def decide(self, step: Any, view: Any) -> Verdict:
            return Verdict("deny", problems=[SECRET])

    log = AuditLog(tmp_path / "a.jsonl", signing_key="k")
    graph = build_graph([Paid, pay], audit=log, policies=[Never()])
    await graph.ainvoke(GIVEN)
    assert (await log.verify()).valid
    text = log.path.read_text()
    assert ("policy", "deny") in told(await log.records())
    assert SECRET not in text
    assert pay.done == []


async def refused(saver: Any, graph: Any, given: Any = GIVEN) -> list[dict[str, Any]]:
    config: Any = {"configurable": {"thread_id": "t", "user_id": "ada"}}
    await graph.ainvoke(given, config)
    records = await records_of(saver)
    assert SECRET not in json.dumps(records), "digests, not content"
    return [{"kind": r["kind"], **r["data"]} for r in records if r["kind"] in ("refused", "guard")]


@pytest.mark.row("T35")
async def test_a_stop_is_kept(saver: Any, pay: Any) -> None:
    graph = build_graph([Paid, pay], checkpointer=saver, audit=True)
    await stop(saver, thread="t", reason=SECRET)
    [found, *_] = await refused(saver, graph)
    assert (found["code"], found["by"]) == ("CG-STOPPED", {"user_id": "ada"})
    assert pay.done == []


async def test_what_a_budget_does_not_hold_is_kept(saver: Any, pay: Any) -> None:
    graph = build_graph([Paid, pay], checkpointer=saver, audit=True, budget=Budget(tool_calls=0))
    [found] = await refused(saver, graph)
    assert (found["code"], found["limit"], found["value"]) == ("CG-LIMIT", "tool_calls", 0)
    assert found["turn_id"]
    assert pay.done == []


@pytest.mark.row("T35")
async def test_what_guards_say_is_kept(saver: Any, pay: Any) -> None:
    class Small:
        def check_pre(self, *, role: str, tool: str, arguments: Any) -> GuardrailOutcome:
            if tool == "pay":
                return GuardrailOutcome(False, SECRET, "deny")
            return GuardrailOutcome(True)

        def check_post(self, value: Any, *, role: str, tool: str) -> GuardrailOutcome:
            return GuardrailOutcome(True, None, "rewrite", "-")

    graph = build_graph(
        [Paid, pay],
        checkpointer=saver,
        audit=True,
        behaviors=[GuardrailBehavior(guardrails=[Small()])],
    )
    found = await refused(saver, graph)
    said = [(f["kind"], f.get("decision"), f.get("tool"), f.get("step_id")) for f in found]
    assert ("guard", "deny", "pay", "a") in said
    assert ("guard", "rewrite", "error", None) in [(*one[:3], None) for one in said]
    [denied] = [f for f in found if f["kind"] == "refused"]
    assert (denied["code"], denied["step_id"]) == ("CG-GUARDRAIL", "a")


async def test_what_a_limiter_and_a_breaker_refuse_is_kept(saver: Any) -> None:
    @capability_node
    class Read(BaseCapability):
        name = "read"
        description = "Reads"
        behaviors = [RateLimitBehavior(0.001, wait_on_limit=False)]

        async def execute(self) -> dict[str, Any]:
            return {}

    @capability_node
    class Call(BaseCapability):
        name = "call"
        description = "Calls"
        behaviors = [CircuitBreakerBehavior(failure_threshold=1)]

        async def execute(self) -> dict[str, Any]:
            raise ConnectionError(SECRET)

    graph = build_graph([Read, Call], checkpointer=saver, audit=True)
    steps = [step("a", "read"), step("b", "read"), step("z", "respond")]
    found = await refused(saver, graph, {**GIVEN, "planning_execution_plan": {"steps": steps}})
    assert [f["key"] for f in found] == ["read"]
    steps = [step("a", "call"), step("z", "respond")]
    given = {"messages": [("user", "Call.")], "planning_execution_plan": {"steps": steps}}
    found = await refused(saver, graph, given)
    assert ("CG-CIRCUIT-OPEN", "call") in [(f["code"], f.get("name")) for f in found]


async def test_what_stands_in_for_a_refused_call_of_a_model_hides_nothing(saver: Any) -> None:
    class Instead(BaseBehavior):
        async def on_error(self, context: Any, error: Exception) -> Any:
            return AIMessage("Nothing to add.")

    model = ScriptedModel(responses=lambda _: "Hello.")
    around = [RateLimitBehavior(0.001, wait_on_limit=False), Instead()]
    graph = build_graph(
        [Paid],
        model={"answer": {"model": model, "behaviors": around}},
        checkpointer=saver,
        audit=True,
    )
    given = {
        "messages": [("user", "Hello.")],
        "planning_execution_plan": {"steps": PLAN["steps"][1:]},
    }
    assert await refused(saver, graph, given) == []
    [found] = await refused(saver, graph, {**given, "messages": [("user", "And now?")]})
    assert found["key"] == "model answer"


@pytest.mark.row("T35")
async def test_what_cannot_be_written_stops_the_effect(tmp_path: Path, pay: Any) -> None:
    log = AuditLog(tmp_path / "no" / "folder" / "a.jsonl")
    graph = build_graph([Paid, pay], audit=log)
    out = await graph.ainvoke(GIVEN)
    assert pay.done == []
    assert out["execution_outcome"]["status"] == "failed"
    assert "audit" in out["messages"][-1].content


async def test_what_cannot_be_written_harms_nothing_else(tmp_path: Path) -> None:
    @capability_node
    class Read(BaseCapability):
        name = "pay"
        description = "No effect"
        provides = [Paid]

        async def execute(self) -> Paid:
            return Paid(amount=1.0)

    log = AuditLog(tmp_path / "no" / "folder" / "a.jsonl")
    out = await build_graph([Paid, Read], audit=log).ainvoke(GIVEN)
    assert out["execution_outcome"]["status"] == "completed"


async def test_without_a_place_no_effect_begins(pay: Any) -> None:
    graph = build_graph([Paid, pay], audit=True)
    out = await graph.ainvoke(GIVEN)
    assert pay.done == []
    assert "audit=True" in out["messages"][-1].content
    with pytest.raises(ConfigurationError, match="AuditLog"):
        build_graph([Paid, pay], audit="yes")  # type: ignore[arg-type]


async def test_threads_in_memory_have_their_audit_in_memory(pay: Any) -> None:
    graph = build_graph([Paid, pay], checkpointer=InMemorySaver(), audit=True)
    config: Any = {"configurable": {"thread_id": "t"}}
    await graph.ainvoke(GIVEN, config)
    assert len(pay.done) == 1


async def test_the_settings_ask_for_an_audit(tmp_path: Path, pay: Any) -> None:
    settings = Settings(audit={"keep": True, "signing_key": "k"})
    async with open_saver(f"sqlite:///{tmp_path / 't.db'}") as saver:
        graph = build_graph([Paid, pay], checkpointer=saver, settings=settings)
        await graph.ainvoke(GIVEN, {"configurable": {"thread_id": "t"}})
        rows = Persistence.of(saver).tables
        assert rows is not None
        assert (await AuditTable(rows, signing_key="k").averify()).records > 2
        assert not await AuditTable(rows, signing_key="other").averify()
        off = build_graph([Paid, pay], checkpointer=saver, settings=settings, audit=False)
        before = (await AuditTable(rows).averify()).records
        await off.ainvoke(GIVEN, {"configurable": {"thread_id": "u"}})
        assert (await AuditTable(rows).averify()).records == before


@pytest.mark.may_block
async def test_a_node_of_a_graph_of_ones_own_is_audited(tmp_path: Path, pay: Any) -> None:
    log = AuditLog(tmp_path / "a.jsonl")
    services = bind([Paid, pay], audit=log)
    builder = StateGraph(AgentState)
    builder.add_node("pay", services.node(pay))
    builder.add_edge(START, "pay")
    await builder.compile(checkpointer=InMemorySaver()).ainvoke(
        {"messages": [("user", "x")]}, {"configurable": {"thread_id": "t"}}
    )
    assert [t for t in told(await log.records()) if t[0] == "effect"] == [
        ("effect", "begun"),
        ("effect", "finished"),
    ]


async def test_an_idempotent_effect_is_audited(tmp_path: Path) -> None:
    @capability_node
    class Put(BaseCapability):
        name = "pay"
        description = "Puts"
        provides = [Paid]
        effect = "idempotent"

        async def execute(self) -> Paid:
            return Paid(amount=1.0)

    async with open_saver(f"sqlite:///{tmp_path / 't.db'}") as saver:
        graph = build_graph([Paid, Put], checkpointer=saver, audit=True)
        await graph.ainvoke(GIVEN, {"configurable": {"thread_id": "t"}})
        kinds = told(await records_of(saver))
    assert [t for t in kinds if t[0] == "effect"] == [("effect", "begun"), ("effect", "finished")]


async def test_a_chain_that_was_changed_takes_no_effect_on(tmp_path: Path, pay: Any) -> None:
    async with open_saver(f"sqlite:///{tmp_path / 't.db'}") as saver:
        graph = build_graph([Paid, pay], checkpointer=saver, audit=True)
        await graph.ainvoke(GIVEN, {"configurable": {"thread_id": "t"}})
        rows = Persistence.of(saver).tables
        assert rows is not None
        await rows.run("UPDATE capgraph_audit SET line = 'x' WHERE seq > 1")
        table = AuditTable(rows)
        assert not await table.averify()
        with pytest.raises(PersistenceError, match="audit"):
            await table.awrite([("effect", {})])


KILLED = """
    import asyncio, os, sys
    from capgraph import CapabilityContext, build_graph, capability_node
    from capgraph.stores import open_saver

    path, dies = sys.argv[1:]

    class Paid(CapabilityContext):
        amount: float

    @capability_node(effect="once", on_unknown="rerun")
    async def pay() -> Paid:
        \"\"\"Pay.\"\"\"
        if dies == "yes":
            os._exit(9)
        return Paid(amount=1.0)

    PLAN = {"steps": [
        {"context_key": "a", "capability": "pay", "task_objective": "pay"},
        {"context_key": "z", "capability": "respond", "task_objective": "say"},
    ]}

    async def main():
        async with open_saver(f"sqlite:///{path}") as saver:
            graph = build_graph([pay, Paid], checkpointer=saver, audit=True)
            given = {"messages": [("user", "pay")], "planning_execution_plan": PLAN}
            config = {"configurable": {"thread_id": "t"}}
            await graph.ainvoke(given if dies == "yes" else None, config)

    asyncio.run(main())
"""


@pytest.mark.may_block
async def test_a_run_that_was_killed_in_its_effect_is_told_whole(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    for dies, code in (("yes", 9), ("no", 0)):
        ended = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(KILLED), str(path), dies], check=False
        )
        assert ended.returncode == code
    async with open_saver(f"sqlite:///{path}") as saver:
        records = await records_of(saver)
    effects = [
        (r["data"]["status"], r["data"].get("run")) for r in records if r["kind"] == "effect"
    ]
    assert effects == [("begun", 1), ("begun", 2), ("finished", None)]
    assert len({r["data"]["effect"] for r in records if r["kind"] == "effect"}) == 1
    assert len({r["data"]["run_id"] for r in records}) == 2
    assert len({r["data"]["digest"] for r in records if r["kind"] == "plan"}) == 1
