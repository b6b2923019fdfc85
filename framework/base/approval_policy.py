"""Policy for the approval of a capability's steps."""

from __future__ import annotations

from dataclasses import dataclass

from capgraph.helpers.number_validation import check_number


@dataclass(frozen=True, slots=True)
class ApprovalPolicy:
    """Rule for who must approve a capability's steps and how long an approval is valid.

    ``requires_approval = True`` means one approval by any user.

    Attributes:
        approvers: Number of different users who must approve.
        not_requester: True if the user who requested the turn must not approve.
        expires_seconds: Lifetime of an approval request and of each approval, in seconds. None
            means that both are valid until the end of the turn. Expired approvals are requested
            again.

    Raises:
        ValueError: A number is out of range.

    >>> ApprovalPolicy(approvers=2).restricts_approvers
    True
    """

    approvers: int = 1
    not_requester: bool = False
    expires_seconds: float | None = None

    def __post_init__(self) -> None:
        check_number("approvers", self.approvers, minimum=1, integer=True)
        if self.expires_seconds is not None:
            check_number("expires_seconds", self.expires_seconds, above=0)

    @property
    def restricts_approvers(self) -> bool:
        """True if the policy depends on who approves, not only on whether someone approves."""
        return self.approvers > 1 or self.not_requester

    @classmethod
    def from_declaration(cls, value: bool | ApprovalPolicy) -> ApprovalPolicy:
        """Convert a value of ``requires_approval`` to an approval policy.

        >>> ApprovalPolicy.from_declaration(True)
        ApprovalPolicy(approvers=1, not_requester=False, expires_seconds=None)
        """
        return value if isinstance(value, ApprovalPolicy) else _ANY_USER


_ANY_USER = ApprovalPolicy()
