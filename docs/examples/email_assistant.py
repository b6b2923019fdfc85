"""E-mail assistant: a LangGraph graph sorts the mail, and one of its nodes is a capgraph graph.

    python email_assistant.py

The assistant ignores advertising, shows notices to the owner, and answers questions: it looks up free
times, schedules meetings, and writes replies. Every meeting and reply needs an approval. Type `y` to
approve, `n` to reject, or a new text for a reply. The assistant remembers new texts as examples of the
owner's style. Without `--model`, a scripted model stands in for a chat model.
"""

import argparse
import asyncio
import re
from datetime import datetime
from typing import Any, Literal

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_store
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, interrupt
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from capgraph import build_graph, capability_node
from capgraph.configs.settings import load_settings
from capgraph.state import TurnView
from capgraph.testing import ModelCall, ScriptedModel

STYLE = ("email_assistant", "style")
MAIL = [
    "From: shop@example.com\nSubject: Sale\n\nAll pumps at half price!",
    "From: it@example.org\nSubject: Maintenance\n\nThe wiki is down on Friday from 6 to 8 pm.",
    "From: ravi@example.org\nSubject: Pump\n\nHi Lena, can we meet for 30 minutes on 2026-06-03?",
]


# The capabilities. A mail server and a calendar would take the place of the returned texts.
class FreeTimes(TypedDict):
    day: str
    times: list[str]


@capability_node(on_error="observe")
def free_times(day: str) -> FreeTimes:
    """List the owner's free times on a day (YYYY-MM-DD)."""
    return {"day": day, "times": ["09:00", "14:00", "16:00"]}


@capability_node(effect="once", requires_approval=True)
def schedule_meeting(attendee: str, subject: str, start: datetime, minutes: int) -> str:
    """Schedule a meeting in the owner's calendar."""
    return f"{subject}: {minutes} minutes with {attendee} on {start:%Y-%m-%d at %H:%M}."


@capability_node(effect="once", requires_approval=True)
def write_reply(to: str, subject: str, text: str) -> str:
    """Write and send an e-mail."""
    return f"Sent to {to}: {text}"


async def instructions(view: TurnView) -> str:
    """Return the system prompt with the owner's latest texts."""
    texts = await get_store().asearch(STYLE, limit=3)
    examples = "".join(f"\nThe owner wrote: {item.value['text']}" for item in texts)
    return f"You answer the e-mails of Lena. Send one reply to each e-mail.{examples}"


# The graph. Its nodes and edges are LangGraph's, except for the assistant.
class Sorted(BaseModel):
    """What to do with an e-mail."""

    decision: Literal["ignore", "notify", "respond"] = Field(
        description="ignore: advertising. notify: a notice without a question. respond: a question."
    )


class Inbox(MessagesState):
    """State of the graph: one e-mail, and what is done about it."""

    email: str
    decision: str


def email_assistant(model: BaseChatModel, checkpointer: Any, store: BaseStore) -> Any:
    """Return the graph for one e-mail per thread."""

    async def sort(state: Inbox) -> Command[Literal["notify", "assistant", "__end__"]]:
        sorter = model.with_structured_output(Sorted)
        found: Any = await sorter.ainvoke(
            f"Decide what to do with this e-mail.\n\n{state['email']}"
        )
        goto: Any = {"ignore": END, "notify": "notify", "respond": "assistant"}[found.decision]
        message = HumanMessage(f"Respond to this e-mail.\n\n{state['email']}")
        messages = [] if goto == END else [message]
        return Command(goto=goto, update={"decision": found.decision, "messages": messages})

    def notify(state: Inbox) -> Command[Literal["assistant", "__end__"]]:
        wish = interrupt({"type": "notice", "email": state["email"]})
        message = HumanMessage(f"What the reply is to say: {wish}")
        return Command(goto="assistant" if wish else END, update={"messages": [message]})

    # True: the assistant keeps its data in the thread of this graph.
    assistant = build_graph(
        [free_times, schedule_meeting, write_reply],
        model,
        True,
        settings=load_settings(planning={"mode": "look"}),
        system_prompt=instructions,
    )
    builder = StateGraph(Inbox)
    builder.add_node("sort", sort)
    builder.add_node("notify", notify)
    builder.add_node("assistant", assistant)
    builder.add_edge(START, "sort")
    builder.add_edge("assistant", END)
    return builder.compile(checkpointer=checkpointer, store=store)


