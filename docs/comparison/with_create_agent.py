from langchain.agents import create_agent
from langchain.tools import tool


@tool
def tank_level() -> float:
    """Read the water level of the tank, in metres."""
    return 2.5


@tool
def rain_tomorrow(place: str = "here") -> str:
    """Forecast the rain of tomorrow."""
    return f"No rain {place} tomorrow."


agent = create_agent("openai:gpt-5-mini", [tank_level, rain_tomorrow])
out = agent.invoke({"messages": [("user", "How full is the tank today?")]})
print(out["messages"][-1].content)
