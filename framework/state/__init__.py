"""The graph's state, its reducers and typed access to context data."""

from framework.state.agent_state import (
    STATE_KEYS,
    AgentState,
    fitting,
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
    fold_lists,
    fold_messages,
    grow_by_key,
    latest,
    merge_by_key,
)
from framework.state.turn_view import TurnView

__all__ = [
    "STATE_KEYS",
    "AgentState",
    "ContextTypes",
    "FromCaller",
    "Key",
    "OfTurn",
    "StateKey",
    "StateSchema",
    "TurnView",
    "append",
    "dump_context",
    "fitting",
    "fold_context",
    "fold_lists",
    "fold_messages",
    "get_context",
    "grow_by_key",
    "latest",
    "load_context",
    "merge_by_key",
    "reset_of_turn",
    "summarize",
]
