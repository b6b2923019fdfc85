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


gauge = create_agent("openai:gpt-5-mini", [tank_level])
weather = create_agent("openai:gpt-5-mini", [rain_tomorrow])


@tool
def ask_gauge(request: str) -> str:
    """Ask somebody who knows the tank."""
    out = gauge.invoke({"messages": [("user", request)]})
    return out["messages"][-1].text


@tool
def ask_weather(request: str) -> str:
    """Ask somebody who knows the weather."""
    out = weather.invoke({"messages": [("user", request)]})
    return out["messages"][-1].text


supervisor = create_agent("openai:gpt-5-mini", [ask_gauge, ask_weather])
asked = {"messages": [("user", "Will the tank run over tomorrow?")]}
print(supervisor.invoke(asked)["messages"][-1].text)
