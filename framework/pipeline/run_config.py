"""What a step reads of the run around it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from langgraph.config import get_config
from langgraph.runtime import get_runtime

from capgraph.base.errors import ConfigurationError
from capgraph.base.ports import Caller, Verdict
from capgraph.configs.run_context import override_run_context, run_context

if TYPE_CHECKING:
    from capgraph.configs.settings import Settings

TextApprover = Callable[[str, Any, Sequence[str]], Awaitable[Verdict]]
"""Asks a person whether words may pass: what or who is told them, the words, and why."""


def current_chat_model(role: str) -> Any:
    """Return the chat model that the running graph has for a role.

    Raises:
        ConfigurationError: It has none, or no graph runs.
    """
    around = run_context().services
    found = around[-1].chat_model(role) if around else None
    if found is None:
        raise ConfigurationError(
            f"No graph runs here that has a chat model for the role {role!r}.",
            fix=f"Give build_graph(model={{{role!r}: …}}), or name a model in place of the role.",
        )
    return found


async def request_text_approval(subject: str, text: Any, reasons: Sequence[str]) -> Verdict:
    """Ask a person whether words may pass; denied where nobody can be asked.

    Args:
        subject: The role of the model that is told them, or the node that says them.
        text: The words.
        reasons: Why somebody is asked.

    >>> import asyncio
    >>> asyncio.run(request_text_approval("respond", "The safe is open.", ["It names the safe."])).decision
    'deny'
    """
    ask: TextApprover | None = run_context().text_approver
    if ask is None:
        return Verdict("deny", ["nobody can be asked outside of a graph"])
    return await ask(subject, text, reasons)


def current_runtime() -> Any:
    """Return LangGraph's ``Runtime`` of the run that calls this, or ``None`` outside of one."""
    try:
        return get_runtime()
    except (RuntimeError, KeyError):
        return None


def current_configurable() -> Mapping[str, Any]:
    """Return the run's ``current_configurable``; empty outside of a run."""
    try:
        return get_config().get("configurable") or {}
    except RuntimeError:
        return {}


def billed_to(caller: Caller) -> AbstractContextManager[None]:
    """Have :func:`current_payer` name ``caller`` inside the block."""
    return override_run_context(turn_caller=caller)


def enclosing_billing_subject() -> Caller | None:
    """Return for whom limits and usage count in the turn around; ``None`` outside of one."""
    payer: Caller | None = run_context().turn_caller
    return payer


def billing_subject() -> Caller:
    """Return for whom limits and usage count: who began the turn, whoever goes on with it."""
    return enclosing_billing_subject() or current_caller()


def acting_as(caller: Caller | None) -> AbstractContextManager[None]:
    """Have :func:`current_caller` name whom a program asks for; ``None`` for the run's own again."""
    return override_run_context(caller=caller)


def current_sender() -> Caller:
    """Return who sent the run's input, which may be the answer to another person's question."""
    return caller_from_configurable(current_configurable())


def current_caller() -> Caller:
    """Return for whom the code acts: who began the turn, whom a program names, or who asks: whom a server authenticated, and only without one what the run says.

    A ``current_configurable`` is a caller's input: once a server made sure who it is, nothing else in it
    is believed.
    """
    caller: Caller | None = run_context().caller
    return caller or current_sender()


def caller_from_configurable(configurable: Mapping[str, Any]) -> Caller:
    """Return who asks, by a run's ``current_configurable``; see :func:`current_caller`.

    A server without authentication says so by a user of no name; then what the run says holds.
    """
    user = configurable.get("langgraph_auth_user")

    def read(field: str) -> str | None:
        return _text(user.get(field) if isinstance(user, Mapping) else getattr(user, field, None))

    identity = _text(configurable.get("langgraph_auth_user_id") or read("identity") or None)
    found = Caller(identity, read("role"), read("tenant"), authenticated=True)
    if identity or found.role or found.tenant or read("is_authenticated") == "True":
        return found
    # A role or a tenant of another form is nobody's, and stays so.
    return Caller(
        _text(configurable.get("user_id")), configurable.get("role"), configurable.get("tenant")
    )


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def configurable_for(caller: Caller) -> dict[str, Any]:
    """Return what a run's ``current_configurable`` says of who asks; :func:`caller_of` reads it."""
    known = {"role": caller.role, "tenant": caller.tenant}
    if caller.authenticated:
        named = {"identity": caller.user_id, "is_authenticated": True, **known}
        return {"langgraph_auth_user": named}
    known["user_id"] = caller.user_id
    return {name: value for name, value in known.items() if value is not None}


def configured_caller(settings: Settings) -> Caller:
    """Return the caller that settings name: ``user``, ``role`` and ``tenant``.

    Every command that runs a turn uses it, so that a role means the same in each.

    >>> from capgraph.configs.settings import Settings
    >>> configurable_for(configured_caller(Settings(user="ada", role="operator")))
    {'role': 'operator', 'user_id': 'ada'}
    """
    return Caller(settings.user or None, settings.role or None, settings.tenant or None)


def wants_raw_errors() -> bool:
    """Return whether the run asks for the original exceptions, for debugging.

    Whoever a server authenticated cannot ask for them.
    """
    wanted = current_configurable().get("development")
    wanted = isinstance(wanted, Mapping) and wanted.get("raise_raw_errors")
    return bool(wanted) and not current_sender().authenticated
