"""Talk to the support desk on a terminal: `python -m ferry_support --help`."""

import argparse
import asyncio
import os
import tempfile
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from ferry_support.conversations import CONVERSATIONS
from ferry_support.database import make_database
from ferry_support.governed_loop import governed_loop
from ferry_support.loop import support_loop
from ferry_support.scripted import scripted_model
from ferry_support.specialists import specialists
from ferry_support.whole import support_agent

FORMS = {
    "look": support_agent,
    "plan": lambda model, saver: support_agent(model, saver, "plan"),
    "loop": support_loop,
    "governed": governed_loop,
    "specialists": specialists,
}


def agreement(interrupts: Any) -> Any:
    """Show what is asked, and return the answer that approves all of it."""
    for one in interrupts:
        print(f"  (approved: {one.value})")
    if len(interrupts) > 1:
        return {one.id: "approve" for one in interrupts}
    asked = interrupts[0].value.get("action_requests")
    return {"decisions": [{"type": "approve"} for _ in asked]} if asked else "approve"


async def main() -> None:
    """Lead a conversation, and approve all that is asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--form", choices=FORMS, default="look")
    parser.add_argument("--model", help="such as openai:gpt-5-mini; scripted when not given")
    parser.add_argument("--conversation", choices=CONVERSATIONS, default="five turns")
    options = parser.parse_args()
    model: Any = scripted_model()
    if options.model:
        from langchain.chat_models import init_chat_model

        model = init_chat_model(options.model)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FERRY_DATABASE"] = f"{folder}/ferry.sqlite"
        make_database(os.environ["FERRY_DATABASE"])
        graph = FORMS[options.form](model, InMemorySaver())
        config: Any = {"configurable": {"thread_id": "1", "passenger_id": "ada"}}
        for said in CONVERSATIONS[options.conversation]:
            print(f"> {said}")
            out = await graph.ainvoke({"messages": [("user", said)]}, config)
            while asked := out.get("__interrupt__"):
                out = await graph.ainvoke(Command(resume=agreement(asked)), config)
            print(out["messages"][-1].text)


asyncio.run(main())
