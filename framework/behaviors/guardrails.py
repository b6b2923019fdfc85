"""Guards: what may go into a step and come out of it, said by small objects."""

from __future__ import annotations

import inspect
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
"""Whether a guard looked before something runs or at what it gave."""
_ACTIONS = ("allow", "rewrite", "ask", "retry", "deny")


@dataclass(frozen=True, slots=True)
class GuardrailOutcome:
    """What a guard says.

    Attributes:
        allowed: Whether what it looked at may pass.
        reason: Why not, in words that do not repeat what was found: they reach prompts and people.
        action: ``allow``, ``rewrite`` (``value`` takes its place), ``ask`` (a person decides),
            ``retry`` (made anew: a result by another try, parameters by another plan) or ``deny``.
            Where it is given it decides; else ``allowed`` does.
        value: What takes its place; of arguments a dictionary.

    Raises:
        ValueError: The action is unknown, contradicts ``allowed``, or rewrites without a value.

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
                f"{self.action!r} is no action of a guard. Fix: use one of {', '.join(_ACTIONS)}."
            )
        if (self.allowed, self.action) in ((False, "allow"), (True, "deny")):
            raise ValueError(
                f"allowed is {self.allowed} and the action is {self.action!r}. Fix: say one of them."
            )
        if self.action == "rewrite" and self.value is None:
            raise ValueError("The action 'rewrite' needs a value. Fix: give what takes its place.")

    @property
    def decision(self) -> str:
        """What happens: the action, else what ``allowed`` means."""
        return self.action or ("allow" if self.allowed else "deny")


@runtime_checkable
class Guardrail(Protocol):
    """Looks at what goes into a step and what comes out. Either method may be left out."""

    def check_pre(
        self, *, role: str, tool: str, arguments: Mapping[str, Any] = {}
    ) -> GuardrailOutcome:
        """Look before it runs: ``arguments`` are its parameters and inputs, as plain data."""

    def check_post(self, value: Any, *, role: str, tool: str) -> GuardrailOutcome:
        """Look at what it gave, as plain data; at a message or an answer, as text."""


@runtime_checkable
class AsyncGuardrail(Protocol):
    """A guard that awaits something; nothing that runs synchronously passes it by."""

    async def acheck_pre(
        self, *, role: str, tool: str, arguments: Mapping[str, Any] = {}
    ) -> GuardrailOutcome:
        """As ``check_pre``."""

    async def acheck_post(self, value: Any, *, role: str, tool: str) -> GuardrailOutcome:
        """As ``check_post``."""


class AllowAllGuardrail:
    """Lets everything pass.

    >>> AllowAllGuardrail().check_post("anything", role="", tool="read").allowed
    True
    """

    name = "allow_all"

    def check_pre(
        self, *, role: str, tool: str, arguments: Mapping[str, Any] = {}
    ) -> GuardrailOutcome:
        """Allow it."""
        return GuardrailOutcome(True)

    def check_post(self, value: Any, *, role: str, tool: str) -> GuardrailOutcome:
        """Allow it."""
        return GuardrailOutcome(True)


class SymmetricGuardrail:
    """What guards share that look at what goes in and at what comes out in one way, ``_check``."""

    stages: Collection[GuardrailStage] = ("pre", "post")

    def check_pre(
        self, *, role: str, tool: str, arguments: Mapping[str, Any] = {}
    ) -> GuardrailOutcome:
        """Look at parameters and inputs, where the guard looks at any."""
        return self._check(dict(arguments)) if "pre" in self.stages else GuardrailOutcome(True)

    def check_post(self, value: Any, *, role: str, tool: str) -> GuardrailOutcome:
        """Look at a result, where the guard looks at any."""
        return self._check(value) if "post" in self.stages else GuardrailOutcome(True)

    def _check(self, value: Any) -> GuardrailOutcome:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class GuardrailViolation:
    """One objection of one guard.

    Attributes:
        guardrail: Name of the guard or the rule.
        reason: Why, in words.
        action: ``ask``, ``retry`` or ``deny``; ``rewrite`` where nothing could be rewritten.
        stage: Whether it was about what goes in or what comes out.
        role: Who asked.
        tool: The capability.
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
    """Guards do not let something pass; the text names all of them.

    Args:
        rule_name: Name of the one guard, where no violations are given.
        message: Why.
        violations: Every objection.
        severity: What it means for the step.

    >>> print(GuardrailViolationError("no_names", "It names a person."))
    Guards do not let it pass (no_names: It names a person.). Fix: Ask for something else, or have the guard changed.
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
        what = {"pre": "what goes into", "post": "what comes out of"}[first.stage]
        about = f"{what} {first.tool!r}" if first.tool else "it"
        told = "; ".join(dict.fromkeys(str(violation) for violation in self.violations))
        super().__init__(
            f"Guards do not let {about} pass ({told}).",
            fix="Ask for something else, or have the guard changed.",
            severity=severity,
        )

    @property
    def guardrail(self) -> str:
        """Name of the first guard that objects."""
        return self.violations[0].guardrail

    rule_name = guardrail

    @property
    def outcome(self) -> GuardrailOutcome:
        """What the first guard said."""
        return GuardrailOutcome(False, self.violations[0].reason or None)

    @property
    def stage(self) -> GuardrailStage:
        """Whether it was about what goes in (``pre``) or what comes out (``post``)."""
        return self.violations[0].stage

    @property
    def role(self) -> str:
        """Who asked."""
        return self.violations[0].role

    @property
    def tool(self) -> str:
        """The capability."""
        return self.violations[0].tool


GuardrailViolatedError = GuardrailViolationError
"""The same error, by the name that sessions know."""


@dataclass(frozen=True, slots=True)
class GuardedValue:
    """What passed the guards.

    Attributes:
        value: The value, as far as guards rewrote it.
        rewritten: Whether one did.
        approval_violations: Objections for which a person has to agree.
    """

    value: Any
    rewritten: bool = False
    approval_violations: tuple[GuardrailViolation, ...] = ()

    @property
    def approval_reasons(self) -> tuple[str, ...]:
        """Why a person has to agree, in words."""
        return tuple(dict.fromkeys(map(str, self.approval_violations)))

    async def await_approval(self, subject: str) -> Any:
        """Return the words that passed, as soon as a person agrees where one is wanted.

        Args:
            subject: The role of the model that is told them, or the node that says them.

        Raises:
            GuardrailViolationError: Nobody agrees.
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
"""What can be done about the outcome of a guard where words can be changed and a person asked."""


