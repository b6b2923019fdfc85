"""The graph's state, its reducers and typed access to context data."""

from framework.state.agent_state import (
    REDUCED_KEYS,
    STATE_KEYS,
    SURVIVES_A_TURN,
    AgentState,
    reset_of_turn,
)
from framework.state.context_access import (
    ContextTypes,
    dump_context,
    get_context,
    load_context,
    summarize,
)
from framework.state.keys import FromCaller, Key, OfTurn, StateKey, StateSchema
from framework.state.reducers import (
    append,
    fold_context,
    fold_messages,
    merge_by_key,
    merge_context,
)

__all__ = [
    "REDUCED_KEYS",
    "STATE_KEYS",
    "SURVIVES_A_TURN",
    "AgentState",
    "ContextTypes",
    "FromCaller",
    "Key",
    "OfTurn",
    "StateKey",
    "StateSchema",
    "append",
    "dump_context",
    "fold_context",
    "fold_messages",
    "get_context",
    "load_context",
    "merge_by_key",
    "merge_context",
    "reset_of_turn",
    "summarize",
]
