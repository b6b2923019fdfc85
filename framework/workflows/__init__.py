"""Workflows: directed acyclic, state machine, event-driven; each compiles to a LangGraph graph."""
