"""The door of a graph: what a caller may send, by name; everything else is refused here.

LangGraph drops unknown input keys and obeys a caller's ``Command(update=…)`` and
``Command(goto=…)``, so a graph that keeps promises has to look at its input itself.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from langchain_core.messages import convert_to_messages
from langgraph.types import Command

from configs.streaming import heard, is_heard
from framework.base.errors import ValidationError
from framework.base.ports import now_text
from framework.langgraph_compat import is_task
from framework.prompts.provider import PromptProvider, use_prompts
from framework.registry import Registry
from framework.state import load_context
from framework.telemetry.sinks import EventDispatcher

CALLER_KEYS = frozenset(
    {"messages", "planning_execution_plan", "capability_context_data", "agent_control"}
)
"""State keys that every caller may send."""
SWITCHES = frozenset(
    {
        "approval_disabled",
        "capability_selection_bypass_enabled",
        "planning_mode_enabled",
        "task_extraction_bypass_enabled",
    }
)
_OUTPUT_KEYS = frozenset({"execution_outcome", "execution_step_results", "control_turn"})


class Entry:
    """Looks at what a graph is given before anything runs.

    Args:
        registry: Says which context types a caller supplies.
        settings: All settings; they say which switches may be used.
        caller_keys: Keys of the application's own that a caller may send.
        events: Stamps the events of runs and hands them to the sinks.
        prompts: What ``get_framework_prompts()`` gives in the runs.
    """

    def __init__(
        self,
        registry: Registry | None = None,
        settings: Any = None,
        caller_keys: frozenset[str] = frozenset(),
        events: EventDispatcher | None = None,
        prompts: PromptProvider | None = None,
    ) -> None:
        self._registry = registry
        self._settings = settings
        self._keys = CALLER_KEYS | caller_keys
        self._events = events
        self._prompts = prompts
        self._sinks = events is not None and events.has_sinks

    def admitted(self, given: Any, config: Mapping[str, Any], *, saved: bool = False) -> Any:
        """Return the input as the graph may see it.

        Args:
            given: What the caller sends.
            config: The run's configuration.
            saved: Whether a saver keeps the run.

        Raises:
            ValidationError: It holds what a caller may not send; names it.
        """
        if self._registry is None or given is None:
            return given
        if isinstance(given, Command):
            return _only_an_answer(given)
        inside = is_task(config)
        if not isinstance(given, Mapping):
            if inside:
                return given
            raise ValidationError(
                f"The graph was given {type(given).__name__}, not a dictionary.",
                fix='Give {"messages": [("user", "…")]}.',
            )
        if inside:
            # The state of an outer graph flows in whole; only these keys are read.
            given = {key: value for key, value in given.items() if key in self._keys}
        else:
            self._refuse_unknown(given)
        if saved and not inside and "thread_id" not in (config.get("configurable") or {}):
            raise ValidationError(
                "The graph keeps its threads, and no thread is named.",
                fix='Pass {"configurable": {"thread_id": "…"}} as the second argument.',
            )
        checked = dict(given)
        if "messages" in checked:
            _check_messages(checked["messages"])
        if checked.get("agent_control") is not None:
            self._check_switches(checked["agent_control"])
        if checked.get("capability_context_data") is not None:
            self._check_contexts(checked["capability_context_data"], inside=inside)
        if checked.get("planning_execution_plan") is not None:
            checked["planning_execution_plan"] = _stamped(checked["planning_execution_plan"])
        return checked

    async def settle(self, config: Mapping[str, Any]) -> None:
        """Let the sinks take what a run sent before its caller goes on."""
        if self._events is not None and not is_task(config):
            await self._events.settle()

    def observer(
        self, config: Mapping[str, Any], modes: Any = ()
    ) -> Callable[[], AbstractContextManager[None]]:
        """Return what a run goes on in: its events are stamped, its prompts are the settings'.

        A stream goes on piece by piece, and what reads it must not see what holds inside, so the
        block is entered anew for each piece.
        """
        ids = None
        wanted = "custom" in ([modes] if isinstance(modes, str) else modes or ())
        listened = wanted or self._sinks or (is_task(config) and is_heard())
        if self._events is not None and not is_task(config):
            thread = (config.get("configurable") or {}).get("thread_id")
            ids = {
                "run_id": str(config.get("run_id") or uuid.uuid4()),
                "thread_id": None if thread is None else str(thread),
            }

        @contextmanager
        def inside() -> Iterator[None]:
            with ExitStack() as stack:
                stack.enter_context(heard(listened))
                if self._prompts is not None:
                    stack.enter_context(use_prompts(self._prompts))
                if self._events is not None and ids is not None:
                    stack.enter_context(self._events.run(**ids))
                yield

        return inside

    def _refuse_unknown(self, given: Mapping[str, Any]) -> None:
        unknown = sorted(str(key) for key in given if key not in self._keys)
        if not unknown:
            return
        fix = f"Send only {', '.join(sorted(self._keys))}."
        if _OUTPUT_KEYS & set(unknown):
            fix = (
                "This looks like an earlier output. Pass the new message and the thread: the"
                ' graph keeps the rest itself ({"messages": [("user", "…")]}).'
            )
        elif self._registry is not None and set(unknown) & set(self._registry.context_types):
            fix = 'Send context data under "capability_context_data".'
        raise ValidationError(f"A caller may not send {', '.join(unknown)}.", fix=fix)

    def _check_switches(self, given: Any) -> None:
        if not isinstance(given, Mapping):
            raise ValidationError(
                f"agent_control is {type(given).__name__}, not a dictionary of switches.",
                fix=f"Use {', '.join(sorted(SWITCHES))}.",
            )
        for name, value in given.items():
            if name not in SWITCHES:
                raise ValidationError(
                    f"agent_control.{name} is no switch.",
                    fix=f"Use {', '.join(sorted(SWITCHES))}.",
                )
            if not isinstance(value, bool):
                raise ValidationError(
                    f"agent_control.{name} is {value!r:.80}.", fix="Use true or false."
                )
        approvals = self._settings.approvals
        if given.get("approval_disabled") and not approvals.may_be_switched_off:
            raise ValidationError(
                "agent_control.approval_disabled is not a caller's to set here.",
                fix="The operator allows it with approvals.may_be_switched_off.",
            )
        if given.get("planning_mode_enabled") is False and approvals.plans:
            raise ValidationError(
                "agent_control.planning_mode_enabled cannot be switched off here: the operator"
                " wants every plan looked at.",
                fix="Leave it out.",
            )

    def _check_contexts(self, given: Any, *, inside: bool) -> None:
        assert self._registry is not None
        if not isinstance(given, Mapping):
            raise ValidationError(
                f"capability_context_data is {type(given).__name__}.",
                fix='Write {"TYPE": {"key": {…}}}.',
            )
        for kind, entries in given.items():
            if kind not in self._registry.given and not inside:
                known = ", ".join(sorted(self._registry.given)) or "none"
                raise ValidationError(
                    f"capability_context_data.{kind} is no context type that a caller supplies.",
                    fix=f"The types are: {known}; registry.give(...) names them.",
                )
            if not isinstance(entries, Mapping) or not all(isinstance(k, str) for k in entries):
                raise ValidationError(
                    f"capability_context_data.{kind} is {type(entries).__name__}, not entries by"
                    " key.",
                    fix=f'Write {{"{kind}": {{"key": {{…}}}}}}.',
                )
            for key, data in entries.items():
                load_context(kind, key, data, self._registry.context_types)


def _only_an_answer(given: Command[Any]) -> Command[Any]:
    """Let a caller answer questions, and nothing else.

    Raises:
        ValidationError: The command does more.
    """
    more = [name for name in ("goto", "graph") if getattr(given, name) not in (None, ())]
    if given.update is not None:
        update = given.update
        keys = update if isinstance(update, Mapping) else [pair[0] for pair in update]
        more += [f"update of {key}" for key in keys] or ["update"]
    if more or given.resume is None:
        named = ", ".join(more) or "nothing"
        raise ValidationError(
            f"A caller's Command may only answer a question; this one holds {named}.",
            fix="Send Command(resume=…), or the input as a dictionary.",
        )
    return given


def _check_messages(given: Any) -> None:
    messages = given if isinstance(given, (list, tuple)) else [given]
    try:
        convert_to_messages(list(messages))
    except Exception as exc:
        raise ValidationError(
            f"The messages cannot be read: {exc!s:.300}.",
            fix='Give messages, or pairs such as ("user", "What is new?").',
        ) from exc


def _stamped(plan: Any) -> Any:
    """Mark a plan as brought by this call, so that it is not taken for one that was left over."""
    steps = plan.get("steps") if isinstance(plan, Mapping) else plan
    stamp = {"id": uuid.uuid4().hex, "version": 0, "brought": now_text()}
    return {"steps": steps, "stamp": stamp}
