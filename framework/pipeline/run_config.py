"""Access to the configuration of the running graph."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from langgraph.config import get_config
from langgraph.runtime import get_runtime

from capgraph.base.errors import ConfigurationError
from capgraph.base.ports import Caller, Verdict
from capgraph.configs.run_context import override_run_context, run_context
from capgraph.langgraph_compat import replace_configurable

if TYPE_CHECKING:
    from capgraph.configs.settings import Settings

_IDENTITY_KEYS = (
    "user_id",
    "role",
    "tenant",
    "langgraph_auth_user",
    "langgraph_auth_user_id",
    "langgraph_auth_permissions",
)
TextApprover = Callable[[str, Any, Sequence[str]], Awaitable[Verdict]]
"""Asks a person to approve a text. The arguments are the subject, the text, and the reasons."""


def current_chat_model(role: str) -> Any:
    """Return the running graph's chat model for a role.

    Raises:
        ConfigurationError: The graph has no model for the role, or no graph is running.
    """
    services = run_context().services
    model = services[-1].chat_model(role) if services else None
    if model is None:
        raise ConfigurationError(
            f"No chat model is available for the role {role!r}: no running graph has one.",
            fix=f"pass build_graph(model={{{role!r}: …}}), or use a model name instead of the role.",
        )
    return model


async def request_text_approval(subject: str, text: Any, reasons: Sequence[str]) -> Verdict:
    """Ask a person to approve a text, and return the person's verdict.

    Without a running graph, the verdict is ``deny``.

    Args:
        subject: Role of the model that receives the text, or name of the node that writes the
            text.
        text: Text to approve.
        reasons: Reasons why the text requires approval.

    >>> import asyncio
    >>> asyncio.run(request_text_approval("respond", "The safe is open.", ["It names the safe."])).decision
    'deny'
    """
    ask: TextApprover | None = run_context().text_approver
    if ask is None:
        return Verdict("deny", ["a person can only be asked inside a graph"])
    return await ask(subject, text, reasons)


def current_runtime() -> Any:
    """Return LangGraph's ``Runtime`` of the current run, or ``None`` outside a run."""
    try:
        return get_runtime()
    except (RuntimeError, KeyError):
        return None


def current_configurable() -> Mapping[str, Any]:
    """Return the current run's ``configurable`` mapping, or an empty mapping outside a run."""
    try:
        return get_config().get("configurable") or {}
    except RuntimeError:
        return {}


def billed_to(caller: Caller) -> AbstractContextManager[None]:
    """Return a context manager that counts usage and limits toward a caller.

    See :func:`billing_subject`.
    """
    return override_run_context(turn_caller=caller)


def enclosing_billing_subject() -> Caller | None:
    """Return the caller who is billed for the enclosing turn, or ``None`` outside a turn."""
    payer: Caller | None = run_context().turn_caller
    return payer


def billing_subject() -> Caller:
    """Return the caller who is billed for the current turn.

    Usage and limits count toward the caller who started the turn.
    """
    return enclosing_billing_subject() or current_caller()


def acting_as(caller: Caller | None) -> AbstractContextManager[None]:
    """Return a context manager that runs code on behalf of a caller.

    See :func:`current_caller`.

    Args:
        caller: Caller to use. ``None`` restores the caller of the run.
    """
    return override_run_context(caller=caller, **({} if caller else {"sender": None}))


@contextmanager
def acting_for_turn(caller: Caller, sender: Caller) -> Iterator[None]:
    """Run code on behalf of a turn's caller even if a different user resumed the turn.

    Within the ``with`` block, ``configurable`` also contains the caller, because third-party
    code reads it.

    Args:
        caller: Caller of the turn.
        sender: User who resumed the turn, for example with an approval.
    """
    if caller == sender:
        yield
        return
    named = replace_configurable(_IDENTITY_KEYS, configurable_for(caller))
    with override_run_context(caller=caller, sender=sender), named:
        yield


def restore_turn_caller() -> AbstractContextManager[None]:
    """Return a context manager that restores the turn's caller in a LangGraph task.

    LangGraph passes the whole run's configuration to each task, which would otherwise lose the
    turn's caller.
    """
    context = run_context()
    if context.sender is None or context.caller is None:
        return nullcontext()
    return acting_for_turn(context.caller, context.sender)


def current_sender() -> Caller:
    """Return the caller who sent the current run's input."""
    sender: Caller | None = run_context().sender
    return sender or caller_from_configurable(current_configurable())


def current_caller() -> Caller:
    """Return the caller on whose behalf the current code runs.

    This is the caller of an enclosing :func:`acting_as` block, or otherwise the sender of the
    run's input. ``configurable`` cannot override an identity that a server has authenticated.
    """
    caller: Caller | None = run_context().caller
    return caller or current_sender()


def caller_from_configurable(configurable: Mapping[str, Any]) -> Caller:
    """Read the caller from a run's ``configurable`` mapping.

    A server without authentication may set a user without a name. In that case, the other keys
    identify the caller.
    """
    user = configurable.get("langgraph_auth_user")

    def read(field: str) -> str | None:
        return _to_text(
            user.get(field) if isinstance(user, Mapping) else getattr(user, field, None)
        )

    identity = _to_text(configurable.get("langgraph_auth_user_id") or read("identity") or None)
    authenticated = Caller(identity, read("role"), read("tenant"), authenticated=True)
    if identity or authenticated.role or authenticated.tenant or read("is_authenticated") == "True":
        return authenticated
    # A role or tenant of another type matches nothing, so it is not converted.
    return Caller(
        _to_text(configurable.get("user_id")), configurable.get("role"), configurable.get("tenant")
    )


def _to_text(value: Any) -> str | None:
    return None if value is None else str(value)


def configurable_for(caller: Caller) -> dict[str, Any]:
    """Create a ``configurable`` mapping that identifies a caller.

    This is the inverse of :func:`caller_from_configurable`.
    """
    configurable = {"role": caller.role, "tenant": caller.tenant}
    if caller.authenticated:
        named = {"identity": caller.user_id, "is_authenticated": True, **configurable}
        return {"langgraph_auth_user": named}
    configurable["user_id"] = caller.user_id
    return {name: value for name, value in configurable.items() if value is not None}


def configured_caller(settings: Settings) -> Caller:
    """Create a caller from the settings ``user``, ``role``, and ``tenant``.

    All commands that run a turn act as this caller.

    >>> from capgraph.configs.settings import Settings
    >>> configurable_for(configured_caller(Settings(user="ada", role="operator")))
    {'role': 'operator', 'user_id': 'ada'}
    """
    return Caller(settings.user or None, settings.role or None, settings.tenant or None)


def wants_raw_errors() -> bool:
    """Return True if the run should raise original exceptions, for debugging.

    An authenticated caller cannot request original exceptions.
    """
    development = current_configurable().get("development")
    development = isinstance(development, Mapping) and development.get("raise_raw_errors")
    return bool(development) and not current_sender().authenticated
