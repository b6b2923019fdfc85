"""A scripted model for the support desk: rules decide from the prompt alone, in a loop and in a plan.

It stands for a chat model, so that every form of the application runs without a network and is asked the
same. A rule takes what the passenger wants and what the prompt shows (results, errors), and returns the next
calls, or the reply. It remembers nothing: what a prompt does not show is looked up again.
"""

import ast
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, HumanMessage

from capgraph.testing import ModelCall, ScriptedModel
from ferry_support.desk import DESKS


class Call(NamedTuple):
    """One call of a tool, or one step of a plan."""

    tool: str
    arguments: dict[str, Any]


class Shown(NamedTuple):
    """The results and errors that a prompt shows."""

    text: str
    facts: list[dict[str, Any]]

    def find(self, *fields: str, **values: Any) -> list[dict[str, Any]]:
        """Return the facts that have these fields and values."""
        facts = (fact for fact in self.facts if {*fields} <= fact.keys())
        return [fact for fact in facts if values.items() <= fact.items()]


Decision = list[Call] | str
Rule = Callable[[re.Match[str], Shown], Decision]
RULES: list[tuple[re.Pattern[str], Rule]] = []


def rule(pattern: str) -> Callable[[Rule], Rule]:
    """Add a rule for the wishes that match a pattern."""

    def add(function: Rule) -> Rule:
        RULES.append((re.compile(pattern, re.IGNORECASE), function))
        return function

    return add


# --- the rules ------------------------------------------------------------------------------------

SEARCHES = {"inn": "search_inns", "bicycle": "search_bicycles", "tour": "search_tours"}
ACTIONS = {
    "inn": ("book_inn", "inn", "nights"),
    "bicycle": ("rent_bicycle", "bicycle", "days"),
    "tour": ("book_tour", "tour", "persons"),
}


def sailings(shown: Shown, origin: str, destination: str, day: str) -> list[Any]:
    """Return the sailings that are shown, or the call that looks for them."""
    wanted: dict[str, Any] = {"origin": origin, "destination": destination, "day": day}
    found: list[Any] = shown.find("departs", **wanted)
    return found or [Call("search_sailings", wanted)]


def offers(shown: Shown, kind: str, place: str) -> list[Any]:
    """Return the offers that are shown, or the call that looks for them."""
    found: list[Any] = shown.find("offer", "available", kind=kind, place=place)
    return found or [Call(SEARCHES[kind], {"island": place})]


def book(shown: Shown, sailing: dict[str, Any], persons: int) -> Decision:
    """Book a sailing, unless a booking of it is shown."""
    if made := shown.find("booking", "persons", sailing=sailing["sailing"]):
        number, price = made[-1]["booking"], sailing["price"]
        return f"Booking {number}: {sailing['sailing']} at {sailing['departs']}, {price:.2f} each."
    return [Call("book_sailing", {"sailing": sailing["sailing"], "persons": persons})]


def order(shown: Shown, offer: dict[str, Any], amount: int) -> Decision:
    """Order an offer, unless an order of it is shown."""
    if made := shown.find("order", "amount", offer=offer["offer"]):
        return f"Order {made[-1]['order']}: {offer['name']}, {offer['price']:.2f}."
    tool, parameter, unit = ACTIONS[offer["kind"]]
    return [Call(tool, {parameter: offer["offer"], unit: amount})]


@rule(r"thank")
def thanks(wish: re.Match[str], shown: Shown) -> Decision:
    return "You are welcome."


@rule(r"which bookings")
def list_bookings(wish: re.Match[str], shown: Shown) -> Decision:
    own = {fact["booking"]: fact["sailing"] for fact in shown.find("booking", "persons")}
    told = ", ".join(f"{booking} on {sailing}" for booking, sailing in own.items())
    return f"You have {told}." if own else [Call("my_bookings", {})]


@rule(r"my (dog)|rules on (\w+)")
def rules_of_line(wish: re.Match[str], shown: Shown) -> Decision:
    topic = wish[2] or "pets"
    first = {"pets": "Dogs", "refunds": "Tickets", "bicycles": "A bicycle", "luggage": "Two"}
    read = re.search(rf'{first[topic]} [^."]*\.(\d\d[^."]*\.)?', shown.text)
    return read[0] if read else [Call("read_rules", {"topic": topic})]


@rule(r"is (S\d+) on time")
def on_time(wish: re.Match[str], shown: Shown) -> Decision:
    told = re.search(rf"{wish[1]} is (?:on time|\d+ minutes late)\.", shown.text)
    return told[0] if told else [Call("sailing_status", {"sailing": wish[1]})]


