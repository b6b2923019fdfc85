"""Validation of the input that a caller passes to a graph.

LangGraph drops unknown input keys and executes ``Command(update=…)`` and ``Command(goto=…)`` of a
caller. The graph therefore validates its input itself and refuses everything that a caller may not
send.
"""

from __future__ import annotations

import inspect
import json
import uuid
from collections.abc import Container, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from langchain_core.messages import convert_to_messages
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.types import Command

from capgraph.base.context import CapabilityContext
from capgraph.base.errors import ValidationError
from capgraph.base.value_context import LIST_SUFFIX
from capgraph.configs.suggestions import suggest_name
from capgraph.engine.default_strategies import SummaryAnswerer
from capgraph.engine.run_scope import OpenQuestions
from capgraph.engine.services import Services
from capgraph.governance.information_flow import nested_context_types
from capgraph.helpers.clock import utc_now_text
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
"""Record key for the step that asked each open question inside steps."""
_OUTPUT_KEYS = frozenset({"execution_outcome", "execution_step_results", "control_turn"})


def validate_input(
    graph_input: Any, config: Mapping[str, Any], services: Services, *, has_saver: bool = False
) -> Any:
    """Validate the input of a graph, and convert it to the form that the graph expects.

    Args:
        graph_input: Input from the caller.
        config: Configuration of the run.
        services: Services of the graph.
        has_saver: True if a saver stores the run.

    Raises:
        ValidationError: The input contains a key or value that callers may not send.
    """
    if names := forged_task_keys(config):
        raise ValidationError(
            f"Invalid configuration keys from a caller: {', '.join(names)}.",
            fix='pass {"configurable": {"thread_id": "…"}}.',
        )
    is_nested = is_task(config)
    if has_saver and not is_nested:
        require_thread_id(config)
    if graph_input is None:
        return graph_input
    if isinstance(graph_input, Command):
        return _check_command(graph_input)
    if not isinstance(graph_input, Mapping):
        if is_nested:
            return graph_input
        raise ValidationError(
            f"Invalid graph input {type(graph_input).__name__}: expected a dictionary.",
            fix='pass {"messages": [("user", "…")]}.',
        )
    schema = services.runner_config.schema
    keys = schema.caller_keys
    if is_nested:
        # The input is the whole state of an outer graph, of which only these keys are read.
        graph_input = {key: value for key, value in graph_input.items() if key in keys}
    else:
        _check_input_keys(graph_input, schema, services.registry)
    # Reset the keys that apply to one turn, so that values of an earlier turn are not reused.
    validated = {
        **{name: schema.keys[name].reset() for name in schema.one_turn_caller_keys},
        **graph_input,
    }
    if "messages" in validated:
        _check_messages(validated["messages"])
    if validated.get("agent_control") is not None:
        check_switches(validated["agent_control"], services.settings)
    if validated.get("capability_context_data") is not None:
        check_contexts(validated["capability_context_data"], services.registry, is_nested=is_nested)
    _check_answer_schema(validated.get("execution_answer_schema"), services)
    if validated.get("planning_execution_plan") is not None:
        validated["planning_execution_plan"] = _mark_plan_as_new(
            validated["planning_execution_plan"]
        )
    return validated


def require_thread_id(config: Mapping[str, Any]) -> None:
    """Raise an error if a run config contains no thread ID.

    Raises:
        ValidationError: The thread ID is missing.
    """
    if (config.get("configurable") or {}).get("thread_id") in (None, ""):
        raise ValidationError(
            "thread_id is missing, but it is required because the graph has a checkpoint saver.",
            fix='pass {"configurable": {"thread_id": "…"}} as the configuration.',
        )


