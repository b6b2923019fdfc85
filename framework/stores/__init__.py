"""Persistence: savers and stores, thread management, leases, state stores, and approval rules."""

from typing import TYPE_CHECKING

from capgraph.configs.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from capgraph.approvals.standing_rules import StandingRule as StandingRule
    from capgraph.approvals.standing_rules import add_rule as add_rule
    from capgraph.approvals.standing_rules import list_rules as list_rules
    from capgraph.approvals.standing_rules import revoke_rule as revoke_rule
    from capgraph.base.ports import SqlExecutor as SqlExecutor
    from capgraph.stores.checkpoints import Checkpoint as Checkpoint
    from capgraph.stores.checkpoints import CheckpointManager as CheckpointManager
    from capgraph.stores.conversation import ConversationMessage as ConversationMessage
    from capgraph.stores.conversation import ConversationState as ConversationState
    from capgraph.stores.database import Location as Location
    from capgraph.stores.database import SqlTables as SqlTables
    from capgraph.stores.database import open_saver as open_saver
    from capgraph.stores.database import open_store as open_store
    from capgraph.stores.leases import Leases as Leases
    from capgraph.stores.persistence import Persistence as Persistence
    from capgraph.stores.state_store import MISSING as MISSING
    from capgraph.stores.state_store import BaseStateStore as BaseStateStore
    from capgraph.stores.state_store import InMemoryStateStore as InMemoryStateStore
    from capgraph.stores.state_store import PostgresStateStore as PostgresStateStore
    from capgraph.stores.state_store import RedisStateStore as RedisStateStore
    from capgraph.stores.state_store import SqliteStateStore as SqliteStateStore
    from capgraph.stores.state_store import StateStoreFactory as StateStoreFactory
    from capgraph.stores.stops import Stop as Stop
    from capgraph.stores.threads import ThreadSummary as ThreadSummary
    from capgraph.stores.threads import fork_thread as fork_thread
    from capgraph.stores.threads import list_suspended_threads as list_suspended_threads
    from capgraph.stores.threads import list_threads as list_threads
    from capgraph.stores.threads import prune_threads as prune_threads
    from capgraph.stores.threads import thread_messages as thread_messages
    from capgraph.stores.threads import thread_summary as thread_summary
    from capgraph.stores.threads import waiting_questions as waiting_questions
    from capgraph.stores.waits import SuspendedThread as SuspendedThread

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "capgraph.approvals.standing_rules": (
            "StandingRule",
            "add_rule",
            "list_rules",
            "revoke_rule",
        ),
        "capgraph.base.ports": ("SqlExecutor",),
        "capgraph.stores.checkpoints": ("Checkpoint", "CheckpointManager"),
        "capgraph.stores.conversation": ("ConversationMessage", "ConversationState"),
        "capgraph.stores.database": ("Location", "SqlTables", "open_saver", "open_store"),
        "capgraph.stores.leases": ("Leases",),
        "capgraph.stores.persistence": ("Persistence",),
        "capgraph.stores.state_store": (
            "BaseStateStore",
            "InMemoryStateStore",
            "MISSING",
            "PostgresStateStore",
            "RedisStateStore",
            "SqliteStateStore",
            "StateStoreFactory",
        ),
        "capgraph.stores.stops": ("Stop",),
        "capgraph.stores.threads": (
            "ThreadSummary",
            "list_suspended_threads",
            "fork_thread",
            "list_threads",
            "prune_threads",
            "thread_messages",
            "thread_summary",
            "waiting_questions",
        ),
        "capgraph.stores.waits": ("SuspendedThread",),
    },
)
