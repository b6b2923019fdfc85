"""capgraph: capability classes become a LangGraph agent that checks its plan before it runs it."""
