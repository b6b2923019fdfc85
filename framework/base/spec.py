"""Specifications of capabilities and infrastructure nodes: their declarations, validated and frozen."""

from __future__ import annotations

import inspect
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
from capgraph.base.context import CapabilityContext, ResultFile
from capgraph.base.errors import ValidationError
from capgraph.base.ports import PermissionMode
from capgraph.base.undo import Undo
from capgraph.configs.safe_text import escape_control_characters

Cardinality = Literal["one", "many", "optional"]
Effect = Literal["none", "idempotent", "once"]
LargeResult = Literal["fail", "file"]
OnError = Literal["fail", "observe"]
OnUnknown = Literal["ask", "rerun", "fail", "skip"]


QUEUE_PATTERN = r"^[A-Za-z0-9_.-]{1,64}$"
"""Regular expression that queue names must match."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Requirement:
    """Required input of a capability, with its context type and cardinality.

    Attributes:
        type: Name of the context type.
        cardinality: ``one`` (exactly one), ``many`` (at least one), or ``optional`` (at most
            one).
        role: Name that distinguishes several inputs of the same type, such as ``old`` and
            ``new``.

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
        """Name of the input in plans, which is the role, or the context type if there is no role."""
        return self.role or self.type

    def __str__(self) -> str:
        kind = self.type if self.cardinality == "one" else f"{self.type} ({self.cardinality})"
        return f"{self.role}: {kind}" if self.role else kind

    @classmethod
    def parse(cls, entry: Any) -> Requirement:
        """Parse an entry of a capability's ``requires`` declaration.

        An entry is a type, ``(type, cardinality)``, or ``(type, cardinality, role)``. The type is a
        name or a context class.

        Raises:
            ValidationError: The entry has none of these forms.
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
            f"The entry {entry!r} of 'requires' is invalid.",
            fix="Write 'TYPE', ('TYPE', 'one' | 'many' | 'optional') or, with a role such as 'old',"
            " ('TYPE', 'one', 'old'). TYPE may also be a context class.",
            facts={"entry": entry},
        )


def _is_role(value: Any) -> bool:
    return isinstance(value, str) and value.isidentifier()


def context_type_name(entry: Any) -> str | None:
    """Return the name of a context type.

    Args:
        entry: Name or class of a context type.

    Returns:
        The name, or ``None`` if the entry is neither a non-empty string nor a context class.
    """
    if isinstance(entry, type) and issubclass(entry, CapabilityContext):
        return entry.CONTEXT_TYPE
    return entry if isinstance(entry, str) and entry else None


def sorted_unique(names: Iterable[str]) -> tuple[str, ...]:
    """Sort names and remove duplicates.

    >>> sorted_unique({"untrusted", "secret"})
    ('secret', 'untrusted')
    """
    return tuple(sorted(set(names)))


def _validate_gate(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, type) or not callable(getattr(value, "evaluate_result", None)):
        raise ValueError("expected a gate, such as a QualityGate")
    if getattr(value, "check", value) is None:
        raise ValueError("the gate's attribute 'check' is None, so no result can pass the gate")
    return value


def _validate_as(kind: Any) -> GetPydanticSchema:
    """Instruct pydantic to validate a value as a type that differs from its annotation."""
    return GetPydanticSchema(lambda _, handler: handler(kind))


_Names = Annotated[Sequence[str], _validate_as(Annotated[tuple[str, ...], Strict(False)])]
_Objects = Annotated[Sequence[Any], _validate_as(Annotated[tuple[Any, ...], Strict(False)])]


def _validate_examples(texts: tuple[str, ...]) -> tuple[str, ...]:
    if not all(text.strip() for text in texts):
        raise ValueError("an example must not be empty")
    return texts


def _frozen_dataclass(cls: type[_T]) -> type[_T]:
    """Apply ``dataclass(frozen=True)`` without type checkers treating the class as frozen.

    Capabilities inherit the attributes and may themselves be dataclasses that are not frozen.
    """
    return dataclass(frozen=True, kw_only=True)(cls)


@_frozen_dataclass
class Declarations:
    """Optional declarations of a capability.

    Each one is a class attribute of ``BaseCapability``, a keyword argument of the function form, and
    a field of :class:`CapabilitySpec`. Values are validated against the annotation.
    :func:`capgraph.base.declarations.accepted_names` lists the names that each form accepts.

    Attributes:
        examples: Requests that need the capability. Selection uses them together with the examples of
            the classifier guide.
        effect: ``none``, ``idempotent`` (safe to repeat with its key), or ``once``.
        requires_approval: True if each step needs approval. An ``ApprovalPolicy`` restricts who
            approves, how many, and for how long.
        max_parallel: Maximum number of concurrent steps. None means no limit.
        timeout_seconds: Time limit of one attempt. None means the default from the settings.
        on_unknown: Policy for a ``once`` step that started and whose outcome is unknown.
        on_error: ``fail`` handles a failure by its severity. ``observe`` passes the failure as a result
            to a planning model, which can plan further steps. LangChain tools without an effect
            default to ``observe``.
        always_active: True if the capability is selected for every request.
        effect_key: Names of the parameters that identify an effect. None means all parameters and
            inputs.
        repeatable: True if a new plan of the same turn may repeat the effect without approval.
        cost_usd: Cost of one attempt in US dollars, without its model calls.
        behaviors: Middleware and behaviors of the capability's attempts.
        permission: ``PermissionMode`` that the caller needs, or its name. None means the mode that the
            effect requires.
        gate: ``QualityGate`` that evaluates each result.
        labels: Labels of the outputs, such as ``untrusted`` or ``secret``.
        sends_externally: True if the inputs and parameters leave the organization.
        undo: Capability that reverts the effect: a class, a name, or an ``Undo``.
        removes_labels: Labels that the outputs no longer have because the capability checks the data.
        queue: Queue of the workers that run the steps. None means the process of the turn. Without
            workers it has no effect.
        large_result: Action for outputs that exceed ``limits.max_result_bytes``. ``fail`` fails the
            step. ``file`` writes the outputs to a file in the setting ``result_folder``, and the
            step's output is a ``ResultFile``.
    """

    examples: Annotated[_Names, AfterValidator(_validate_examples)] = ()
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
            _validate_as(Annotated[PermissionMode, BeforeValidator(PermissionMode.of)]),
        ]
        | None
    ) = None
    gate: Annotated[Any, AfterValidator(_validate_gate)] = None
    labels: Annotated[_Names, AfterValidator(sorted_unique)] = ()
    sends_externally: bool = False
    undo: Annotated[
        Undo | type[Any] | str | None,
        _validate_as(Annotated[Undo | None, BeforeValidator(Undo.from_declaration)]),
    ] = None
    removes_labels: Annotated[_Names, AfterValidator(sorted_unique)] = ()
    queue: Annotated[str, Field(pattern=QUEUE_PATTERN)] | None = None
    large_result: LargeResult = "fail"


DECLARED: dict[str, Any] = {
    name: getattr(Declarations, name) for name in Declarations.__annotations__
}
"""Default of each declaration, by name."""


@cache
def _type_adapters() -> dict[str, TypeAdapter[Any]]:
    strict = ConfigDict(strict=True)
    hints = get_type_hints(Declarations, include_extras=True)
    return {name: TypeAdapter(hints[name], config=strict) for name in DECLARED}


def check_declaration(owner: str, name: str, value: Any) -> Any:
    """Validate a single declaration of a capability.

    Args:
        owner: Name of the capability class, for the error message.
        name: Name of the declaration, such as ``"effect"``.
        value: Declared value to validate.

    Returns:
        The value in the form that ``CapabilitySpec`` stores.

    Raises:
        ValidationError: The value is invalid.
    """
    try:
        return _type_adapters()[name].validate_python(value)
    except PydanticError as exc:
        errors = "; ".join(dict.fromkeys(error["msg"] for error in exc.errors(include_url=False)))
        errors = errors.replace("valid tuple", "list")  # authors write lists
        raise ValidationError(
            f"{owner}.{name} is {value!r}: {errors}.",
            fix=f"Change the value, or remove {name} (the default is {DECLARED[name]!r}).",
            facts={"declaration": name, "value": value},
        ) from None


@dataclass(frozen=True, slots=True)
class CapabilitySpec(Declarations):
    """Specification of a capability, created from its declarations when the class is decorated.

    Attributes:
        name: Unique name, which is used in plans and for the graph node.
        description: What the capability does, for users and prompts.
        provides: Context types of the outputs.
        requires: Context types of the inputs.
        parameters: Pydantic model of a step's ``parameters``. None if there are no parameters.
        context_types: Context classes in ``provides`` and ``requires``. These classes are
            registered together with the capability.
        cls: Decorated capability class.
        follows_plan_order: True if steps of the capability wait for all earlier steps of the plan.
            This applies to a static ``execute(state)`` method without declared inputs.
    """

    name: str
    description: str
    provides: tuple[str, ...] = ()
    requires: tuple[Requirement, ...] = ()
    parameters: type[BaseModel] | None = None
    context_types: tuple[type[CapabilityContext], ...] = field(default=(), repr=False)
    cls: type[Any] = field(default=object, repr=False, compare=False)
    follows_plan_order: bool = field(default=False, repr=False, compare=False)

    if TYPE_CHECKING:  # types after validation
        examples: tuple[str, ...] = ()
        effect_key: tuple[str, ...] | None = None
        behaviors: tuple[Any, ...] = ()
        permission: PermissionMode | None = None
        labels: tuple[str, ...] = ()
        undo: Undo | None = None
        removes_labels: tuple[str, ...] = ()

    @property
    def output_types(self) -> tuple[str, ...]:
        """Context types that a step may return, which include ``RESULT_FILE`` if declared."""
        return (
            *self.provides,
            *((ResultFile.CONTEXT_TYPE,) if self.large_result == "file" else ()),
        )

    @classmethod
    def from_class(cls, target: type[Any]) -> CapabilitySpec:
        """Create the specification of a capability from the declarations of its class.

        Raises:
            ValidationError: A declaration is invalid. The message names the class and the
                attribute.
        """
        owner = target.__name__
        provides, requires = (_read_entries(target, name) for name in ("provides", "requires"))
        outputs = [context_type_name(entry) for entry in provides]
        if None in outputs:
            raise ValidationError(
                f"{owner}.provides contains {provides[outputs.index(None)]!r}, which is not a"
                " context type.",
                fix="Use names of context types, or context classes.",
            )
        declared = {
            name: check_declaration(owner, name, getattr(target, name)) for name in DECLARED
        }
        parameters = _parameters_model(target)
        if declared["undo"] is not None and declared["effect"] == "none":
            raise ValidationError(
                f"{owner}.undo is set, but {owner} has no effect to undo.",
                fix='Declare effect = "once" (or "idempotent").',
            )
        _check_effect_key(owner, declared["effect_key"], parameters)
        files = [ResultFile] if declared["large_result"] == "file" else []
        parts = [
            *provides,
            *files,
            *(e[0] if isinstance(e, (tuple, list)) else e for e in requires),
        ]
        requirements = tuple(Requirement.parse(entry) for entry in requires)
        _check_labels(owner, requirements)
        execute = inspect.getattr_static(target, "execute", None)
        return cls(
            name=target.name,
            description=target.description,
            provides=cast("tuple[str, ...]", tuple(dict.fromkeys(outputs))),
            requires=requirements,
            parameters=parameters,
            context_types=tuple(dict.fromkeys(part for part in parts if isinstance(part, type))),
            cls=target,
            follows_plan_order=isinstance(execute, staticmethod) and not requirements,
            **declared,
        )


def _read_entries(target: type[Any], name: str) -> list[Any]:
    value = getattr(target, name, None) or []
    is_entry = isinstance(value, tuple) and value[1:] and value[1] in get_args(Cardinality)
    if is_entry or not isinstance(value, (list, tuple, set, frozenset)):
        shown = value.__name__ if isinstance(value, type) else repr(value)
        raise ValidationError(
            f"{target.__name__}.{name} is {shown}, not a list.", fix=f"Write {name} = [{shown}]."
        )
    return list(value)


def _check_labels(owner: str, requirements: Sequence[Requirement]) -> None:
    labels = [requirement.label for requirement in requirements]
    duplicates = sorted({label for label in labels if labels.count(label) > 1})
    if duplicates:
        raise ValidationError(
            f"{owner}.requires contains {', '.join(duplicates)} more than once.",
            fix="Give each entry a role: ('TYPE', 'one', 'old'), ('TYPE', 'one', 'new').",
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
        fix="Derive the class from pydantic.BaseModel.",
    )


def parameter_names(model: type[BaseModel] | None) -> list[str]:
    """Return the parameter names as used in plans: the alias of each field, or else its name."""
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
            f"{owner}.effect_key contains {unknown}, which {owner}.Parameters does not have.",
            fix=f"Use one of: {', '.join(known)}."
            if known
            else "Declare them in a Parameters model.",
        )


def is_valid_node_name(name: str) -> bool:
    """Return True if a graph node may have the given name.

    The name must be printable and must not be reserved by LangGraph.
    """
    is_reserved = name.startswith("__") and name.endswith("__")
    return not (is_reserved or set(name) & {":", "|"}) and escape_control_characters(name) == name


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
"""Infrastructure nodes that every graph requires."""

INSERTION_POINTS: dict[str, tuple[str, ...]] = {
    "before": ("task_extraction", "classifier", "orchestrator", "respond", "clarify"),
    "after": ("task_extraction", "classifier", "orchestrator", "respond", "clarify", "error"),
}
"""Roles next to which a custom infrastructure node may be inserted.

Roles that choose the next node are excluded. So is ``before: error``: a failure of the custom node
would hide the original one.
"""


@dataclass(frozen=True, slots=True)
class InfrastructureSpec:
    """Specification of an infrastructure node, created from its declarations.

    Attributes:
        name: Name of the node, which is its role in the graph.
        description: What the node does.
        quiet: True to omit log messages for the start and end of the node.
        before: Name of the node before which this custom node is inserted.
        after: Name of the node after which this custom node is inserted.
        behaviors: Behaviors of the node: hooks, retry rules, and time limits.
        cls: Decorated node class.
    """

    name: str
    description: str
    quiet: bool = False
    before: str | None = None
    after: str | None = None
    behaviors: tuple[Any, ...] = ()
    cls: type[Any] = field(default=object, repr=False, compare=False)
