"""The graph's state, its reducers and typed access to context data."""

from configs.lazy import contents
from framework.state.agent_state import STATE_KEYS as STATE_KEYS
from framework.state.agent_state import AgentState as AgentState
from framework.state.agent_state import fitting as fitting
from framework.state.context_access import ContextTypes as ContextTypes
from framework.state.context_access import dump_context as dump_context
from framework.state.context_access import load_context as load_context
from framework.state.context_access import summarize as summarize
from framework.state.keys import FromCaller as FromCaller
from framework.state.keys import Key as Key
from framework.state.keys import OfTurn as OfTurn
from framework.state.keys import StateSchema as StateSchema
from framework.state.reducers import append as append
from framework.state.reducers import fold_context as fold_context
from framework.state.reducers import latest as latest
from framework.state.reducers import merge_by_key as merge_by_key
from framework.state.turn_view import TurnView as TurnView

__getattr__, __dir__ = contents(__name__)
