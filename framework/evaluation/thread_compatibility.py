"""Check if new code can continue suspended threads. It runs and writes nothing."""

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
from capgraph.engine.for_each import create_element_attempt
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
    """Reason why a new version of the code cannot continue a stored thread.

    Attributes:
        thread_id: ID of the thread. Empty if the problem belongs to no thread.
        part: ``state``, ``context``, ``plan``, ``approval``, or ``rule``.
        text: Description of the problem.
        fix: Instruction that solves the problem.
    """

    thread_id: str
    part: str
    text: str
    fix: str


@dataclass(frozen=True, slots=True)
class CompatibilityReport:
    """Report on whether new code can continue the stored threads; see :func:`check_threads`.

    Attributes:
        threads: Number of threads that wait for a user or stopped in the middle of a turn.
        incompatibilities: Reasons why threads cannot continue. Empty if the new code can continue
            all of them.
    """

    threads: int
    incompatibilities: tuple[Incompatibility, ...]


class _ReadOnlyJournal(Journal):
    """Journal that reads the durable records of a thread and never writes."""

    async def write(
        self, key: str, record: dict[str, Any], *, allow_lost_lease: bool = False
    ) -> None:
        """Discard a record, because a compatibility check must not write."""


async def check_threads(
    saver: BaseCheckpointSaver[Any],
    registry: Registry | Iterable[Any],
    *,
    settings: Settings | None = None,
    store: BaseStore | None = None,
    state_schema: type[Any] = AgentState,
) -> CompatibilityReport:
    """Check which suspended and unfinished threads new code cannot continue.

    The check runs no steps and writes nothing.

    Args:
        saver: Checkpointer that contains the threads.
        registry: Registry, or capabilities of the new code.
        settings: Settings of the agent. Defaults to the default settings.
        store: LangGraph store with standing rules. Without it, rules are not checked.
        state_schema: State schema, as for ``build_graph``.

    >>> import asyncio
    >>> from capgraph.stores import open_saver
    >>> async def main():
    ...     async with open_saver("sqlite://:memory:") as saver:
    ...         return await check_threads(saver, Registry())
    >>> asyncio.run(main())
    CompatibilityReport(threads=0, incompatibilities=())
    """
    if settings is None:
        from capgraph.configs.settings import Settings

        settings = Settings()
    registry, schema = as_registry(registry), StateSchema.from_class(state_schema)
    persistence = Persistence.of(saver)
    persistence.register_graph({name: key.reducer for name, key in schema.keys.items()})
    incompatibilities: list[Incompatibility] = []
    count = 0
    async for thread in iter_thread_ids(saver):
        try:
            suspended = await _SuspendedThread.read(persistence, thread, registry, settings)
            if suspended is None:
                continue
            count += 1
            incompatibilities += [
                *suspended.check_state(schema),
                *suspended.check_contexts(),
                *suspended.check_plan_steps(),
            ]
            incompatibilities += [obstacle async for obstacle in suspended.check_approvals()]
        except PersistenceError as exc:
            count += 1
            incompatibilities.append(Incompatibility(thread, "state", exc.message, exc.fix or ""))
    for rule in await list_rules(store, include_expired=False) if store is not None else ():
        if rule.capability not in registry.capabilities:
            problem = (
                f"The standing rule {rule.id!r} is for {rule.capability!r}, which does not exist."
            )
            fix = f"Revoke it: capgraph approvals revoke {rule.id}."
            incompatibilities.append(Incompatibility(rule.thread_id or "", "rule", problem, fix))
    return CompatibilityReport(count, tuple(incompatibilities))


