"""Where threads, journals, leases, standing rules and state of one's own are kept."""

from typing import TYPE_CHECKING

from configs.lazy import found_in

if TYPE_CHECKING:
    from framework.approvals.rules import Rule, add_rule, list_rules, revoke_rule
    from framework.base.ports import Rows
    from framework.stores.checkpoints import Checkpoint, CheckpointManager
    from framework.stores.conversation import ConversationMessage, ConversationState
    from framework.stores.leases import Holder, Lease, Leases, leases_of
    from framework.stores.location import Location, parse_url
    from framework.stores.open import open_saver, open_store
    from framework.stores.rows import open_rows, rows_of
    from framework.stores.state_store import (
        ABSENT,
        BaseStateStore,
        InMemoryStateStore,
        PostgresStateStore,
        RedisStateStore,
        SqliteStateStore,
        StateStoreFactory,
    )
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
    from framework.stores.waits import Due, due

__all__ = [
    "ABSENT",
    "BaseStateStore",
    "Checkpoint",
    "CheckpointManager",
    "ConversationMessage",
    "ConversationState",
    "Due",
    "Holder",
    "InMemoryStateStore",
    "Lease",
    "Leases",
    "Location",
    "PostgresStateStore",
    "RedisStateStore",
    "Rows",
    "Rule",
    "SqliteStateStore",
    "StateStoreFactory",
    "Stop",
    "ThreadSummary",
    "add_rule",
    "due",
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

_PARTS = (
    "framework.base.ports",
    "location",
    "leases",
    "rows",
    "stops",
    "open",
    "threads",
    "waits",
    "framework.approvals.rules",
    "state_store",
    "conversation",
    "checkpoints",
)
__getattr__, __dir__ = found_in(__name__, _PARTS, __all__)
