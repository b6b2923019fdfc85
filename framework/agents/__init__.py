"""Agents that call tools, and teams of them; each compiles to a LangGraph graph."""
