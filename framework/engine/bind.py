"""Creation of :class:`Services` from capabilities and the options of an operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from typing_extensions import Unpack

from capgraph.base.errors import ConfigurationError
from capgraph.base.ports import PlanPolicy, StepPolicy, TurnGuardrail
from capgraph.base.spec import CapabilitySpec
from capgraph.configs.logger import SecretMasker, get_logger
from capgraph.configs.run_context import run_context
from capgraph.engine.configured_objects import build_configured, capability_behaviors
from capgraph.engine.default_parameters_policy import DefaultParametersPolicy
from capgraph.engine.default_strategies import SummaryAnswerer
from capgraph.engine.services import OperatorOptions, Services
from capgraph.engine.strategies import choose_strategies
from capgraph.governance.budget_enforcement import (
    BudgetPolicy,
    BudgetStage,
    budgets_from_settings,
    prices_from_settings,
)
from capgraph.governance.information_flow import InformationFlow, declares_labels
from capgraph.helpers.argument_validation import matches_annotation, validate_arguments
from capgraph.helpers.clock import as_clock
from capgraph.pipeline.journal import running_journal
from capgraph.pipeline.runner import StepRunner
from capgraph.pipeline.runner_config import RunnerConfig
from capgraph.planning.planner_traits import planner_traits
from capgraph.prompts import get_framework_prompts
from capgraph.registry import Registry
from capgraph.registry.registration import suggest_capability_list
from capgraph.state import AgentState, StateSchema
from capgraph.stores.async_checks import require_async_saver
from capgraph.stores.persistence import Persistence
from capgraph.telemetry.event_dispatcher import EventDispatcher

if TYPE_CHECKING:
    from typing import TypeAlias

    from pydantic import BaseModel

    Capabilities: TypeAlias = Registry | Iterable[Any]
    """The capabilities of an agent; a name for type checkers, since `as_registry` says more."""

    from capgraph.configs.settings import Settings
    from capgraph.engine.auditing import Auditor
    from capgraph.governance.caller_permissions import CallerPermissions
    from capgraph.governance.policies import PolicyEngine
    from capgraph.stores.retention import Retention
    from capgraph.telemetry.audit_log import AuditLog

_OPTION_TYPES: dict[str, Any] = {
    "behaviors": Sequence,
    "sinks": Sequence,
    "state_schema": type,
    "system_prompt": str | Callable | None,
    "capacity": "acquire",
    "embeddings": "aembed_query",
    "prices": "register",
    "permissions": "authorize",
    "selector": "select",
    "extractor": "extract",
    "planner": "plan",
    "answerer": "answer",
}
"""Expected type of an option, or the method that it must have."""
_TYPE_NAMES: dict[Any, str] = {Sequence: "a list", type: "a class"}


@validate_arguments
def bind(
    capabilities: Capabilities,
    *,
    model: Any = None,
    settings: Settings | None = None,
    checkpointer: BaseCheckpointSaver[Any] | None = None,
    answer_type: type[BaseModel] | None = None,
    **options: Unpack[OperatorOptions],
) -> Services:
    """Create the services that run capabilities in a custom LangGraph graph.

    ``services.node(capability)`` returns a graph node for a capability. A step run by the node
    has the same guarantees as a step of a plan.

    Args:
        capabilities: Registry, or list of capabilities and context types.
        model: See ``build_graph``.
        settings: Settings of the agent. Defaults to ``Settings()``.
        checkpointer: Saver of the graph. A custom graph uses the saver with which it is
            compiled.
        answer_type: See ``build_graph``.
        **options: See :class:`~capgraph.engine.services.OperatorOptions`.

    Raises:
        UnknownOptionError: An option is unknown.
        ConfigurationError: A behavior, policy, or model is invalid, or the saver is
            synchronous.
        RegistryError: Two capabilities have the same name.

    >>> from capgraph import BaseCapability, capability_node
    >>> @capability_node
    ... class Hello(BaseCapability):
    ...     name = "hello"
    ...     description = "Says hello"
    ...     async def execute(self):
    ...         return {}
    >>> sorted(bind([Hello]).registry.capabilities)
    ['hello']
    """
    settings = as_settings(settings)
    _check_options(options)
    require_async_saver(checkpointer)
    persistence = Persistence.of(checkpointer) if checkpointer is not None else None
    timed_by = options.get("clock")
    clock = None if timed_by is None else as_clock(timed_by)
    fixed: Any = {"model": model, "settings": settings, "checkpointer": checkpointer}
    rebind = partial(bind, **fixed, answer_type=answer_type, **options)
    registry = as_registry(capabilities).freeze()
    # Objects from the settings are inside those that the program passes.
    engines, plan_policies, step_policies = resolve_policies(options.get("policies", ()), settings)
    behaviors = (
        *_collect_adjusting_behaviors(engines),
        *options.get("behaviors", ()),
        *build_configured(settings.behaviors, "behaviors"),
    )
    options = {**options, "behaviors": behaviors}
    permissions = _resolve_permissions(registry, settings, options.get("permissions"))
    if permissions is not None:
        step_policies = (permissions, *step_policies)
    flow, plan_policies = _find_information_flow(
        plan_policies, registry, lambda: running_journal(persistence).is_durable
    )
    guards = [item for item in behaviors if isinstance(item, TurnGuardrail)]
    purse = BudgetPolicy.from_option(
        options.get("budget") or budgets_from_settings(settings.budgets),
        options.get("prices") or prices_from_settings(settings.prices),
        clock,
    )
    chosen = choose_strategies(registry, settings, model, options, clock)
    chooses = planner_traits(chosen["planner"]).chooses_parameters
    if not chooses and (careful := DefaultParametersPolicy(registry)):
        step_policies = (*step_policies, careful)
    prompts = get_framework_prompts(settings.prompts) if settings.prompts else None
    if answer_type is not None and isinstance(chosen["answerer"], SummaryAnswerer):
        raise ConfigurationError(
            f"answer_type {answer_type!r} requires a chat model: none is configured.",
            fix="configure a model for the role 'answer', or pass a custom answerer.",
        )
    runner_config = RunnerConfig(
        registry,
        settings,
        clock=clock,
        capacity=options.get("capacity"),
        chat_model=chosen.pop("chat_model", lambda _role: None),
        step_policies=step_policies,
        flow=flow,
        schema=StateSchema.from_class(options.get("state_schema", AgentState)),
    )
    runner = StepRunner(
        runner_config,
        behaviors=behaviors,
        budget_behaviors=(BudgetStage(),),
        has_budgets=bool(purse.budgets),
        own_behaviors=capability_behaviors(registry, settings),
    )
    return Services(
        runner=runner,
        persistence=persistence,
        plan_policies=plan_policies,
        policy_engines=engines,
        permissions=permissions,
        flow=flow,
        answer_gate=resolve_answer_gate(options.get("answer_gate"), settings),
        guard=guards[0].merged_with(guards[1:]) if guards else None,
        events=EventDispatcher(
            (*options.get("sinks", ()), *build_configured(settings.sinks, "sinks", "sink")),
            agent_name=settings.name,
        ),
        budget_policy=purse,
        auditor=_create_auditor(options.get("audit"), settings, persistence),
        masker=SecretMasker.of(settings),
        prompts=prompts,
        retention=_create_retention(settings),
        system_prompt=options.get("system_prompt") or "",
        answer_type=answer_type,
        rebind=rebind,
        **chosen,
    )


def _check_options(options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        expected = _OPTION_TYPES.get(name, object)
        expected_name, is_valid = (
            _TYPE_NAMES.get(expected, expected),
            matches_annotation(value, expected),
        )
        if isinstance(expected, str):
            expected_name = f"an object with {expected}(…)"
            is_valid = not isinstance(value, type) and callable(getattr(value, expected, None))
        if not is_valid and (value is not None or name in {"behaviors", "sinks", "state_schema"}):
            raise ConfigurationError(
                f"Invalid option {name} {value!r:.80}.", fix=f"Give {expected_name}."
            )


def _collect_adjusting_behaviors(engines: Sequence[PolicyEngine]) -> list[Any]:
    if not engines:
        return []
    from capgraph.governance.model_call_adjuster import ModelCallAdjuster

    return [ModelCallAdjuster(engine.models) for engine in engines]


def _create_retention(settings: Settings) -> Retention | None:
    persistence = settings.persistence
    if persistence.keep_turns is persistence.keep_checkpoints is persistence.keep_days is None:
        return None
    from capgraph.stores.retention import Retention

    return Retention(persistence)


def _create_auditor(
    target: bool | AuditLog | None, settings: Settings, persistence: Persistence | None
) -> Auditor | None:
    target = settings.audit.keep if target is None else target
    if target is False:
        return None
    from capgraph.engine.auditing import Auditor

    return Auditor(target, settings.audit, persistence)


def as_settings(settings: Settings | None) -> Settings:
    """Return the given settings unchanged, or load the configured settings for ``None``.

    Raises:
        ConfigurationError: The argument is not a ``Settings`` object.
    """
    if settings is None:
        from capgraph.configs.settings import load_settings

        return load_settings()
    if isinstance(settings, type) or not callable(getattr(settings, "capability_settings", None)):
        raise ConfigurationError(
            f"Invalid settings {settings!r:.80}: expected a Settings object.",
            fix="pass Settings(...) or load_settings('capgraph.yml') from capgraph.configs.settings.",
        )
    return settings


def as_registry(capabilities: Capabilities) -> Registry:
    """Create a registry from a list of capabilities. A registry is returned unchanged.

    Raises:
        ConfigurationError: The argument is neither a registry nor a list. For example, it is a
            single capability, a tool, or a compiled graph.
        RegistryError: An item cannot be registered.
    """
    if isinstance(capabilities, Registry):
        return capabilities
    # A tool is iterable, like all pydantic models, but yields its fields.
    if not matches_annotation(capabilities, Iterable[Any]) or hasattr(capabilities, "ainvoke"):
        raise ConfigurationError(
            f"Invalid capabilities {capabilities!r:.80}: expected a list or a Registry.",
            fix=suggest_capability_list(capabilities),
        )
    registry = Registry()
    for item in capabilities:
        registry.register(item)
    return registry


def resolve_answer_gate(gate: Any, settings: Settings) -> Any:
    """Return the quality gate for the answer, from the option or, by default, the settings.

    Raises:
        ConfigurationError: The value is not a quality gate, or the gate requests approval.
    """
    if gate is None and settings.answer_gate is not None:
        [gate] = build_configured([settings.answer_gate], "answer_gate", "gate")
    if gate is None or callable(getattr(gate, "evaluate_result", None)):
        if getattr(gate, "below", None) == "ask":
            raise ConfigurationError(
                "Invalid answer_gate: below='ask' is not supported, since the user sees the answer.",
                fix="use below='retry', 'replan', or 'fail'.",
            )
        return gate
    raise ConfigurationError(
        f"Invalid answer_gate {gate!r}: it is not a gate.", fix="pass a QualityGate."
    )


def _resolve_permissions(
    registry: Registry, settings: Settings, permissions: Any
) -> CallerPermissions | None:
    if permissions is None and settings.permissions is not None:
        from capgraph.governance.permission_settings import permissions_from_settings

        permissions = permissions_from_settings(settings.permissions, registry)
    if permissions is None:
        unasked = [s.name for s in registry.capabilities.values() if s.permission is not None]
        if unasked:
            get_logger("framework", "bind").warning(
                "No permission policy is configured, but these capabilities declare a permission:"
                " %s. Fix: pass permissions=PermissionPolicy(…).",
                ", ".join(unasked),
            )
        return None
    from capgraph.governance.caller_permissions import CallerPermissions

    return CallerPermissions(registry, permissions)


def _find_information_flow(
    policies: tuple[PlanPolicy, ...], registry: Registry, can_ask: Callable[[], bool]
) -> tuple[InformationFlow | None, tuple[PlanPolicy, ...]]:
    """Find or create the information flow policy, which restricts data by provenance labels.

    Return the policy, or ``None`` if no labels are declared, and all plan policies including
    it.
    """
    flows = [policy for policy in policies if isinstance(policy, InformationFlow)]
    if len(flows) > 1:
        raise ConfigurationError(
            "Option 'policies' has several InformationFlow policies: only one is supported.",
            fix="combine their rules in one InformationFlow.",
        )
    if not flows and not declares_labels(registry):
        return None, policies
    flow = (flows[0] if flows else InformationFlow()).bind(registry, can_ask)
    return flow, (*(policy for policy in policies if policy not in flows), flow)


def resolve_policies(
    declared: Any, settings: Settings
) -> tuple[list[PolicyEngine], tuple[PlanPolicy, ...], tuple[StepPolicy, ...]]:
    """Collect the policies from the option and the settings, grouped by kind.

    Return the policy engines, the plan policies, and the step policies.

    Raises:
        ConfigurationError: An object is not a policy, or two rules have the same name.
    """
    policies = [*declared] if isinstance(declared, (list, tuple)) else [declared]
    policies += build_configured(settings.policies, "policies", "policy")
    if not policies:
        return [], (), ()
    from capgraph.governance.policies import PolicyEngine

    engines = [policy for policy in policies if isinstance(policy, PolicyEngine)]
    names = [rule.name for engine in engines for rule in engine.rules]
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(
            f"Duplicate policy rule names: {', '.join(duplicates)}.",
            fix="give each rule a unique name.",
        )
    other_policies = [policy for policy in policies if policy not in engines]
    for policy in other_policies:
        methods = [name for name in ("review", "decide") if callable(getattr(policy, name, None))]
        if isinstance(policy, type) or not methods:
            raise ConfigurationError(
                f"Invalid policy {policy!r} in 'policies': it has neither 'review' nor 'decide'.",
                fix="pass a PolicyEngine, or an object with 'async review(plan, view)' or 'async"
                " decide(step, view)'.",
            )
    return (
        engines,
        tuple(policy for policy in other_policies if callable(getattr(policy, "review", None))),
        tuple(policy for policy in other_policies if callable(getattr(policy, "decide", None))),
    )


def unbound_services(spec: CapabilitySpec) -> Services:
    """Create services with default limits for a capability that was not passed to ``bind``.

    Raises:
        ConfigurationError: The capability declares a guarantee, such as approval, that is
            available only with ``bind``.
    """
    promised = [
        name
        for name, declared in (
            ("requires_approval", spec.requires_approval),
            ('effect="once"', spec.effect == "once"),
            ("permission", spec.permission is not None),
        )
        if declared
    ]
    if promised and not run_context().is_compiling_step:
        raise ConfigurationError(
            f"The node of {spec.name!r} is not bound: {' and '.join(promised)} requires services.",
            fix=f"use bind([{spec.cls.__name__}]).node({spec.cls.__name__}).",
        )
    cls: Any = spec.cls
    return _create_unbound_services(cls)


@lru_cache(maxsize=256)
def _create_unbound_services(cls: Any) -> Services:
    from capgraph.configs.settings import Settings

    registry = Registry(infrastructure=())
    registry.register(cls)
    # These are not the services of an operator, so nested members use the enclosing ones.
    return replace(bind(registry, settings=Settings(infrastructure=[])), rebind=None)
