"""Services that the nodes of a graph share."""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from langgraph.errors import GraphBubbleUp
from pydantic import BaseModel
from typing_extensions import TypedDict

from capgraph.base.approval_policy import ApprovalPolicy
from capgraph.base.error_classification import classify_exception
from capgraph.base.errors import CapgraphError, ConfigurationError, InfrastructureError
from capgraph.base.graph_node import GraphNode
from capgraph.base.ports import (
    AnyBehavior,
    Caller,
    PlanPolicy,
    ResultGate,
    Sink,
    StepPolicy,
    TurnGuardrail,
)
from capgraph.base.spec import CapabilitySpec, parameter_names
from capgraph.configs.bounded_dict import BoundedDict
from capgraph.configs.limits import Limits
from capgraph.configs.logger import SecretMasker
from capgraph.configs.suggestions import suggest_fix
from capgraph.governance.budget_enforcement import BudgetPolicy, TurnSpending, current_spending
from capgraph.helpers.argument_validation import matches_annotation
from capgraph.helpers.async_calls import maybe_await
from capgraph.helpers.clock import Clock
from capgraph.pipeline.capacity import Capacity
from capgraph.pipeline.effect_ledger import EffectLedger
from capgraph.pipeline.journal import Journal, RunStart, running_journal
from capgraph.pipeline.run_config import (
    current_caller,
    current_configurable,
    current_sender,
    enclosing_billing_subject,
)
from capgraph.pipeline.runner import StepRunner
from capgraph.pipeline.runner_config import RunnerConfig
from capgraph.planning.json_parameters import json_parameters
from capgraph.prompts import PromptProvider
from capgraph.registry import Registry
from capgraph.state import TurnView
from capgraph.stores.persistence import Persistence
from capgraph.telemetry.event_dispatcher import EventDispatcher

SystemPrompt = str | Callable[[TurnView], str | Awaitable[str]]
ParametersOfState = (
    Mapping[str, str] | Callable[[Any], Mapping[str, Any] | Awaitable[Mapping[str, Any]]]
)
"""State keys by parameter name, or a function of the state; see :meth:`Services.node`."""


class OperatorOptions(TypedDict, total=False):
    """Options of ``build_graph`` and ``bind`` for an operator. All of them are optional.

    Attributes:
        behaviors: Middleware and behaviors for steps and model calls: see ``capgraph.behaviors``.
        policies: Objects that are evaluated before a plan is accepted (``review``), before a step
            starts (``decide``), or both. A ``PolicyEngine`` reacts to the progress of a turn. Callers
            cannot disable policies.
        permissions: A ``PermissionPolicy`` or ``CedarPermissions`` that determines which caller may use
            which capability. A caller without a configured role may use none.
        budget: A ``Budget``, or several budgets that differ in ``per``, ``window``, or ``name``.
        prices: Prices of models. Defaults to the table of the process and ``genai-prices``.
        answer_gate: ``QualityGate`` of the answer.
        sinks: Objects with ``emit(event)`` that receive the events of all runs.
        audit: ``True`` stores a tamper-evident audit in the saver's database; an ``AuditLog``
            stores it in a file. Defaults to the settings.
        capacity: Limiter of concurrent steps. By default, all graphs of the process share one limiter.
        state_schema: ``AgentState``, or a subclass with additional keys.
        system_prompt: Instructions for the models that plan and answer, as text or as a function of the
            turn's ``TurnView``, which may be a coroutine function. They follow the constant part of the
            prompt.
        embeddings: LangChain ``Embeddings`` for capability selection without a model.
        clock: A ``Clock``, or a function that returns seconds.
        selector: Strategy that selects capabilities, instead of the default.
        extractor: Strategy that extracts the task, instead of the default.
        planner: Strategy that writes plans, instead of the default.
        answerer: Strategy that writes the final message, instead of the default.
    """

    behaviors: Sequence[AnyBehavior]
    policies: (
        Sequence[PlanPolicy | StepPolicy | PolicyEngine] | PlanPolicy | StepPolicy | PolicyEngine
    )
    permissions: Permissions | None
    budget: Budget | Sequence[Budget] | None
    prices: PriceTable | None
    answer_gate: ResultGate | None
    sinks: Sequence[Sink]
    audit: bool | AuditLog | None
    capacity: Capacity | None
    state_schema: type[Any]
    system_prompt: SystemPrompt | None
    embeddings: Any
    clock: Clock | Callable[[], float] | None
    selector: Selector
    extractor: TaskExtractor
    planner: Planner
    answerer: Answerer


