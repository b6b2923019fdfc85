"""The door of a graph: what a caller may send, by name; everything else is refused here.

LangGraph drops unknown input keys and obeys a caller's ``Command(update=…)`` and
``Command(goto=…)``, so a graph that keeps promises has to look at its input itself.
"""

from __future__ import annotations

import inspect
import json
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from langchain_core.messages import convert_to_messages
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.types import Command

from capgraph.base.errors import ValidationError
from capgraph.base.ports import utc_now_text
from capgraph.configs.suggestions import suggest_name
from capgraph.engine.run_scope import OpenQuestions
from capgraph.engine.services import Services
from capgraph.helpers.plain_data import to_plain
from capgraph.langgraph_compat import (
    forged_task_keys,
    is_resume_by_id,
    is_task,
    open_interrupts,
    plain_values,
)
from capgraph.planning.waits import is_wait_interrupt
from capgraph.registry import Registry
from capgraph.state import STATE_KEYS, StateSchema, TurnView, load_context
from capgraph.stores.records import read_record
from capgraph.telemetry import QuestionKept, emit

if TYPE_CHECKING:
    from capgraph.configs.settings import Settings

SWITCHES = frozenset(
    {
        "approval_disabled",
        "capability_selection_bypass_enabled",
        "planning_mode_enabled",
        "task_extraction_bypass_enabled",
    }
)
QUESTION_OWNERS_KEY = "asked"
"""The record of which step asked which of the questions that are open inside of steps."""
_OUTPUT_KEYS = frozenset({"execution_outcome", "execution_step_results", "control_turn"})


def validate_input(
    graph_input: Any, config: Mapping[str, Any], services: Services, *, has_saver: bool = False
) -> Any:
    """Return the input as the graph may see it.

    Args:
        graph_input: What the caller sends.
        config: The run's configuration.
        services: What the operator of the graph decided.
        has_saver: Whether a saver keeps the run.

    Raises:
        ValidationError: It holds what a caller may not send; names it.
    """
    if names := forged_task_keys(config):
        raise ValidationError(
            f"A caller's configuration may not hold {', '.join(names)}.",
            fix='Pass {"configurable": {"thread_id": "…"}}.',
        )
    inside = is_task(config)
    if has_saver and not inside:
        require_thread_id(config)
    if graph_input is None:
        return graph_input
    if isinstance(graph_input, Command):
        return _check_command(graph_input)
    if not isinstance(graph_input, Mapping):
        if inside:
            return graph_input
        raise ValidationError(
            f"The graph was given {type(graph_input).__name__}, not a dictionary.",
            fix='Give {"messages": [("user", "…")]}.',
        )
    schema = services.runner_config.schema
    keys = schema.caller_keys
    if inside:
        # The state of an outer graph flows in whole; only these keys are read.
        graph_input = {key: value for key, value in graph_input.items() if key in keys}
    else:
        _check_input_keys(graph_input, schema, services.registry)
    # What was sent for an earlier turn is not sent for this one.
    checked = {
        **{name: schema.keys[name].reset() for name in schema.one_turn_caller_keys},
        **graph_input,
    }
    if "messages" in checked:
        _check_messages(checked["messages"])
    if checked.get("agent_control") is not None:
        check_switches(checked["agent_control"], services.settings)
    if checked.get("capability_context_data") is not None:
        _check_contexts(checked["capability_context_data"], services.registry, is_nested=inside)
    if checked.get("planning_execution_plan") is not None:
        checked["planning_execution_plan"] = _stamp_plan(checked["planning_execution_plan"])
    return checked


def require_thread_id(config: Mapping[str, Any]) -> None:
    """Make sure that a configuration names a thread.

    Raises:
        ValidationError: It does not.
    """
    if (config.get("configurable") or {}).get("thread_id") in (None, ""):
        raise ValidationError(
            "The graph keeps its threads, and no thread is named.",
            fix='Pass {"configurable": {"thread_id": "…"}} as the configuration.',
        )


