"""Who has to agree before a step runs, and for how long that holds."""

from __future__ import annotations

from dataclasses import dataclass

from capgraph.helpers.number_validation import check_number


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
