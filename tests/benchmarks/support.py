"""The support desk of ``docs/examples/ferry_support``: the plain loop beside the forms with capgraph.

Every form has the same tool bodies and the same scripted model, which decides from what its prompt
shows. Counted are right results (the database in the end), model calls, and tokens of the prompts: four
characters each, tools and forms included. The milliseconds are the program's own, with a model that
thinks for no time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from pydantic import Field

from capgraph.testing import ModelCall, ScriptedModel
from tests.benchmarks import markdown
from tests.benchmarks.peers import Tally, counted
from tests.benchmarks.peers.create_agent import written

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
sys.path.insert(0, str(EXAMPLES))

from ferry_support.conversations import CONVERSATIONS, RESULTS, results  # noqa: E402
from ferry_support.database import make_database  # noqa: E402
from ferry_support.governed_loop import governed_loop  # noqa: E402
from ferry_support.loop import support_loop  # noqa: E402
from ferry_support.node_in_graph import front_desk  # noqa: E402
from ferry_support.scripted import reply  # noqa: E402
from ferry_support.specialists import specialists  # noqa: E402
from ferry_support.specialists_loop import specialists_loop  # noqa: E402
from ferry_support.whole import support_agent  # noqa: E402

ROUNDS = 3
MAX_STEPS = 40
"""Supersteps of LangGraph in one turn."""
HAND_OVERS = "three hand-overs"
LOCAL = ("five turns", "search, then book")
"""Conversations with the local model."""


@dataclass(frozen=True)
class Form:
    """One form of the application.

    Attributes:
        name: Its name in the tables.
        build: Returns its graph, from a model and a saver.
        files: Files that it has beside the shared ones (`desk.py`, `database.py`).
    """

    name: str
    build: Callable[[Any, Any], Any]
    files: tuple[str, ...]


FORMS = (
    Form("plain loop", support_loop, ("loop.py",)),
    Form("loop, tools governed", governed_loop, ("capabilities.py", "governed_loop.py")),
    Form("capgraph as a node", front_desk, ("capabilities.py", "whole.py", "node_in_graph.py")),
    Form(
        "capgraph, planned",
        lambda model, saver: support_agent(model, saver, "plan"),
        ("capabilities.py", "whole.py"),
    ),
    Form("capgraph, looking", support_agent, ("capabilities.py", "whole.py")),
)
BESIDE = (FORMS[0], *FORMS[3:])
"""The loop and the whole application."""
DESKS = (
    Form("specialists, plain LangGraph", specialists_loop, ("loop.py", "specialists_loop.py")),
    Form("specialists, capgraph", specialists, ("capabilities.py", "specialists.py")),
)


class CountedModel(ScriptedModel):
    """The scripted model, with the tools and forms that each call carries."""

    carried: dict[Any, str] = Field(default_factory=dict)

    def bind_tools(self, tools: Sequence[Any], **options: Any) -> Any:
        listed = [convert_to_openai_tool(tool) for tool in tools]
        names = tuple(tool["function"]["name"] for tool in listed)
        self.carried[names] = json.dumps(listed)
        return super().bind_tools(tools, **options)

    def with_structured_output(self, schema: Any, **options: Any) -> Any:
        form = convert_to_openai_tool(schema)["function"]
        self.carried[form["name"]] = json.dumps(form)
        return super().with_structured_output(schema, **options)


@dataclass(frozen=True)
class Spent:
    """Model calls, tokens of their prompts, and seconds."""

    calls: int = 0
    prompt_tokens: int = 0
    seconds: float = 0.0

    def __sub__(self, other: Spent) -> Spent:
        return Spent(
            self.calls - other.calls,
            self.prompt_tokens - other.prompt_tokens,
            self.seconds - other.seconds,
        )


Meter = Callable[[], Spent]
"""Returns what was spent so far."""


def counted_model() -> tuple[Any, Meter]:
    """Return the scripted model, and what counts its calls and tokens."""
    tally = Tally()

    def answer(call: ModelCall) -> Any:
        said = reply(call)
        carried = model.carried.get(call.schema or call.tools, "")
        text = written(said) if hasattr(said, "tool_calls") else counted(said)
        tally.note([carried, *map(written, call.messages)], text)
        return said

    model = CountedModel(responses=answer)
    return model, lambda: Spent(tally.calls, tally.prompt_chars // 4)


def timed_model() -> tuple[Any, Meter]:
    """Return the scripted model, and what takes the time of the process."""
    return ScriptedModel(responses=reply), lambda: Spent(seconds=time.process_time())


@dataclass
class Talk:
    """A conversation as one form had it.

    Attributes:
        replies: The last message of each turn.
        turns: What each turn spent.
        questions: How often a person was asked in each turn.
        results: What was booked and ordered in the end.
        right: True if that is exactly what was asked for.
    """

    replies: list[str] = field(default_factory=list)
    turns: list[Spent] = field(default_factory=list)
    questions: list[int] = field(default_factory=list)
    results: set[tuple[str, int]] = field(default_factory=set)
    right: bool = False

    @property
    def calls(self) -> int:
        return sum(turn.calls for turn in self.turns)

    @property
    def prompt_tokens(self) -> int:
        return sum(turn.prompt_tokens for turn in self.turns)

    @property
    def seconds(self) -> float:
        return sum(turn.seconds for turn in self.turns) / len(self.turns)


def agreement(interrupts: Sequence[Any]) -> Any:
    """Return the answer that approves everything that is asked."""
    if len(interrupts) > 1:
        return {one.id: agreement([one]) for one in interrupts}
    [asked] = interrupts
    if "action_requests" in asked.value:
        return {"decisions": [{"type": "approve"} for _ in asked.value["action_requests"]]}
    return "approve"


async def talk(form: Form, name: str, folder: Path, model: Any, spent: Meter) -> Talk:
    """Lead a conversation with a form of the application, and agree to all that it asks."""
    return await lead(form.build(model, InMemorySaver()), name, folder, spent)


async def lead(graph: Any, name: str, folder: Path, spent: Meter) -> Talk:
    """Lead a conversation on a new thread of a graph."""
    database = folder / f"{time.monotonic_ns()}.sqlite"
    os.environ["FERRY_DATABASE"] = str(database)
    make_database(str(database))
    config: Any = {
        "configurable": {"thread_id": database.stem, "passenger_id": "ada"},
        "recursion_limit": MAX_STEPS,
    }
    found = Talk()
    for said in CONVERSATIONS[name]:
        before, questions = spent(), 0
        try:
            out = await graph.ainvoke({"messages": [("user", said)]}, config)
            while asked := out.get("__interrupt__"):
                questions += len(asked)
                out = await graph.ainvoke(Command(resume=agreement(asked)), config)
            found.replies.append(str(out["messages"][-1].text))
        except Exception as exc:  # a turn that ends so is not right, and the next one begins
            found.replies.append(f"ended by {type(exc).__name__}: {exc}")
        found.turns.append(spent() - before)
        found.questions.append(questions)
    found.results = results()
    found.right = found.results == RESULTS[name]
    return found


async def milliseconds(form: Form, name: str, folder: Path) -> float:
    """Return the least milliseconds of a turn, of several conversations with one graph."""
    model, spent = timed_model()
    graph = form.build(model, InMemorySaver())
    talks = [await lead(graph, name, folder, spent) for _ in range(ROUNDS + 1)]
    return 1000 * min(one.seconds for one in talks[1:])  # the first one warms up


def lines_of(form: Form) -> int:
    """Return the lines of a form's own files that are not blank."""
    texts = [(EXAMPLES / "ferry_support" / file).read_text("utf-8") for file in form.files]
    return sum(1 for text in texts for line in text.splitlines() if line.strip())


