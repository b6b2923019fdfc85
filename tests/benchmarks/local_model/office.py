"""An office: units, weather, customers and their orders, e-mail, and reminders."""

from __future__ import annotations

from typing import Literal

from capgraph import AskAgain, CapabilityContext, capability_node
from tests.benchmarks.local_model.cases import Case, Domain, OneOf, call, record_call

Unit = Literal["kilometers", "miles", "kg", "pounds"]
Day = Literal["today", "tomorrow"]
Status = Literal["open", "shipped", "all"]

_FACTORS = {
    ("kilometers", "miles"): 0.621371,
    ("miles", "kilometers"): 1.609344,
    ("kg", "pounds"): 2.20462,
    ("pounds", "kg"): 0.453592,
}
_CUSTOMERS = {
    "C1": ("Ada Lovelace", "London"),
    "C2": ("Grace Hopper", "New York"),
    "C3": ("Alan Turing", "Manchester"),
}
_ORDERS: dict[str, dict[str, str]] = {
    "C1": {"O-11": "open", "O-12": "shipped"},
    "C2": {"O-21": "shipped"},
    "C3": {},
}


def convert_units(value: float, from_unit: Unit, to_unit: Unit) -> str:
    """Convert a length or a weight from one unit to another."""
    record_call("convert_units", value=value, from_unit=from_unit, to_unit=to_unit)
    if from_unit == to_unit:
        return f"{value:g} {to_unit}"
    factor = _FACTORS.get((from_unit, to_unit))
    if factor is None:
        return f"{from_unit} cannot be converted to {to_unit}."
    return f"{value:g} {from_unit} are {round(value * factor, 2)} {to_unit}."


def weather(city: str, day: Day = "today") -> str:
    """Forecast the weather of a city for today or tomorrow."""
    record_call("weather", city=city, day=day)
    return f"{city} {day}: light rain, 14 °C."


def find_customer(name: str) -> str:
    """Find a customer by name and return the customer number and the city."""
    found = _find(name)
    if found is None:
        return f"No customer is called {name!r}."
    return f"{found.name} is customer {found.customer_id} and lives in {found.city}."


def list_orders(customer_id: str, status: Status = "all") -> str:
    """List the orders of a customer, given the customer number that find_customer returns."""
    return _orders(customer_id, status)


def send_email(to: str, subject: str, body: str) -> str:
    """Send an e-mail to an address."""
    record_call("send_email", to=to, subject=subject, body=body)
    return f"The e-mail to {to} was sent."


def set_reminder(text: str, when: str) -> str:
    """Set a reminder for a time."""
    record_call("set_reminder", text=text, when=when)
    return f"Reminder for {when}: {text}"


class Customer(CapabilityContext):
    customer_id: str
    name: str
    city: str

    def get_summary(self) -> str:
        return f"{self.name} is customer {self.customer_id} and lives in {self.city}."


class Orders(CapabilityContext):
    text: str

    def get_summary(self) -> str:
        return self.text


def _find(name: str) -> Customer | None:
    record_call("find_customer", name=name)
    for number, (full_name, city) in _CUSTOMERS.items():
        if set(name.casefold().split()) & set(full_name.casefold().split()):
            return Customer(customer_id=number, name=full_name, city=city)
    return None


def _orders(customer_id: str, status: Status) -> str:
    record_call("list_orders", customer_id=customer_id, status=status)
    if customer_id not in _ORDERS:
        return f"No customer has the number {customer_id!r}."
    found = [
        f"{number} ({state})"
        for number, state in _ORDERS[customer_id].items()
        if status in ("all", state)
    ]
    return f"Orders: {', '.join(found) or 'none'}."


@capability_node(name="find_customer", examples=["which number has the customer Ada?"])
def _find_customer(name: str) -> Customer:
    """Find a customer by name and return the customer number and the city."""
    found = _find(name)
    if found is None:
        raise AskAgain(f"No customer is called {name!r}.")
    return found


@capability_node(name="list_orders", examples=["which orders of Ada are open?"])
def _list_orders(customer: Customer, status: Status = "all") -> Orders:
    """List the orders of a customer."""
    return Orders(text=_orders(customer.customer_id, status))


