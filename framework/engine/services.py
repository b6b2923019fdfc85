"""What a graph's nodes share: decided by an operator, made once, handed to every node."""

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
    PlanPolicy,
    ResultGate,
    Sink,
    StepPolicy,
    TurnGuardrail,
)
from capgraph.base.spec import CapabilitySpec, parameter_names
from capgraph.configs.bounded_dict import BoundedDict
from capgraph.configs.logger import SecretMasker
from capgraph.configs.settings_model import Limits
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
    """What an operator decides, as keywords of ``build_graph`` and ``bind``. Each may be left out.

    Attributes:
        behaviors: What stands around each attempt and each model call: objects with ``stage`` and
            ``async around(attempt, call_next)``; and hooks around each step, which have no stage:
            see ``capgraph.behaviors``.
        policies: What is asked before a plan is accepted (``review``) and before a step starts
            (``decide``); one object may do both. A ``PolicyEngine`` acts on how the turn stands. No input of a caller can switch them off.
        permissions: Who may use which capability: a ``PermissionPolicy`` or ``CedarPermissions``. A
            caller without a role that is configured may use none.
        budget: What may be used up: a ``Budget``, or several with different ``per``, ``window`` or
            ``name``.
        prices: What models cost; the process's own table, and ``genai-prices``, when not given.
        answer_gate: What the answer has to be good enough for: a ``QualityGate``.
        sinks: What takes up the events of runs: objects with ``emit(event)``.
        audit: ``True`` keeps who did what in the database of the saver, in a chain that shows any
            change; an ``AuditLog`` keeps it in a file. What the settings say, when not given.
        capacity: Slots for steps; shared by all graphs of the process when not given.
        state_schema: ``AgentState``, or a subclass with keys of one's own.
        system_prompt: What the models that plan and answer are told besides: text, or a function
            (also an async one) of the turn's ``TurnView``. It stands behind what stays the same.
        embeddings: LangChain ``Embeddings`` for the offline choice of capabilities.
        clock: Source of time: a ``Clock``, or a function that returns seconds.
        selector: Chooses capabilities, in place of the one for the model and the settings.
        extractor: Finds the task.
        planner: Writes plans.
        answerer: Writes the final message.
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


if TYPE_CHECKING:  # what nobody declares is not imported; settings bring YAML and readers
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
    """Dependencies of the nodes. Holds nothing that belongs to one run.

    Attributes:
        runner: The one way into a capability.
        selector: Chooses capabilities.
        extractor: Finds the task.
        planner: Writes plans.
        answerer: Writes the final message.
        persistence: Where the graph stores its threads; a run may bring another saver.
        plan_policies: Asked before a plan is accepted.
        answer_gate: Looks at the answer before it is given.
        policy_engines: Rules that act when a turn fails, takes too long, costs too much or is done.
        permissions: What callers may use; ``None`` where nobody decides about that.
        flow: Knows the labels of data; ``None`` where nothing declares one.
        guard: Looks at what a person sends and at the message that ends a turn.
        events: Stamps the events of runs and hands them to the sinks.
        budget_policy: What may be spent.
        auditor: Finds the audit of a run; ``None`` where none is kept.
        masker: Knows the secrets of the settings.
        prompts: What ``get_framework_prompts()`` gives in the runs.
        retention: What stays of threads.
        step_tasks: Capability name to the LangGraph task that runs its steps.
        system_prompt: What the application tells the models that plan and answer: text, or a
            function of the turn.
        answer_type: The form of the answer; ``None`` for text.
        rebind: Makes the same of another registry.
        run_starts: With what runs of graphs of one's own began, by checkpoint.
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
        """What the stages of an attempt go by."""
        return self.runner.config

    @property
    def registry(self) -> Registry:
        """Capabilities, nodes and context types."""
        return self.runner_config.registry

    @property
    def settings(self) -> Settings:
        """All settings."""
        return self.runner_config.settings

    @property
    def limits(self) -> Limits:
        """Bounds of a run."""
        return self.runner_config.limits

    @property
    def clock(self) -> Clock:
        """Time."""
        return self.runner_config.clock

    @property
    def chat_model(self) -> Callable[[str], Any]:
        """Role to chat model, or ``None``."""
        return self.runner_config.chat_model

    def with_capabilities(self, *capabilities: Any) -> Services:
        """Return the same with further capabilities, such as the tools of one agent.

        What is counted, kept and told stays in one place for both.
        """
        if not capabilities or self.rebind is None:
            return self
        made = self._extended.get(capabilities)
        if made is None:
            other = self.rebind(self.registry.with_(*capabilities))
            made = self._extended[capabilities] = replace(
                self,
                runner=other.runner,
                permissions=other.permissions,
                flow=other.flow,
                plan_policies=other.plan_policies,
            )
        return made

    def registry_for(self, view: TurnView) -> Registry:
        """Return what the caller of a turn may use: nothing else is shown to whoever plans."""
        if self.permissions is None:
            return self.registry
        return self.permissions.visible_registry(view.caller)

    async def instructions(self, view: TurnView) -> str:
        """Return what the application and the system messages of the input tell the models."""
        from capgraph.planning.strategies import system_text

        own: Any = self.system_prompt or ""
        if callable(own):
            try:
                own = await maybe_await(own(view))
            except (CapgraphError, GraphBubbleUp):
                raise
            except Exception as exc:
                raise InfrastructureError(
                    f"The function given as system_prompt failed: {type(exc).__name__}: {exc}.",
                    severity=classify_exception(exc, "system_prompt").severity,
                ) from exc
        if not isinstance(own, str | None):
            raise InfrastructureError(
                f"The function given as system_prompt returned {own!r:.80}.", fix="Return text."
            )
        text = (own or "").strip()
        return "\n\n".join(part for part in (text, system_text(view.messages)) if part)

    @property
    def requires_other_approver(self) -> bool:
        """Whether who asks for a turn has to be known later on."""
        known = self.registry.capabilities.values()
        return any(ApprovalPolicy.of(spec.requires_approval).not_requester for spec in known)

    async def warm_up(self) -> None:
        """Do ahead what a first request would wait for: fit the choice, import libraries."""
        prepare = getattr(self.selector, "prepare", None)
        if prepare is not None:
            await prepare(self.registry.candidates())
        for spec in self.registry.capabilities.values():
            for library in getattr(spec.cls, "libraries", ()):
                # One that is not there is reported by the step that needs it.
                with suppress(ImportError):
                    await asyncio.to_thread(importlib.import_module, library)

    def journal(self) -> Journal:
        """Return the durable records of the running thread."""
        return running_journal(self.persistence)

    def view(self, state: Any) -> TurnView:
        """Return the typed reading of a state in the run that calls this."""
        thread = current_configurable().get("thread_id")
        known = None if thread is None else str(thread)
        return TurnView(
            state,
            thread_id=known,
            caller=current_caller(),
            sender=current_sender(),
            default_owner=enclosing_billing_subject(),
        )

    def spending(
        self, view: TurnView, *, includes_plan_budget: bool = False, run_id: str = ""
    ) -> TurnSpending | None:
        """Return what the running turn may spend; ``None`` when nothing is bounded or kept.

        Args:
            view: The turn.
            includes_plan_budget: Whether the budget of the plan in force counts besides.
            run_id: Names the run that stands for a turn, in a graph of one's own that has none.
        """
        journal, own = self.journal(), view.plan.get("budget") if includes_plan_budget else None
        return self.budget_policy.for_turn(
            view, journal.persistence, has_saver=journal.is_durable, plan_limits=own, run_id=run_id
        )

    async def budget_left(self) -> dict[str, float]:
        """Return what is left of each limit of the budget; empty without one."""
        spending = current_spending()
        return {} if spending is None else await spending.left()

    def ledger(self, view: TurnView, visit_id: str = "") -> EffectLedger:
        """Return the effects, waits and agreements of the running turn.

        Args:
            view: The turn.
            visit_id: Tells this visit of a node from others, where no plan tells its steps apart.
        """
        journal = self.journal()
        # Steps side by side in a graph of one's own make a ledger each; their claims meet here.
        place = (journal.thread_id, id(asyncio.get_running_loop()))
        with self._locks_guard:
            lock = self._locks.get(place)
            if lock is None:
                lock = self._locks[place] = asyncio.Lock()
        return EffectLedger(journal, view, lock, visit_id=visit_id)

    def node(self, capability: type[Any], parameters: ParametersOfState | None = None) -> GraphNode:
        """Return the node of a capability for a graph of one's own.

        Args:
            capability: A decorated capability that was given to ``bind``.
            parameters: Parameter name to the state key that holds its value, or a function of the
                state (also an async one) that returns values by parameter name. A state without the
                key leaves the parameter out. Without, the step of a plan in the state supplies them.

        Raises:
            RegistryError: The capability was not bound.
            ConfigurationError: ``parameters`` names a parameter that the capability does not have.

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
        known = self.registry.capabilities.get(getattr(spec, "name", ""))
        if known is None or known is not spec:
            raise RegistryError(
                f"{capability!r} is none of the capabilities that were bound.",
                fix="Give it to bind([...]), decorated with @capability_node.",
            )
        node: GraphNode = capability.langgraph_node
        if parameters is None:
            return node.with_services(self)
        _check_parameters(known, parameters)
        return node.with_services(self, parameters=parameters)


def _check_parameters(spec: CapabilitySpec, parameters: ParametersOfState) -> None:
    """Refuse a mapping of state keys that does not fit to a capability.

    Raises:
        ConfigurationError: It names what is no parameter, or is neither a mapping nor a function.
    """
    if callable(parameters):
        return
    owner = f"The node of {spec.name!r}"
    if not matches_annotation(parameters, Mapping[str, str]):
        raise ConfigurationError(
            f"{owner} has the parameters {parameters!r:.80}, neither a mapping of parameter names to"
            " state keys nor a function of the state.",
            fix='Write parameters={"city": "city_key"}.',
        )
    known = parameter_names(spec.parameters)
    if unknown := [name for name in parameters if name not in known]:
        raise ConfigurationError(
            f"{owner} maps {', '.join(map(repr, unknown))}: {spec.name!r} has no such parameter.",
            fix=suggest_fix(*unknown, candidates=known),
        )
