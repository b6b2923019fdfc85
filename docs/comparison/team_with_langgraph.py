from typing import Literal

from langchain.agents import create_agent
from langchain.chat_models import init_chat_model
from langchain.messages import AIMessage
from langchain.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command
from pydantic import BaseModel


@tool
def tank_level() -> float:
    """Read the water level of the tank, in metres."""
    return 2.5


@tool
def rain_tomorrow(place: str = "here") -> str:
    """Forecast the rain of tomorrow."""
    return f"No rain {place} tomorrow."


model = init_chat_model("openai:gpt-5-mini")
gauge = create_agent(model, [tank_level])
weather = create_agent(model, [rain_tomorrow])


class Next(BaseModel):
    """Who works next (gauge knows the tank, weather the weather), or the answer."""

    member: Literal["gauge", "weather", "nobody"]
    answer: str = ""


def supervisor(state: MessagesState) -> Command[Literal["gauge", "weather", "__end__"]]:
    chosen = model.with_structured_output(Next).invoke(state["messages"])
    if chosen.member != "nobody":
        return Command(goto=chosen.member)
    return Command(goto=END, update={"messages": [AIMessage(chosen.answer)]})


def ask_gauge(state: MessagesState) -> Command[Literal["supervisor"]]:
    said = ("user", "gauge: " + gauge.invoke(state)["messages"][-1].text)
    return Command(goto="supervisor", update={"messages": [said]})


def ask_weather(state: MessagesState) -> Command[Literal["supervisor"]]:
    said = ("user", "weather: " + weather.invoke(state)["messages"][-1].text)
    return Command(goto="supervisor", update={"messages": [said]})


builder = StateGraph(MessagesState)
builder.add_node("supervisor", supervisor)
builder.add_node("gauge", ask_gauge)
builder.add_node("weather", ask_weather)
builder.add_edge(START, "supervisor")
asked = {"messages": [("user", "Will the tank run over tomorrow?")]}
print(builder.compile().invoke(asked)["messages"][-1].text)