if TYPE_CHECKING:  # avoids imports of optional parts, such as YAML for the settings
    from capgraph.configs.settings import Settings
    from capgraph.engine.auditing import Auditor
    from capgraph.governance.budget import Budget
    from capgraph.governance.caller_permissions import CallerPermissions
    from capgraph.governance.information_flow import InformationFlow
    from capgraph.governance.permissions import Permissions
    from capgraph.governance.policies import PolicyEngine
    from capgraph.planning.strategies import Answerer, Planner, TaskExtractor
    from capgraph.selection import Selector
    from capgraph.stores.retention import Retention
    from capgraph.telemetry.audit_log import AuditLog
    from capgraph.telemetry.usage import PriceTable


@dataclass(slots=True, weakref_slot=True)
class Services:
    """Dependencies of the nodes of a graph. They contain no data of a run.

    Attributes:
        runner: Step runner.
        selector: Strategy that selects capabilities.
        extractor: Strategy that extracts the task.
        planner: Strategy that writes plans.
        answerer: Strategy that writes the final message.
        persistence: Storage of the graph's threads. A run may use another saver.
        plan_policies: Policies that are evaluated before a plan is accepted.
        answer_gate: Quality gate of the answer.
        policy_engines: Rules that react to failures, time, cost, and the end of a turn.
        permissions: Permissions of callers, or ``None`` if none are configured.
        flow: Policy for data labels, or ``None`` if no capability declares labels.
        guard: Guardrail for the input and the final message of a turn.
        events: Dispatcher that adds IDs to events and sends them to the sinks.
        budget_policy: Budgets and prices.
        auditor: Factory of the audit of each run, or ``None`` without an audit.
        masker: Function object that masks the secrets of the settings in text.
        prompts: Prompt provider of the runs.
        retention: Retention rules for threads.
        step_tasks: LangGraph task that runs the steps of a capability, by capability name.
        system_prompt: Instructions of the application, as text or as a function of the turn.
        answer_type: Type of structured answers, unless the turn sets another type. ``None`` for text.
        rebind: Function that creates the same services for another registry.
        run_starts: Cache of the starting points of custom graphs' runs, by checkpoint ID.
    """

    runner: StepRunner
    selector: Selector
    extractor: TaskExtractor
    planner: Planner
    answerer: Answerer
    persistence: Persistence | None = None
    plan_policies: Sequence[PlanPolicy] = ()
    policy_engines: Sequence[PolicyEngine] = ()
    permissions: CallerPermissions | None = None
    flow: InformationFlow | None = None
    answer_gate: ResultGate | None = None
    guard: TurnGuardrail | None = None
    events: EventDispatcher = field(default_factory=EventDispatcher)
    budget_policy: BudgetPolicy = field(default_factory=BudgetPolicy)
    auditor: Auditor | None = None
    masker: SecretMasker = field(default_factory=SecretMasker)
    prompts: PromptProvider | None = None
    retention: Retention | None = None
    step_tasks: dict[str, Callable[[dict[str, Any]], Any]] = field(default_factory=dict)
    system_prompt: SystemPrompt = ""
    answer_type: type[BaseModel] | None = None
    rebind: Callable[[Registry], Services] | None = None
    run_starts: BoundedDict[str, RunStart] = field(default_factory=partial(BoundedDict, 256))
    _extended: BoundedDict[tuple[Any, ...], Services] = field(
        init=False, default_factory=partial(BoundedDict, 64)
    )
    _locks: WeakValueDictionary[tuple[str | None, int], asyncio.Lock] = field(
        default_factory=WeakValueDictionary
    )
    _locks_guard: Any = field(default_factory=threading.Lock)

    @property
    def runner_config(self) -> RunnerConfig:
        """Configuration of the step runner."""
        return self.runner.config

    @property
    def registry(self) -> Registry:
        """Capabilities, nodes, and context types."""
        return self.runner_config.registry

    @property
    def settings(self) -> Settings:
        """All settings."""
        return self.runner_config.settings

    @property
    def limits(self) -> Limits:
        """Limits of a run."""
        return self.runner_config.limits

    @property
    def clock(self) -> Clock:
        """Clock of the graph."""
        return self.runner_config.clock

    @property
    def chat_model(self) -> Callable[[str], Any]:
        """Function that returns the chat model for a role, or ``None`` if the role has none."""
        return self.runner_config.chat_model

    def with_capabilities(self, *capabilities: Any) -> Services:
        """Return a copy of the services with additional capabilities, such as an agent's own tools.

        Budgets, storage, and events are shared with the original.
        """
        if not capabilities or self.rebind is None:
            return self
        extended = self._extended.get(capabilities)
        if extended is None:
            other = self.rebind(self.registry.with_(*capabilities))
            extended = self._extended[capabilities] = replace(
                self,
                runner=other.runner,
                permissions=other.permissions,
                flow=other.flow,
                plan_policies=other.plan_policies,
            )
        return extended

    def with_registry(self, registry: Registry) -> Services:
        """Return a copy of the services that uses a different registry for the whole graph.

        Budgets, storage, events, and the audit are shared with the original.
        """
        assert self.rebind is not None
        other = self.rebind(registry)
        own = {
            name: getattr(self, name)
            for name in (
                "persistence",
                "events",
                "budget_policy",
                "auditor",
                "masker",
                "run_starts",
            )
        }
        return replace(other, **own)

    def registry_for(self, view: TurnView) -> Registry:
        """Return a registry limited to the capabilities that a turn's caller may use."""
        if self.permissions is None:
            return self.registry
        return self.permissions.visible_registry(*view.callers)

    async def instructions(self, view: TurnView) -> str:
        """Return the application's instructions and the system messages as prompt text."""
        from capgraph.planning.strategies import system_text

        instructions: Any = self.system_prompt or ""
        if callable(instructions):
            try:
                instructions = await maybe_await(instructions(view))
            except (CapgraphError, GraphBubbleUp):
                raise
            except Exception as exc:
                raise InfrastructureError(
                    f"The system_prompt function failed: {type(exc).__name__}: {exc}.",
                    fix="correct the function that is passed as system_prompt.",
                    severity=classify_exception(exc, "system_prompt").severity,
                ) from exc
        if not isinstance(instructions, str | None):
            raise InfrastructureError(
                f"Invalid system_prompt: the function returned {instructions!r:.80}.",
                fix="return a string.",
            )
        text = (instructions or "").strip()
        return "\n\n".join(part for part in (text, system_text(view.messages)) if part)

    def can_answer_directly(self, view: TurnView) -> bool:
        """Return True if a text reply can be the turn's answer without calling the answerer."""
        return self.answer_type_of(view.state) is None and self.answer_gate is None

    def answer_type_of(self, state: Mapping[str, Any]) -> type[BaseModel] | None:
        """Return the Pydantic model of the turn's structured answer, or ``None`` for a text answer.

        Args:
            state: State of the turn, whose ``execution_answer_schema`` overrides ``answer_type``.

        Raises:
            ValidationError: The schema is invalid.
        """
        schema = state.get("execution_answer_schema")
        if schema is None:
            return self.answer_type
        # Chat models need a valid function name as the title.
        return json_parameters("answer", {**schema, "title": "answer"})

    @property
    def requires_other_approver(self) -> bool:
        """True if any capability needs approval from a user other than the requester."""
        capabilities = self.registry.capabilities.values()
        return any(
            ApprovalPolicy.from_declaration(spec.requires_approval).not_requester
            for spec in capabilities
        )

    async def warm_up(self) -> None:
        """Fit the capability selector and import required libraries before the first request."""
        prepare = getattr(self.selector, "prepare", None)
        if prepare is not None:
            await prepare(self.registry.candidates())
        for spec in self.registry.capabilities.values():
            for library in getattr(spec.cls, "libraries", ()):
                # The step that needs a missing library reports it.
                with suppress(ImportError):
                    await asyncio.to_thread(importlib.import_module, library)

    def journal(self) -> Journal:
        """Return the journal (durable records) of the thread that is currently running."""
        return running_journal(self.persistence)

    def view(self, state: Any) -> TurnView:
        """Create a typed view of a graph state, with the caller and thread of the current run."""
        configured = current_configurable().get("thread_id")
        thread_id = None if configured is None else str(configured)
        return TurnView(
            state,
            thread_id=thread_id,
            caller=current_caller(),
            sender=current_sender(),
            default_owner=enclosing_billing_subject(),
        )

    def spending(
        self, view: TurnView, *, includes_plan_budget: bool = False, run_id: str = ""
    ) -> TurnSpending | None:
        """Return the spending tracker of the current turn, or ``None`` if spending is not tracked.

        Spending is not tracked without budgets and usage records.

        Args:
            view: Current state of the turn.
            includes_plan_budget: True if the budget of the current plan also applies.
            run_id: ID of the run in a custom graph, which has no turns.
        """
        journal = self.journal()
        return self.budget_policy.for_turn(
            view,
            journal.persistence,
            has_saver=journal.is_durable,
            plan_limits=view.plan.get("budget") if includes_plan_budget else None,
            run_id=run_id,
        )

    async def budget_left(self) -> dict[str, float]:
        """Return the remaining amount of each budget limit, or ``{}`` without a budget."""
        spending = current_spending()
        return {} if spending is None else await spending.remaining()

    def ledger(self, view: TurnView, visit_id: str = "") -> EffectLedger:
        """Return the ledger (record of effects, waits, and approvals) of the current turn.

        Args:
            view: Current state of the turn.
            visit_id: ID of the node execution, if no plan identifies its steps.
        """
        journal = self.journal()
        # Parallel steps in a custom graph create separate ledgers, which must share a lock.
        lock_key = (journal.thread_id, id(asyncio.get_running_loop()))
        with self._locks_guard:
            lock = self._locks.get(lock_key)
            if lock is None:
                lock = self._locks[lock_key] = asyncio.Lock()
        if (permissions := self.permissions) is None:
            return EffectLedger(journal, view, lock, visit_id=visit_id)
        needs_overseer = permissions.needs_overseer(*view.callers)
        return EffectLedger(
            journal,
            view,
            lock,
            visit_id=visit_id,
            permits=partial(self._is_approver_permitted, needs_overseer=needs_overseer),
            needs_overseer=needs_overseer,
        )

    async def _is_approver_permitted(
        self, capability: str, person: Caller, *, needs_overseer: bool
    ) -> bool:
        """Return True if the approver of a capability call has permission to use the capability.

        Both the role at the time of approval and the current role must permit it. In a turn without
        a known user, the approver must also be an overseer.
        """
        assert self.permissions is not None
        is_known = capability in self.registry.capabilities
        if not (is_known or needs_overseer):
            return True
        persistence = self.journal().persistence
        current = person if persistence is None else await persistence.roles.find(person)
        if needs_overseer and not all(map(self.permissions.is_overseer, (person, current))):
            return False
        return not is_known or self.permissions.outcome(capability, person, current).allowed

    def node(self, capability: type[Any], parameters: ParametersOfState | None = None) -> GraphNode:
        """Create the LangGraph node that runs a capability in a custom graph.

        Args:
            capability: Decorated capability that was passed to ``bind``.
            parameters: State key of each parameter, by parameter name, or a function of the state
                (possibly async) that returns parameter values. A parameter whose key is missing
                from the state is omitted. By default, the parameters come from the step of a plan
                in the state.

        Raises:
            RegistryError: The capability is not bound.
            ConfigurationError: ``parameters`` names an unknown parameter.

        >>> from capgraph import BaseCapability, bind, capability_node
        >>> @capability_node
        ... class Hello(BaseCapability):
        ...     name = "hello"
        ...     description = "Says hello"
        ...     async def execute(self):
        ...         return {}
        >>> bind([Hello]).node(Hello).name
        'hello'
        """
        from capgraph.base.errors import RegistryError

        spec: Any = getattr(capability, "capability_spec", None)
        registered = self.registry.capabilities.get(getattr(spec, "name", ""))
        if registered is None or registered is not spec:
            raise RegistryError(
                f"Capability {capability!r} is not bound.",
                fix="decorate it with @capability_node and pass it to bind([...]).",
            )
        node: GraphNode = capability.langgraph_node
        if parameters is None:
            return node.with_services(self)
        _check_parameters(registered, parameters)
        return node.with_services(self, parameters=parameters)


def _check_parameters(spec: CapabilitySpec, parameters: ParametersOfState) -> None:
    """Validate the mapping from a capability's parameters to state keys.

    Raises:
        ConfigurationError: A parameter is unknown, or the value is neither a mapping nor a
            function.
    """
    if callable(parameters):
        return
    owner = f"the node of {spec.name!r}"
    if not matches_annotation(parameters, Mapping[str, str]):
        raise ConfigurationError(
            f"Invalid parameters {parameters!r:.80} of {owner}: expected a mapping of parameter names"
            " to state keys, or a function of the state.",
            fix='pass parameters={"city": "city_key"}.',
        )
    names = parameter_names(spec.parameters)
    if unknown := [name for name in parameters if name not in names]:
        raise ConfigurationError(
            f"Unknown parameters for {owner}: {', '.join(map(repr, unknown))}.",
            fix=suggest_fix(*unknown, candidates=names),
        )