async def by_conversation(folder: Path) -> list[tuple[str, ...]]:
    """Return a row for every conversation and form."""
    rows = []
    for name, said in CONVERSATIONS.items():
        for form in (*FORMS, *DESKS) if name == HAND_OVERS else FORMS:
            found = await talk(form, name, folder, *counted_model())
            rows.append(
                (
                    f"{name} ({len(said)})" if form is FORMS[0] else "",
                    form.name,
                    "yes" if found.right else "no",
                    f"{found.calls:,}",
                    f"{found.prompt_tokens:,}",
                    f"{await milliseconds(form, name, folder):.0f}",
                )
            )
    return rows


async def by_turn(folder: Path, name: str, width: int = 1) -> list[tuple[str, ...]]:
    """Return a row for every few turns of a conversation, with calls and tokens of each form."""
    talks = [await talk(form, name, folder, *counted_model()) for form in BESIDE]
    said, rows = CONVERSATIONS[name], []
    for first in range(0, len(said), width):
        cells = []
        for one in talks:
            turns = one.turns[first : first + width]
            tokens = sum(turn.prompt_tokens for turn in turns)
            cells.append(f"{sum(turn.calls for turn in turns)}: {tokens:,}")
        title = said[first] if width == 1 else f"to {first + width}"
        rows.append((f"{first + 1} {title}", *cells))
    return rows


