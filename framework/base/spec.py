"""Frozen descriptions of what a capability and an infrastructure node declare."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, cast, get_args, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetPydanticSchema,
    Strict,
    TypeAdapter,
)
from pydantic import ValidationError as PydanticError

from capgraph.base.approval_policy import ApprovalPolicy
from capgraph.base.argument_injection import check_parameter
from capgraph.base.context import CapabilityContext
from capgraph.base.errors import ValidationError
from capgraph.base.ports import PermissionMode
from capgraph.base.undo import Undo
from capgraph.configs.safe_text import escape_control_characters

Cardinality = Literal["one", "many", "optional"]
Effect = Literal["none", "idempotent", "once"]
OnError = Literal["fail", "observe"]
OnUnknown = Literal["ask", "rerun", "fail", "skip"]


QUEUE_PATTERN = r"^[A-Za-z0-9_.-]{1,64}$"
"""What the name of a queue looks like."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Requirement:
    """A context type that a capability needs.

    Attributes:
        type: Name of the context type.
        cardinality: ``one`` (exactly one), ``many`` (one or more), ``optional`` (none or one).
        role: What the input is called where several are of one type, such as ``old`` and ``new``.

    >>> Requirement.parse(("READING", "many"))
    Requirement(type='READING', cardinality='many')
    >>> Requirement.parse(("READING", "one", "old")).label
    'old'
    """

    type: str
    cardinality: Cardinality = "one"
    role: str | None = field(default=None, repr=False)

    @property
    def label(self) -> str:
        """How a plan names the input: by its role, else by its type."""
        return self.role or self.type

    def __str__(self) -> str:
        kind = self.type if self.cardinality == "one" else f"{self.type} ({self.cardinality})"
        return f"{self.role}: {kind}" if self.role else kind

    @classmethod
    def parse(cls, entry: Any) -> Requirement:
        """Read an entry of ``requires``: a type, ``(type, cardinality)`` or with a role after it.

        A type is its name, or the context class itself.

        Raises:
            ValidationError: The entry is neither.
        """
        if isinstance(entry, Requirement):
            return entry
        if (name := context_type_name(entry)) is not None:
            return cls(name)
        if isinstance(entry, (tuple, list)) and 2 <= len(entry) <= 3 and isinstance(entry[1], str):
            name, role = context_type_name(entry[0]), entry[2] if len(entry) == 3 else None
            if name and entry[1] in get_args(Cardinality) and (role is None or _is_role(role)):
                return cls(name, cast("Cardinality", entry[1]), role)
        raise ValidationError(
            f"{entry!r} is not a valid entry of 'requires'.",
            fix="Write 'TYPE', ('TYPE', 'one' | 'many' | 'optional') or, with a role such as 'old',"
            " ('TYPE', 'one', 'old'); a context class serves as TYPE too.",
        )


def _is_role(value: Any) -> bool:
    return isinstance(value, str) and value.isidentifier()


def context_type_name(entry: Any) -> str | None:
    """Return the name of a context type given by name or as its class; ``None`` for neither."""
    if isinstance(entry, type) and issubclass(entry, CapabilityContext):
        return entry.CONTEXT_TYPE
    return entry if isinstance(entry, str) and entry else None


def sorted_unique(names: Iterable[str]) -> tuple[str, ...]:
    """Return names in one order, each once.

    >>> sorted_unique({"untrusted", "secret"})
    ('secret', 'untrusted')
    """
    return tuple(sorted(set(names)))


def _gate(given: Any) -> Any:
    if given is None:
        return None
    if isinstance(given, type) or not callable(getattr(given, "evaluate_result", None)):
        raise ValueError("this is no gate; a QualityGate is one")
    if getattr(given, "check", given) is None:
        raise ValueError("it has no check, so no result could pass it")
    return given


def _kept_as(kind: Any) -> GetPydanticSchema:
    """Have a value checked as another type than the one that an author may write."""
    return GetPydanticSchema(lambda _, handler: handler(kind))


