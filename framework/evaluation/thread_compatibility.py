"""Which threads of a database new code could not go on with, and why. It only reads."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.store.base import BaseStore

from capgraph.approvals.requests import REQUEST_VERSION
from capgraph.approvals.standing_rules import list_rules
from capgraph.base.approval_policy import ApprovalPolicy
from capgraph.base.errors import CapgraphError, PersistenceError, ValidationError
from capgraph.base.plan import ExecutionPlan, plan_key
from capgraph.engine.bind import as_registry
from capgraph.engine.caller_plan import plan_digest
from capgraph.engine.for_each import element_attempt
from capgraph.langgraph_compat import (
    LATEST_VERSION,
    has_next_node,
    is_state_key,
    next_nodes,
    open_interrupts,
    plain_values,
)
from capgraph.pipeline.authorize import approval_digest, approval_preview
from capgraph.pipeline.effect_ledger import EffectLedger
from capgraph.pipeline.finalize import SkippedStep
from capgraph.pipeline.journal import Journal
from capgraph.pipeline.step_conditions import resolve_condition
from capgraph.pipeline.validate import resolve_attempt
from capgraph.planning import TERMINAL_STEPS, check_plan, repair_plan
from capgraph.planning.references import resolve_reference
from capgraph.registry import Registry
from capgraph.state import AgentState, StateSchema, TurnView, load_context
from capgraph.state.agent_state import check_state_value
from capgraph.stores.history import load_full_checkpoint
from capgraph.stores.persistence import Persistence
from capgraph.stores.records import thread_config
from capgraph.stores.threads import iter_thread_ids

if TYPE_CHECKING:
    from capgraph.configs.settings import Settings


@dataclass(frozen=True, slots=True)
class Incompatibility:
    """Why something that waits could not be taken over.

    Attributes:
        thread_id: The thread; empty for what belongs to none.
        part: ``check_state``, ``context``, ``check_plan_steps``, ``approval`` or ``rule``.
        text: What is in the way.
        fix: What to do about it.
    """

    thread_id: str
    part: str
    text: str
    fix: str


@dataclass(frozen=True, slots=True)
class CompatibilityReport:
    """What was found.

    Attributes:
        threads: How many threads wait for a person or stopped in the middle of a turn.
        incompatibilities: What is in the way; empty where all of them can be taken over.
    """

    threads: int
    incompatibilities: tuple[Incompatibility, ...]


class _ReadOnlyJournal(Journal):
    """Reads the records of a thread, and writes none."""

    async def write(
        self, key: str, record: dict[str, Any], *, allow_lost_lease: bool = False
    ) -> None:
        """Keep nothing."""


async def check_threads(
    saver: BaseCheckpointSaver[Any],
    registry: Registry | Iterable[Any],
    *,
    settings: Settings | None = None,
    store: BaseStore | None = None,
    state_schema: type[Any] = AgentState,
) -> CompatibilityReport:
    """Say which waiting and unfinished threads this code could not go on with.

    Nothing is run, and nothing is written.

    Args:
        saver: Where the threads are.
        registry: What the new code is made of: a registry, or capabilities.
        settings: All settings of the agent; the defaults when not given.
        store: Where standing rules are; not looked at when not given.
        state_schema: As for ``build_graph``.

    >>> import asyncio
    >>> from capgraph.stores import open_saver
    >>> async def main():
    ...     async with open_saver("sqlite://:memory:") as saver:
    ...         return await check_threads(saver, Registry())
    >>> asyncio.run(main())
    CompatibilityReport(threads=0, obstacles=())
    """
    if settings is None:
        from capgraph.configs.settings import Settings

        settings = Settings()
    registry, schema = as_registry(registry), StateSchema.of(state_schema)
    persistence = Persistence.of(saver)
    persistence.register_graph({name: key.reducer for name, key in schema.keys.items()})
    found: list[Incompatibility] = []
    count = 0
    async for thread in iter_thread_ids(saver):
        try:
            taken = await _SuspendedThread.read(persistence, thread, registry, settings)
            if taken is None:
                continue
            count += 1
            found += [
                *taken.check_state(schema),
                *taken.check_contexts(),
                *taken.check_plan_steps(),
            ]
            found += [obstacle async for obstacle in taken.check_approvals()]
        except PersistenceError as exc:
            count += 1
            found.append(Incompatibility(thread, "state", exc.message, exc.fix or ""))
    for rule in await list_rules(store, include_expired=False) if store is not None else ():
        if rule.capability not in registry.capabilities:
            told = f"The standing rule {rule.id!r} is about {rule.capability!r}, which is gone."
            fix = f"Take it back: capgraph approvals revoke {rule.id}."
            found.append(Incompatibility(rule.thread_id or "", "rule", told, fix))
    return CompatibilityReport(count, tuple(found))


@dataclass(frozen=True, slots=True)
class _SuspendedThread:
    """A thread that waits or stopped in the middle, with the code that is to go on with it."""

    view: TurnView
    registry: Registry
    settings: Settings
    persistence: Persistence
    version: int
    questions: tuple[Any, ...]

    @classmethod
    async def read(
        cls, persistence: Persistence, thread: str, registry: Registry, settings: Settings
    ) -> _SuspendedThread | None:
        """Read a thread; ``None`` for one whose last turn is over."""
        saver = persistence.saver
        at = await saver.aget_tuple(thread_config(thread))
        if at is None:
            return None
        asked = tuple(item.value for item in open_interrupts(at.pending_writes))
        if not asked and not has_next_node(plain_values(at)):
            return None
        full = await load_full_checkpoint(persistence, at)
        view = TurnView(plain_values(full), thread_id=thread)
        return cls(view, registry, settings, persistence, at.checkpoint["v"], asked)

    def check_state(self, schema: StateSchema) -> Iterator[Incompatibility]:
        """Find what of the state this code cannot read."""
        fix = "Finish or prune the thread with the code that wrote it, before this one goes out."
        newer = [q.get("version", 0) for q in self.questions if isinstance(q, Mapping)]
        if self.version > LATEST_VERSION or max(newer, default=0) > REQUEST_VERSION:
            yield self._incompatibility("state", "It was saved by a newer version.", fix)
        nodes = {*self.registry.infrastructure, *self.registry.capabilities}
        for gone in sorted({*next_nodes(self.view.state)} - nodes):
            yield self._incompatibility(
                "state", f"It goes on with the node {gone!r}, which is gone.", fix
            )
        for name, value in self.view.state.items():
            if is_state_key(name) and name not in schema.names:
                told = f"Its key {name!r} is none of the state: a newer version wrote it, or the"
                yield self._incompatibility("state", f"{told} state's class has lost it.", fix)
            else:
                try:
                    check_state_value(name, value, "the code before")
                except ValidationError as exc:
                    yield self._incompatibility("state", exc.message, fix)

    def check_contexts(self) -> Iterator[Incompatibility]:
        """Find stored data that does not fit its type any more."""
        for kind, entries in self.view.contexts.items():
            for key, data in entries.items():
                try:
                    load_context(kind, key, data, self.registry.context_types)
                except ValidationError as exc:
                    yield self._incompatibility(
                        "context", exc.message, "Give new fields of a type defaults."
                    )

    def check_plan_steps(self) -> Iterator[Incompatibility]:
        """Find what the rest of the plan asks for in vain."""
        accepted = self.view.state.get("planning_accepted")
        if accepted and accepted != plan_digest(self.view.plan):
            told = "The plan's digest is not the one that was accepted; it would be checked anew."
            yield self._incompatibility("plan", told, "Look at the plan; then go on.")
        left = [step for step in self.view.steps if step["context_key"] not in self._finished_keys]
        rest = ExecutionPlan(steps=left)
        if all(step["capability"] in TERMINAL_STEPS for step in left):
            return
        limit = self.settings.limits.max_steps
        if accepted:
            problems = check_plan(rest, self.registry, self.view.contexts, max_steps=limit)
        else:  # it goes through the gate yet, which mends what has one right answer
            repaired = repair_plan(rest, self.registry, self.view.contexts, max_steps=limit)
            problems = list(repaired.problems)
        for problem in problems:
            where = f"step {problem.context_key!r}, {problem.field} {problem.value!r:.200}"
            yield self._incompatibility("plan", f"{where}: {problem.cause}.", problem.remedy)

    async def check_approvals(self) -> AsyncIterator[Incompatibility]:
        """Find agreements, given or asked for, to what this code would not run."""
        ledger = EffectLedger(_ReadOnlyJournal(self.persistence, self.view.thread_id), self.view)
        now = time.time()
        for key in dict.fromkeys((*self.view.pending_approvals, *self.view.decisions)):
            step, asked = (
                self.view.steps_by_key.get(plan_key(key)),
                self.view.pending_approvals.get(key),
            )
            spec = self.registry.capabilities.get(step["capability"]) if step else None
            agreed = (self.view.decisions.get(key) or {}).get("decision") in {"approve", "edit"}
            # A middleware's question names what it likes.
            waits = asked is not None and "rests_on" in (asked.get("shown") or {})
            if step is None or spec is None or key in self._finished_keys or not (waits or agreed):
                continue
            types = self.registry.context_types
            try:
                found = resolve_condition(spec, step, self.view, types)
                if isinstance(found, SkippedStep):
                    continue
                attempt = self.view.create_attempt(spec.name, found, key=plan_key(key))
                if each := found.get("for_each"):
                    elements = resolve_reference(each["of"], self.view.contexts, types)
                    number = int(key[len(attempt.key) + 1 : -1])
                    attempt = element_attempt(attempt, elements, number, self.view)
                ready = resolve_attempt(attempt, spec, self.view, types)
            except (CapgraphError, LookupError):
                continue  # said of the plan, or of the data
            digest = approval_digest(spec.name, approval_preview(ready, self.view.plan))
            if waits and asked is not None and asked.get("digest") != digest:
                told = f"What is asked about the step {key!r} ({spec.name}) is not what would run."
                yield self._incompatibility(
                    "approval", told, "Have it answered before, or it is asked anew."
                )
            elif not waits and agreed:
                policy = ApprovalPolicy.of(spec.requires_approval)
                others = [*self.view.steps_by_key, *self.view.decisions]
                consent = await ledger.approvals.status(digest, key, others, policy, now)
                if not consent.is_approved:
                    told = f"What was agreed to of the step {key!r} ({spec.name}) is not what would"
                    yield self._incompatibility(
                        "approval", f"{told} run.", "It would be asked about anew."
                    )

    @property
    def _finished_keys(self) -> set[str]:
        return self.view.succeeded_keys | self.view.skipped_keys

    def _incompatibility(self, part: str, text: str, fix: str) -> Incompatibility:
        return Incompatibility(self.view.thread_id or "", part, text, fix)
