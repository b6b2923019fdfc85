"""The graph's state, its reducers and typed access to context data."""

from typing import TYPE_CHECKING

from capgraph.configs.lazy import lazy_exports

if TYPE_CHECKING:
    from capgraph.state.agent_state import STATE_KEYS as STATE_KEYS
    from capgraph.state.agent_state import AgentState as AgentState
    from capgraph.state.agent_state import fitting as fitting
    from capgraph.state.context_access import ContextTypes as ContextTypes
    from capgraph.state.context_access import dump_context as dump_context
    from capgraph.state.context_access import load_context as load_context
    from capgraph.state.context_access import summarize as summarize
    from capgraph.state.keys import CallerInput as CallerInput
    from capgraph.state.keys import Key as Key
    from capgraph.state.keys import StateSchema as StateSchema
    from capgraph.state.keys import TurnScoped as TurnScoped
    from capgraph.state.reducers import append as append
    from capgraph.state.reducers import fold_context as fold_context
    from capgraph.state.reducers import latest as latest
    from capgraph.state.reducers import merge_by_key as merge_by_key
    from capgraph.state.turn_view import TurnView as TurnView

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "capgraph.state.agent_state": ("AgentState", "STATE_KEYS", "fitting"),
        "capgraph.state.context_access": (
            "ContextTypes",
            "dump_context",
            "load_context",
            "summarize",
        ),
        "capgraph.state.keys": ("CallerInput", "Key", "StateSchema", "TurnScoped"),
        "capgraph.state.reducers": ("append", "fold_context", "latest", "merge_by_key"),
        "capgraph.state.turn_view": ("TurnView",),
    },
)
