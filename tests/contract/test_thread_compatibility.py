"""Check of suspended threads before new code is deployed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, ClassVar

import pytest
from langgraph.types import Command
from pydantic import BaseModel

from capgraph import (
    BaseCapability,
    CapabilityContext,
    Registry,
    build_graph,
    capability_node,
    infrastructure_node,
)
from capgraph.approvals import StandingRule, add_rule
from capgraph.base import BaseInfrastructureNode, CapabilityError, ErrorSeverity
from capgraph.evaluation import check_threads
from capgraph.state import AgentState
from capgraph.stores import Persistence, open_saver, open_store
from tests.contract.test_replay import ADD, READ, config, registry, said
from tests.support.toys import Reading, Total, add, measure

KEY = "0123456789abcdef"
PAY = {"context_key": "c", "capability": "pay", "inputs": [{"TOTAL": "b"}]}


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Any) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("server").database())
    return f"sqlite:///{tmp_path}/t.db"


@pytest.fixture
async def saver(url: str) -> AsyncIterator[Any]:
    async with open_saver(url, encryption_key=KEY) as opened:
        yield opened


class _Pay(BaseCapability):
    name = "pay"
    description = "Pays"
    requires: ClassVar[list[str]] = ["TOTAL"]
    provides: ClassVar[list[str]] = ["READING"]
    effect = "once"
    requires_approval = True

    class Parameters(BaseModel):
        tip: int = 0

    async def execute(self) -> Reading:
        return Reading(value=1)


pay = capability_node(type("Pay", (_Pay,), {}))


def payer(**attributes: Any) -> Any:
    return capability_node(type("Pay", (_Pay,), attributes))


async def rows(saver: Any) -> list[Any]:
    """Return all that the database holds of threads."""
    found = Persistence.of(saver).tables
    assert found is not None
    tables = [
        f"SELECT * FROM {name} ORDER BY 1, 2, 3"
        for name in ("checkpoints", found.placeholders["writes"])
    ]
    return [(await found.run(statement))[1] for statement in tables]


async def told(saver: Any, known: Registry, **more: Any) -> list[tuple[str, str]]:
    before = await rows(saver)
    found = await check_threads(saver, known, **more)
    assert await rows(saver) == before
    return [(one.part, one.text) for one in found.incompatibilities]


@pytest.fixture
async def waiting(saver: Any) -> Any:
    graph = build_graph(registry(measure, add, pay), checkpointer=saver)
    out = await graph.ainvoke(said("Pay", READ, ADD, PAY), config())
    assert out["__interrupt__"]
    await graph.ainvoke(said("measure the value"), config(thread="done"))
    return saver


async def test_same_code_is_compatible(waiting: Any) -> None:
    found = await check_threads(waiting, registry(measure, add, pay))
    assert (found.threads, found.incompatibilities) == (1, ())
    # What is done does not have to be there any more.
    assert await told(waiting, registry(Reading, Total, pay)) == []


class Sum(CapabilityContext):
    CONTEXT_TYPE: ClassVar[str] = "TOTAL"
    value: float
    unit: str


class Strict(BaseModel):
    tip: int
    to: str


class Tipped(BaseModel):
    tip: int = 5


@pytest.mark.parametrize(
    ("known", "part", "word"),
    [
        ([measure, add], "plan", "pay"),
        ([Sum, Reading, pay], "context", "unit"),
        ([measure, add, payer(Parameters=Strict)], "plan", "parameters.to"),
        ([measure, add, payer(requires=["READING", "TOTAL"])], "plan", "READING"),
        ([measure, add, payer(Parameters=Tipped)], "approval", "'c' (pay)"),
    ],
)
async def test_incompatible_changes_are_reported(
    waiting: Any, known: list[Any], part: str, word: str
) -> None:
    found = await told(waiting, registry(*known))
    assert [text for kind, text in found if kind == part and word in text], found


async def test_approval_of_other_values_is_reported(saver: Any) -> None:
    class Stops(RuntimeError):
        pass

    def crash(*_: Any, **__: Any) -> Any:
        raise Stops

    graph = build_graph(registry(measure, add, pay), checkpointer=saver)
    await graph.ainvoke(said("Pay", READ, ADD, PAY), config())
    # The process ends between the agreement and the step.
    stopping = build_graph(registry(measure, add, pay), checkpointer=saver)
    run: Any = stopping.astream(
        Command(resume={"c": {"decision": "approve"}}), config(), interrupt_after=["approval"]
    )
    async for _ in run:
        pass
    assert await told(saver, registry(measure, add, pay)) == []
    [(part, text)] = await told(saver, registry(measure, add, payer(Parameters=Tipped)))
    assert (part, "is for other values" in text) == ("approval", True)


async def test_removed_node_and_key_are_reported(saver: Any) -> None:
    class Own(AgentState, total=False):
        mine: str

    @infrastructure_node(before="classifier")
    class Note(BaseInfrastructureNode):
        name = "note"
        description = "Notes"

        @staticmethod
        async def execute(state: Any) -> Any:
            return {"mine": "x"}

    options: Any = {"state_schema": Own}
    graph = build_graph(registry(measure, Note), checkpointer=saver, **options)
    await graph.ainvoke(said("measure the value"), config(), interrupt_before=["classifier"])
    await graph.ainvoke(said("measure it"), config(thread="2"), interrupt_before=["note"])
    assert await told(saver, registry(measure, Note), **options) == []
    found = await told(saver, registry(measure))
    assert any("'mine' is not part of the state schema" in text for _, text in found)
    assert any("The next node 'note' does not exist" in text for _, text in found)


async def test_newer_version_invalid_value_and_digest_are_reported(waiting: Any) -> None:
    at = await waiting.aget_tuple(config())
    at.checkpoint["v"] = 99
    versions = at.checkpoint["channel_versions"]
    for name, value in {"planning_excluded": "odd", "planning_accepted": "0" * 32}.items():
        at.checkpoint["channel_values"][name] = value
        versions[name] = "00000000000000000000000000000099.0"
    parent = {**at.parent_config["configurable"], "checkpoint_ns": ""}
    await waiting.aput({"configurable": parent}, at.checkpoint, at.metadata, versions)
    found = await told(waiting, registry(measure, add, pay))
    assert any("newer version" in text for _, text in found)
    assert any("planning_excluded" in text for _, text in found)
    assert any("digest" in text for part, text in found if part == "plan")


async def test_encryption_key_and_rule_of_removed_capability_are_reported(
    waiting: Any, url: str
) -> None:
    async with open_saver(url, encryption_key="fedcba9876543210") as other:
        found = await check_threads(other, registry(measure, add, pay))
    assert {one.part for one in found.incompatibilities} == {"state"}
    assert {one.thread_id for one in found.incompatibilities} == {"t", "done"}
    async with open_store(url) as store:
        await add_rule(store, StandingRule(capability="mail"))
        [(part, text)] = await told(waiting, registry(measure, add, pay), store=store)
    assert (part, "'mail', which does not exist" in text) == ("rule", True)


async def test_an_unfinished_turn(saver: Any) -> None:
    @capability_node(name="measure")
    async def breaks() -> Reading:
        """Measure the value."""
        raise CapabilityError("The house burns.", severity=ErrorSeverity.FATAL)

    graph = build_graph(registry(breaks, add), checkpointer=saver)
    with pytest.raises(Exception, match="house"):
        await graph.ainvoke(said("Go", READ, ADD), config())
    assert await told(saver, registry(measure, add)) == []
    assert any("add" in text for _, text in await told(saver, registry(measure)))


async def test_approvals_of_single_elements_are_checked(saver: Any) -> None:
    @capability_node
    async def several() -> list[int]:
        """Give numbers."""
        return [1, 2]

    over = {"for_each": {"of": "n"}, "parameters": {"tip": {"$from": "item"}}}
    steps = ({"context_key": "n", "capability": "several"}, READ, ADD, {**PAY, **over})
    graph = build_graph(registry(measure, add, several, pay), checkpointer=saver)
    await graph.ainvoke(said("Pay", *steps), config())
    assert await told(saver, registry(measure, add, several, pay)) == []
    odd = registry(measure, add, several, payer(Parameters=Doubled))
    found = await told(saver, odd)
    assert [part for part, _ in found] == ["approval", "approval"]
    assert "'c[0]' (pay)" in found[0][1]
    answer = {"c[0]": "approve", "c[1]": {"decision": "edit", "parameters": {"tip": 9}}}
    run: Any = graph.astream(Command(resume=answer), config(), interrupt_after=["approval"])
    async for _ in run:
        pass
    assert await told(saver, registry(measure, add, several, pay)) == []
    assert ["is for other values" in text for _, text in await told(saver, odd)] == [True, True]


class Doubled(BaseModel):
    tip: int
    twice: bool = True