CASES = [
    Case(
        "kilometers",
        "How many miles are 42 kilometers?",
        (call("convert_units", value=42, from_unit="kilometers", to_unit="miles"),),
        "26.1",
    ),
    Case(
        "pounds",
        "Convert 150 pounds to kg.",
        (call("convert_units", value=150, from_unit="pounds", to_unit="kg"),),
        "68.04",
    ),
    Case(
        "marathon",
        "A marathon is 26.2 miles. What is that in kilometers?",
        (call("convert_units", value=26.2, from_unit="miles", to_unit="kilometers"),),
        "42.16",
    ),
    Case(
        "oslo",
        "What is the weather in Oslo?",
        (call("weather", city=OneOf("Oslo"), day="today"),),
        "14",
    ),
    Case(
        "lisbon",
        "Will it rain in Lisbon tomorrow?",
        (call("weather", city=OneOf("Lisbon"), day="tomorrow"),),
        "rain",
    ),
    Case(
        "umbrella",
        "Do I need an umbrella in Berlin today?",
        (call("weather", city=OneOf("Berlin"), day="today"),),
        "rain",
    ),
    Case(
        "number",
        "What is the customer number of Grace Hopper?",
        (call("find_customer", name=OneOf("Grace", "Hopper")),),
        "C2",
    ),
    Case(
        "city",
        "Which city does the customer Alan Turing live in?",
        (call("find_customer", name=OneOf("Alan", "Turing")),),
        "Manchester",
    ),
    Case(
        "lunch",
        "Send an e-mail to bob@example.org with the subject 'Lunch' and the text 'See you at noon.'",
        (call("send_email", to="bob@example.org", subject="Lunch", body=OneOf("noon")),),
        "bob@example.org",
    ),
    Case(
        "meeting",
        "Mail eve@example.org that the meeting is moved to Friday.",
        (call("send_email", to="eve@example.org", anywhere="Friday"),),
        "eve@example.org",
    ),
    Case(
        "milk",
        "Remind me to buy milk at 6 pm.",
        (call("set_reminder", text=OneOf("milk"), when=OneOf("6 pm", "6pm", "18:00")),),
        "milk",
    ),
    Case(
        "dentist",
        "Set a reminder for Monday at 9: call the dentist.",
        (call("set_reminder", text=OneOf("dentist"), when=OneOf("Monday")),),
        "dentist",
    ),
    Case(
        "all_orders",
        "List all orders of Ada Lovelace.",
        (
            call("find_customer", name=OneOf("Ada", "Lovelace")),
            call("list_orders", customer_id="C1", status="all"),
        ),
        "O-12",
    ),
    Case(
        "open_orders",
        "Show me the open orders of Ada.",
        (
            call("find_customer", name=OneOf("Ada", "Lovelace")),
            call("list_orders", customer_id="C1", status="open"),
        ),
        "O-11",
    ),
    Case(
        "shipped_orders",
        "Has Grace Hopper any shipped orders?",
        (
            call("find_customer", name=OneOf("Grace", "Hopper")),
            call("list_orders", customer_id="C2", status="shipped"),
        ),
        "O-21",
    ),
    Case(
        "two_cities",
        "What is the weather today in Rome and in Madrid?",
        (
            call("weather", city=OneOf("Rome"), day="today"),
            call("weather", city=OneOf("Madrid"), day="today"),
        ),
        "14",
    ),
    Case(
        "miles_and_run",
        "How many miles are 10 kilometers, and remind me at 7 am to go for a run.",
        (
            call("convert_units", value=10, from_unit="kilometers", to_unit="miles"),
            call("set_reminder", text=OneOf("run"), when=OneOf("7 am", "7am", "7:00")),
        ),
        "6.21",
    ),
    Case("hello", "Hello! How are you?"),
    Case("thanks", "Thank you, that was helpful."),
    Case("flight", "Book me a flight to Tokyo."),
]

OFFICE = Domain(
    name="office",
    capabilities=[
        capability_node(examples=["how many miles are 5 kilometers?"])(convert_units),
        capability_node(examples=["will it rain in Paris tomorrow?"])(weather),
        _find_customer,
        _list_orders,
        capability_node(effect="once", examples=["mail bob@x.org that I am late"])(send_email),
        capability_node(effect="idempotent", examples=["remind me to call mum at 5 pm"])(
            set_reminder
        ),
    ],
    tools=[convert_units, weather, find_customer, list_orders, send_email, set_reminder],
    effects=frozenset({"send_email", "set_reminder"}),
    approvals=frozenset(),
    cases=CASES,
)