# The terminal.
async def decide(question: dict[str, Any], store: BaseStore) -> Any:
    """Ask the owner about a notice, or about the steps of an approval request."""
    if question["type"] == "notice":
        return await ask("Reply (empty: no reply): ")
    decisions: dict[str, Any] = {}
    for step in question["steps"]:
        key, parameters = step["context_key"], step["parameters"]
        said = await ask(f"{step['capability']} {parameters}\nApprove? ")
        if said in {"y", "n"} or "text" not in parameters:
            decisions[key] = "approve" if said == "y" else "reject"
            continue
        # The approval request has the text that the model wrote, and the answer the owner's.
        await store.aput(STYLE, key, {"text": said})
        decisions[key] = {"decision": "edit", "parameters": {**parameters, "text": said}}
    return decisions


async def ask(text: str) -> str:
    """Read a line from the terminal."""
    return (await asyncio.to_thread(input, text)).strip()


def scripted(call: ModelCall) -> Any:
    """Answer a prompt in place of a chat model."""
    if "Decide what to do" in call.prompt:
        kinds = {"Sale": "ignore", "Maintenance": "notify"}
        found = next((kind for word, kind in kinds.items() if word in call.prompt), "respond")
        return {"decision": found}
    to, subject = re.findall(r"From: (\S+)\nSubject: (\w+)", call.prompt)[-1]
    mail = {"to": to, "subject": f"Re: {subject}"}
    if sent := re.findall(r"Sent to [^\"<\n]+", call.prompt):
        return {"steps": [], "answer": sent[-1]}
    if "not done" in call.prompt:
        return "Nothing was sent, because the owner rejected it."
    if "rejected" in call.prompt:
        return {"steps": []}
    if "says:" in call.prompt or "is to say" in call.prompt:
        return plan("write_reply", **mail, text="Thank you for the notice.")
    day = re.findall(r"\d{4}-\d{2}-\d{2}", call.prompt)[-1]
    if "09:00" not in call.prompt:
        return plan("free_times", day=day)
    meeting = plan(
        "schedule_meeting", attendee=to, subject=subject, start=f"{day}T14:00", minutes=30
    )
    reply = plan("write_reply", **mail, text="We can meet at 14:00.")
    return {"steps": meeting["steps"] + reply["steps"]}


def plan(capability: str, **parameters: Any) -> dict[str, Any]:
    """Return a plan of one step."""
    return {"steps": [{"capability": capability, "parameters": parameters}]}


async def main() -> None:
    """Process each e-mail in a thread of its own."""
    parser = argparse.ArgumentParser(description="Sort e-mails and answer them.")
    parser.add_argument("--model", help="chat model as provider:name (default: a scripted model)")
    options = parser.parse_args()
    model: Any = ScriptedModel(responses=scripted)
    if options.model:
        from langchain.chat_models import init_chat_model

        model = init_chat_model(options.model)
    store = InMemoryStore()
    graph = email_assistant(model, InMemorySaver(), store)
    for number, email in enumerate(MAIL):
        config: Any = {"configurable": {"thread_id": str(number)}}
        print(f"\n> {email.splitlines()[1]}")
        out = await graph.ainvoke({"email": email}, config)
        while asked := out.get("__interrupt__"):
            answer = await decide(asked[0].value, store)
            out = await graph.ainvoke(Command(resume=answer), config)
        print(
            f"{out['decision']}: {out['messages'][-1].text if out['messages'] else 'nothing to do'}"
        )


if __name__ == "__main__":
    asyncio.run(main())
