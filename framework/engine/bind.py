"""Services: made from capabilities and what an operator decides, for a graph of ours or one's own."""

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
from capgraph.registry.registration import capability_list_fix
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
    "capacity": "take",
    "embeddings": "aembed_query",
    "prices": "register",
    "permissions": "authorize",
    "selector": "select",
    "extractor": "extract",
    "planner": "plan",
    "answerer": "answer",
}
"""What an operator gives, by keyword: its type, or what is called of it."""
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
    """Bring capabilities together with what an operator decides about them.

    ``services.node(capability)`` is the node for a graph of one's own; a step keeps there what it
    promises in a plan.

    Args:
        capabilities: A registry, or capabilities and context types themselves.
        model: As for ``build_graph``.
        settings: All settings; the defaults when not given.
        checkpointer: Saver of the graph; a graph of one's own lends its own.
        answer_type: As for ``build_graph``.
        **options: See :class:`~capgraph.engine.services.OperatorOptions`.

    Raises:
        UnknownOptionError: A keyword is unknown.
        ConfigurationError: A behaviour, a policy or a model cannot be used, or the saver is
            synchronous.
        RegistryError: Two capabilities share a name.

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
    again = partial(bind, **fixed, answer_type=answer_type, **options)
    registry = as_registry(capabilities).freeze()
    # What the settings name stands inside of what the program gives.
    engines, plan_policies, step_policies = resolve_policies(options.get("policies", ()), settings)
    behaviors = (
        *_adjusting_behaviors(engines),
        *options.get("behaviors", ()),
        *build_configured(settings.behaviors, "behaviors"),
    )
    options = {**options, "behaviors": behaviors}
    permissions = _resolve_permissions(registry, settings, options.get("permissions"))
    if permissions is not None:
        step_policies = (permissions, *step_policies)
    flow, plan_policies = _information_flow(
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
            f"answer_type is {answer_type!r}, and no chat model is configured that could keep to it.",
            fix="Give a model for the role 'answer', or an answerer of your own.",
        )
    equipment = RunnerConfig(
        registry,
        settings,
        clock=clock,
        capacity=options.get("capacity"),
        chat_model=chosen.pop("chat_model", lambda _role: None),
        step_policies=step_policies,
        flow=flow,
        schema=StateSchema.of(options.get("state_schema", AgentState)),
    )
    runner = StepRunner(
        equipment,
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
            (*options.get("sinks", ()), *build_configured(settings.sinks, "sinks", "sink"))
        ),
        budget_policy=purse,
        auditor=_auditor(options.get("audit"), settings, persistence),
        masker=SecretMasker.of(settings),
        prompts=prompts,
        retention=_retention(settings),
        system_prompt=options.get("system_prompt") or "",
        answer_type=answer_type,
        rebind=again,
        **chosen,
    )


def _check_options(options: Mapping[str, Any]) -> None:
    for name, given in options.items():
        wanted = _OPTION_TYPES.get(name, object)
        told, fit = _TYPE_NAMES.get(wanted, wanted), matches_annotation(given, wanted)
        if isinstance(wanted, str):
            told = f"an object with {wanted}(…)"
            fit = not isinstance(given, type) and callable(getattr(given, wanted, None))
        if not fit and (given is not None or name in {"behaviors", "sinks", "state_schema"}):
            raise ConfigurationError(f"{name} is {given!r:.80}.", fix=f"Give {told}.")


def _adjusting_behaviors(engines: Sequence[PolicyEngine]) -> list[Any]:
    if not engines:
        return []
    from capgraph.governance.model_call_adjuster import ModelCallAdjuster

    return [ModelCallAdjuster(engine.models) for engine in engines]


def _retention(settings: Settings) -> Retention | None:
    kept = settings.persistence
    if kept.keep_turns is kept.keep_checkpoints is kept.keep_days is None:
        return None
    from capgraph.stores.retention import Retention

    return Retention(kept)


def _auditor(
    target: bool | AuditLog | None,
    settings: Settings,
    persistence: Persistence | None,
) -> Auditor | None:
    target = settings.audit.keep if target is None else target
    if target is False:
        return None
    from capgraph.engine.auditing import Auditor

    return Auditor(target, settings.audit, persistence)


def as_settings(settings: Settings | None) -> Settings:
    """Return the settings that were given, or the defaults.

    Raises:
        ConfigurationError: They are not a ``Settings`` object.
    """
    if settings is None:
        from capgraph.configs.settings import load_settings

        return load_settings()
    if isinstance(settings, type) or not callable(getattr(settings, "capability_settings", None)):
        raise ConfigurationError(
            f"settings is {settings!r:.80}, not a Settings object.",
            fix="Pass Settings(...) or load_settings('capgraph.yml'), both of"
            " capgraph.configs.settings.",
        )
    return settings


def as_registry(capabilities: Capabilities) -> Registry:
    """Return a registry of whatever was given: itself, or one that holds the items.

    Raises:
        ConfigurationError: It is no list, such as a single capability, a tool or a compiled graph.
        RegistryError: An item cannot be registered.
    """
    if isinstance(capabilities, Registry):
        return capabilities
    # Tools can be iterated over, like all models of pydantic, and give their fields.
    if not matches_annotation(capabilities, Iterable[Any]) or hasattr(capabilities, "ainvoke"):
        raise ConfigurationError(
            f"{capabilities!r:.80} is not a list of capabilities or a Registry.",
            fix=capability_list_fix(capabilities),
        )
    registry = Registry()
    for item in capabilities:
        registry.register(item)
    return registry


def resolve_answer_gate(gate: Any, settings: Settings) -> Any:
    """Return what the answer has to be good enough for: what a program gives, else the settings.

    Raises:
        ConfigurationError: It is no gate of an answer.
    """
    if gate is None and settings.answer_gate is not None:
        [gate] = build_configured([settings.answer_gate], "answer_gate", "gate")
    if gate is None or callable(getattr(gate, "evaluate_result", None)):
        if getattr(gate, "below", None) == "ask":
            raise ConfigurationError(
                "answer_gate asks a person, who is shown the answer anyhow.",
                fix="Use below='retry', 'replan' or 'fail'.",
            )
        return gate
    raise ConfigurationError(f"{gate!r} is no gate.", fix="Give a QualityGate.")


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
                "These declare a permission, and nothing checks it: %s. Fix: give"
                " permissions=PermissionPolicy(…).",
                ", ".join(unasked),
            )
        return None
    from capgraph.governance.caller_permissions import CallerPermissions

    return CallerPermissions(registry, permissions)


def _information_flow(
    policies: tuple[PlanPolicy, ...], registry: Registry, can_ask: Callable[[], bool]
) -> tuple[InformationFlow | None, tuple[PlanPolicy, ...]]:
    """Return the check of labels, and the policies with it: the given one, or the usual one."""
    given = [policy for policy in policies if isinstance(policy, InformationFlow)]
    if len(given) > 1:
        raise ConfigurationError(
            "Several InformationFlow stand in 'policies'.", fix="Give one, with all its rules."
        )
    if not given and not declares_labels(registry):
        return None, policies
    flow = (given[0] if given else InformationFlow()).bind(registry, can_ask)
    return flow, (*(policy for policy in policies if policy not in given), flow)


def resolve_policies(
    declared: Any, settings: Settings
) -> tuple[list[PolicyEngine], tuple[PlanPolicy, ...], tuple[StepPolicy, ...]]:
    """Return engines, policies about plans and about steps: a program's, then the settings'.

    Raises:
        ConfigurationError: Something is no policy, or rules share a name.
    """
    policies = [*declared] if isinstance(declared, (list, tuple)) else [declared]
    policies += build_configured(settings.policies, "policies", "policy")
    if not policies:
        return [], (), ()
    from capgraph.governance.policies import PolicyEngine

    engines = [policy for policy in policies if isinstance(policy, PolicyEngine)]
    names = [rule.name for engine in engines for rule in engine.rules]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(
            f"Rules of two policy engines are called {', '.join(twice)}.",
            fix="Give each rule a name of its own.",
        )
    others = [policy for policy in policies if policy not in engines]
    for policy in others:
        asks = [name for name in ("review", "decide") if callable(getattr(policy, name, None))]
        if isinstance(policy, type) or not asks:
            raise ConfigurationError(
                f"{policy!r} among the policies is no policy.",
                fix="Give a PolicyEngine, or an object with 'async review(plan, view)' or 'async"
                " decide(step, view)'.",
            )
    return (
        engines,
        tuple(policy for policy in others if callable(getattr(policy, "review", None))),
        tuple(policy for policy in others if callable(getattr(policy, "decide", None))),
    )


def unbound_services(spec: CapabilitySpec) -> Services:
    """Return what a capability runs with that nobody bound: default limits, the run's own saver.

    Raises:
        ConfigurationError: It declares what nobody would keep here.
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
    if promised:
        raise ConfigurationError(
            f"The node of {spec.name!r} is not bound, and nothing would keep its"
            f" {' and '.join(promised)}.",
            fix=f"services = bind([{spec.cls.__name__}]); use services.node({spec.cls.__name__}).",
        )
    cls: Any = spec.cls
    return _unbound(cls)


@lru_cache(maxsize=256)
def _unbound(cls: Any) -> Services:
    from capgraph.configs.settings import Settings

    registry = Registry(infrastructure=())
    registry.register(cls)
    # No operator decided this: what it runs inside goes by the services around.
    return replace(bind(registry, settings=Settings(infrastructure=[])), rebind=None)
