"""Where threads, journals, leases and standing rules are kept: SQLite, PostgreSQL or memory."""

from framework.approvals.rules import Rule, add_rule, list_rules, matching_rule, revoke_rule
from framework.stores.leases import Claim, Holder, LeaseTable, lease_table
from framework.stores.location import Location, parse_url
from framework.stores.open import open_saver, open_store
from framework.stores.threads import (
    ThreadSummary,
    fork_thread,
    list_threads,
    prune_threads,
    thread_summary,
)

__all__ = [
    "Claim",
    "Holder",
    "LeaseTable",
    "Location",
    "Rule",
    "ThreadSummary",
    "add_rule",
    "fork_thread",
    "lease_table",
    "list_rules",
    "list_threads",
    "matching_rule",
    "open_saver",
    "open_store",
    "parse_url",
    "prune_threads",
    "revoke_rule",
    "thread_summary",
]
