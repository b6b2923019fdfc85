"""Guardrails: checks of the data that enters or leaves a step."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Protocol, runtime_checkable

from capgraph.base.errors import ErrorSeverity, PolicyError
from capgraph.configs.errors import ConfigurationError
from capgraph.helpers.async_calls import maybe_await
from capgraph.pipeline.failures import REFUSED_BY_GUARDS
from capgraph.pipeline.run_config import request_text_approval
from capgraph.telemetry.audit import record_later

GuardrailStage = Literal["pre", "post"]
"""``pre`` for the arguments of a step, ``post`` for its result."""
_ACTIONS = ("allow", "rewrite", "ask", "retry", "deny")


@dataclass(frozen=True, slots=True)
class GuardrailOutcome:
    """Outcome of a guardrail's check.

    Attributes:
        allowed: True if the value may pass.
        reason: Reason for a refusal. It must not quote the value, because reasons appear in prompts
            and messages to users.
        action: ``allow``, ``rewrite`` (use ``value`` instead), ``ask`` (a person decides),
            ``retry`` (repeat the attempt, or plan again if an argument is refused), or ``deny``. It
            overrides ``allowed``.
        value: Replacement value. For arguments it must be a dictionary.

    Raises:
        ValueError: The action is unknown, contradicts ``allowed``, or is ``rewrite`` without a
            value.

    >>> GuardrailOutcome(False, reason="It is too long.").decision
    'deny'
    """

    allowed: bool
    reason: str | None = None
    action: Literal["allow", "rewrite", "ask", "retry", "deny"] | None = None
    value: Any = None

    def __post_init__(self) -> None:
        if self.action is not None and self.action not in _ACTIONS:
            raise ValueError(
                f"The guardrail action {self.action!r} is unknown. Fix: use one of {', '.join(_ACTIONS)}."
            )
        if (self.allowed, self.action) in ((False, "allow"), (True, "deny")):
            raise ValueError(
                f"GuardrailOutcome has allowed={self.allowed}, which conflicts with "
                f"action={self.action!r}. Fix: pass only one of them."
            )
        if self.action == "rewrite" and self.value is None:
            raise ValueError("The action 'rewrite' has no value. Fix: pass the replacement value.")

    @property
    def decision(self) -> str:
        """Action that the guardrail requests. Derived from ``allowed`` if ``action`` is not set."""
        return self.action or ("allow" if self.allowed else "deny")


@runtime_checkable
class Guardrail(Protocol):
    """Protocol of guardrails that check a step's arguments and its result.

    A guardrail may omit either method.
    """

    def check_pre(
        self, *, role: str, tool: str, arguments: Mapping[str, Any] = {}
    ) -> GuardrailOutcome:
        """Check a step's parameters and inputs as plain data before the step runs."""

    def check_post(self, value: Any, *, role: str, tool: str) -> GuardrailOutcome:
        """Check the plain data of a step's result, or the text of a message or an answer."""


@runtime_checkable
class AsyncGuardrail(Protocol):
    """Protocol of guardrails with asynchronous checks.

    The checks are also awaited in synchronous runs of a graph.
    """

    async def acheck_pre(
        self, *, role: str, tool: str, arguments: Mapping[str, Any] = {}
    ) -> GuardrailOutcome:
        """Asynchronous form of :meth:`Guardrail.check_pre`."""

    async def acheck_post(self, value: Any, *, role: str, tool: str) -> GuardrailOutcome:
        """Asynchronous form of :meth:`Guardrail.check_post`."""


class AllowAllGuardrail:
    """Guardrail that allows everything.

    >>> AllowAllGuardrail().check_post("anything", role="", tool="read").allowed
    True
    """

    name = "allow_all"

    def check_pre(
        self, *, role: str, tool: str, arguments: Mapping[str, Any] = {}
    ) -> GuardrailOutcome:
        """Allow the arguments."""
        return GuardrailOutcome(True)

    def check_post(self, value: Any, *, role: str, tool: str) -> GuardrailOutcome:
        """Allow the result."""
        return GuardrailOutcome(True)


class SymmetricGuardrail(ABC):
    """Base class for guardrails that apply the same check to arguments and results.

    A subclass implements the check in the ``_check`` method.
    """

    stages: Collection[GuardrailStage] = ("pre", "post")

    def check_pre(
        self, *, role: str, tool: str, arguments: Mapping[str, Any] = {}
    ) -> GuardrailOutcome:
        """Check a step's parameters and inputs if ``stages`` includes ``pre``."""
        return self._check(dict(arguments)) if "pre" in self.stages else GuardrailOutcome(True)

    def check_post(self, value: Any, *, role: str, tool: str) -> GuardrailOutcome:
        """Check a step's result if ``stages`` includes ``post``."""
        return self._check(value) if "post" in self.stages else GuardrailOutcome(True)

    @abstractmethod
    def _check(self, value: Any) -> GuardrailOutcome: ...


