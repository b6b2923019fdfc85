"""The class that users subclass to give the agent an ability."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel

from configs.logger import ComponentLogger, get_logger
from framework.base.classify import classify_exception
from framework.base.context import CapabilityContext
from framework.base.errors import ErrorClassification, ValidationError
from framework.base.guides import OrchestratorGuide, TaskClassifierGuide
from framework.base.plan import PlannedStep
from framework.base.spec import CapabilitySpec, Effect, OnUnknown, Requirement
from framework.base.step_context import StepContext


class BaseCapability(ABC):
    """Base of every capability.

    A subclass sets ``name`` and ``description`` and writes ``execute``, either as a static
    coroutine ``execute(state, **kwargs)`` that returns state updates, or as a coroutine method
    ``execute(self)`` that uses the helpers below. ``@capability_node`` makes it a graph node.

    Attributes:
        name: Unique name (required).
        description: What it does (required).
        provides: Context types of its outputs.
        requires: Context types of its inputs; an entry is a name or ``(name, cardinality)``.
        effect: ``"none"``, ``"idempotent"`` or ``"once"``.
        requires_approval: Whether a person must agree before it runs.
        max_parallel: How many of its steps may run at once.
        timeout_seconds: Time limit of one attempt, in seconds.
        on_unknown: What to do when a ``once`` step began and its end is not known.
        always_active: Whether every request selects it.
        Parameters: Pydantic model of a step's parameters.

    Raises:
        NotImplementedError: On creation, when name, description or execute is missing.

    >>> class Greeter(BaseCapability):
    ...     name = "greeter"
    ...     description = "Says hello"
    ...     async def execute(self):
    ...         return {}
    >>> Greeter()
    <Greeter: greeter>
    """

    name: str = None  # type: ignore[assignment]
    description: str = None  # type: ignore[assignment]
    provides: list[str] = []  # noqa: RUF012 - copied for each subclass below
    requires: Sequence[str | tuple[str, str]] = []
    effect: Effect = "none"
    requires_approval: bool = False
    max_parallel: int | None = None
    timeout_seconds: float | None = None
    on_unknown: OnUnknown = "ask"
    always_active: bool = False
    Parameters: ClassVar[type[BaseModel] | None] = None

    _context: StepContext

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # A list on the base would be shared by every subclass that appends to it.
        cls.provides = list(cls.provides or [])
        cls.requires = list(cls.requires or [])

    def __new__(cls, *args: Any, **kwargs: Any) -> BaseCapability:
        """Check what is required before anything of the subclass runs."""
        for attribute in ("name", "description"):
            if getattr(cls, attribute, None) is None:
                raise NotImplementedError(
                    f"{cls.__name__} sets no {attribute!r}."
                    f' Fix: add the class attribute {attribute} = "...".'
                )
        if getattr(cls.execute, "__isabstractmethod__", False):
            raise NotImplementedError(
                f"{cls.__name__} has no execute."
                " Fix: write 'async def execute(self)' or a static 'async def execute(state)'."
            )
        return super().__new__(cls)

    def __init__(self) -> None:
        self._guides: dict[str, Any] = {}

    if TYPE_CHECKING:
        # To a type checker any signature may override it: static or not, with what it needs.
        async def execute(*args: Any, **kwargs: Any) -> Any: ...  # noqa: D102

    else:

        @staticmethod
        @abstractmethod
        async def execute(state: Any, **kwargs: Any) -> Any:
            """Do the work; a method ``execute(self)`` that uses the helpers serves as well.

            Args:
                state: The graph's state, for reading.
                **kwargs: What the signature asks for: ``step``, ``context`` (the inputs by
                    type), ``runtime``, ``logger``, ``streamer``.

            Returns:
                State updates and outputs as a dictionary, or context objects.

            Raises:
                ValidationError: Data that is needed is missing or wrong.
                CapabilityError: The work could not be done.
            """

    # --- helpers for the instance form ---------------------------------------------------

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Context type to the validated input; a list for ``many``, ``None`` for none."""
        return self._step_context().inputs

    @property
    def parameters(self) -> Any:
        """The step's parameters: an instance of ``Parameters``, else a dictionary."""
        return self._step_context().parameters

    @property
    def task(self) -> str:
        """What this step is for."""
        return self._step_context().task

    @property
    def state(self) -> Mapping[str, Any]:
        """The graph's state when the step began, for reading."""
        return self._step_context().state

    @property
    def step(self) -> PlannedStep:
        """The planned step."""
        return self._step_context().step

    @property
    def runtime(self) -> Any:
        """LangGraph's ``Runtime`` inside a run, else ``None``."""
        return self._step_context().runtime

    @property
    def config(self) -> Mapping[str, Any]:
        """The settings section of this capability."""
        return self._step_context().config

    @property
    def attempt(self) -> int:
        """1 for the first try of this step."""
        return self._step_context().attempt

    @property
    def idempotency_key(self) -> str:
        """Key to hand to an outside system: the same over retries, restarts and replays."""
        return self._step_context().idempotency_key

    @property
    def logger(self) -> ComponentLogger:
        """Logger of this capability."""
        return get_logger("capability", self.name)

    def chat_model(self, role: str = "capability") -> Any:
        """Return the chat model configured for a role, or ``None``."""
        return self._step_context().model(role)

    def progress(self, message: str, fraction: float | None = None) -> None:
        """Stream how far this step is; does nothing outside a run.

        Args:
            message: What is being done.
            fraction: Between 0 and 1.
        """
        self._step_context().notify(message, fraction)

    def store(self, context: CapabilityContext) -> None:
        """Hand over an output besides the returned one."""
        self._step_context().stored.append(context)

    def _step_context(self) -> StepContext:
        try:
            return self._context
        except AttributeError:
            raise ValidationError(
                f"{self!r} is not running a step, so it has no inputs, parameters or state.",
                fix="Use framework.testing.run_capability to run it in a test.",
            ) from None

    # --- what the framework asks of a capability -----------------------------------------

    @staticmethod
    def classify_error(exc: Exception, context: dict[str, Any]) -> ErrorClassification | None:
        """Say what a failure means; override for errors of your domain.

        Args:
            exc: What ``execute`` raised.
            context: ``capability``, ``current_step_index``, ``execution_time``,
                ``current_state`` and ``effect``.

        Returns:
            The classification, or ``None`` for the default. The default is CRITICAL, but for
            passing faults of networks and services (RETRIABLE) and for errors of the project,
            which carry their severity.
        """
        name = context.get("capability", "unknown_capability")
        return classify_exception(
            exc, f"Unhandled error in {name}", effect=context.get("effect", "none")
        )

    @staticmethod
    def recognises(task: str) -> bool | None:
        """Say for sure whether a task needs this capability, where its wording shows it.

        Used when capabilities are chosen without a model, on top of the examples: it decides
        about this capability once the task resembles something that is served here at all.

        Args:
            task: What the user asks.

        Returns:
            ``True`` or ``False`` when it is plain, ``None`` to leave it to the examples.
        """
        return None

    @staticmethod
    def get_retry_policy() -> dict[str, Any]:
        """Return ``max_attempts`` (total tries), ``delay_seconds`` and ``backoff_factor``."""
        return {"max_attempts": 3, "delay_seconds": 0.5, "backoff_factor": 1.5}

    def _create_orchestrator_guide(self) -> OrchestratorGuide | None:
        """Write planning advice; the default has none."""
        self.logger.debug("No orchestrator guide for %s", self.name)
        return None

    def _create_classifier_guide(self) -> TaskClassifierGuide | None:
        """Write selection advice; the default has none."""
        self.logger.debug("No classifier guide for %s", self.name)
        return None

    @property
    def orchestrator_guide(self) -> OrchestratorGuide | None:
        """Planning advice, made on first use."""
        if "orchestrator" not in self._guides:
            self._guides["orchestrator"] = self._create_orchestrator_guide()
        guide: OrchestratorGuide | None = self._guides["orchestrator"]
        return guide

    @property
    def classifier_guide(self) -> TaskClassifierGuide | None:
        """Selection advice, made on first use."""
        if "classifier" not in self._guides:
            self._guides["classifier"] = self._create_classifier_guide()
        guide: TaskClassifierGuide | None = self._guides["classifier"]
        return guide

    @classmethod
    def spec(cls) -> CapabilitySpec:
        """Return what this class declares, as a frozen value.

        Raises:
            ValidationError: An entry of ``requires``, or another declaration, is malformed.
        """
        for attribute, allowed in (
            ("effect", ("none", "idempotent", "once")),
            ("on_unknown", ("ask", "rerun", "fail", "skip")),
        ):
            if getattr(cls, attribute) not in allowed:
                raise ValidationError(
                    f"{cls.__name__}.{attribute} is {getattr(cls, attribute)!r}.",
                    fix=f"Use one of {', '.join(allowed)}.",
                )
        for limit in ("max_parallel", "timeout_seconds"):
            value = getattr(cls, limit)
            if value is not None and value <= 0:
                raise ValidationError(
                    f"{cls.__name__}.{limit} is {value!r}.", fix="Use a number above 0 or None."
                )
        return CapabilitySpec(
            name=cls.name,
            description=cls.description,
            provides=tuple(cls.provides),
            requires=tuple(Requirement.parse(entry) for entry in cls.requires),
            effect=cls.effect,
            requires_approval=cls.requires_approval,
            max_parallel=cls.max_parallel,
            timeout_seconds=cls.timeout_seconds,
            on_unknown=cls.on_unknown,
            parameters=cls.Parameters,
            always_active=cls.always_active,
            cls=cls,
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.name}>"
