"""State of the graph: keys, reducers, and typed access to context data."""

from typing import TYPE_CHECKING

from capgraph.configs.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from capgraph.state.agent_state import STATE_KEYS as STATE_KEYS
    from capgraph.state.agent_state import AgentState as AgentState
    from capgraph.state.agent_state import check_state_value as check_state_value
    from capgraph.state.context_access import ContextTypes as ContextTypes
    from capgraph.state.context_access import dump_context as dump_context
    from capgraph.state.context_access import load_context as load_context
    from capgraph.state.context_access import summarize_context as summarize_context
    from capgraph.state.reducers import append_entries as append_entries
    from capgraph.state.reducers import last_write_wins as last_write_wins
    from capgraph.state.reducers import merge_by_key as merge_by_key
    from capgraph.state.reducers import merge_context_data as merge_context_data
    from capgraph.state.state_schema import CallerInput as CallerInput
    from capgraph.state.state_schema import Key as Key
    from capgraph.state.state_schema import StateSchema as StateSchema
    from capgraph.state.state_schema import TurnScoped as TurnScoped
    from capgraph.state.turn_view import TurnView as TurnView

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "capgraph.state.agent_state": ("AgentState", "STATE_KEYS", "check_state_value"),
        "capgraph.state.context_access": (
            "ContextTypes",
            "dump_context",
            "load_context",
            "summarize_context",
        ),
        "capgraph.state.state_schema": ("CallerInput", "Key", "StateSchema", "TurnScoped"),
        "capgraph.state.reducers": (
            "append_entries",
            "merge_context_data",
            "last_write_wins",
            "merge_by_key",
        ),
        "capgraph.state.turn_view": ("TurnView",),
    },
)