async def with_local_model(folder: Path) -> str:
    """Return the table of conversations with a small model on this machine."""
    from tests.benchmarks.local_model.chat_model import chat_model
    from tests.benchmarks.local_model.meter import metered
    from tests.benchmarks.local_model.server import running_server

    rows = []
    with running_server() as url, metered(url) as meter:
        made: list[Any] = []

        def spent() -> Spent:
            made.extend(meter.take())
            return Spent(len(made), sum(one.prompt_tokens for one in made), time.monotonic())

        for name in LOCAL:
            for form in BESIDE:
                found = await talk(form, name, folder, chat_model(meter.url), spent)
                right = len(found.results & RESULTS[name])
                rows.append(
                    (
                        name if form is BESIDE[0] else "",
                        form.name,
                        f"{right} of {len(RESULTS[name])}",
                        f"{len(found.results - RESULTS[name])}",
                        f"{found.calls:,}",
                        f"{found.prompt_tokens:,}",
                        f"{found.seconds:.0f}",
                    )
                )
                print(rows[-1], found.replies, sep="\n", file=sys.stderr)
    heading = ("conversation", "form", "right", "wrong", "calls", "prompt tokens", "s a turn")
    return markdown.table(heading, rows)


async def tables() -> str:
    """Return all tables."""
    with tempfile.TemporaryDirectory() as folder:
        turns = await by_turn(Path(folder), "five turns")
        many = await by_turn(Path(folder), "thirty turns", 5)
        talks = await by_conversation(Path(folder))
    names = [form.name for form in BESIDE]
    lines = [(form.name, f"{lines_of(form)}", ", ".join(form.files)) for form in (*FORMS, *DESKS)]
    return "\n\n".join(
        [
            "Model calls and prompt tokens of each turn of one thread:",
            markdown.table(("turn", *names), turns),
            "The same for a thread of thirty turns:",
            markdown.table(("turns", *names), many),
            "Whole conversations; the number in parentheses is that of their turns:",
            markdown.table(
                ("conversation", "form", "right", "calls", "prompt tokens", "ms a turn"), talks
            ),
            "Lines that are not blank, without the shared tools:",
            markdown.table(("form", "lines", "files"), lines),
        ]
    )


def main() -> int:
    """Count, print the tables, and put them into a page where one is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", type=Path, help="put the tables into this Markdown file")
    parser.add_argument(
        "--local", action="store_true", help="print a table with the local model instead"
    )
    options = parser.parse_args()
    logging.getLogger("capgraph").setLevel(logging.CRITICAL)
    if options.local:
        with tempfile.TemporaryDirectory() as folder:
            print(asyncio.run(with_local_model(Path(folder))))
        return 0
    text = asyncio.run(tables())
    print(text)
    if options.docs is not None:
        markdown.replace_results(options.docs, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
