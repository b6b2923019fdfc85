"""Customer support of a ferry line, as a plain LangGraph loop and with capgraph."""