async def route_resume(
    graph_input: Any, saver: BaseCheckpointSaver[Any], config: RunnableConfig
) -> Any:
    """Return an answer as LangGraph takes it best: by the questions that it is meant for.

    What is sent may name steps that asked, or nothing where one question is open.

    Args:
        graph_input: What the caller sends; anything but such an answer comes back as it is.
        saver: Where the thread is.
        config: The run's configuration.

    Raises:
        ValidationError: A step that is named asked several questions, or the saver cannot write
            what is sent; by that LangGraph would lose the questions that are open.
    """
    answers = isinstance(graph_input, Command)
    for name, value in (
        {"the answer": graph_input.resume} if answers else graph_input or {}
    ).items():
        try:
            saver.serde.dumps_typed(value)
        except Exception as exc:  # of whatever serializer the saver has
            to_plain(value, name)  # says where
            raise ValidationError(
                f"{name} cannot be kept: {exc}.", fix="Send text, numbers, lists and dictionaries."
            ) from exc
    place = config.get("configurable") or {}
    thread = place.get("thread_id")
    if thread is None or not answers or is_resume_by_id(graph_input.resume):
        return graph_input
    asked = await read_record(saver, str(thread), QUESTION_OWNERS_KEY)
    found = await saver.aget_tuple(config)
    again = bool(place.get("checkpoint_id"))
    open_ = (
        open_interrupts(found.pending_writes, include_answered=again) if found is not None else []
    )
    ids = dict.fromkeys(question.id for question in open_ if not is_wait_interrupt(question.value))
    questions: dict[str, list[str]] = {}
    shown: dict[str, list[str]] = {}
    for name, value in {question.id: question.value for question in open_}.items():
        if key := asked.get(name):
            questions.setdefault(key, []).append(name)
        for step in (value.get("steps") or ()) if isinstance(value, Mapping) else ():
            shown.setdefault(str(step["context_key"]), []).append(name)
    keys = graph_input.resume.keys() if isinstance(graph_input.resume, Mapping) else {""}
    by = questions if keys <= questions.keys() or len(ids) == 1 else shown
    if not keys <= by.keys():
        # LangGraph keeps an answer without a name, and gives it to the next question as well.
        return (
            replace(graph_input, resume=dict.fromkeys(ids, graph_input.resume))
            if len(ids) == 1
            else graph_input
        )
    resume: dict[str, Any] = {}
    for key, answer in graph_input.resume.items():
        if len(by[key]) > 1:
            raise ValidationError(
                f"The step {key!r} asked {len(by[key])} questions.",
                fix=f"Answer them by their ids: {', '.join(by[key])}.",
            )
        if by is questions:
            resume[by[key][0]] = answer
        else:  # inside a step: a question of its own, which may show several
            resume.setdefault(by[key][0], {})[key] = answer
    return replace(graph_input, resume=resume)


async def find_open_questions(
    graph_input: Any, saver: BaseCheckpointSaver[Any], config: RunnableConfig
) -> OpenQuestions | None:
    """Return the questions that are open on a thread which gets a new message or plan.

    Args:
        graph_input: What the caller sends.
        saver: Where the thread is.
        config: The run's configuration.
    """
    place = config.get("configurable") or {}
    thread = place.get("thread_id")
    if thread is None or place.get("checkpoint_id") or not isinstance(graph_input, Mapping):
        return None
    found = await saver.aget_tuple(config)
    open_ = open_interrupts(found.pending_writes) if found is not None else []
    questions = {
        question.id: question.value for question in open_ if not is_wait_interrupt(question.value)
    }
    if found is None or not questions:
        return None
    asked = await read_record(saver, str(thread), QUESTION_OWNERS_KEY)
    planned = TurnView(plain_values(found)).steps_by_key
    steps: dict[str, str | None] = {}
    for name, value in questions.items():
        shown = value.get("steps") if isinstance(value, Mapping) else None
        keys = [str(step["context_key"]) for step in shown or ()]
        keys = keys or ([str(asked[name])] if name in asked else [])
        steps |= {key: (planned.get(key) or {}).get("capability") for key in keys}
    return OpenQuestions([*questions], steps)


def refuse_message(questions: OpenQuestions) -> NoReturn:
    """Refuse a new message, because the operator keeps questions that are open.

    Raises:
        ValidationError: Always.
    """
    emit(QuestionKept(ids=questions.ids, steps=questions.steps))
    steps = questions.steps.items()
    names = ", ".join(f"{key} ({name})" if name else key for key, name in steps)
    raise ValidationError(
        f"A question of this thread is open{f': {names}' if names else ''}.",
        fix="Answer it with Command(resume=…); approvals.new_message: drop would drop it.",
    )


def _check_input_keys(
    graph_input: Mapping[str, Any], schema: StateSchema, registry: Registry
) -> None:
    unknown = sorted(str(key) for key in graph_input if key not in schema.caller_keys)
    if not unknown:
        return
    if _OUTPUT_KEYS & set(unknown):
        fix = (
            "This looks like an earlier output. Pass the new message and the thread: the"
            ' graph keeps the rest itself ({"messages": [("user", "…")]}).'
        )
    elif set(unknown) & set(registry.context_types):
        fix = 'Send context data under "capability_context_data".'
    else:
        fix = _input_key_fix(unknown[0], schema)
    raise ValidationError(f"A caller may not send {', '.join(unknown)}.", fix=fix)


def _input_key_fix(name: str, schema: StateSchema) -> str:
    """Return the fix for a key of the state that no caller may send, or that is unknown."""
    if name in STATE_KEYS or not name.isidentifier():
        return f"Send only {', '.join(sorted(schema.caller_keys))}."
    if name in schema.keys:
        kind = schema.keys[name].type
        shown = inspect.formatannotation(kind).replace("typing.", "")
        return f"Annotate it in your state class: {name}: Annotated[{shown}, CallerInput]."
    if near := suggest_name(name, schema.caller_keys):
        return f"Send {near!r}."
    return (
        f"Send only {', '.join(sorted(schema.caller_keys))}; or declare it in a class State(AgentState,"
        f" total=False) as {name}: Annotated[<type>, CallerInput], and pass state_schema=State."
    )