@rule(r"(cheapest|earliest|latest) sailing from (\w+) to (\w+) on (\S+) for (\d+)")
def book_best(wish: re.Match[str], shown: Shown) -> Decision:
    which, origin, destination, day, persons = wish.groups()
    found = sailings(shown, origin, destination, day)
    if isinstance(found[0], Call):
        return found
    free = [one for one in found if one["places"] >= int(persons)]
    ranked = sorted(free, key=lambda one: one["price" if which == "cheapest" else "departs"])
    return book(shown, ranked[-1 if which == "latest" else 0], int(persons))


@rule(r"compare the sailings from (\w+) to (\w+) on (\S+) and (\S+), .* for (\d+)")
def book_cheaper_day(wish: re.Match[str], shown: Shown) -> Decision:
    origin, destination, *days, persons = wish.groups()
    found = [one for day in days for one in sailings(shown, origin, destination, day)]
    if calls := [one for one in found if isinstance(one, Call)]:
        return calls
    return book(shown, min(found, key=lambda one: one["price"]), int(persons))


@rule(r"compare the (inn|bicycle)s on (\w+) and (\w+), .* for (\d+)")
def order_cheaper(wish: re.Match[str], shown: Shown) -> Decision:
    kind, *places, amount = wish.groups()
    found = [one for place in places for one in offers(shown, kind, place)]
    if calls := [one for one in found if isinstance(one, Call)]:
        return calls
    free = [one for one in found if one["available"] or shown.find("order", offer=one["offer"])]
    return order(shown, min(free, key=lambda one: one["price"]), int(amount))


@rule(r"book (S\d+) for (\d+) .*full.* from (\w+) to (\w+) on (\S+\d)")
def book_or_next(wish: re.Match[str], shown: Shown) -> Decision:
    sailing, persons, *route = wish.groups()
    known = shown.find("departs", **dict(zip(("origin", "destination", "day"), route, strict=True)))
    for one in known:
        if shown.find("booking", "persons", sailing=one["sailing"]):
            return book(shown, one, int(persons))
    if f"Sailing {sailing} has" not in shown.text:
        return [Call("book_sailing", {"sailing": sailing, "persons": int(persons)})]
    found = sailings(shown, *route)
    if isinstance(found[0], Call):
        return found
    return book(shown, next(one for one in found if one["places"]), int(persons))


@rule(r"reserve cabin (C\d+) for (K\d+), or another one of (S\d+)")
def reserve_or_other(wish: re.Match[str], shown: Shown) -> Decision:
    cabin, booking, sailing = wish.groups()
    if made := [one for one in shown.find("booking", "cabin", booking=booking) if one["cabin"]]:
        return f"Cabin {made[-1]['cabin']} belongs to {booking}."
    if f"cabin {cabin} is not available" in shown.text:
        found = shown.find("offer", "available", kind="cabin", place=sailing)
        if not found:
            return [Call("search_cabins", {"sailing": sailing})]
        cabin = next(one["offer"] for one in found if one["available"])
    return [Call("reserve_cabin", {"booking": booking, "cabin": cabin})]


@rule(r"sailings? from (\w+) to (\w+) on (\S+\d), or from (\w+)")
def find_or_elsewhere(wish: re.Match[str], shown: Shown) -> Decision:
    origin, destination, day, other = wish.groups()
    if f"No ferry sails from {origin}" in shown.text:
        origin = other
    found = sailings(shown, origin, destination, day)
    if isinstance(found[0], Call):
        return found
    return f"From {origin}: {', '.join(one['departs'] for one in found)}."


@rule(r"(?:book|rent) ([A-Za-z ]+?) on (Sund|Holm)(?:.*?for (\d+))?")
def order_by_name(wish: re.Match[str], shown: Shown) -> Decision:
    name, place, amount = wish.groups()
    name = name.removeprefix("the ")
    tours = r"walk|watching|workshop"
    kind = "bicycle" if "bicycle" in name else "tour" if re.search(tours, name) else "inn"
    if amount is None:
        return f"For how many {ACTIONS[kind][2]}?"
    known = shown.find("offer", "available", kind=kind, place=place)
    named = [one for one in known if one["name"].lower() == name.lower()]
    # A prompt may show a part of an earlier result.
    return (
        order(shown, named[0], int(amount)) if named else [Call(SEARCHES[kind], {"island": place})]
    )


# --- reading a prompt, and writing in the form that it asks for -----------------------------------