async def route_resume(
    graph_input: Any, saver: BaseCheckpointSaver[Any], config: RunnableConfig
) -> Any:
    """Convert a caller's answer to the form that LangGraph expects: values by interrupt ID.

    A caller may send answers by context key, or a single value if only one question is open.

    Args:
        graph_input: Input from the caller. Input without an answer is returned unchanged.
        saver: Saver of the thread.
        config: Configuration of the run.

    Raises:
        ValidationError: A step has several open questions, or the saver cannot serialize the
            answer, in which case LangGraph would lose the open questions.
    """
    answers = isinstance(graph_input, Command)
    _check_serializable({"the answer": graph_input.resume} if answers else graph_input or {}, saver)
    configurable = config.get("configurable") or {}
    thread = configurable.get("thread_id")
    # An empty mapping accepts a form without values.
    is_empty_form = answers and graph_input.resume == {}
    by_id = answers and not is_empty_form and is_resume_by_id(graph_input.resume)
    if thread is None or not answers or by_id:
        return graph_input
    owners = await read_record(saver, str(thread), QUESTION_OWNERS_KEY)
    saved = await saver.aget_tuple(config)
    is_fork = bool(configurable.get("checkpoint_id"))
    open_ = (
        open_interrupts(saved.pending_writes, include_answered=is_fork) if saved is not None else []
    )
    ids = dict.fromkeys(question.id for question in open_ if not is_wait_interrupt(question.value))
    if is_empty_form:
        # An approval request is no form: it needs a decision.
        has_steps = any(isinstance(q.value, Mapping) and "steps" in q.value for q in open_)
        if len(ids) != 1 or has_steps:
            raise _create_unidentified_error(graph_input.resume)
        return replace(graph_input, resume={question_id: {} for question_id in ids})
    questions: dict[str, list[str]] = {}
    shown_steps: dict[str, list[str]] = {}
    for name, value in {question.id: question.value for question in open_}.items():
        if key := owners.get(name):
            questions.setdefault(key, []).append(name)
        for step in (value.get("steps") or ()) if isinstance(value, Mapping) else ():
            shown_steps.setdefault(str(step["context_key"]), []).append(name)
    keys = graph_input.resume.keys() if isinstance(graph_input.resume, Mapping) else {""}
    candidates = questions if keys <= questions.keys() or len(ids) == 1 else shown_steps
    if not keys <= candidates.keys():
        # LangGraph would also pass an answer without an ID to the next question.
        return (
            replace(graph_input, resume=dict.fromkeys(ids, graph_input.resume))
            if len(ids) == 1
            else graph_input
        )
    resume: dict[str, Any] = {}
    for key, answer in graph_input.resume.items():
        if len(candidates[key]) > 1:
            raise ValidationError(
                f"Step {key!r} has {len(candidates[key])} open questions: the answer is ambiguous.",
                fix=f"key the answers by interrupt ID: {', '.join(candidates[key])}.",
            )
        if candidates is questions:
            resume[candidates[key][0]] = answer
        else:  # a question inside a step, which may show several steps
            resume.setdefault(candidates[key][0], {})[key] = answer
    return replace(graph_input, resume=resume)


def _check_serializable(values: Mapping[str, Any], saver: BaseCheckpointSaver[Any]) -> None:
    for name, value in values.items():
        try:
            saver.serde.dumps_typed(value)
        except Exception as exc:  # the error depends on the saver's serializer
            to_plain(value, name)  # raises an error with the path
            raise ValidationError(
                f"{name} is not serializable: {exc}.",
                fix="send text, numbers, lists, and dictionaries.",
            ) from exc


async def find_open_questions(
    graph_input: Any, saver: BaseCheckpointSaver[Any], config: RunnableConfig
) -> OpenQuestions | None:
    """Return the open questions of a thread that receives a new message or plan.

    Return ``None`` if no question is open, or if the input is not a new message or plan.

    Args:
        graph_input: Input from the caller.
        saver: Saver of the thread.
        config: Configuration of the run.
    """
    configurable = config.get("configurable") or {}
    thread = configurable.get("thread_id")
    if thread is None or configurable.get("checkpoint_id") or not isinstance(graph_input, Mapping):
        return None
    saved = await saver.aget_tuple(config)
    open_ = open_interrupts(saved.pending_writes) if saved is not None else []
    questions = {
        question.id: question.value for question in open_ if not is_wait_interrupt(question.value)
    }
    if saved is None or not questions:
        return None
    owners = await read_record(saver, str(thread), QUESTION_OWNERS_KEY)
    planned = TurnView(plain_values(saved)).steps_by_key
    steps: dict[str, str | None] = {}
    for name, value in questions.items():
        shown_steps = value.get("steps") if isinstance(value, Mapping) else None
        keys = [str(step["context_key"]) for step in shown_steps or ()]
        keys = keys or ([str(owners[name])] if name in owners else [])
        steps |= {key: (planned.get(key) or {}).get("capability") for key in keys}
    return OpenQuestions([*questions], steps)


