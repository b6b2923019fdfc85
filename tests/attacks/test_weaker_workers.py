"""Workers with fewer capabilities or weaker rules than the client that submitted a turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from capgraph import BaseCapability, build_graph, capability_node
from capgraph.base import ApprovalPolicy, PersistenceError
from capgraph.base.ports import Caller, Verdict
from capgraph.behaviors import BaseBehavior
from capgraph.configs.settings import Settings
from capgraph.governance import Budget, InformationFlow, PolicyEngine, PolicyRule, TimedOut
from capgraph.governance.policies import PolicyActionData
from capgraph.scale import Client, Schedule
from capgraph.scale.jobs import TurnJob
from capgraph.scale.run_executor import RunExecutor
from capgraph.scale.worker import Worker
from capgraph.stores import list_suspended_threads, open_saver

ANN = Caller("ann", role="viewer")
READ = {"steps": [{"context_key": "a", "capability": "read_level"}]}
OPEN = {"steps": [{"context_key": "v", "capability": "open_valve"}]}
STRICT: dict[str, Any] = {
    "permissions": {
        "roles": [{"role": "viewer", "mode": "full_access", "denied_tools": ["flood"]}]
    },
    "policies": [{"use": "information_flow"}],
    "budgets": [{"steps": 100, "per": "user"}],
    "limits": {"max_steps": 50, "run_timeout_seconds": 60},
    "approvals": {"plans": False, "ungrounded": "refuse"},
}
WEAKER: dict[str, dict[str, Any]] = {
    "no permissions": {**STRICT, "permissions": None},
    "wider permissions": {
        **STRICT,
        "permissions": {"roles": [{"role": "viewer", "mode": "full_access"}]},
    },
    "no policy": {**STRICT, "policies": []},
    "no budget": {**STRICT, "budgets": []},
    "higher limit": {**STRICT, "limits": {"max_steps": 51, "run_timeout_seconds": 60}},
    "no limit": {**STRICT, "limits": {"max_steps": 50, "run_timeout_seconds": None}},
    "approvals": {**STRICT, "approvals": {"plans": False, "ungrounded": "allow"}},
}
opened: list[str] = []


@capability_node
def read_level() -> float:
    """Read the level of the tank."""
    return 2.5


@capability_node
def flood() -> float:
    """Flood the tank."""
    return 9.5


class Opening(BaseModel):
    litres: float = 2.0


class OtherOpening(BaseModel):
    litres: float = 3.0


def valve(parameters: type[BaseModel] = Opening) -> Any:
    @capability_node
    class OpenValve(BaseCapability):
        name = "open_valve"
        description = "Open the valve of the tank."
        effect = "once"
        requires_approval = True
        Parameters = parameters

        async def execute(self) -> None:
            opened.append(str(self.parameters))

    return OpenValve


class KeptJobs:
    """Engine whose jobs the test hands to workers."""

    async def submit(self, job: TurnJob, *, is_resubmission: bool = False) -> None:
        """Keep nothing: the run is in the log."""

    async def schedule(self, name: str, cron: str, *, after: float = 0.0) -> None:
        """Keep nothing: the test starts the turns of the schedule."""


class Place:
    """Client and workers on one database."""

    def __init__(self, saver: Any) -> None:
        self.saver = saver

    def graph(self, settings: dict[str, Any] | None = None, *capabilities: Any) -> Any:
        known = capabilities or (read_level, flood, valve())
        return build_graph(known, settings=Settings(**(settings or {})), checkpointer=self.saver)

    def client(self, graph: Any) -> Client:
        return Client(graph, graph.persistence.open_run_log(), KeptJobs())  # type: ignore[arg-type]

    async def work(self, graph: Any, thread: str = "t") -> dict[str, str]:
        log = graph.persistence.open_run_log()
        worker = RunExecutor(graph, log, checks_rules=True)
        report = await worker.advance(TurnJob(thread, ""))
        await log.flush()
        return dict(report.statuses)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    opened.clear()
    async with open_saver(f"sqlite:///{tmp_path / 't.db'}") as saver:
        yield Place(saver)


@asynccontextmanager
async def refused(reason: str = "") -> AsyncIterator[None]:
    with pytest.raises(PersistenceError) as caught:
        yield
    assert reason in caught.value.facts["reason"]


@pytest.mark.parametrize("kind", sorted(WEAKER))
async def test_a_worker_with_weaker_rules_leaves_the_turn_to_others(
    place: Place, kind: str
) -> None:
    strict = place.graph(STRICT)
    await place.client(strict).submit("t", plan=READ, caller=ANN)
    async with refused():
        await place.work(place.graph(WEAKER[kind]))
    assert list((await place.work(strict)).values()) == ["completed"]


async def test_a_worker_with_stricter_rules_executes_the_turn(place: Place) -> None:
    await place.client(place.graph()).submit("t", plan=READ, caller=ANN)
    stricter = {name: STRICT[name] for name in ("permissions", "policies", "budgets", "limits")}
    assert list((await place.work(place.graph(stricter))).values()) == ["completed"]


async def test_a_worker_without_a_capability_leaves_the_turn_to_others(place: Place) -> None:
    await place.client(place.graph()).submit("t", plan=OPEN, caller=ANN)
    async with refused("open_valve"):
        await place.work(place.graph(None, read_level, flood))
    assert list((await place.work(place.graph())).values()) == ["waiting"]


@pytest.mark.parametrize("lacks", ["the capability", "its declarations"])
async def test_a_decision_reaches_a_worker_that_can_apply_it(place: Place, lacks: str) -> None:
    graph = place.graph()
    client = place.client(graph)
    await client.submit("t", plan=OPEN, caller=ANN)
    await place.work(graph)
    (question,) = (await client.status("t")).questions
    assert await client.answer("t", question, "approve", ANN)
    other = (
        (read_level, flood)
        if lacks == "the capability"
        else (read_level, flood, valve(OtherOpening))
    )
    async with refused("open_valve"):
        await place.work(place.graph(None, *other))
    assert opened == []
    assert list((await place.work(graph)).values()) == ["completed"]
    assert opened == ["litres=2.0"]


async def test_a_weak_worker_that_wakes_a_thread_does_not_weaken_its_rules(place: Place) -> None:
    strict, weak = place.graph(STRICT), place.graph(WEAKER["no permissions"])
    plan = {"steps": [{**READ["steps"][0], "wait_until": 0.5}]}
    await place.client(strict).submit("t", plan=plan, caller=ANN)
    assert list((await place.work(strict)).values()) == ["waiting"]
    await asyncio.sleep(0.6)
    (due,) = await list_suspended_threads(place.saver, now=time.time())
    await place.client(weak).wake(due, keeps_rules=True)
    async with refused():
        await place.work(weak)
    assert list((await place.work(strict)).values()) == ["completed"]


async def test_a_turn_that_was_stopped_ends_on_any_worker(place: Place) -> None:
    client = place.client(place.graph(STRICT))
    await client.submit("t", plan=READ, caller=ANN)
    await client.log.request_stop("t")
    assert list((await place.work(place.graph())).values()) == ["stopped"]


@pytest.mark.parametrize("kind", sorted(WEAKER))
async def test_a_schedule_has_the_rules_of_its_creator(place: Place, kind: str) -> None:
    strict, weak = place.graph(STRICT), place.graph(WEAKER[kind])
    await place.client(strict).schedule(Schedule("s", "0 7 * * *", "Level?", "t", ANN))
    await Worker(place.client(weak), ["turns"]).start_scheduled("s", time.time())
    async with refused():
        await place.work(weak)
    assert list((await place.work(strict)).values()) == ["completed"]


async def test_a_scheduled_turn_has_the_current_role_of_its_creator(place: Place) -> None:
    """A variant: the creator lost the role after the schedule was made."""
    roles = [{"role": "director", "mode": "full_access"}]
    roles += [{"role": "visitor", "mode": "full_access", "denied_tools": ["read_level"]}]
    graph = place.graph({"permissions": {"roles": roles}})
    creator = Caller("ann", "director", authenticated=True)
    await place.client(graph).submit("t", plan=READ, caller=creator)
    await graph.persistence.roles.record(Caller("ann", "visitor", authenticated=True))
    assert list((await place.work(graph)).values()) == ["failed"]


def capability(name: str = "open_valve", **declared: Any) -> Any:
    """Capability that opens the valve, with declarations."""

    @capability_node(name=name, **{"effect": "once", **declared})
    def open_valve(litres: float = 2.0) -> None:
        """Open the valve of the tank."""
        opened.append(str(litres))

    return open_valve


class Threshold:
    """Step policy that is configured in code."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self.decisions = 0

    async def decide(self, step: Any, view: Any) -> Verdict:
        """Count the decision, and allow the step."""
        self.decisions += 1
        return Verdict("allow")


