"""Conversion of an AG-UI ``RunAgentInput`` to a request for a run.

Each field of the input is used or refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from capgraph.base.errors import ValidationError
from capgraph.configs.suggestions import suggest_fix

if TYPE_CHECKING:
    from ag_ui.core import RunAgentInput

_ROLES = {"developer": "system"}
_OPTIONS = ("plan", "context")


@dataclass(frozen=True, slots=True)
class AguiRequest:
    """Parsed request from an AG-UI client.

    Attributes:
        message: Text of the new user message.
        message_id: The client's ID of this message.
        instructions: Context of the client for this turn; empty without a context.
        history: Earlier messages that the thread does not contain.
        answers: Answers by question ID. Results of client tools are answers, too.
        plan: Plan that the client supplied.
        context_data: Context data, by type and key.
        state: Changed application state.
        tools: Arguments of :func:`~capgraph.scale.client_tools.client_tool` for each tool.
    """

    message: str | None
    message_id: str | None
    instructions: str
    history: list[dict[str, Any]]
    answers: dict[str, Any]
    plan: Any
    context_data: Any
    state: dict[str, Any]
    tools: list[dict[str, Any]]


def read_request(
    run_input: RunAgentInput,
    thread_state: Mapping[str, Any],
    shared_keys: Collection[str],
) -> AguiRequest:
    """Parse and validate the input of an AG-UI run.

    Args:
        run_input: Input from the AG-UI client.
        thread_state: State of the thread as plain data; empty for a new thread.
        shared_keys: State keys that clients may send.

    Raises:
        ValidationError: The input contains something that the agent cannot use.
    """
    options = _read_options(run_input.forwarded_props)
    messages = [one for one in run_input.messages if one.role != "activity"]
    tool_results = _trailing_messages(messages, "tool")
    answers = {entry.interrupt_id: _resume_answer(entry) for entry in run_input.resume or ()}
    answers |= {one.tool_call_id: _tool_result(one) for one in tool_results}
    user_messages = [] if answers else _trailing_messages(messages, "user")[-1:]
    message = user_messages[0] if user_messages else None
    known = thread_state.get("messages") or ()
    history = _unknown_messages(messages[: -1 if message is not None else None], known)
    if answers and any(one["role"] == "user" for one in history):
        raise ValidationError(
            "The request must not contain both answers and a new message.",
            fix="Send the message after the answers.",
        )
    return AguiRequest(
        message=None if message is None else _text(message),
        message_id=None if message is None else message.id,
        # A turn has one context: that of its message.
        instructions="\n".join(
            f"{one.description}: {one.value}" for one in run_input.context or ()
        ),
        history=history if message is not None else [],
        answers=answers,
        plan=options.get("plan"),
        context_data=options.get("context"),
        state=_changed_state(run_input.state, thread_state, shared_keys, is_answer=bool(answers)),
        tools=[
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
            for tool in run_input.tools or ()
        ],
    )


def _read_options(forwarded_props: Any) -> Mapping[str, Any]:
    """Return the ``capgraph`` options from a request's forwarded properties.

    Other forwarded properties are ignored, because they are meant for other software.
    """
    options = forwarded_props.get("capgraph") if isinstance(forwarded_props, Mapping) else None
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise ValidationError(
            f"forwardedProps.capgraph is of type {type(options).__name__}: it must be an object.",
            fix='Send {"plan": …, "context": …}.',
        )
    for name in options:
        if name not in _OPTIONS:
            raise ValidationError(
                f"The field forwardedProps.capgraph.{name} is unknown.",
                fix=suggest_fix(str(name), candidates=_OPTIONS),
            )
    return options


def _trailing_messages(messages: Sequence[Any], role: str) -> list[Any]:
    """Return the consecutive messages at the end of a list that have a given role."""
    count = 0
    while count < len(messages) and messages[-1 - count].role == role:
        count += 1
    return list(messages[len(messages) - count :])


def _resume_answer(entry: Any) -> Any:
    return entry.payload if entry.status == "resolved" else "reject"


def _tool_result(message: Any) -> Any:
    return {"error": message.error} if message.error else _text(message)


def _unknown_messages(
    messages: Sequence[Any], thread_messages: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the client's messages that follow the last message stored in the thread.

    Tool calls without a result are dropped, because chat models reject them.
    """
    known = {(one["role"], one["content"]) for one in thread_messages}
    called: set[str] = set()
    unknown: list[dict[str, Any]] = []
    for message in reversed(messages):
        data = _message_data(message)
        calls = [call for call in data.pop("tool_calls", ()) if call["id"] in called]
        if calls:
            data["tool_calls"] = calls
        elif (data["role"], data["content"]) in known:
            break
        if data["role"] == "tool":
            called.add(data["tool_call_id"])
        if calls or data["content"]:
            unknown.insert(0, data)
    return unknown


def _message_data(message: Any) -> dict[str, Any]:
    """Convert an AG-UI message to the message format of chat models.

    Raises:
        ValidationError: The agent cannot use the message.
    """
    role = _ROLES.get(message.role, message.role)
    if role not in ("user", "assistant", "system", "tool"):
        raise ValidationError(
            f"The message {message.id!r:.80} has the role {role!r}, which the agent cannot use.",
            fix="Remove it.",
        )
    data: dict[str, Any] = {"role": role, "content": _text(message)}
    if role == "tool":
        data["tool_call_id"] = message.tool_call_id
    if calls := getattr(message, "tool_calls", None):
        data["tool_calls"] = [call.model_dump(include={"id", "type", "function"}) for call in calls]
    return data


def _text(message: Any) -> str:
    """Return the text content of an AG-UI message.

    Raises:
        ValidationError: The message contains parts other than text.
    """
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    unsupported = sorted({part.type for part in message.content if part.type != "text"})
    if unsupported:
        raise ValidationError(
            f"Only text parts are supported, but the message contains: {', '.join(unsupported)}.",
            fix="Send text parts only.",
        )
    return "\n".join(part.text for part in message.content)


def _changed_state(
    state: Any, thread_state: Mapping[str, Any], shared_keys: Collection[str], *, is_answer: bool
) -> dict[str, Any]:
    """Return the entries of the application state that the client changed.

    Raises:
        ValidationError: The state has a key that clients may not change.
    """
    if state is None:
        return {}
    if not isinstance(state, Mapping):
        raise ValidationError(
            f"The state is of type {type(state).__name__}: it must be an object.",
            fix="Send an object.",
        )
    for name in state:
        if name not in shared_keys:
            raise ValidationError(
                f"The state key {name!r:.80} is invalid: the agent shares no key with this name.",
                fix=suggest_fix(str(name), candidates=shared_keys)
                if shared_keys
                else "Remove it, or declare it in the state class as CallerInput.",
            )
    changed = {
        name: value
        for name, value in state.items()
        if name not in thread_state or thread_state[name] != value
    }
    if changed and is_answer:
        raise ValidationError(
            f"The answer changes the state key {min(changed)!r}, which only a message may do.",
            fix="Send the change with the next message.",
        )
    return changed