_Names = Annotated[Sequence[str], _kept_as(Annotated[tuple[str, ...], Strict(False)])]
_Objects = Annotated[Sequence[Any], _kept_as(Annotated[tuple[Any, ...], Strict(False)])]


def _examples(given: tuple[str, ...]) -> tuple[str, ...]:
    if not all(text.strip() for text in given):
        raise ValueError("an example must be a request, not an empty text")
    return given


def _table(cls: type[_T]) -> type[_T]:
    """Make a data class that type checkers take for a plain one.

    A capability inherits its attributes, and may be a data class that is not frozen.
    """
    return dataclass(frozen=True, kw_only=True)(cls)


@_table
class Declarations:
    """What a capability may say about itself besides its name and its types.

    This is the one table: each line is a class attribute of ``BaseCapability``, a keyword of the
    function form and a field of :class:`CapabilitySpec`, checked against its type.
    :func:`capgraph.base.declarations.accepted` lists the names that each form accepts.

    Attributes:
        examples: Requests that need the capability. They are used to select it, beside the
            examples of its classifier guide where it has one.
        effect: ``none``, ``idempotent`` (safe to repeat with its key) or ``once``.
        requires_approval: Whether a person must agree before it runs; an ``ApprovalPolicy`` says who,
            how many, and for how long.
        max_parallel: How many of its steps may run at once; ``None`` for no limit of its own.
        timeout_seconds: Time limit of one attempt; ``None`` for the setting's default.
        on_unknown: What to do when a ``once`` step started and its end is not known.
        on_error: ``observe`` shows a failure to a planner that looks (``planning.mode``), which then
            goes on; without one, and with ``fail``, the severity of the failure decides. A LangChain
            tool without an effect is observed unless it says otherwise.
        always_active: Selected for every request.
        effect_key: Names of the parameters that make two effects the same one; ``None`` for all
            parameters and inputs.
        repeatable: Whether a new plan of the same turn may let it act again without asking.
        cost_usd: What one try costs besides the models that it calls, in US dollars.
        behaviors: What stands around each of its attempts: objects with ``stage`` and
            ``async around(attempt, call_next)``.
        permission: What its caller must be allowed, as ``PermissionMode`` or by name; ``None`` for
            what its effect asks for.
        gate: What its result has to be good enough for: a ``QualityGate``.
        labels: What is to be known of whatever it gives, such as ``untrusted`` or ``secret``.
        sends_externally: Whether what it is given leaves the house.
        undo: What takes its effect back: a capability, its name, or an ``Undo``.
        removes_labels: What need no longer be known of what it gives, because it checks that.
        queue: Its steps run on workers that serve this queue; ``None`` for where their turn runs.
            Without workers it changes nothing.
    """

    examples: Annotated[_Names, AfterValidator(_examples)] = ()
    effect: Effect = "none"
    requires_approval: bool | ApprovalPolicy = False
    max_parallel: Annotated[int, Field(ge=1)] | None = None
    timeout_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    on_unknown: OnUnknown = "ask"
    on_error: OnError = "fail"
    always_active: bool = False
    effect_key: _Names | None = None
    repeatable: bool = False
    cost_usd: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    behaviors: _Objects = ()
    permission: (
        Annotated[
            PermissionMode | str,
            _kept_as(Annotated[PermissionMode, BeforeValidator(PermissionMode.of)]),
        ]
        | None
    ) = None
    gate: Annotated[Any, AfterValidator(_gate)] = None
    labels: Annotated[_Names, AfterValidator(sorted_unique)] = ()
    sends_externally: bool = False
    undo: Annotated[
        Undo | type[Any] | str | None,
        _kept_as(Annotated[Undo | None, BeforeValidator(Undo.of)]),
    ] = None
    removes_labels: Annotated[_Names, AfterValidator(sorted_unique)] = ()
    queue: Annotated[str, Field(pattern=QUEUE_PATTERN)] | None = None


