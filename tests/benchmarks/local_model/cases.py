"""Requests of a benchmark, the calls that each one needs, and the judge.

A function of a domain records each of its calls with :func:`record_call`. The judge compares the
recorded calls and the answer with the case. An answer must contain one text, in any case, and must
not deny what was done. JSON and marks of a prompt are no answer to a person.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

NO_CALL = "no call"
WRONG_CAPABILITY = "wrong capability"
WRONG_ARGUMENTS = "wrong arguments"
UNWANTED_EFFECT = "unwanted effect"
NO_ANSWER = "no answer"
WRONG_ANSWER = "wrong answer"
DENIAL = "answer denies a result"

_MARK = re.compile(r"</?[a-z][^>\n]*>|\bCG-P\d+", re.IGNORECASE)
_DENIED = re.compile(
    r"\bnot (?:be )?(?:able|available|clear|contain|done|give|includ|mention|possible|provid|specif)"
    r"|\b(?:cannot|unable|sorry)\b",
    re.IGNORECASE,
)

_CALLS: ContextVar[list[RecordedCall]] = ContextVar("calls")


@dataclass(frozen=True)
class RecordedCall:
    """One call of a function of a domain."""

    name: str
    arguments: Mapping[str, Any]


def record_call(name: str, /, **arguments: Any) -> None:
    """Record a call of a function for the request that is under way."""
    _CALLS.get().append(RecordedCall(name, arguments))


@contextmanager
def recorded_calls() -> Iterator[list[RecordedCall]]:
    """Record calls inside of the block, and yield their list."""
    calls: list[RecordedCall] = []
    token = _CALLS.set(calls)
    try:
        yield calls
    finally:
        _CALLS.reset(token)


class OneOf:
    """Expected text argument: contains one of several texts, in any case.

    Args:
        *texts: The texts; the first is an example of a right argument.
    """

    def __init__(self, *texts: str) -> None:
        self.texts = texts

    def matches(self, value: Any) -> bool:
        """Return True if the value contains one of the texts."""
        return any(text.casefold() in str(value).casefold() for text in self.texts)


@dataclass(frozen=True)
class ExpectedCall:
    """A call that a request needs.

    Attributes:
        name: Name of the function.
        arguments: Expected value of each argument that is compared.
        anywhere: Text that some argument contains, whichever it is.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    anywhere: str = ""

    def matches(self, call: RecordedCall) -> bool:
        """Return True if a recorded call is this one."""
        said = " ".join(str(value) for value in call.arguments.values())
        return (
            call.name == self.name
            and self.anywhere.casefold() in said.casefold()
            and all(
                name in call.arguments and _is_equal(value, call.arguments[name])
                for name, value in self.arguments.items()
            )
        )

    def example(self) -> dict[str, Any]:
        """Return arguments that match, as far as the expectation names them."""
        return {
            name: value.texts[0] if isinstance(value, OneOf) else value
            for name, value in self.arguments.items()
        }


def call(name: str, /, *, anywhere: str = "", **arguments: Any) -> ExpectedCall:
    """Return an expected call.

    >>> call("weather", city=OneOf("oslo")).matches(RecordedCall("weather", {"city": "Oslo"}))
    True
    """
    return ExpectedCall(name, arguments, anywhere)


@dataclass(frozen=True)
class Case:
    """One request.

    Attributes:
        name: Short name.
        request: Text of the user.
        calls: Calls that it needs, in any order; none for small talk and for requests that no
            function can do.
        answer: Text that the answer contains; an empty one stands for any answer.
        earlier: Messages before the request: pairs of ``user`` or ``assistant`` and a text.
    """

    name: str
    request: str
    calls: tuple[ExpectedCall, ...] = ()
    answer: str = ""
    earlier: tuple[tuple[str, str], ...] = ()

    @property
    def messages(self) -> list[tuple[str, str]]:
        """The conversation, which ends with the request."""
        return [*self.earlier, ("user", self.request)]


@dataclass(frozen=True)
class Domain:
    """Functions and the requests to them.

    Attributes:
        name: Name of the set.
        capabilities: The functions as capgraph's capabilities.
        tools: The same functions as plain Python functions.
        effects: Names of the functions that change something.
        approvals: Names of the functions that need a person's approval.
        cases: The requests.
    """

    name: str
    capabilities: Sequence[Any]
    tools: Sequence[Callable[..., str]]
    effects: frozenset[str]
    approvals: frozenset[str]
    cases: Sequence[Case]


@dataclass(frozen=True)
class Verdict:
    """Judgement of one request.

    Attributes:
        is_right: The functions are the expected ones, and each expected call was made.
        is_done: In addition, the answer is right, and nothing unwanted was changed.
        failure: Kind of the first failure; empty if there is none.
    """

    is_right: bool
    is_done: bool
    failure: str = ""


def judge(
    case: Case, calls: Sequence[RecordedCall], answer: str, *, effects: frozenset[str]
) -> Verdict:
    """Compare what an agent did with what a request needs."""
    right_names = {made.name for made in calls} == {wanted.name for wanted in case.calls}
    left = list(calls)
    missing = []
    for wanted in case.calls:
        found = next((made for made in left if wanted.matches(made)), None)
        if found is None:
            missing.append(wanted)
        else:
            left.remove(found)
    is_right = right_names and not missing
    if case.calls and not calls:
        failure = NO_CALL
    elif not right_names:
        failure = WRONG_CAPABILITY
    elif missing:
        failure = WRONG_ARGUMENTS
    elif any(made.name in effects for made in left):
        failure = UNWANTED_EFFECT
    elif not answer.strip() or _is_json(answer) or _MARK.search(answer):
        failure = NO_ANSWER
    elif case.answer.casefold() not in answer.casefold():
        failure = WRONG_ANSWER
    elif case.calls and _DENIED.search(answer):
        failure = DENIAL
    else:
        failure = ""
    return Verdict(is_right, is_right and not failure, failure)


def _is_json(answer: str) -> bool:
    """Return True for JSON text, such as a tool call that was not recognized, fenced or not."""
    text = answer.strip().removeprefix("```json").removeprefix("```").removesuffix("```").strip()
    try:
        return isinstance(json.loads(text), dict | list)
    except ValueError:
        return False


def _is_equal(expected: Any, value: Any) -> bool:
    if isinstance(expected, OneOf):
        return expected.matches(value)
    if isinstance(expected, str):
        return str(value).strip().casefold() == expected.casefold()
    return bool(value == expected)
