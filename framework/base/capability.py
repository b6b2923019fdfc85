"""Base class of capabilities."""

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
    # Only the defaults, so that a subclass may itself be a dataclass, frozen or not.
    _Declared = type("_Declared", (), dict(DECLARED))


class BaseCapability(_Declared, metaclass=DeclarationMeta):
    """Base class of capabilities.

    A subclass sets ``name`` and ``description`` and implements ``execute`` in one of two forms:

    - a coroutine method ``execute(self)``, which uses the properties and methods below;
    - a static coroutine ``execute(state, **kwargs)``, which returns state updates.

    A synchronous ``execute`` runs in a thread. The decorator ``@capability_node`` makes the class a
    graph node.

    Attributes:
        name: Unique name (required).
        description: What the capability does (required).
        provides: Context types of the outputs, as names or classes.
        requires: Context types of the inputs. An entry is a type, ``(type, cardinality)``, or
            ``(type, cardinality, role)``.
        Parameters: Pydantic model of a step's parameters.

    :class:`~capgraph.base.spec.Declarations` lists the other attributes, such as ``effect``,
    ``requires_approval``, and ``timeout_seconds``.

    Raises:
        NotImplementedError: ``name``, ``description``, or ``execute`` is missing when an instance is
            created.

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
        # Copy the lists. Otherwise subclasses that append would change the base class.
        for name in ("provides", "requires"):
            entries = getattr(cls, name)
            if entries is None or isinstance(entries, list):
                setattr(cls, name, list(entries or []))

    def __new__(cls, *args: Any, **kwargs: Any) -> BaseCapability:
        """Check that the class defines all required attributes before it is instantiated."""
        for attribute in ("name", "description"):
            if getattr(cls, attribute, None) is None:
                raise NotImplementedError(
                    f"{cls.__name__} is missing the required class attribute {attribute}. Fix: "
                    f'add {attribute} = "...".'
                )
        if getattr(cls.execute, "__isabstractmethod__", False):
            raise NotImplementedError(
                f"{cls.__name__} has no 'execute' method."
                " Fix: write 'async def execute(self)' or a static 'async def execute(state)'."
            )
        return super().__new__(cls)

    if TYPE_CHECKING:
        # Lets type checkers accept any signature in subclasses, static or not.
        async def execute(*args: Any, **kwargs: Any) -> Any: ...  # noqa: D102

    else:

        @staticmethod
        @abstractmethod
        async def execute(state: Any, **kwargs: Any) -> Any:
            """Run the capability.

            Subclasses override this method as ``execute(self)`` or as a static method.

            Args:
                state: State of the graph. Read-only.
                **kwargs: Arguments that the override declares: ``step``, ``context`` (inputs by
                    type), ``runtime``, ``logger``, ``streamer``.

            Returns:
                A dictionary of state updates and outputs, or context objects.

            Raises:
                ValidationError: Required data is missing or invalid.
                CapabilityError: The capability failed.
                NotImplementedError: The method was called on the base class.
            """
            raise NotImplementedError(
                "BaseCapability.execute is abstract. Fix: override it in the subclass."
            )

    # --- properties and methods for execute(self) -----------------------------------------
    @property
    def inputs(self) -> Mapping[str, Any]:
        """Validated inputs of the step by context type.

        An input declared as ``many`` is a list, and a missing optional input is None.
        """
        return self._step_context().inputs

    @property
    def parameters(self) -> Any:
        """Parameters of the step.

        They are an instance of the ``Parameters`` model, or a dictionary if there is no such model.
        """
        return self._step_context().parameters

    @property
    def task(self) -> str:
        """Objective of the step."""
        return self._step_context().task

    @property
    def state(self) -> Mapping[str, Any]:
        """Read-only state of the graph as of the start of the step."""
        return self._step_context().state

    @property
    def step(self) -> PlannedStep:
        """The planned step."""
        return self._step_context().step

    @property
    def runtime(self) -> Any:
        """LangGraph's ``Runtime``. None outside a run."""
        return self._step_context().runtime

    @property
    def config(self) -> Mapping[str, Any]:
        """Settings section of the capability."""
        return self._step_context().config

    @property
    def attempt(self) -> int:
        """Number of the current attempt, from 1."""
        return self._step_context().attempt

    @property
    def idempotency_key(self) -> str:
        """Idempotency key of the step, for requests to external systems.

        The key stays the same across retries, restarts, and replays.
        """
        return self._step_context().idempotency_key

    @property
    def logger(self) -> ComponentLogger:
        """Logger of the capability."""
        return get_logger("capability", self.name)

    def chat_model(self, role: str = "capability") -> Any:
        """Return the chat model configured for a role, or None if the role has no model."""
        return self._step_context().model(role)

    def progress(self, message: str, fraction: float | None = None) -> None:
        """Report the progress of the current step as a stream event.

        Outside a run, this method does nothing.

        Args:
            message: Description of the current activity.
            fraction: Completed fraction of the work, between 0 and 1.
        """
        self._step_context().notify(message, fraction)

    def store(self, context: CapabilityContext) -> None:
        """Add an output of the step in addition to the return value of ``execute``.

        Args:
            context: Output, which must be an instance of a declared context type.
        """
        self._step_context().stored_outputs.append(context)

    def once(self, key: str, call: Callable[[], Any]) -> Awaitable[Any]:
        """Run part of a step at most once, even across retries, approval requests, and restarts.

        Code before an ``interrupt()`` normally runs again when the answer arrives. A call inside
        ``once`` does not, because its first result is stored and returned.

        Args:
            key: Name of this part, which must be unique within the step.
            call: Function to run. It may return an awaitable. The result must be plain data.
        """
        return self._step_context().once(key, call)

    def _step_context(self) -> StepContext:
        try:
            return self._context
        except AttributeError:
            raise ValidationError(
                f"{self!r} has no inputs, parameters or state: it is not running a step.",
                fix="Use capgraph.testing.run_capability to run it in a test.",
            ) from None

    # --- methods that the framework calls -------------------------------------------------
    @staticmethod
    def classify_error(exc: Exception, context: dict[str, Any]) -> ErrorClassification | None:
        """Classify an exception raised by ``execute``.

        Override this method to classify domain-specific errors.

        Args:
            exc: Exception that ``execute`` raised.
            context: Dictionary with ``capability``, ``current_step_index``, ``execution_time``,
                ``current_state``, and ``effect``.

        Returns:
            The classification, or None for the default. By default, transient network and service
            errors are RETRIABLE, capgraph errors have their own severity, and all others are
            CRITICAL.
        """
        name = context.get("capability", "unknown_capability")
        return classify_exception(
            exc, f"Unhandled error in {name}", effect=context.get("effect", "none")
        )

    libraries: ClassVar[Sequence[str]] = ()
    """Modules that ``execute`` imports and that load slowly. ``graph.warm_up()`` imports them."""

    parses_task: ClassVar[bool] = False
    """True if ``execute`` reads missing parameters from the task. Small models then plan the
    capability without parameters, because they often fill in optional parameters incorrectly."""

    @staticmethod
    def matches_task(task: str) -> bool | None:
        """Decide from the text of a task whether this capability is needed.

        Without a chat model, this method is called before the task is compared with the declared
        examples. The decision applies only if the task resembles a request that the agent supports.

        Args:
            task: Text of the task.

        Returns:
            True or False if the text is decisive, or None (the default) to let the examples decide.
        """
        return None

    @staticmethod
    def parameters_from(task: str) -> Mapping[str, Any]:
        """Extract parameter values from the text of a task when planning without a chat model.

        Args:
            task: Text of the task.

        Returns:
            Parameter values by name. Omitted parameters keep their default values.
        """
        return {}

    @staticmethod
    def get_retry_policy() -> dict[str, Any]:
        """Return the retry policy for steps of this capability.

        Returns:
            A dictionary with ``max_attempts`` (including the first attempt), ``delay_seconds``
            (before the second attempt), and ``backoff_factor`` (by which each further delay is
            multiplied).
        """
        return {"max_attempts": 3, "delay_seconds": 0.5, "backoff_factor": 1.5}

    @staticmethod
    async def planning_notes(state: Mapping[str, Any], config: Mapping[str, Any]) -> str:
        """Return notes about the current state, such as column names, for the planning prompt.

        The planning model treats the notes as data, not as instructions.

        Args:
            state: State of the graph. Read-only.
            config: Section of the settings for this capability.

        Returns:
            Text of the notes, which is empty by default.
        """
        return ""

    def _create_orchestrator_guide(self) -> OrchestratorGuide | None:
        """Create the capability's guide for the planner. By default, there is none."""
        return None

    def _create_classifier_guide(self) -> TaskClassifierGuide | None:
        """Create the guide that helps the classifier select this capability.

        By default, there is no guide, and selection relies on the declared ``examples``.
        """
        if not self.examples:
            _warn_missing_examples(type(self))
        return None

    @property
    def orchestrator_guide(self) -> OrchestratorGuide | None:
        """The planning guide, created on first use."""
        guide: OrchestratorGuide | None = self._get_guide("orchestrator")
        return guide

    @property
    def classifier_guide(self) -> TaskClassifierGuide | None:
        """Guide for selecting this capability, including its ``examples``. Created on first use."""
        guide: TaskClassifierGuide | None = self._get_guide("classifier")
        return guide

    def _get_guide(self, kind: str) -> Any:
        with _guide_lock:
            # There is no __init__ to create it: a subclass, such as a dataclass, has its own.
            guides: dict[str, Any] = self.__dict__.setdefault("_guides", {})
            try:
                if kind not in guides:
                    guide = getattr(self, f"_create_{kind}_guide")()
                    if kind == "classifier":
                        guide = add_examples(guide, self.examples, self.description)
                    guides[kind] = guide
            except AttributeError as exc:
                # An AttributeError from a property would look like a missing property, which
                # getattr() with a default hides.
                raise CapabilityError(
                    f"The {kind} guide of {self!r} cannot be created: {exc}.",
                    fix=f"Correct {type(self).__name__}._create_{kind}_guide.",
                ) from exc
            return guides[kind]

    @classmethod
    def spec(cls) -> CapabilitySpec:
        """Return the declarations of the capability class as an immutable specification.

        Raises:
            ValidationError: A declaration is invalid.
        """
        return CapabilitySpec.from_class(cls)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.name}>"


_guide_lock = threading.RLock()  # reentrant: a guide may read the guide of another capability
_warned: weakref.WeakSet[type] = weakref.WeakSet()


def _warn_missing_examples(cls: type[BaseCapability]) -> None:
    if cls in _warned:
        return
    _warned.add(cls)
    get_logger("capability", cls.name).warning(
        "%s has no examples, so it is selected by its description alone", cls.__name__
    )