def decide(wish: str, shown: Shown) -> Decision:
    """Return the calls that the wish needs next, or the reply."""
    parts: list[Decision] = []
    for clause in re.split(r"(?<!,) and (?=rent|book)", wish):
        matches = ((pattern.search(clause), function) for pattern, function in RULES)
        found = next(((match, function) for match, function in matches if match), None)
        parts.append(found[1](found[0], shown) if found else "I cannot help with that.")
    calls = [call for part in parts if isinstance(part, list) for call in part]
    return calls or " ".join(part for part in parts if isinstance(part, str))


def facts_in(text: str) -> Iterator[dict[str, Any]]:
    """Yield the flat objects of a text, written as JSON or as Python writes them."""
    for found in re.findall(r"\{[^{}]*\}", text):
        for read in (json.loads, ast.literal_eval):
            try:
                value = read(found)
            except (ValueError, SyntaxError):
                continue
            if isinstance(value, dict):
                yield value
                break
    yield from rows_in(text)


def rows_in(text: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of the tables of a text."""
    columns: list[str] = []
    shared: dict[str, Any] = {}
    for line in text.splitlines():
        cells = line.removeprefix("all rows: ").split(" | ")
        if line.startswith("all rows: "):
            pairs = (cell.split(" = ", 1) for cell in cells)
            columns, shared = [], {column: value_of(cell) for column, cell in pairs}
        elif len(cells) < 2:
            columns, shared = [], {}
        elif len(cells) == len(columns):
            yield shared | dict(zip(columns, map(value_of, cells), strict=True))
        else:
            columns = cells


def value_of(cell: str) -> Any:
    """Return the value of a cell: JSON, or else text."""
    try:
        return json.loads(cell)
    except ValueError:
        return cell


def wishes_in(call: ModelCall) -> list[str]:
    """Return what the passenger said, oldest first, as far as the prompt shows it."""
    said: list[str] = []
    for message in call.messages:
        text = str(message.text)
        if request := re.search(r"<request>\s*(.*?)\s*</request>", text, re.DOTALL):
            said.append(request[1])
        elif "last message" in text:
            said += re.findall(r"^person: (.*)$", text, re.MULTILINE)
            said += re.findall(r'<data name="last message">\s*(.*?)\s*</data>', text, re.DOTALL)
        elif isinstance(message, HumanMessage):
            said.append(text)
    return said


def wish_of(call: ModelCall) -> str:
    """Return what the passenger wants now; a bare reply completes the wish before it."""
    *earlier, last = wishes_in(call)
    return f"{earlier[-1].rstrip('.')} {last}" if earlier and last.startswith("For ") else last


def reply(call: ModelCall) -> Any:
    """Answer one call of the model in the form that it asks for."""
    text = call.prompt
    wish = wish_of(call)
    if call.schema == "Task":
        return {"task": wish, "depends_on_chat_history": wish != wishes_in(call)[-1]}
    decision = decide(wish, Shown(text, list(facts_in(text))))
    if call.schema is not None:
        return as_plan(wish, decision, text)
    if isinstance(decision, str):
        return decision
    if not call.tools:
        return "That is not done."
    if not {one.tool for one in decision} <= {*call.tools}:
        transfer = f"transfer_to_{desk_of(decision[0].tool)}"
        decision = [Call(transfer if transfer in call.tools else "hand_back", {})]
    calls = [
        {"name": one.tool, "args": one.arguments, "id": f"{len(call.messages)}.{place}"}
        for place, one in enumerate(decision)
    ]
    return AIMessage("", tool_calls=calls)


def desk_of(tool: str) -> str:
    """Return the desk that has a tool."""
    desks = (desk for desk, bodies in DESKS.items() if tool in {b.__name__ for b in bodies})
    return next(desks, "front")


def as_plan(wish: str, decision: Decision, text: str) -> dict[str, Any]:
    """Write a decision as a plan; a step that only a specialist can do is a task for that one."""
    if isinstance(decision, str):
        return {"steps": [], "answer": decision}
    # A plan as a whole marks the steps whose results decide what comes next.
    looks = "look_again" in text and bool(re.search("book |rent|reserve|or from", wish, re.I))
    marks = {"look_again": True} if looks else {}
    steps: list[dict[str, Any]] = []
    for one in decision:
        if f"- {one.tool}(" in text:
            steps.append({"capability": one.tool, "parameters": one.arguments, **marks})
        elif done := re.search(r'"output": ?"([^"]*)"', text.partition("finished steps")[2]):
            return {"steps": [], "answer": done[1]}
        else:
            steps.append({"capability": desk_of(one.tool), "task_objective": wish})
    return {"steps": steps}


def scripted_model() -> ScriptedModel:
    """Return the scripted model."""
    return ScriptedModel(responses=reply)
