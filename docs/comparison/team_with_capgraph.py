from langchain.chat_models import init_chat_model

from capgraph.agents import ReActAgent, SupervisorOrchestrator


def tank_level() -> float:
    """Read the water level of the tank, in metres."""
    return 2.5


def rain_tomorrow(place: str = "here") -> str:
    """Forecast the rain of tomorrow."""
    return f"No rain {place} tomorrow."


model = init_chat_model("openai:gpt-5-mini")
gauge = ReActAgent(model, tools=[tank_level])
weather = ReActAgent(model, tools=[rain_tomorrow])
told = {"gauge": "Knows the tank.", "weather": "Knows the weather."}
team = SupervisorOrchestrator(model, {"gauge": gauge, "weather": weather}, told)
out = team.compile().invoke({"task": "Will the tank run over tomorrow?"})
print(out["output"])