DECLARED: dict[str, Any] = {
    name: getattr(Declarations, name) for name in Declarations.__annotations__
}
"""Name of each declaration and its default."""


@cache
def _adapters() -> dict[str, TypeAdapter[Any]]:
    strict = ConfigDict(strict=True)
    hints = get_type_hints(Declarations, include_extras=True)
    return {name: TypeAdapter(hints[name], config=strict) for name in DECLARED}


def check_declaration(owner: str, name: str, value: Any) -> Any:
    """Check one declaration and return it in the form that the spec keeps.

    Raises:
        ValidationError: The value does not fit.
    """
    try:
        return _adapters()[name].validate_python(value)
    except PydanticError as exc:
        wrong = "; ".join(dict.fromkeys(error["msg"] for error in exc.errors(include_url=False)))
        wrong = wrong.replace("valid tuple", "list")  # the form in which authors write it
        raise ValidationError(
            f"{owner}.{name} is {value!r}: {wrong}.",
            fix=f"Give another value, or leave {name} out (then it is {DECLARED[name]!r}).",
        ) from None


@dataclass(frozen=True, slots=True)
class CapabilitySpec(Declarations):
    """What one capability declares; made once, when the class is decorated.

    Attributes:
        name: Unique name, used in plans and as the graph node's name.
        description: What it does, for people and prompts.
        provides: Context types of its outputs.
        requires: Context types of its inputs.
        parameters: Pydantic model of a step's ``parameters``; ``None`` when not declared.
        context_types: Context classes that ``provides`` and ``requires`` were given as; they are
            registered with the capability.
        cls: The decorated class.
    """

    name: str
    description: str
    provides: tuple[str, ...] = ()
    requires: tuple[Requirement, ...] = ()
    parameters: type[BaseModel] | None = None
    context_types: tuple[type[CapabilityContext], ...] = field(default=(), repr=False)
    cls: type[Any] = field(default=object, repr=False, compare=False)

    if TYPE_CHECKING:  # the checked forms of what an author may write in several
        examples: tuple[str, ...] = ()
        effect_key: tuple[str, ...] | None = None
        behaviors: tuple[Any, ...] = ()
        permission: PermissionMode | None = None
        labels: tuple[str, ...] = ()
        undo: Undo | None = None
        removes_labels: tuple[str, ...] = ()

    @classmethod
    def of(cls, target: type[Any]) -> CapabilitySpec:
        """Read what a class declares.

        Raises:
            ValidationError: A declaration is malformed; names the class, the attribute, the fix.
        """
        owner = target.__name__
        provides, requires = (_entries(target, name) for name in ("provides", "requires"))
        outputs = [context_type_name(entry) for entry in provides]
        if None in outputs:
            raise ValidationError(
                f"{owner}.provides holds {provides[outputs.index(None)]!r}.",
                fix="Give names of context types, or context classes.",
            )
        declared = {
            name: check_declaration(owner, name, getattr(target, name)) for name in DECLARED
        }
        parameters = _parameters_model(target)
        if declared["undo"] is not None and declared["effect"] == "none":
            raise ValidationError(
                f"{owner}.undo is given, and {owner} declares no effect that could be undone.",
                fix='Declare effect = "once" (or "idempotent").',
            )
        _check_effect_key(owner, declared["effect_key"], parameters)
        parts = [*provides, *(e[0] if isinstance(e, (tuple, list)) else e for e in requires)]
        needs = tuple(Requirement.parse(entry) for entry in requires)
        _check_labels(owner, needs)
        return cls(
            name=target.name,
            description=target.description,
            provides=cast("tuple[str, ...]", tuple(dict.fromkeys(outputs))),
            requires=needs,
            parameters=parameters,
            context_types=tuple(dict.fromkeys(part for part in parts if isinstance(part, type))),
            cls=target,
            **declared,
        )


