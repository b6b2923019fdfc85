"""Services: made from capabilities and what an operator decides, for a graph of ours or one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from typing_extensions import Unpack

from capgraph.base.checked import checked, fits
from capgraph.base.clock import as_clock
from capgraph.base.errors import ConfigurationError
from capgraph.base.ports import PlanPolicy, StepPolicy, TurnGuardrail
from capgraph.base.spec import CapabilitySpec
from capgraph.configs.logger import SecretMasker, get_logger
from capgraph.engine.default_strategies import SummaryAnswerer
from capgraph.engine.defaults_policy import AskAboutDefaults
from capgraph.engine.named import named, of_capabilities
from capgraph.engine.services import OperatorOptions, Services
from capgraph.engine.strategies import choose_strategies
from capgraph.governance.flow import InformationFlow, declares_labels
from capgraph.governance.spending import BudgetStage, Purse, declared_budgets, declared_prices
from capgraph.pipeline.equipment import Equipment
from capgraph.pipeline.journal import running_journal
from capgraph.pipeline.runner import StepRunner
from capgraph.planning.planner_traits import planner_traits
from capgraph.prompts import get_framework_prompts
from capgraph.registry import Registry
from capgraph.registry.membership import how_to_list
from capgraph.state import AgentState, StateSchema
from capgraph.stores.persistence import Persistence
from capgraph.stores.usable import check_saver
from capgraph.telemetry.sinks import EventDispatcher

if TYPE_CHECKING:
    from typing import TypeAlias

    from pydantic import BaseModel

    Capabilities: TypeAlias = Registry | Iterable[Any]
    """The capabilities of an agent; a name for type checkers, since `as_registry` says more."""

    from capgraph.configs.settings import Settings
    from capgraph.engine.auditing import Auditor
    from capgraph.governance.caller import CallerPermissions
    from capgraph.governance.policies import PolicyEngine
    from capgraph.stores.retention import Retention
    from capgraph.telemetry.audit_log import AuditLog

_WANTED: dict[str, Any] = {
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
_TOLD: dict[Any, str] = {Sequence: "a list", type: "a class"}


@checked
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
    check_saver(checkpointer)
    persistence = Persistence.of(checkpointer) if checkpointer is not None else None
    timed_by = options.get("clock")
    clock = None if timed_by is None else as_clock(timed_by)
    fixed: Any = {"model": model, "settings": settings, "checkpointer": checkpointer}
    again = partial(bind, **fixed, answer_type=answer_type, **options)
    registry = as_registry(capabilities).frozen()
    # What the settings name stands inside of what the program gives.
    engines, plan_policies, step_policies = policies_of(options.get("policies", ()), settings)
    behaviors = (
        *_adjusting(engines),
        *options.get("behaviors", ()),
        *named(settings.behaviors, "behaviors"),
    )
    options = {**options, "behaviors": behaviors}
    permissions = _permissions(registry, settings, options.get("permissions"))
    if permissions is not None:
        step_policies = (permissions, *step_policies)
    flow, plan_policies = _information_flow(
        plan_policies, registry, lambda: running_journal(persistence).durable
    )
    guards = [item for item in behaviors if isinstance(item, TurnGuardrail)]
    purse = Purse.of(
        options.get("budget") or declared_budgets(settings.budgets),
        options.get("prices") or declared_prices(settings.prices),
        clock,
    )
    chosen = choose_strategies(registry, settings, model, options, clock)
    chooses = planner_traits(chosen["planner"]).chooses_parameters
    if not chooses and (careful := AskAboutDefaults(registry)):
        step_policies = (*step_policies, careful)
    prompts = get_framework_prompts(settings.prompts) if settings.prompts else None
    if answer_type is not None and isinstance(chosen["answerer"], SummaryAnswerer):
        raise ConfigurationError(
            f"answer_type is {answer_type!r}, and no chat model is configured that could keep to it.",
            fix="Give a model for the role 'answer', or an answerer of your own.",
        )
    equipment = Equipment(
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
        where_bounded=(BudgetStage(),),
        bounded=bool(purse.budgets),
        own_behaviors=of_capabilities(registry, settings),
    )
    return Services(
        runner=runner,
        persistence=persistence,
        plan_policies=plan_policies,
        engines=engines,
        permissions=permissions,
        flow=flow,
        answer_gate=answer_gate_of(options.get("answer_gate"), settings),
        guard=guards[0].merged_with(guards[1:]) if guards else None,
        events=EventDispatcher(
            (*options.get("sinks", ()), *named(settings.sinks, "sinks", "sink"))
        ),
        purse=purse,
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
        wanted = _WANTED.get(name, object)
        told, fit = _TOLD.get(wanted, wanted), fits(given, wanted)
        if isinstance(wanted, str):
            told = f"an object with {wanted}(…)"
            fit = not isinstance(given, type) and callable(getattr(given, wanted, None))
        if not fit and (given is not None or name in {"behaviors", "sinks", "state_schema"}):
            raise ConfigurationError(f"{name} is {given!r:.80}.", fix=f"Give {told}.")


def _adjusting(engines: Sequence[PolicyEngine]) -> list[Any]:
    if not engines:
        return []
    from capgraph.governance.adjusting import AdjustedCalls

    return [AdjustedCalls(engine.models) for engine in engines]


def _retention(settings: Settings) -> Retention | None:
    kept = settings.persistence
    if kept.keep_turns is kept.keep_checkpoints is kept.keep_days is None:
        return None
    from capgraph.stores.retention import Retention

    return Retention(kept)


def _auditor(
    wanted: bool | AuditLog | None,
    settings: Settings,
    persistence: Persistence | None,
) -> Auditor | None:
    wanted = settings.audit.keep if wanted is None else wanted
    if wanted is False:
        return None
    from capgraph.engine.auditing import Auditor

    return Auditor(wanted, settings.audit, persistence)


def as_settings(settings: Settings | None) -> Settings:
    """Return the settings that were given, or the defaults.

    Raises:
        ConfigurationError: They are not a ``Settings`` object.
    """
    if settings is None:
        from capgraph.configs.settings import load_settings

        return load_settings()
    if isinstance(settings, type) or not callable(getattr(settings, "section", None)):
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
    if not fits(capabilities, Iterable[Any]) or hasattr(capabilities, "ainvoke"):
        raise ConfigurationError(
            f"{capabilities!r:.80} is not a list of capabilities or a Registry.",
            fix=how_to_list(capabilities),
        )
    registry = Registry()
    for item in capabilities:
        registry.register(item)
    return registry


def answer_gate_of(given: Any, settings: Settings) -> Any:
    """Return what the answer has to be good enough for: what a program gives, else the settings.

    Raises:
        ConfigurationError: It is no gate of an answer.
    """
    if given is None and settings.answer_gate is not None:
        [given] = named([settings.answer_gate], "answer_gate", "gate")
    if given is None or callable(getattr(given, "evaluate_result", None)):
        if getattr(given, "below", None) == "ask":
            raise ConfigurationError(
                "answer_gate asks a person, who is shown the answer anyhow.",
                fix="Use below='retry', 'replan' or 'fail'.",
            )
        return given
    raise ConfigurationError(f"{given!r} is no gate.", fix="Give a QualityGate.")


def _permissions(registry: Registry, settings: Settings, given: Any) -> CallerPermissions | None:
    if given is None and settings.permissions is not None:
        from capgraph.governance.declared import permissions_from

        given = permissions_from(settings.permissions, registry)
    if given is None:
        unasked = [s.name for s in registry.capabilities.values() if s.permission is not None]
        if unasked:
            get_logger("framework", "bind").warning(
                "These declare a permission, and nothing checks it: %s. Fix: give"
                " permissions=PermissionPolicy(…).",
                ", ".join(unasked),
            )
        return None
    from capgraph.governance.caller import CallerPermissions

    return CallerPermissions(registry, given)


def _information_flow(
    policies: tuple[PlanPolicy, ...], registry: Registry, may_ask: Callable[[], bool]
) -> tuple[InformationFlow | None, tuple[PlanPolicy, ...]]:
    """Return the check of labels, and the policies with it: the given one, or the usual one."""
    given = [policy for policy in policies if isinstance(policy, InformationFlow)]
    if len(given) > 1:
        raise ConfigurationError(
            "Several InformationFlow stand in 'policies'.", fix="Give one, with all its rules."
        )
    if not given and not declares_labels(registry):
        return None, policies
    flow = (given[0] if given else InformationFlow()).of(registry, may_ask)
    return flow, (*(policy for policy in policies if policy not in given), flow)


def policies_of(
    given: Any, settings: Settings
) -> tuple[list[PolicyEngine], tuple[PlanPolicy, ...], tuple[StepPolicy, ...]]:
    """Return engines, policies about plans and about steps: a program's, then the settings'.

    Raises:
        ConfigurationError: Something is no policy, or rules share a name.
    """
    policies = [*given] if isinstance(given, (list, tuple)) else [given]
    policies += named(settings.policies, "policies", "policy")
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
