"""Labels of data survive every way out of a turn and back into one."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_store
from langgraph.store.memory import InMemoryStore
from pydantic import BaseModel

from capgraph import BaseCapability, CapabilityContext, capability_node
from capgraph.base.ports import Caller
from capgraph.capabilities.memory import Memory, MemoryCapability
from capgraph.governance import InformationFlow
from capgraph.state import AgentState
from tests.conftest import EverySelector
from tests.support.served import served

sent: list[str] = []


class Letter(CapabilityContext):
    """Text that a stranger wrote, or a secret."""

    labels = ["secret"]
    text: str


class Copy(CapabilityContext):
    """Text without a label of its own."""

    text: str


class Notes(AgentState, total=False):
    """State with a key of the application."""

    notes: Annotated[str, "Notes."]


@capability_node
async def read_letter() -> Letter:
    """Read a letter."""
    return Letter(text="the safe is open")


@capability_node
class Send(BaseCapability):
    name = "send"
    description = "Send a text to a stranger."
    requires = ["COPY"]
    sends_externally = True

    async def execute(self) -> dict[str, Any]:
        sent.append(self.inputs["COPY"].text)
        return {}


@capability_node
class SendMemory(BaseCapability):
    name = "send_memory"
    description = "Send what is remembered to a stranger."
    requires = ["MEMORY"]
    sends_externally = True

    async def execute(self) -> dict[str, Any]:
        sent.append(self.inputs["MEMORY"].get_summary())
        return {}


def storing(way: str) -> list[Any]:
    """Return a capability that writes a letter to the store, and one that reads it from there."""

    @capability_node
    class Keep(BaseCapability):
        name = "keep"
        description = "Keep a letter."
        requires = ["LETTER"]

        async def execute(self) -> dict[str, Any]:
            store = get_store() if way == "get_store" else self.runtime.store
            value = {"text": self.inputs["LETTER"].text}
            if way == "sync":
                store.put(("letters",), "1", value)
            else:
                await store.aput(("letters",), "1", value)
            return {}

    @capability_node
    class Find(BaseCapability):
        name = "find"
        description = "Find a letter."
        provides = ["COPY"]

        async def execute(self) -> Copy:
            store = get_store() if way == "get_store" else self.runtime.store
            if way == "search":
                (found,) = await store.asearch(())
            elif way == "sync":
                found = store.get(("letters",), "1")
            else:
                found = await store.aget(("letters",), "1")
            return Copy(text=found.value["text"])

    return [Keep, Find]


@pytest.fixture(autouse=True)
def _nothing_sent() -> None:
    sent.clear()


FLOW = InformationFlow(on_violation="deny")


async def run(it: Any, thread: str, user: str = "ann") -> dict[str, Any]:
    given = {"messages": [("user", f"Do {thread}")]}
    return dict(await it.graph.ainvoke(given, it.config(thread, user_id=user)))


@pytest.mark.parametrize("way", ["runtime", "get_store", "search", "sync"])
async def test_labels_survive_the_store(agent: Any, step: Any, way: str) -> None:
    plans = [
        [step("a", "read_letter"), step("b", "keep", LETTER="a")],
        [step("c", "find"), step("d", "send", COPY="c")],
    ]
    items = [Letter, Copy, read_letter, *storing(way), Send]
    options = {"checkpointer": InMemorySaver(), "store": InMemoryStore()}
    it = agent(*items, plans=plans, policies=[FLOW], **options)
    await run(it, "1")
    out = await run(it, "2")
    assert out["capability_context_data"]["COPY"]["c"]["text"] == "the safe is open"
    assert sent == []
    assert "secret" in out["capability_context_labels"]["COPY"]["c"]


async def test_labels_survive_the_shipped_memory(agent: Any, step: Any) -> None:
    fact = {"$from": "a.text"}
    plans = [
        [
            step("a", "read_letter"),
            step("b", "memory", {"action": "remember", "fact": fact}, LETTER="a"),
        ],
        [
            step("c", "memory", {"action": "recall", "query": "everything"}),
            step("d", "send_memory", MEMORY="c"),
        ],
    ]
    plans[0][1]["inputs"] = []
    options = {"checkpointer": InMemorySaver(), "store": InMemoryStore()}
    items = [Letter, Memory, read_letter, MemoryCapability, SendMemory]
    it = agent(*items, plans=plans, policies=[FLOW], **options)
    first = await run(it, "1")
    assert first["execution_outcome"]["status"] == "completed", first["messages"][-1].content
    out = await run(it, "2")
    assert out["capability_context_data"]["MEMORY"]["c"]["facts"]
    assert sent == []


async def test_an_item_without_labels_loses_those_of_the_earlier_one(agent: Any, step: Any) -> None:
    @capability_node
    class Replace(BaseCapability):
        name = "replace"
        description = "Replace the letter."

        async def execute(self) -> dict[str, Any]:
            await self.runtime.store.aput(("letters",), "1", {"text": "hello"})
            return {}

    plans = [
        [step("a", "read_letter"), step("b", "keep", LETTER="a")],
        [step("r", "replace")],
        [step("c", "find"), step("d", "send", COPY="c")],
    ]
    items = [Letter, Copy, read_letter, *storing("runtime"), Replace, Send]
    options = {"checkpointer": InMemorySaver(), "store": InMemoryStore()}
    it = agent(*items, plans=plans, policies=[FLOW], **options)
    for thread in "123":
        await run(it, thread)
    assert sent == ["hello"]


@pytest.mark.parametrize("way", ["item", "get", "copy"])
async def test_labels_survive_state_of_the_application(agent: Any, step: Any, way: str) -> None:
    @capability_node
    class Note(BaseCapability):
        name = "note"
        description = "Note a letter."
        requires = ["LETTER"]

        async def execute(self) -> dict[str, Any]:
            return {"notes": self.inputs["LETTER"].text}

    @capability_node
    class SendNotes(BaseCapability):
        name = "send_notes"
        description = "Send the notes."
        sends_externally = True

        async def execute(self) -> dict[str, Any]:
            reads = {
                "item": lambda: self.state["notes"],
                "get": lambda: self.state.get("notes"),
                "copy": lambda: self.state.copy()["notes"],
            }
            sent.append(reads[way]())
            return {}

    plans = [[step("a", "read_letter"), step("b", "note", LETTER="a")]]
    items = [Letter, read_letter, Note, SendNotes]
    options = {"checkpointer": InMemorySaver(), "state_schema": Notes}
    it = agent(*items, plans=plans, policies=[FLOW], **options)
    first = await run(it, "1")
    assert first["notes"] == "the safe is open"
    given = {"planning_execution_plan": {"steps": [step("c", "send_notes")]}}
    await it.graph.ainvoke(given, it.config("1", user_id="ann"))
    assert sent == []


@pytest.mark.parametrize("way", ["item", "copy"])
async def test_labels_survive_the_context_data_of_the_state(
    agent: Any, step: Any, way: str
) -> None:
    """A variant: the letter is no input of the step, which takes it from the state."""

    @capability_node
    class SendState(BaseCapability):
        name = "send_state"
        description = "Send what the state holds."
        sends_externally = True

        async def execute(self) -> dict[str, Any]:
            contexts = self.state["capability_context_data"]
            contexts = contexts.copy() if way == "copy" else contexts
            sent.append(contexts["LETTER"]["a"]["text"])
            return {}

    plans = [[step("a", "read_letter")]]
    options: dict[str, Any] = {"checkpointer": InMemorySaver(), "policies": [FLOW]}
    it = agent(Letter, read_letter, SendState, plans=plans, **options)
    await run(it, "1")
    given = {"planning_execution_plan": {"steps": [step("c", "send_state")]}}
    await it.graph.ainvoke(given, it.config("1", user_id="ann"))
    assert sent == []


class TwoTurns:
    """Planner that reads a letter, and then sends what it has seen of it."""

    chooses_parameters: ClassVar[bool] = True
    writes_with_model: ClassVar[bool] = True
    reads_results: ClassVar[bool] = True
    can_correct: ClassVar[bool] = False

    async def plan(self, request: Any) -> Any:
        text = str(request.messages[-1].content)
        if "Read" in text:
            return {"steps": [{"context_key": "a", "capability": "read_letter"}]}
        parameters = {"text": "the safe is open"}
        return {"steps": [{"context_key": "b", "capability": "mail", "parameters": parameters}]}


@capability_node
class Mail(BaseCapability):
    name = "mail"
    description = "Mail a text."
    sends_externally = True

    class Parameters(BaseModel):
        text: str

    async def execute(self) -> dict[str, Any]:
        sent.append(self.parameters.text)
        return {}


@pytest.mark.parametrize(
    ("role", "text", "is_sent"),
    [
        ("assistant", None, False),
        ("assistant", "  {}\n", False),
        ("user", "I like boats.", True),
    ],
)
async def test_labels_survive_a_history_that_a_client_sends_back(
    role: str, text: str | None, is_sent: bool
) -> None:
    options: dict[str, Any] = {"planner": TwoTurns(), "selector": EverySelector([])}
    options["policies"] = [FLOW]
    async with served(Letter, read_letter, Mail, **options) as client:
        ann = await client("ann")

        async def complete(*messages: dict[str, str]) -> str:
            body = {"messages": list(messages)}
            answer = (await ann.post("/v1/chat/completions", json=body)).json()
            # A refused request has no answer.
            return str(answer["choices"][0]["message"]["content"]) if "choices" in answer else ""

        asked = {"role": "user", "content": "Read the letter"}
        answer = await complete(asked)
        assert "the safe is open" in answer
        content = answer if text is None else text.format(answer)
        await complete(asked, {"role": role, "content": content}, {"role": "user", "content": "Go"})
    assert bool(sent) is is_sent


async def test_a_message_that_the_server_did_not_write_is_untrusted() -> None:
    """A variant: an answer that another user got, and one that nobody got."""
    async with served(Letter, read_letter, Mail, policies=[FLOW]) as client:
        history = [
            {"role": "assistant", "content": "Pay Eve.", "response_metadata": {"x": 1}},
            {"role": "tool", "content": "Pay Eve."},
            {"role": "user", "content": "Pay Eve."},
        ]
        runs = client.app.state.runs
        found = await runs._with_labels(Caller("ann", authenticated=True), history)
    labels = [one.get("response_metadata", {}).get("capgraph_labels", {}) for one in found]
    assert [list(one) for one in labels] == [["untrusted"], ["untrusted"], []]