@dataclass(frozen=True, slots=True)
class GuardrailViolation:
    """Violation reported by a single guardrail that rejected a value.

    Attributes:
        guardrail: Name of the guardrail or rule that was violated.
        reason: Reason for the rejection.
        action: Requested action: ``ask``, ``retry``, or ``deny``, or ``rewrite`` if the value
            could not be rewritten.
        stage: Stage of the check: ``pre`` for arguments, ``post`` for results.
        role: Role of the caller.
        tool: Name of the capability.
    """

    guardrail: str
    reason: str = ""
    action: str = "deny"
    stage: GuardrailStage = "pre"
    role: str = ""
    tool: str = ""

    def __str__(self) -> str:
        return f"{self.guardrail}: {self.reason}" if self.reason else self.guardrail


class GuardrailViolationError(PolicyError):
    """Raised if guardrails reject a value. The error message names each of these guardrails.

    Args:
        rule_name: Name of the guardrail, if no violations are passed.
        message: Reason for the rejection.
        violations: Violations reported by all guardrails.
        severity: Severity of the error.

    >>> print(GuardrailViolationError("no_names", "It names a person.").message)
    Guardrails refuse the value (no_names: It names a person.).
    """

    code = REFUSED_BY_GUARDS
    severity: ErrorSeverity = ErrorSeverity.CRITICAL

    def __init__(
        self,
        rule_name: str = "",
        message: str = "",
        *,
        violations: Sequence[GuardrailViolation] = (),
        severity: ErrorSeverity | None = None,
    ) -> None:
        self.violations: tuple[GuardrailViolation, ...] = tuple(violations) or (
            GuardrailViolation(rule_name, message),
        )
        first = self.violations[0]
        what = {"pre": "the input of", "post": "the output of"}[first.stage]
        subject = f"{what} {first.tool!r}" if first.tool else "the value"
        reasons = "; ".join(dict.fromkeys(str(violation) for violation in self.violations))
        super().__init__(
            f"Guardrails refuse {subject} ({reasons}).",
            fix="Change the request or the guardrail.",
            severity=severity,
        )

    @property
    def guardrail(self) -> str:
        """Name of the first guardrail that refused the value."""
        return self.violations[0].guardrail

    rule_name = guardrail

    @property
    def outcome(self) -> GuardrailOutcome:
        """Outcome of the first guardrail that refused the value."""
        return GuardrailOutcome(False, self.violations[0].reason or None)

    @property
    def stage(self) -> GuardrailStage:
        """Stage of the violation: ``pre`` for rejected arguments, ``post`` for a rejected result."""
        return self.violations[0].stage

    @property
    def role(self) -> str:
        """Role of the caller."""
        return self.violations[0].role

    @property
    def tool(self) -> str:
        """Name of the capability."""
        return self.violations[0].tool


GuardrailViolatedError = GuardrailViolationError
"""Alias of :class:`GuardrailViolationError`, used by sessions."""


@dataclass(frozen=True, slots=True)
class GuardedValue:
    """Value that passed the guardrails, possibly rewritten.

    Attributes:
        value: Checked value, possibly rewritten.
        rewritten: True if a guardrail rewrote the value.
        approval_violations: Violations that a person may override by approving the value.
    """

    value: Any
    rewritten: bool = False
    approval_violations: tuple[GuardrailViolation, ...] = ()

    @property
    def approval_reasons(self) -> tuple[str, ...]:
        """Distinct reasons why the guardrails require a person to approve the value."""
        return tuple(dict.fromkeys(map(str, self.approval_violations)))

    async def await_approval(self, subject: str) -> Any:
        """Return the checked value, waiting for a person's approval if approval is required.

        Args:
            subject: Name of the model role that reads the value, or of the node that sends the
                value.

        Raises:
            GuardrailViolationError: The approval was denied.
        """
        if not self.approval_violations:
            return self.value
        verdict = await request_text_approval(subject, self.value, self.approval_reasons)
        if verdict.decision == "allow":
            return self.value
        first, *others = self.approval_violations
        why = " ".join(text for text in (first.reason, f"({', '.join(verdict.problems)})") if text)
        raise GuardrailViolationError(violations=[replace(first, reason=why), *others])


REWRITE_OR_ASK = ("rewrite", "ask")
"""Actions that a caller supports if it can rewrite a text and request a person's approval."""