def refuse_message(questions: OpenQuestions) -> NoReturn:
    """Reject a new message to a thread whose open questions must be answered first.

    Raises:
        ValidationError: The setting ``approvals.new_message`` does not allow the message.
    """
    emit(QuestionKept(ids=questions.ids, steps=questions.steps))
    steps = questions.steps.items()
    names = ", ".join(f"{key} ({name})" if name else key for key, name in steps)
    raise ValidationError(
        f"The thread accepts no new message until its open question{(f' ({names})' if names else '')} "
        "is answered.",
        fix="answer it with Command(resume=…), or set approvals.new_message to 'drop'.",
    )


def _check_input_keys(
    graph_input: Mapping[str, Any], schema: StateSchema, registry: Registry
) -> None:
    unknown = sorted(str(key) for key in graph_input if key not in schema.caller_keys)
    if not unknown:
        return
    if _OUTPUT_KEYS & set(unknown):
        fix = (
            "the input looks like an earlier output. Pass only the new message and the thread ID"
            ' ({"messages": [("user", "…")]}); the graph stores the rest.'
        )
    elif set(unknown) & set(registry.context_types):
        fix = 'send context data under "capability_context_data".'
    else:
        fix = _suggest_input_key(unknown[0], schema)
    raise ValidationError(f"Invalid input keys from a caller: {', '.join(unknown)}.", fix=fix)


def _suggest_input_key(name: str, schema: StateSchema) -> str:
    """Return the hint for an error message about an unknown or protected input key."""
    if name in STATE_KEYS or not name.isidentifier():
        return f"send only {', '.join(sorted(schema.caller_keys))}."
    if name in schema.keys:
        kind = schema.keys[name].type
        annotation = inspect.formatannotation(kind).replace("typing.", "")
        return f"annotate it in your state class: {name}: Annotated[{annotation}, CallerInput]."
    if suggestion := suggest_name(name, schema.caller_keys):
        return f"send {suggestion!r}."
    return (
        f"send only {', '.join(sorted(schema.caller_keys))}, or declare it in a class State(AgentState,"
        f" total=False) as {name}: Annotated[<type>, CallerInput], and pass state_schema=State."
    )


def check_switches(switches: Any, settings: Settings) -> None:
    """Raise an error if ``agent_control`` contains an invalid switch.

    Args:
        switches: Value of ``agent_control``.
        settings: Settings, which define the switches that callers may set.

    Raises:
        ValidationError: A switch is unknown, has an invalid value, or may not be set by
            callers.
    """
    if not isinstance(switches, Mapping):
        raise ValidationError(
            f"Invalid agent_control {type(switches).__name__}: expected a dictionary of switches.",
            fix=f"use {', '.join(sorted(SWITCHES))}.",
        )
    for name, value in switches.items():
        if name not in SWITCHES:
            raise ValidationError(
                f"Unknown switch agent_control.{name}.", fix=f"use {', '.join(sorted(SWITCHES))}."
            )
        if not isinstance(value, bool):
            raise ValidationError(
                f"Invalid agent_control.{name} {value!r:.80}: expected a boolean.",
                fix="use true or false.",
            )
    approvals = settings.approvals
    if switches.get("approval_disabled") and not approvals.callers_may_disable:
        raise ValidationError(
            "agent_control.approval_disabled is not allowed: callers may not disable approvals.",
            fix="set approvals.callers_may_disable to allow it.",
        )
    if switches.get("planning_mode_enabled") is False and approvals.plans:
        raise ValidationError(
            "agent_control.planning_mode_enabled must not be false: the operator requires a review"
            " of every plan.",
            fix="remove it.",
        )