def _entries(target: type[Any], name: str) -> list[Any]:
    given = getattr(target, name, None) or []
    one_entry = isinstance(given, tuple) and given[1:] and given[1] in get_args(Cardinality)
    if one_entry or not isinstance(given, (list, tuple, set, frozenset)):
        shown = given.__name__ if isinstance(given, type) else repr(given)
        raise ValidationError(
            f"{target.__name__}.{name} is {shown}, not a list.", fix=f"Write {name} = [{shown}]."
        )
    return list(given)


def _check_labels(owner: str, needs: Sequence[Requirement]) -> None:
    labels = [need.label for need in needs]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise ValidationError(
            f"{owner}.requires names {', '.join(twice)} twice.",
            fix="Give each a role: ('TYPE', 'one', 'old'), ('TYPE', 'one', 'new').",
        )


def _parameters_model(target: type[Any]) -> type[BaseModel] | None:
    model = getattr(target, "Parameters", None)
    if model is None:
        return None
    if isinstance(model, type) and issubclass(model, BaseModel):
        for name, info in model.model_fields.items():
            annotation: Any = info.annotation
            for mark in info.metadata:
                annotation = Annotated[annotation, mark]
            check_parameter(f"{target.__name__}.Parameters", name, annotation)
        return model
    raise ValidationError(
        f"{target.__name__}.Parameters is {model!r}, not a pydantic model.",
        fix="Derive it from pydantic.BaseModel.",
    )


def parameter_names(model: type[BaseModel] | None) -> list[str]:
    """Name the parameters as a plan writes them: by alias where a field has one."""
    if model is None:
        return []
    return [
        info.validation_alias if isinstance(info.validation_alias, str) else info.alias or name
        for name, info in model.model_fields.items()
    ]


def _check_effect_key(
    owner: str, effect_key: Sequence[str] | None, parameters: type[BaseModel] | None
) -> None:
    known = parameter_names(parameters)
    unknown = [name for name in effect_key or () if name not in known]
    if unknown:
        raise ValidationError(
            f"{owner}.effect_key names {unknown}, which are no parameters of it.",
            fix=f"Use names of its Parameters: {', '.join(known)}."
            if known
            else "Declare them in a Parameters model.",
        )


def is_valid_node_name(name: str) -> bool:
    """Tell whether a node of a graph can have a name: not what LangGraph keeps, and printable."""
    kept = name.startswith("__") and name.endswith("__")
    return not (kept or set(name) & {":", "|"}) and escape_control_characters(name) == name


INFRASTRUCTURE_ROLES = (
    "begin_turn",
    "task_extraction",
    "classifier",
    "orchestrator",
    "router",
    "approval",
    "respond",
    "clarify",
    "error",
)
"""The infrastructure nodes without which there is no graph."""

INSERTION_POINTS: dict[str, tuple[str, ...]] = {
    "before": ("task_extraction", "classifier", "orchestrator", "respond", "clarify"),
    "after": ("task_extraction", "classifier", "orchestrator", "respond", "clarify", "error"),
}
"""Where a node that has no role of its own can stand: beside roles that do not choose their ways.
Before ``error`` a failure of its own would hide the one that is to be told."""


@dataclass(frozen=True, slots=True)
class InfrastructureSpec:
    """What one infrastructure node declares.

    Attributes:
        name: The node's name, which is its role in the graph.
        description: What it does.
        quiet: Whether start and end are kept out of the log.
        before: For a node that has no role of its own: the node that runs after it.
        after: For a node that has no role of its own: the node that runs before it.
        behaviors: What stands around it: hooks, and what says how often and how long it is tried.
        cls: The decorated class.
    """

    name: str
    description: str
    quiet: bool = False
    before: str | None = None
    after: str | None = None
    behaviors: tuple[Any, ...] = ()
    cls: type[Any] = field(default=object, repr=False, compare=False)