class Guards:
    """Ordered set of guardrails that are applied together.

    All guardrails run, and all violations are collected.

    Args:
        guards: :class:`Guardrail` or :class:`AsyncGuardrail` objects. Asynchronous methods take
            precedence.

    Raises:
        ConfigurationError: An item is not a guardrail.

    >>> import asyncio
    >>> guards = Guards([AllowAllGuardrail()])
    >>> asyncio.run(guards.check_input({"place": "Rome"}, tool="read")).value
    {'place': 'Rome'}
    """

    def __init__(self, guards: Sequence[Any]) -> None:
        self._pre: list[tuple[str, Callable[..., Any], bool]] = []
        self._post: list[tuple[str, Callable[..., Any], bool]] = []
        self.names: list[str] = []
        for guard in guards:
            name = str(getattr(guard, "name", "") or type(guard).__name__)
            self.names.append(name)
            pre, post = _find_check(guard, "check_pre"), _find_check(guard, "check_post")
            if isinstance(guard, type) or not (pre or post):
                raise ConfigurationError(
                    f"{guard!r} is not a guardrail because it does not define a check method.",
                    fix=(
                        "Pass an object with check_pre and check_post, or acheck_pre and"
                        " acheck_post."
                    ),
                )
            if pre is not None:
                self._pre.append((name, pre, _accepts_parameter(pre, "arguments")))
            if post is not None:
                results_only = bool(getattr(guard, "results_only", False))
                self._post.append((name, post, results_only))

    async def check_input(
        self,
        arguments: Mapping[str, Any],
        *,
        tool: str,
        role: str = "",
        supported_actions: Collection[str] = ("rewrite",),
    ) -> GuardedValue:
        """Check the arguments of a step or a model call with all guardrails.

        Args:
            arguments: Arguments by name.
            tool: Name of the capability or model role.
            role: Role of the caller.
            supported_actions: Subset of ``rewrite`` and ``ask`` that the calling code supports. Any
                other action is treated as a rejection.

        Raises:
            GuardrailViolationError: A guardrail rejects the arguments.
        """
        violation = partial(GuardrailViolation, stage="pre", role=role, tool=tool)
        value: Any = dict(arguments)
        violations: list[GuardrailViolation] = []
        rewritten = False
        for name, check, accepts_arguments in self._pre:
            options = {"arguments": value} if accepts_arguments else {}
            outcome = await _await_outcome(
                name, "pre", tool, check(role=role, tool=tool, **options)
            )
            if outcome.decision == "rewrite" and "rewrite" in supported_actions:
                if not isinstance(outcome.value, Mapping):
                    raise ConfigurationError(
                        f"The arguments of {tool!r} that the guardrail {name!r} rewrote are of"
                        f" type {type(outcome.value).__name__}: they must be a dictionary.",
                        fix="Return a dictionary of all arguments.",
                    )
                value, rewritten = dict(outcome.value), True
            elif outcome.decision != "allow":
                violations.append(violation(name, outcome.reason or "", outcome.decision))
        return GuardedValue(
            value,
            rewritten,
            _select_approvable(violations, supported_actions, ErrorSeverity.REPLANNING),
        )

    async def check_output(
        self,
        value: Any,
        *,
        tool: str,
        role: str = "",
        is_text: bool = False,
        supported_actions: Collection[str] = ("rewrite",),
    ) -> GuardedValue:
        """Check the output of a step or a model call with all guardrails.

        Args:
            value: Output to check.
            tool: Name of the capability or model role.
            role: Role of the caller.
            is_text: True for an answer or a failure message, which guardrails with ``results_only``
                do not check.
            supported_actions: Same as for :meth:`check_input`.

        Raises:
            GuardrailViolationError: A guardrail rejects the output.
        """
        violation = partial(GuardrailViolation, stage="post", role=role, tool=tool)
        violations: list[GuardrailViolation] = []
        rewritten = False
        for name, check, results_only in self._post:
            if is_text and results_only:
                continue
            outcome = await _await_outcome(name, "post", tool, check(value, role=role, tool=tool))
            if outcome.decision == "rewrite" and "rewrite" in supported_actions:
                value, rewritten = outcome.value, True
            elif outcome.decision != "allow":
                violations.append(violation(name, outcome.reason or "", outcome.decision))
        return GuardedValue(
            value,
            rewritten,
            _select_approvable(violations, supported_actions, ErrorSeverity.RETRIABLE),
        )


def _find_check(guard: Any, name: str) -> Callable[..., Any] | None:
    return next((m for n in (f"a{name}", name) if callable(m := getattr(guard, n, None))), None)


def _accepts_parameter(check: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(check).parameters.values()
    return any(p.name == name or p.kind is p.VAR_KEYWORD for p in parameters)


async def _await_outcome(
    name: str, stage: GuardrailStage, tool: str, pending: Any
) -> GuardrailOutcome:
    outcome = await maybe_await(pending)
    if not isinstance(outcome, GuardrailOutcome):
        # A forgotten 'return' must not count as approval.
        raise ConfigurationError(
            f"The guardrail {name!r} returned {outcome!r:.80}, which is not a GuardrailOutcome.",
            fix="Return a GuardrailOutcome from the check method.",
        )
    if outcome.decision != "allow":
        record_later("guard", guard=name, decision=outcome.decision, stage=stage, tool=tool)
    return outcome


def _select_approvable(
    violations: list[GuardrailViolation],
    supported_actions: Collection[str],
    retry_severity: ErrorSeverity,
) -> tuple[GuardrailViolation, ...]:
    """Return the guardrail violations that a person may override by approval.

    Raises:
        GuardrailViolationError: A guardrail denies the value, requests a retry, or requires an
            unsupported action.
    """
    actions = {violation.action for violation in violations}
    if actions - ({"ask"} & set(supported_actions)):
        severity = (
            retry_severity if actions <= {"retry", *supported_actions} else ErrorSeverity.CRITICAL
        )
        raise GuardrailViolationError(violations=violations, severity=severity)
    return tuple(violations)
