from pydantic_ai import Agent

agent = Agent("openai-chat:gpt-5-mini")


@agent.tool_plain
def tank_level() -> float:
    """Read the water level of the tank, in metres."""
    return 2.5


@agent.tool_plain
def rain_tomorrow(place: str = "here") -> str:
    """Forecast the rain of tomorrow."""
    return f"No rain {place} tomorrow."


print(agent.run_sync("How full is the tank today?").output)