def check_contexts(
    contexts: Any,
    registry: Registry,
    *,
    accepted_types: Container[str] = (),
    is_nested: bool = False,
) -> None:
    """Raise an error if a caller supplies invalid context data.

    Args:
        contexts: Context data by type and context key.
        registry: Registry of the graph.
        accepted_types: Types that this caller may supply in addition to the provided types,
            because a tool requires them. Types with file paths are never accepted, because the
            path could refer to any file.
        is_nested: True if the caller is an outer graph, which may supply every type.

    Raises:
        ValidationError: Callers may not supply a type, or the data does not match its type.
    """
    if not isinstance(contexts, Mapping):
        raise ValidationError(
            f"Invalid capability_context_data {type(contexts).__name__}: expected a dictionary.",
            fix='send {"TYPE": {"key": {…}}}.',
        )
    for kind, entries in contexts.items():
        is_accepted = kind in accepted_types and not _has_files(kind, registry)
        if kind not in registry.provided_types and not is_nested and not is_accepted:
            known_types = ", ".join(sorted(registry.provided_types)) or "none"
            raise ValidationError(
                f"Invalid context type {kind!r} in capability_context_data: callers may not supply it.",
                fix=f"use one of: {known_types}. Declare more with registry.declare_provided(...).",
            )
        if not isinstance(entries, Mapping) or not all(isinstance(k, str) for k in entries):
            raise ValidationError(
                f"Invalid capability_context_data.{kind} {type(entries).__name__}: expected entries by key.",
                fix=f'send {{"{kind}": {{"key": {{…}}}}}}.',
            )
        for key, data in entries.items():
            try:
                load_context(kind, key, data, registry.context_types)
            except ValidationError as exc:
                raise ValidationError(
                    f"Invalid context data from a caller. {exc.message}",
                    fix=f"send {kind}.{key} with the fields of its type.",
                ) from exc


def _has_files(kind: str, registry: Registry) -> bool:
    """Return True if a context type, or a type nested in it, contains file paths."""
    cls = registry.context_types.get(kind.removesuffix(LIST_SUFFIX))
    if cls is None:
        return False
    return any(
        one.CONTEXT_CATEGORY == "ARTIFACT" or one.get_files is not CapabilityContext.get_files
        for one in (cls, *nested_context_types(cls, set()))
    )


def _check_command(command: Command[Any]) -> Command[Any]:
    """Raise an error if a caller's ``Command`` does anything except answer questions.

    Raises:
        ValidationError: The command contains an update, a ``goto``, or another unsupported
            part.
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
    if isinstance(answers, Mapping) and not all(isinstance(k, str) for k in answers):
        raise _create_unidentified_error(answers)
    if more or answers is None:
        named = ", ".join(more) or "nothing"
        raise ValidationError(
            f"Invalid Command from a caller: it contains {named}, but may only answer a question.",
            fix="send Command(resume=…), or the input as a dictionary.",
        )
    return command


def _create_unidentified_error(answers: Any) -> ValidationError:
    return ValidationError(
        f"Invalid answer {answers!r:.80}: it does not identify a question.",
        fix="send one decision for all questions, or answers keyed by context key or interrupt ID.",
    )


def _check_messages(value: Any) -> None:
    messages = value if isinstance(value, (list, tuple)) else [value]
    try:
        contents = [message.content for message in convert_to_messages(list(messages))]
        json.dumps(contents, ensure_ascii=False, default=str).encode()  # fails for lone surrogates
    except Exception as exc:
        raise ValidationError(
            f"Invalid messages: {exc!s:.300}.",
            fix='pass messages, or pairs such as ("user", "What is new?").',
        ) from exc


def _check_answer_schema(schema: Any, services: Services) -> None:
    if schema is None:
        return
    facts = {"key": "execution_answer_schema"}
    if not isinstance(schema, Mapping):
        raise ValidationError(
            f"execution_answer_schema is of type {type(schema).__name__}: expected a dictionary.",
            fix="pass the JSON schema of an object.",
            facts=facts,
        )
    if isinstance(services.answerer, SummaryAnswerer):
        raise ValidationError(
            "execution_answer_schema requires a chat model: none is configured.",
            fix="configure a model for the role 'answer', or request a text.",
            facts=facts,
        )
    try:
        services.answer_type_of({"execution_answer_schema": schema})
    except ValidationError as exc:
        raise ValidationError(
            f"execution_answer_schema is invalid: {exc.message}", fix=exc.fix, facts=facts
        ) from exc


def _mark_plan_as_new(plan: Any) -> Any:
    """Assign a caller's plan a unique ID, so that it differs from a plan left by an earlier turn."""
    fields = plan if isinstance(plan, Mapping) else {"steps": plan}
    stamp = {"id": uuid.uuid4().hex, "version": 0, "brought": utc_now_text()}
    return {**fields, "stamp": stamp}
