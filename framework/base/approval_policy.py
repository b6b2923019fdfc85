"""Who has to agree before a step runs, and for how long that holds."""

from __future__ import annotations

import math

from configs.records import dataclass


@dataclass(frozen=True, slots=True)
class ApprovalPolicy:
    """How a capability asks for agreement; ``requires_approval = True`` asks any one person.

    Attributes:
        approvers: How many different people have to agree.
        not_requester: Whether whoever asked for the turn may not be one of them.
        expires_seconds: How long a question and an agreement hold; ``None`` for as long as the
            turn. What has lapsed is asked anew.

    Raises:
        ValueError: A number cannot be used.

    >>> ApprovalPolicy(approvers=2).personal
    True
    """

    approvers: int = 1
    not_requester: bool = False
    expires_seconds: float | None = None

    def __post_init__(self) -> None:
        if type(self.approvers) is not int or self.approvers < 1:
            raise ValueError(f"approvers is {self.approvers!r}. Fix: give a whole number from 1.")
        seconds = self.expires_seconds
        number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
        if seconds is not None and not (number and math.isfinite(seconds) and seconds > 0):
            raise ValueError(
                f"expires_seconds is {seconds!r}. Fix: give seconds above 0, or None for no end."
            )

    @property
    def personal(self) -> bool:
        """Whether it matters who agrees."""
        return self.approvers > 1 or self.not_requester

    @classmethod
    def of(cls, declared: bool | ApprovalPolicy) -> ApprovalPolicy:
        """Return what ``requires_approval`` means; for a step that a policy asks about, any person.

        >>> ApprovalPolicy.of(True)
        ApprovalPolicy(approvers=1, not_requester=False, expires_seconds=None)
        """
        return declared if isinstance(declared, ApprovalPolicy) else _ANYBODY


_ANYBODY = ApprovalPolicy()