class Guards:
    """Several guards, asked one after the other; all their objections come together.

    Args:
        guards: Objects of :class:`Guardrail` or :class:`AsyncGuardrail`; of one that is both, the
            methods of the second are asked.

    Raises:
        ConfigurationError: One of them cannot be asked.

    >>> import asyncio
    >>> asyncio.run(Guards([AllowAllGuardrail()]).check_input({"place": "Rome"}, tool="read")).value
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
                    f"{guard!r} is no guard.",
                    fix="Give an object with check_pre and check_post, or acheck_pre and acheck_post.",
                )
            if pre is not None:
                self._pre.append((name, pre, _accepts_parameter(pre, "arguments")))
            if post is not None:
                of_results = bool(getattr(guard, "results_only", False))
                self._post.append((name, post, of_results))

    async def check_input(
        self,
        arguments: Mapping[str, Any],
        *,
        tool: str,
        role: str = "",
        supported_actions: Collection[str] = ("rewrite",),
    ) -> GuardedValue:
        """Ask about what goes into something.

        Args:
            arguments: What goes in.
            tool: Into what.
            role: Who asks.
            supported_actions: Which of ``rewrite`` and ``ask`` the caller can do; a guard that wants the other
                refuses.

        Raises:
            GuardrailViolationError: They do not let it pass.
        """
        about = partial(GuardrailViolation, stage="pre", role=role, tool=tool)
        value: Any = dict(arguments)
        found: list[GuardrailViolation] = []
        rewritten = False
        for name, check, takes in self._pre:
            given = {"arguments": value} if takes else {}
            outcome = await _await_outcome(name, "pre", tool, check(role=role, tool=tool, **given))
            if outcome.decision == "rewrite" and "rewrite" in supported_actions:
                if not isinstance(outcome.value, Mapping):
                    raise ConfigurationError(
                        f"The guard {name!r} put {type(outcome.value).__name__} in the place of the"
                        f" arguments of {tool!r}.",
                        fix="Give a dictionary of all arguments.",
                    )
                value, rewritten = dict(outcome.value), True
            elif outcome.decision != "allow":
                found.append(about(name, outcome.reason or "", outcome.decision))
        return GuardedValue(
            value,
            rewritten,
            _approval_violations(found, supported_actions, ErrorSeverity.REPLANNING),
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
        """Ask about what something gave.

        Args:
            value: What it gave.
            tool: What gave it.
            role: Who asked.
            is_text: Whether it is an answer or a failure in words, which guards whose
                ``of_results_only`` is true have nothing to say about.
            supported_actions: As for :meth:`before`.

        Raises:
            GuardrailViolationError: They do not let it pass.
        """
        about = partial(GuardrailViolation, stage="post", role=role, tool=tool)
        found: list[GuardrailViolation] = []
        rewritten = False
        for name, check, of_results in self._post:
            if is_text and of_results:
                continue
            outcome = await _await_outcome(name, "post", tool, check(value, role=role, tool=tool))
            if outcome.decision == "rewrite" and "rewrite" in supported_actions:
                value, rewritten = outcome.value, True
            elif outcome.decision != "allow":
                found.append(about(name, outcome.reason or "", outcome.decision))
        return GuardedValue(
            value,
            rewritten,
            _approval_violations(found, supported_actions, ErrorSeverity.RETRIABLE),
        )


def _find_check(guard: Any, name: str) -> Callable[..., Any] | None:
    return next((m for n in (f"a{name}", name) if callable(m := getattr(guard, n, None))), None)


def _accepts_parameter(check: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(check).parameters.values()
    return any(p.name == name or p.kind is p.VAR_KEYWORD for p in parameters)


async def _await_outcome(
    name: str, stage: GuardrailStage, tool: str, found: Any
) -> GuardrailOutcome:
    outcome = await maybe_await(found)
    if not isinstance(outcome, GuardrailOutcome):
        # Taken for a yes, a forgotten 'return' would open the door.
        raise ConfigurationError(
            f"The guard {name!r} gave {outcome!r:.80}.", fix="Return a GuardrailOutcome."
        )
    if outcome.decision != "allow":
        record_later("guard", guard=name, decision=outcome.decision, stage=stage, tool=tool)
    return outcome


def _approval_violations(
    violations: list[GuardrailViolation],
    supported_actions: Collection[str],
    retry_severity: ErrorSeverity,
) -> tuple[GuardrailViolation, ...]:
    """Return for what a person has to agree; a refusal stands over that.

    Raises:
        GuardrailViolationError: One refuses, wants it made anew, or wants what cannot be done here.
    """
    actions = {violation.action for violation in violations}
    if actions - ({"ask"} & set(supported_actions)):
        severity = (
            retry_severity if actions <= {"retry", *supported_actions} else ErrorSeverity.CRITICAL
        )
        raise GuardrailViolationError(violations=violations, severity=severity)
    return tuple(violations)
