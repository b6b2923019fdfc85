"""Context of a run: one immutable value that every layer can read.

Functions of the project pass the value as an argument. Where LangGraph, LangChain, or user code
calls back into the project, :func:`run_context` returns it. This module is in the lowest layer, so
fields that hold objects of higher layers are annotated as ``Any``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar, Token
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any


def _empty_mapping() -> Mapping[Any, Any]:
    return MappingProxyType({})


@dataclass(frozen=True)
class RunContext:
    """Context of the running code: its thread, turn, caller, clock, budgets, and event routing.

    Attributes:
        ids: IDs of the thread, run, turn, plan, step, and attempt. Events carry them.
        caller: ``Caller`` that a program sets. None means the one in the run's configuration.
        turn_caller: ``Caller`` who started the turn. The turn acts for this caller even if another user resumes it.
        sender: ``Caller`` who sent the input of the run. None means the one in the run's configuration.
        current_roles: ``Caller`` who started the turn, with the role that the server reads when the turn is resumed.
        clock: ``Clock`` of the graph.
        services: ``Services`` of the enclosing runs, outermost first.
        is_compiling_step: True while an agent is compiled that will run as a step. Its tools find the
            services of the run.
        text_approver: Function that requests a person's approval of a text.
        prompts: ``PromptProvider`` of the application.
        has_own_answer: True if the run's caller sent the recorded answer to its interrupt. Anybody may continue a
            run whose process died after an answer.
        dropped_requests: Approval requests that were dropped because the run started with a new message.
        model_calls: Counter of the turn's model calls.
        accounts: Budget accounts that are charged for model calls, innermost turn first.
        reservations: Amounts that the enclosing step or node has reserved, by budget account.
        labels: Provenance labels of the data that a team member or workflow node has read.
        audit: ``Audit`` of the run.
        masker: ``SecretMasker`` for the run's secrets.
        outlet: Function that adds the run's IDs to an event and passes it to the sinks.
        dispatch: The run's event counter and event dispatchers.
        has_listener: True if events have a consumer. Otherwise none are created.
        event_handler: Consumer of the turn's events, used instead of LangGraph's stream.
        withheld: Events of an answer, held back until guardrails have checked it.
        step_position: Index of the running step, and the number of steps in its plan.
        journal: ``Journal`` of a turn that runs in another process.
        leases: Leases of the enclosing runs.
        shared_leases: Leases that a program shares with the runs that it starts.
        plan_run: Running pass of the ready queue, which starts the steps of a plan.
        running_method: Method of an agent's subclass that is running, so that it does not call itself.
    """

    ids: Mapping[str, str] = field(default_factory=_empty_mapping)
    caller: Any = None
    turn_caller: Any = None
    sender: Any = None
    current_roles: Any = None
    clock: Any = None
    services: tuple[Any, ...] = ()
    is_compiling_step: bool = False
    text_approver: Any = None
    prompts: Any = None
    has_own_answer: bool = True
    dropped_requests: Any = None
    model_calls: Any = None
    accounts: tuple[Any, ...] = ()
    reservations: Mapping[int, Any] = field(default_factory=_empty_mapping)
    labels: Any = None
    audit: Any = None
    masker: Any = None
    outlet: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    dispatch: Any = None
    has_listener: bool = True
    event_handler: Any = None
    withheld: list[Any] | None = None
    step_position: tuple[int, int] | None = None
    journal: Any = None
    leases: tuple[Any, ...] = ()
    shared_leases: tuple[Any, ...] = ()
    plan_run: Any = None
    running_method: Any = None

    def replace(self, **changes: Any) -> RunContext:
        """Return a copy of the run context with the given fields changed.

        Raises:
            TypeError: A field is unknown.

        >>> RunContext().replace(has_listener=False).has_listener
        False
        """
        if not changes.keys() <= _FIELDS:
            unknown = ", ".join(sorted(changes.keys() - _FIELDS))
            raise TypeError(
                f"RunContext has no field {unknown}. Fix: use one of {', '.join(_FIELDS)}."
            )
        # Every step changes fields, and dataclasses.replace is ten times slower.
        copy = object.__new__(RunContext)
        copy.__dict__.update(self.__dict__, **changes)
        return copy


_FIELDS = {item.name: None for item in fields(RunContext)}.keys()
_CONTEXT: ContextVar[RunContext] = ContextVar("capgraph_run", default=RunContext())  # noqa: B039 - immutable


def run_context() -> RunContext:
    """Return the context of the current run, or an empty context outside a run.

    >>> run_context().ids
    mappingproxy({})
    """
    return _CONTEXT.get()


class override_run_context(AbstractContextManager[None]):  # noqa: N801 - used like a function
    """Context manager that changes fields of the run context inside a ``with`` block.

    Tasks that start inside the block inherit the changes. The same context manager can be
    entered repeatedly, for example for each chunk of a stream.

    Args:
        **changes: New values for fields of :class:`RunContext`.

    >>> with override_run_context(has_listener=False):
    ...     run_context().has_listener
    False
    >>> run_context().has_listener
    True
    """

    __slots__ = ("_before", "_changes", "_inside", "_token")

    def __init__(self, **changes: Any) -> None:
        self._changes = changes

    def __enter__(self) -> None:
        self._before = _CONTEXT.get()
        self._inside = self._before.replace(**self._changes)
        self._token: Token[RunContext] = _CONTEXT.set(self._inside)

    def __exit__(self, *_: object) -> None:
        now = _CONTEXT.get()
        if now is self._inside:
            _CONTEXT.reset(self._token)
            return
        # A nested block has not ended yet, as between two chunks of a stream, or the stream is
        # closed by another task. Restore only the fields that this block set.
        own = [name for name, value in self._changes.items() if getattr(now, name) is value]
        _CONTEXT.set(now.replace(**{name: getattr(self._before, name) for name in own}))
