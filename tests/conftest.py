"""Hostile defaults for every test: no network, no blocking call in async code, no real model."""

from __future__ import annotations

import gc
import logging
import os
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import hypothesis
import pytest
from blockbuster import BlockBuster

import capgraph_pytest
from capgraph import Registry, build_graph
from capgraph.planning.strategies import PlanRequest
from capgraph.selection import Candidate, Selection
from capgraph.testing import FakeClock
from tests.faults.databases import Server as Database
from tests.faults.databases import postgres
from tests.support.network import loopback_only
from tests.support.sweeps import LONG, SEED
from tests.support.temporal_server import Server, temporal

# The same examples at every run of the short form, and no bound on the time of one.
hypothesis.settings.register_profile("sweep", derandomize=not LONG, deadline=None, database=None)
hypothesis.settings.load_profile("sweep")


def pytest_unconfigure() -> None:
    gc.unfreeze()  # so that all is let go when the process ends


def pytest_configure(config: pytest.Config) -> None:
    # Installed, the plugin comes by its entry point; from a bare checkout it comes from here.
    if not config.pluginmanager.is_registered(capgraph_pytest):
        config.pluginmanager.register(capgraph_pytest, "capgraph")
    config.addinivalue_line("markers", "may_block: blocking calls of this test are wanted")
    config.addinivalue_line(
        "markers", "sampled(share): the short form tries so much of what a test is parametrised by"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out of the short form what the seed does not choose of each sampled test."""
    families: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items if not LONG else ():
        if item.get_closest_marker("sampled"):
            families[item.nodeid.partition("[")[0]].append(item)
    left: set[pytest.Item] = set()
    for name, found in families.items():
        (share,) = found[0].get_closest_marker("sampled").args  # type: ignore[union-attr]
        size = max(1, round(share * len(found)))
        left |= {*found} - {*random.Random(f"{SEED}{name}").sample(found, size)}
    if left:
        config.hook.pytest_deselected(items=[*left])
        items[:] = [item for item in items if item not in left]


@pytest.fixture(autouse=True, scope="module")
def _leaks_are_found_in_their_file() -> Iterator[None]:
    """Collect what a file's tests left open before its warning blames a test of another file."""
    yield
    gc.collect()
    # What outlives a file is there for good: modules, caches, the tests themselves. Looking through
    # all of it again after each file took a third of the time of the whole.
    gc.freeze()


@pytest.fixture(autouse=True)
def _only_this_machine() -> Iterator[None]:
    """Refuse every connection that leaves this machine, and so every hosted model."""
    with loopback_only():
        yield


@pytest.fixture(autouse=True)
def _no_keys_or_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's keys, settings and certificates must not change what a test sees."""
    for name in list(os.environ):
        if name.startswith(("CAPGRAPH_", "SSL_CERT_")) or name.endswith(("_API_KEY", "_API_TOKEN")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("LANGSMITH_TRACING", "false")
    monkeypatch.setenv("LANGCHAIN_TRACING_V2", "false")


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """The command sets up the project's log when it runs inside a test."""
    log = logging.getLogger("capgraph")
    before = (log.level, log.propagate, list(log.handlers))
    yield
    log.setLevel(before[0])
    log.propagate, log.handlers = before[1:]


# Setting up reads files by nature; what runs after it must not.
_SET_UP = (
    ("<frozen importlib._bootstrap>", "_find_and_load"),
    ("capgraph/graph/build.py", "build_graph"),
    ("capgraph/registry/discovery.py", "import_modules"),
    ("capgraph/registry/discovery.py", "load_entry_points"),
    ("capgraph/configs/settings.py", "load_settings"),
    ("capgraph/configs/settings.py", "load_packaged_defaults"),
)


@pytest.fixture(autouse=True)
def _nothing_blocks_the_loop(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail when code of the project blocks the event loop; mark ``may_block`` where a test must."""
    if request.node.get_closest_marker("may_block"):
        yield
        return
    guard = BlockBuster(["capgraph"])
    for function in guard.functions.values():
        for file, name in _SET_UP:
            function.can_block_in(file, name)
    guard.activate()
    try:
        yield
    finally:
        guard.deactivate()


@pytest.fixture(scope="session")
def server() -> Iterator[Database]:
    """One PostgreSQL server for all tests of a session; each takes databases of its own."""
    with postgres() as started:
        yield started


@pytest.fixture(scope="session")
def temporal_server() -> Iterator[Server]:
    """One Temporal server for all tests of a session, from the first that needs it."""
    with temporal() as server:
        yield server


@dataclass
class EverySelector:
    """Chooses every capability that is not excluded, and remembers what it was asked."""

    faults: list[BaseException | None] = field(default_factory=list)
    calls: list[Mapping[str, str]] = field(default_factory=list)

    async def select(
        self,
        task: str,
        candidates: Sequence[Candidate],
        *,
        limit: int | None = None,
        excluded: Mapping[str, str] | None = None,
    ) -> Selection:
        self.calls.append(dict(excluded or {}))
        _fail(self.faults, len(self.calls))
        return Selection(tuple(c.name for c in candidates if c.name not in (excluded or {})))


@dataclass
class ListedPlanner:
    """Gives the plans of a list, the last one for ever, and remembers what it was asked."""

    plans: list[Any]
    can_correct: bool = False
    faults: list[BaseException | None] = field(default_factory=list)
    calls: list[PlanRequest] = field(default_factory=list)
    chooses_parameters: ClassVar[bool] = True
    writes_with_model: ClassVar[bool] = False

    async def plan(self, request: PlanRequest) -> Any:
        self.calls.append(request)
        _fail(self.faults, len(self.calls))
        plan = self.plans[min(len(self.calls), len(self.plans)) - 1]
        return {"steps": [dict(step) for step in plan]} if isinstance(plan, list) else plan


def _fail(faults: list[BaseException | None], call: int) -> None:
    fault = faults[min(call, len(faults)) - 1] if faults else None
    if fault is not None:
        raise fault


@dataclass
class Agent:
    """A graph with scripted selection and planning, and what one asks of it in tests."""

    graph: Any
    selector: EverySelector
    planner: ListedPlanner
    clock: FakeClock

    async def ask(self, text: str = "Do it", thread: str = "1", **given: Any) -> dict[str, Any]:
        result: dict[str, Any] = await self.graph.ainvoke(
            {"messages": [("user", text)], **given}, self.config(thread)
        )
        return result

    @staticmethod
    def config(thread: str = "1", **configurable: Any) -> dict[str, Any]:
        return {"configurable": {"thread_id": thread, **configurable}}


@pytest.fixture
def agent() -> Callable[..., Agent]:
    """Build an agent from capabilities, context types and the plans it will make."""

    def build(
        *items: Any,
        plans: Sequence[Any] = ((),),
        limits: Mapping[str, Any] | None = None,
        can_correct: bool = False,
        selector_faults: Sequence[BaseException | None] = (),
        planner_faults: Sequence[BaseException | None] = (),
        given: Sequence[str] = (),
        infrastructure: Sequence[str] = ("capgraph.infrastructure",),
        settings: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Agent:
        from capgraph.configs.settings import load_settings

        registry = Registry(infrastructure=infrastructure, provided_types=given)
        for item in items:
            registry.register(item)
        clock = FakeClock()
        selector = EverySelector(list(selector_faults))
        planner = ListedPlanner(list(plans), can_correct, list(planner_faults))
        options = {"clock": clock, "selector": selector, "planner": planner, **options}
        chosen = load_settings(limits=dict(limits or {}), **(settings or {}))
        return Agent(build_graph(registry, settings=chosen, **options), selector, planner, clock)

    return build


@pytest.fixture
def step() -> Callable[..., dict[str, Any]]:
    """Write a planned step in one line: ``step("b", "sum", DATA="a")``."""

    def write(
        key: str,
        capability: str,
        parameters: Mapping[str, Any] | None = None,
        **inputs: str | list[str],
    ) -> dict[str, Any]:
        links = [
            {kind: name}
            for kind, names in inputs.items()
            for name in ([names] if isinstance(names, str) else names)
        ]
        planned: dict[str, Any] = {
            "context_key": key,
            "capability": capability,
            "task_objective": f"Do {key}",
            "inputs": links,
        }
        return {**planned, "parameters": dict(parameters)} if parameters else planned

    return write
