"""The class that users subclass to give the agent an ability."""

from __future__ import annotations

import threading
import weakref
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel

from capgraph.base.context import CapabilityContext
from capgraph.base.declarations import DeclarationMeta
from capgraph.base.error_classification import ErrorClassification, classify_exception
from capgraph.base.errors import CapabilityError, ValidationError
from capgraph.base.guides import OrchestratorGuide, TaskClassifierGuide, add_examples
from capgraph.base.plan import PlannedStep
from capgraph.base.spec import DECLARED, CapabilitySpec, Declarations
from capgraph.base.step_context import StepContext
from capgraph.configs.logger import ComponentLogger, get_logger

ContextType = str | type[CapabilityContext]

if TYPE_CHECKING:
    from capgraph.base.graph_node import GraphNode

    _Declared = Declarations
else:
    # The defaults alone: a subclass may be any class, a data class of its own kind included.
    _Declared = type("_Declared", (), dict(DECLARED))


class BaseCapability(_Declared, metaclass=DeclarationMeta):
    """Base of every capability.

    A subclass sets ``name`` and ``description`` and writes ``execute``, either as a static
    coroutine ``execute(state, **kwargs)`` that returns state updates, or as a coroutine method
    ``execute(self)`` that uses the helpers below; either may be written with ``def`` and then runs
    in a thread. ``@capability_node`` makes it a graph node.

    Attributes:
        name: Unique name (required).
        description: What it does (required).
        provides: Context types of its outputs, by name or as classes.
        requires: Context types of its inputs; an entry is a type, ``(type, cardinality)`` or
            ``(type, cardinality, role)``.
        Parameters: Pydantic model of a step's parameters.

    Further attributes (``effect``, ``requires_approval``, ``timeout_seconds`` and so on) are the
    ones of :class:`~capgraph.base.spec.Declarations`.

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
    provides: Sequence[ContextType] = []
    requires: Sequence[ContextType | tuple[ContextType, str] | tuple[ContextType, str, str]] = []
    Parameters: ClassVar[type[BaseModel] | None] = None

    if TYPE_CHECKING:  # the decorator sets them
        capability_spec: ClassVar[CapabilitySpec]
        langgraph_node: ClassVar[GraphNode]

    _context: StepContext

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # A list on the base would be shared by every subclass that appends to it.
        for name in ("provides", "requires"):
            given = getattr(cls, name)
            if given is None or isinstance(given, list):
                setattr(cls, name, list(given or []))

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
                NotImplementedError: It was called on the base class.
            """
            raise NotImplementedError("execute is abstract. Fix: write it in the subclass.")

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
        self._step_context().stored_outputs.append(context)

    def once(self, key: str, call: Callable[[], Any]) -> Awaitable[Any]:
        """Run a part of the step at most once, over retries, questions and restarts.

        What stands before an ``interrupt()`` runs again when its answer comes; what stands in
        ``once`` does not: its first result is given back.

        Args:
            key: Names the part within the step.
            call: Does it; may return an awaitable. Its result must be plain data.
        """
        return self._step_context().once(key, call)

    def _step_context(self) -> StepContext:
        try:
            return self._context
        except AttributeError:
            raise ValidationError(
                f"{self!r} is not running a step, so it has no inputs, parameters or state.",
                fix="Use capgraph.testing.run_capability to run it in a test.",
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

    libraries: ClassVar[Sequence[str]] = ()
    """Modules that ``execute`` imports and that take long; ``graph.warm_up()`` imports them."""

    @staticmethod
    def matches_task(task: str) -> bool | None:
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
    def parameters_from(task: str) -> Mapping[str, Any]:
        """Read parameters from a task, for plans that are made without a model.

        Args:
            task: What the user asks.

        Returns:
            Parameters by name, those that the task says; the others keep their defaults.
        """
        return {}

    @staticmethod
    def get_retry_policy() -> dict[str, Any]:
        """Return ``max_attempts`` (total tries), ``delay_seconds`` and ``backoff_factor``."""
        return {"max_attempts": 3, "delay_seconds": 0.5, "backoff_factor": 1.5}

    @staticmethod
    async def planning_notes(state: Mapping[str, Any], config: Mapping[str, Any]) -> str:
        """Tell a model that plans what only the state at hand shows, such as names of columns.

        The planner sees it as data, never as instructions.

        Args:
            state: The graph's state, for reading.
            config: The settings section of this capability.

        Returns:
            The notes; nothing by default.
        """
        return ""

    def _create_orchestrator_guide(self) -> OrchestratorGuide | None:
        """Return planning advice; the default has none."""
        return None

    def _create_classifier_guide(self) -> TaskClassifierGuide | None:
        """Write selection advice; the default has the declared ``examples`` and no more."""
        if not self.examples:
            _warn_of_defaults(type(self))
        return None

    @property
    def orchestrator_guide(self) -> OrchestratorGuide | None:
        """Planning advice, made on first use."""
        guide: OrchestratorGuide | None = self._guide("orchestrator")
        return guide

    @property
    def classifier_guide(self) -> TaskClassifierGuide | None:
        """Selection advice with the declared ``examples``, made on first use."""
        guide: TaskClassifierGuide | None = self._guide("classifier")
        return guide

    def _guide(self, kind: str) -> Any:
        with _guide_lock:
            # Not made by an initialiser: a subclass, such as a data class, may have its own.
            guides: dict[str, Any] = self.__dict__.setdefault("_guides", {})
            try:
                if kind not in guides:
                    guide = getattr(self, f"_create_{kind}_guide")()
                    if kind == "classifier":
                        guide = add_examples(guide, self.examples, self.description)
                    guides[kind] = guide
            except AttributeError as exc:
                # From a property it would read as "there is no such property", which is what
                # getattr with a default and a __getattr__ of the subclass swallow.
                raise CapabilityError(
                    f"The {kind} guide of {self!r} cannot be made: {exc}.",
                    fix=f"Correct {type(self).__name__}._create_{kind}_guide.",
                ) from exc
            return guides[kind]

    @classmethod
    def spec(cls) -> CapabilitySpec:
        """Return what this class declares, as a frozen value.

        Raises:
            ValidationError: A declaration is malformed.
        """
        return CapabilitySpec.of(cls)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.name}>"


_guide_lock = threading.RLock()  # a guide may read another capability's
_warned: weakref.WeakSet[type] = weakref.WeakSet()


def _warn_of_defaults(cls: type[BaseCapability]) -> None:
    if cls in _warned:
        return
    _warned.add(cls)
    get_logger("capability", cls.name).warning(
        "%s has no examples, so it is selected by its description alone", cls.__name__
    )
