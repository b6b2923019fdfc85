"""Nonsense from outside: never a hang, never an error that is not the project's own."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langgraph.types import Command
from pydantic import BaseModel, Field

from capgraph import BaseCapability, CapabilityContext, Registry, build_graph, capability_node
from capgraph.approvals import ApprovalDecision, parse_decisions, plan_request, step_request
from capgraph.configs.errors import CapgraphError
from capgraph.configs.limits import Limits
from capgraph.configs.settings import load_settings
from capgraph.state import TurnView
from capgraph.stores import open_saver
from tests.support import PATIENCE
from tests.support.sweeps import examples

pytestmark = pytest.mark.may_block
FUZZ = settings(
    max_examples=examples(25),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class Item(CapabilityContext):
    text: str


class Amount(BaseModel):
    amount: int = Field(1, gt=0)


@capability_node
class Make(BaseCapability):
    """Makes one."""

    name = "make"
    description = "Make an item"
    provides = ["ITEM"]
    requires_approval = True
    Parameters = Amount

    async def execute(self) -> Item:
        return Item(text="made")


def registry() -> Registry:
    found = Registry()
    found.register(Item)
    found.register(Make)
    return found


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(["make", "respond", "ITEM", "a", "b", "approve", "reject", "plan"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(max_size=8)
            | st.sampled_from(["a", "plan", "decision", "parameters", "amount", "steps", "reason"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
STEP = st.fixed_dictionaries(
    {},
    optional={
        "context_key": st.sampled_from(["a", "b", ""]) | JSON,
        "capability": st.sampled_from(["make", "respond", "router"]) | JSON,
        "task_objective": st.just("Do it") | JSON,
        "expected_output": st.sampled_from(["ITEM", None]) | JSON,
        "parameters": st.just({"amount": 2}) | JSON,
        "inputs": st.just([{"ITEM": "a"}]) | JSON,
        "more": JSON,
    },
)
PLAN = st.fixed_dictionaries({"steps": st.lists(STEP, max_size=4)}) | JSON


async def _bounded(call: Any) -> Any:
    async with asyncio.timeout(PATIENCE):
        return await call


CONFIG: Any = {"configurable": {"thread_id": "1"}}


async def _outcome(graph: Any, given: Any) -> Any:
    """Run a turn: what came out, or ``None`` when it ended with an error of the project."""
    try:
        out = await graph.ainvoke(given, CONFIG)
    except CapgraphError:
        return None
    assert "__interrupt__" in out or out["execution_outcome"]["status"]
    return out


@FUZZ
@given(PLAN)
def test_plans(plan: Any) -> None:
    async def run() -> None:
        async with open_saver("sqlite://:memory:") as saver:
            graph = build_graph(registry(), checkpointer=saver)
            start = {"messages": [("user", "Make one")], "planning_execution_plan": plan}
            await _outcome(graph, start)

    asyncio.run(_bounded(run()))


DECISION = st.fixed_dictionaries(
    {"decision": st.sampled_from(["approve", "edit", "reject", "respond", "skip", "done"]) | JSON},
    optional={
        "parameters": st.just({"amount": 3}) | JSON,
        "steps": st.lists(STEP, max_size=3) | JSON,
        "outputs": JSON,
        "reason": st.text() | JSON,
        "message": st.text() | JSON,
        "remember": st.fixed_dictionaries({}, optional={"scope": JSON, "until": JSON}) | JSON,
    },
)
ANSWER = JSON | st.dictionaries(st.sampled_from(["a", "plan", "b"]), DECISION, max_size=3)


@FUZZ
@given(ANSWER, st.booleans(), st.sampled_from(["step", "unknown_outcome"]))
def test_answers_are_read(answer: Any, whole: bool, kind: str) -> None:
    plan = {"steps": [{"context_key": "a", "capability": "make"}], "stamp": {"id": "x"}}
    state = {
        "planning_execution_plan": plan,
        "execution_pending_approvals": {"a": {"kind": kind, "capability": "make"}},
    }
    view, known = TurnView(state), registry()
    question = plan_request(view, known) if whole else step_request(["a"], view, known)
    answers, problems = parse_decisions(answer, question, known, Limits(), view)
    assert all(isinstance(found, ApprovalDecision) for found in answers.values())
    assert problems or set(answers) == {step["context_key"] for step in question["steps"]}
    assert all(len(problem.path + problem.message) < 3000 for problem in problems)


@FUZZ
@given(ANSWER)
def test_answers_are_acted_on(answer: Any) -> None:
    async def run() -> None:
        async with open_saver("sqlite://:memory:") as saver:
            graph = build_graph(registry(), checkpointer=saver)
            plan = {"steps": [{"context_key": "a", "capability": "make", "task_objective": "x"}]}
            start = {"messages": [("user", "Make one")], "planning_execution_plan": plan}
            (asked,) = (await _outcome(graph, start))["__interrupt__"]
            out = await _outcome(graph, Command(resume={asked.id: answer}))
            if out is not None and "__interrupt__" in out:
                assert out["__interrupt__"][0].value["problems"]

    asyncio.run(_bounded(run()))


SETTINGS = st.dictionaries(
    st.sampled_from(["limits", "model", "models", "approvals", "persistence", "modules", "x"])
    | st.text(max_size=5),
    JSON,
    max_size=4,
).map(lambda values: yaml.safe_dump(values, allow_unicode=True))


@FUZZ
@given(SETTINGS | st.text() | st.binary().map(lambda data: data.decode("latin-1")))
def test_configuration(tmp_path: Path, text: str) -> None:
    file = tmp_path / "agent.yml"
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        said = load_settings(file).model_dump_json()
    except CapgraphError as error:
        said = str(error)
    assert "limits" in said or "Fix:" in said


@pytest.fixture(scope="module")
def saved() -> bytes:
    """A checkpoint as it stands in a database."""

    async def make() -> bytes:
        async with open_saver("sqlite://:memory:") as saver:
            assert saver is not None
            graph = build_graph(registry(), checkpointer=saver)
            await graph.ainvoke({"messages": [("user", "Hello")]}, CONFIG)
            found = await saver.aget_tuple(CONFIG)
            assert found is not None
            return saver.serde.dumps_typed(found.checkpoint)[1]

    return asyncio.run(make())


@FUZZ
@given(data=st.data())
def test_checkpoint_bytes(saved: bytes, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(saved) - 1))
    length = data.draw(st.integers(0, 12))
    damaged = saved[:place] + data.draw(st.binary(max_size=12)) + saved[place + length :]
    damaged = data.draw(st.sampled_from([damaged, saved[:place], b""]) | st.binary(max_size=40))

    async def run() -> None:
        async with open_saver("sqlite://:memory:") as saver:
            assert saver is not None
            connection: Any = vars(saver)["conn"]
            graph = build_graph(registry(), checkpointer=saver)
            await graph.ainvoke({"messages": [("user", "Hello")]}, CONFIG)
            statement = "UPDATE checkpoints SET checkpoint = ? WHERE checkpoint_ns = ''"
            await connection.execute(statement, (damaged,))
            await connection.commit()
            await _outcome(graph, {"messages": [("user", "Again")]})

    asyncio.run(_bounded(run()))


def test_an_answer_as_plain_text_of_json_is_not_taken_apart() -> None:
    state = {
        "planning_execution_plan": {"steps": [{"context_key": "a", "capability": "make"}]},
    }
    view, known = TurnView(state), registry()
    question = step_request(["a"], view, known)
    _, problems = parse_decisions(json.dumps({"a": "approve"}), question, known, Limits(), view)
    assert problems
