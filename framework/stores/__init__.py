"""Where threads, journals, leases and standing rules are kept: SQLite, PostgreSQL or memory."""

from framework.approvals.rules import Rule, add_rule, list_rules, revoke_rule
from framework.base.ports import Rows
from framework.stores.leases import Holder, Lease, Leases, leases_of
from framework.stores.location import Location, parse_url
from framework.stores.open import open_saver, open_store
from framework.stores.rows import open_rows, rows_of
from framework.stores.stops import Stop, stops_of
from framework.stores.threads import (
    ThreadSummary,
    fork_thread,
    list_threads,
    prune_threads,
    thread_messages,
    thread_summary,
    waiting_questions,
)

__all__ = [
    "Holder",
    "Lease",
    "Leases",
    "Location",
    "Rows",
    "Rule",
    "Stop",
    "ThreadSummary",
    "add_rule",
    "fork_thread",
    "leases_of",
    "list_rules",
    "list_threads",
    "open_rows",
    "open_saver",
    "open_store",
    "parse_url",
    "prune_threads",
    "revoke_rule",
    "rows_of",
    "stops_of",
    "thread_messages",
    "thread_summary",
    "waiting_questions",
]