class Watch(BaseBehavior):
    """Behavior that is configured in code."""

    def __init__(self, limit: float) -> None:
        self.limit = limit


def engine(seconds: float) -> PolicyEngine:
    rule = PolicyRule("late", TimedOut(seconds), [PolicyActionData("abort_phase")])
    return PolicyEngine([rule])


@pytest.mark.parametrize(
    ("strict", "weak"),
    [
        ({"requires_approval": True}, {}),
        ({"requires_approval": ApprovalPolicy(approvers=2)}, {"requires_approval": True}),
        ({"permission": "full_access"}, {}),
        ({"labels": ["untrusted"]}, {}),
        ({"sends_externally": True}, {}),
        ({}, {"effect": "none"}),
        ({}, {"repeatable": True}),
        ({}, {"removes_labels": ["untrusted"]}),
        ({"behaviors": [Watch(1)]}, {"behaviors": [Watch(2)]}),
    ],
)
async def test_a_worker_whose_capability_has_weaker_rules_leaves_a_new_turn(
    place: Place, strict: dict[str, Any], weak: dict[str, Any]
) -> None:
    own = place.graph(None, read_level, capability(**strict))
    await place.client(own).submit("t", plan=READ, caller=ANN)
    async with refused("open_valve"):
        await place.work(place.graph(None, read_level, capability(**weak)))
    assert list((await place.work(own)).values()) == ["completed"]


