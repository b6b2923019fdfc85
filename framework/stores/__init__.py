"""Where threads, journals, leases, standing rules and state of one's own are kept."""

from typing import TYPE_CHECKING

from configs.lazy import contents

if TYPE_CHECKING:
    from framework.approvals.rules import Rule as Rule
    from framework.approvals.rules import add_rule as add_rule
    from framework.approvals.rules import list_rules as list_rules
    from framework.approvals.rules import revoke_rule as revoke_rule
    from framework.base.ports import Rows as Rows
    from framework.stores.checkpoints import Checkpoint as Checkpoint
    from framework.stores.checkpoints import CheckpointManager as CheckpointManager
    from framework.stores.conversation import ConversationMessage as ConversationMessage
    from framework.stores.conversation import ConversationState as ConversationState
    from framework.stores.leases import Leases as Leases
    from framework.stores.leases import leases_of as leases_of
    from framework.stores.location import Location as Location
    from framework.stores.open import open_saver as open_saver
    from framework.stores.open import open_store as open_store
    from framework.stores.rows import rows_of as rows_of
    from framework.stores.state_store import ABSENT as ABSENT
    from framework.stores.state_store import BaseStateStore as BaseStateStore
    from framework.stores.state_store import InMemoryStateStore as InMemoryStateStore
    from framework.stores.state_store import PostgresStateStore as PostgresStateStore
    from framework.stores.state_store import RedisStateStore as RedisStateStore
    from framework.stores.state_store import SqliteStateStore as SqliteStateStore
    from framework.stores.state_store import StateStoreFactory as StateStoreFactory
    from framework.stores.stops import Stop as Stop
    from framework.stores.threads import ThreadSummary as ThreadSummary
    from framework.stores.threads import fork_thread as fork_thread
    from framework.stores.threads import list_threads as list_threads
    from framework.stores.threads import prune_threads as prune_threads
    from framework.stores.threads import thread_messages as thread_messages
    from framework.stores.threads import thread_summary as thread_summary
    from framework.stores.threads import waiting_questions as waiting_questions
    from framework.stores.waits import Due as Due
    from framework.stores.waits import due as due

__getattr__, __dir__ = contents(__name__)