@dataclass(frozen=True, slots=True)
class _SuspendedThread:
    """Thread that is waiting or stopped during a turn, and the new code that must continue it."""

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
        """Load a suspended thread, or return ``None`` if the thread's last turn has ended."""
        saver = persistence.saver
        at = await saver.aget_tuple(thread_config(thread))
        if at is None:
            return None
        questions = tuple(item.value for item in open_interrupts(at.pending_writes))
        if not questions and not has_next_node(plain_values(at)):
            return None
        full = await load_full_checkpoint(persistence, at)
        view = TurnView(plain_values(full), thread_id=thread)
        return cls(view, registry, settings, persistence, at.checkpoint["v"], questions)

    def check_state(self, schema: StateSchema) -> Iterator[Incompatibility]:
        """Yield an incompatibility for each part of the thread's state that new code rejects."""
        fix = "Finish or prune the thread with the code that wrote it before you deploy this code."
        newer = [q.get("version", 0) for q in self.questions if isinstance(q, Mapping)]
        if self.version > LATEST_VERSION or max(newer, default=0) > REQUEST_VERSION:
            yield self._create_incompatibility(
                "state", "The thread was saved by a newer version.", fix
            )
        nodes = {*self.registry.infrastructure, *self.registry.capabilities}
        for gone in sorted({*next_nodes(self.view.state)} - nodes):
            yield self._create_incompatibility(
                "state", f"The next node {gone!r} does not exist.", fix
            )
        for name, value in self.view.state.items():
            if is_state_key(name) and name not in schema.names:
                text = (
                    f"The key {name!r} is not part of the state schema: it was removed, or a newer"
                )
                yield self._create_incompatibility("state", f"{text} version wrote it.", fix)
            else:
                try:
                    check_state_value(name, value, "the previous code")
                except ValidationError as exc:
                    yield self._create_incompatibility("state", exc.message, fix)

    def check_contexts(self) -> Iterator[Incompatibility]:
        """Yield an incompatibility for stored context data that does not match its current type."""
        for context_type, entries in self.view.contexts.items():
            for key, data in entries.items():
                try:
                    load_context(context_type, key, data, self.registry.context_types)
                except ValidationError as exc:
                    yield self._create_incompatibility(
                        "context", exc.message, "Give new fields of a context type defaults."
                    )

    def check_plan_steps(self) -> Iterator[Incompatibility]:
        """Yield an incompatibility for each unfinished step of the plan that is now invalid."""
        accepted = self.view.state.get("planning_accepted")
        if accepted and accepted != plan_digest(self.view.plan):
            text = "The plan's digest differs from the accepted one, so it would be checked again."
            yield self._create_incompatibility("plan", text, "Review the plan, then continue.")
        remaining_steps = [
            step for step in self.view.steps if step["context_key"] not in self._finished_keys
        ]
        remaining_plan = ExecutionPlan(steps=remaining_steps)
        if all(step["capability"] in TERMINAL_STEPS for step in remaining_steps):
            return
        limit = self.settings.limits.max_steps
        if accepted:
            problems = check_plan(
                remaining_plan, self.registry, self.view.contexts, max_steps=limit
            )
        else:  # the plan gate will still repair this plan
            repaired = repair_plan(
                remaining_plan, self.registry, self.view.contexts, max_steps=limit
            )
            problems = list(repaired.problems)
        for problem in problems:
            location = f"step {problem.context_key!r}, {problem.field} {problem.value!r:.200}"
            yield self._create_incompatibility(
                "plan", f"{location}: {problem.cause}.", problem.remedy
            )

    async def check_approvals(self) -> AsyncIterator[Incompatibility]:
        """Yield an incompatibility for each approval that does not match the step to run.

        An approval does not match if the new code would run the approved step differently.
        """
        ledger = EffectLedger(_ReadOnlyJournal(self.persistence, self.view.thread_id), self.view)
        now = time.time()
        for key in dict.fromkeys((*self.view.pending_approvals, *self.view.decisions)):
            step, request = (
                self.view.steps_by_key.get(plan_key(key)),
                self.view.pending_approvals.get(key),
            )
            spec = self.registry.capabilities.get(step["capability"]) if step else None
            is_approved = (self.view.decisions.get(key) or {}).get("decision") in {
                "approve",
                "edit",
            }
            # Questions of other middleware have no digest to compare.
            is_pending = request is not None and "rests_on" in (request.get("shown") or {})
            if (
                step is None
                or spec is None
                or key in self._finished_keys
                or not (is_pending or is_approved)
            ):
                continue
            types = self.registry.context_types
            try:
                conditioned = resolve_condition(spec, step, self.view, types)
                if isinstance(conditioned, SkippedStep):
                    continue
                attempt = self.view.create_attempt(spec.name, conditioned, key=plan_key(key))
                if loop := conditioned.get("for_each"):
                    elements = resolve_reference(loop["of"], self.view.contexts, types)
                    number = int(key[len(attempt.key) + 1 : -1])
                    attempt = create_element_attempt(attempt, elements, number, self.view)
                resolved_attempt = resolve_attempt(attempt, spec, self.view, types)
            except (CapgraphError, LookupError):
                continue  # reported by the other checks
            digest = approval_digest(spec.name, approval_preview(resolved_attempt, self.view.plan))
            if is_pending and request is not None and request.get("digest") != digest:
                text = f"The approval request for the step {key!r} ({spec.name}) shows other values"
                yield self._create_incompatibility(
                    "approval",
                    f"{text} than those that would run.",
                    "Answer it before the deployment. Otherwise it is requested again.",
                )
            elif not is_pending and is_approved:
                policy = ApprovalPolicy.from_declaration(spec.requires_approval)
                other_keys = [*self.view.steps_by_key, *self.view.decisions]
                consent = await ledger.approvals.status(digest, key, other_keys, policy, now)
                if not consent.is_approved:
                    text = f"The approval of the step {key!r} ({spec.name}) is for other values"
                    yield self._create_incompatibility(
                        "approval",
                        f"{text} than those that would run.",
                        "No action is needed. The approval is requested again.",
                    )

    @property
    def _finished_keys(self) -> set[str]:
        return self.view.succeeded_keys | self.view.skipped_keys

    def _create_incompatibility(self, part: str, text: str, fix: str) -> Incompatibility:
        return Incompatibility(self.view.thread_id or "", part, text, fix)
