from capgraph import build_graph, capability_node


@capability_node(examples=["how full is the tank?"])
def tank_level() -> float:
    """Read the water level of the tank, in metres."""
    return 2.5


@capability_node(examples=["will it rain tomorrow?"])
def rain_tomorrow(place: str = "here") -> str:
    """Forecast the rain of tomorrow."""
    return f"No rain {place} tomorrow."


graph = build_graph([tank_level, rain_tomorrow], model="openai:gpt-5-mini")
out = graph.invoke({"messages": [("user", "How full is the tank today?")]})
print(out["messages"][-1].content)
