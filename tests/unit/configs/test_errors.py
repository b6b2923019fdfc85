"""Exceptions of the project: copies, pickles, pages, and facts."""

from __future__ import annotations

import copy
import importlib
import pickle
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from capgraph.base import ErrorSeverity, ValidationError
from capgraph.base.ports import ApprovalRequest
from capgraph.behaviors import GuardrailViolation, PendingApproval
from capgraph.behaviors.guardrails import GuardrailViolationError
from capgraph.capabilities.data.question_parser import UnparsedWordsError
from capgraph.capabilities.python import CodeFailedError
from capgraph.compat.worker import AgentStatus, InvalidTransitionError
from capgraph.configs.errors import CapgraphError
from capgraph.engine.dialogues import HandoffRequest
from capgraph.governance import PermissionDeniedError
from capgraph.governance.permissions import PermissionOutcome
from capgraph.infrastructure.router import RouterNode
from capgraph.pipeline.effect_ledger import UnknownOutcome
from capgraph.serve import AnswerRefusedError

PACKAGES = {
    cls.__module__.partition(".")[0]
    for cls in (CapgraphError, ErrorSeverity, CodeFailedError, RouterNode)
}
DOCS = Path(__file__).parents[3] / "docs"
COPIERS = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{
        f"pickle {protocol}": lambda error, protocol=protocol: pickle.loads(
            pickle.dumps(error, protocol)
        )
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
    },
}
EXAMPLES: dict[type[BaseException], Callable[[], BaseException]] = {
    AnswerRefusedError: lambda: AnswerRefusedError([{"path": "a", "message": "is text"}]),
    GuardrailViolationError: lambda: GuardrailViolationError(
        violations=[GuardrailViolation("names", "It names a person.", stage="post")],
        severity=ErrorSeverity.REPLANNING,
    ),
    HandoffRequest: lambda: HandoffRequest("lodging", "Find a room.", {}),
    InvalidTransitionError: lambda: InvalidTransitionError(AgentStatus.IDLE, AgentStatus.RUNNING),
    PendingApproval: lambda: PendingApproval("a-1", "read", {"value": 1}),
    PermissionDeniedError: lambda: PermissionDeniedError(
        PermissionOutcome(False, "The role may not.")
    ),
    UnparsedWordsError: lambda: UnparsedWordsError(
        ["bar"], ValidationError("The word 'bar' has no place.")
    ),
    UnknownOutcome: lambda: UnknownOutcome(ApprovalRequest("unknown_outcome", "fill_tank")),
}


def project_exceptions() -> list[type[BaseException]]:
    """Return every exception class that a module of the project defines."""
    for package in PACKAGES:
        found = importlib.import_module(package)
        for module in pkgutil.walk_packages(found.__path__, f"{package}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    pending: list[type[BaseException]] = [BaseException]
    classes: set[type[BaseException]] = set()
    while pending:
        derived = pending.pop().__subclasses__()
        pending += derived
        classes |= {cls for cls in derived if cls.__module__.partition(".")[0] in PACKAGES}
    return sorted(classes, key=lambda cls: (cls.__module__, cls.__qualname__))


def make(cls: type[BaseException]) -> BaseException:
    """Return an error of a class with a value in each of its fields."""
    if cls in EXAMPLES:
        return EXAMPLES[cls]()
    if not issubclass(cls, CapgraphError):
        return cls("The value 3 is odd.")
    fields = {
        name: f"the {name}"
        for base in cls.__mro__
        if issubclass(base, CapgraphError) and base is not CapgraphError
        for name in vars(base).get("__annotations__", ())
        if name != "severity"  # each error has one, which its class may set
    }
    return cls("The value 3 is odd.", fix="Use 4.", severity=ErrorSeverity.REPLANNING, **fields)


def content(error: BaseException) -> Any:
    """Return a value that is equal for two errors of the same class and fields."""
    args, fields = (
        {
            name: content(value) if isinstance(value, BaseException) else value
            for name, value in items
        }
        for items in (enumerate(error.args), vars(error).items())
    )
    return type(error), args, fields, str(error)


@pytest.mark.parametrize("copier", COPIERS.values(), ids=COPIERS)
def test_copies_of_every_exception_keep_its_fields(copier: Any) -> None:
    classes = project_exceptions()
    assert {CapgraphError, InvalidTransitionError, UnknownOutcome} <= set(classes)
    for cls in classes:
        error = make(cls)
        error.add_note("While reading the level.")
        assert content(copier(error)) == content(error)


@dataclass
class Tank:
    litres: float


class TankError(CapgraphError):
    """An author's own error, with fields that only its constructor knows."""

    code = "TANK"

    def __init__(self, tank: Tank, *, pressure: float) -> None:
        super().__init__(f"The tank has {tank.litres} litres.", fix="Open the valve.")
        self.tank = tank
        self.pressure = pressure


@pytest.mark.parametrize("copier", COPIERS.values(), ids=COPIERS)
def test_copies_of_an_authors_exception_keep_its_fields(copier: Any) -> None:
    error = TankError(Tank(3), pressure=2)
    copied = copier(error)
    assert content(copied) == content(error)
    assert (copied.tank is error.tank) == (copier is copy.copy)
    copied.pressure = 7
    assert error.pressure == 2


def test_a_copy_keeps_the_approval_request() -> None:
    question = ApprovalRequest("step", "fill_tank", reason="Unknown outcome.")
    copied = copy.deepcopy(UnknownOutcome(question))
    assert copied.question == question


def test_every_error_names_a_page_that_exists() -> None:
    for cls in project_exceptions():
        if issubclass(cls, CapgraphError):
            assert (DOCS / f"{make(cls).page}.md").is_file(), cls


def test_error_exposes_its_values_as_facts() -> None:
    error = ValidationError("Port 0 is not usable.", fix="Pass a larger one.", facts={"port": 0})
    assert error.facts == {"port": 0}
    assert pickle.loads(pickle.dumps(error)).facts == {"port": 0}
    violation = GuardrailViolationError("blocked", "pii")
    assert violation.facts["violations"] == violation.violations