def check_switches(switches: Any, settings: Settings) -> None:
    """Make sure that a caller may set these switches.

    Args:
        switches: What stands under ``agent_control``.
        settings: All settings; they say which switches may be used.

    Raises:
        ValidationError: One is unknown, or not a caller's to set.
    """
    if not isinstance(switches, Mapping):
        raise ValidationError(
            f"agent_control is {type(switches).__name__}, not a dictionary of switches.",
            fix=f"Use {', '.join(sorted(SWITCHES))}.",
        )
    for name, value in switches.items():
        if name not in SWITCHES:
            raise ValidationError(
                f"agent_control.{name} is no switch.",
                fix=f"Use {', '.join(sorted(SWITCHES))}.",
            )
        if not isinstance(value, bool):
            raise ValidationError(
                f"agent_control.{name} is {value!r:.80}.", fix="Use true or false."
            )
    approvals = settings.approvals
    if switches.get("approval_disabled") and not approvals.callers_may_disable:
        raise ValidationError(
            "agent_control.approval_disabled is not a caller's to set here.",
            fix="The operator allows it with approvals.callers_may_disable.",
        )
    if switches.get("planning_mode_enabled") is False and approvals.plans:
        raise ValidationError(
            "agent_control.planning_mode_enabled cannot be switched off here: the operator"
            " wants every plan looked at.",
            fix="Leave it out.",
        )


def _check_contexts(contexts: Any, registry: Registry, *, is_nested: bool) -> None:
    if not isinstance(contexts, Mapping):
        raise ValidationError(
            f"capability_context_data is {type(contexts).__name__}.",
            fix='Write {"TYPE": {"key": {…}}}.',
        )
    for kind, entries in contexts.items():
        if kind not in registry.provided_types and not is_nested:
            known = ", ".join(sorted(registry.provided_types)) or "none"
            raise ValidationError(
                f"capability_context_data.{kind} is no context type that a caller supplies.",
                fix=f"The types are: {known}; registry.declare_provided(...) names them.",
            )
        if not isinstance(entries, Mapping) or not all(isinstance(k, str) for k in entries):
            raise ValidationError(
                f"capability_context_data.{kind} is {type(entries).__name__}, not entries by key.",
                fix=f'Write {{"{kind}": {{"key": {{…}}}}}}.',
            )
        for key, data in entries.items():
            try:
                load_context(kind, key, data, registry.context_types)
            except ValidationError as exc:
                raise ValidationError(
                    f"What was sent as context data cannot be used. {exc.message}",
                    fix=f"Send {kind}.{key} with the fields of its type.",
                ) from exc


def _check_command(command: Command[Any]) -> Command[Any]:
    """Let a caller answer questions, and nothing else.

    Raises:
        ValidationError: The command does more.
    """
    more = [name for name in ("goto", "graph") if getattr(command, name) not in (None, ())]
    if command.update is not None:
        update = command.update
        pairs = update if isinstance(update, (list, tuple)) else ()
        keys = (
            update if isinstance(update, Mapping) else [p[0] for p in pairs if isinstance(p, tuple)]
        )
        more += [f"update of {key}" for key in keys] or ["update"]
    answers = command.resume
    if answers == {} or (
        isinstance(answers, Mapping) and not all(isinstance(k, str) for k in answers)
    ):
        raise ValidationError(
            f"The answer {answers!r:.80} names no question.",
            fix="Send a word for all that is asked, or answers by context key or by interrupt id.",
        )
    if more or answers is None:
        named = ", ".join(more) or "nothing"
        raise ValidationError(
            f"A caller's Command may only answer a question; this one holds {named}.",
            fix="Send Command(resume=…), or the input as a dictionary.",
        )
    return command


def _check_messages(value: Any) -> None:
    messages = value if isinstance(value, (list, tuple)) else [value]
    try:
        said = [message.content for message in convert_to_messages(list(messages))]
        json.dumps(said, ensure_ascii=False, default=str).encode()  # half a character cannot be
    except Exception as exc:
        raise ValidationError(
            f"The messages cannot be read: {exc!s:.300}.",
            fix='Give messages, or pairs such as ("user", "What is new?").',
        ) from exc


def _stamp_plan(plan: Any) -> Any:
    """Mark a plan as brought by this call, so that it is not taken for one that was left over."""
    given = plan if isinstance(plan, Mapping) else {"steps": plan}
    stamp = {"id": uuid.uuid4().hex, "version": 0, "brought": utc_now_text()}
    return {**given, "stamp": stamp}