async def test_a_worker_whose_capability_has_stricter_rules_executes_the_turn(
    place: Place,
) -> None:
    own = place.graph(None, read_level, capability(effect="idempotent"))
    await place.client(own).submit("t", plan=READ, caller=ANN)
    strict = capability(effect="idempotent", requires_approval=True, sends_externally=True)
    graph = place.graph(None, read_level, strict)
    assert list((await place.work(graph)).values()) == ["completed"]


@pytest.mark.parametrize(
    ("strict", "weak"),
    [
        ({"policies": [Threshold(1)]}, {"policies": [Threshold(2)]}),
        ({"policies": [engine(1)]}, {"policies": [engine(600)]}),
        (
            {"policies": [InformationFlow(labels={"personal": "outside"})]},
            {"policies": [InformationFlow()]},
        ),
        ({"budget": Budget(steps=3)}, {"budget": Budget(steps=4)}),
        ({"behaviors": [Watch(1)]}, {"behaviors": [Watch(2)]}),
        ({"behaviors": [Watch(1)]}, {}),
    ],
)
async def test_rules_that_are_passed_in_code_are_compared_by_their_arguments(
    place: Place, strict: dict[str, Any], weak: dict[str, Any]
) -> None:
    def graph(options: dict[str, Any]) -> Any:
        return build_graph([read_level], checkpointer=place.saver, **options)

    await place.client(graph(strict)).submit("t", plan=READ, caller=ANN)
    async with refused("policy"):
        await place.work(graph(weak))
    # Counters of a policy are not compared.
    if strict.get("policies") and isinstance(strict["policies"][0], Threshold):
        strict["policies"][0].decisions += 1
    assert list((await place.work(graph(strict))).values()) == ["completed"]
