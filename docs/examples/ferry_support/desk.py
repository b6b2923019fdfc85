"""The 18 tools of the ferry line's support desk.

The bodies know nothing of capgraph, and every form of the application imports them as they are: `SAFE`
tools read, `SENSITIVE` tools act and need a person's approval. The run's configuration says who the
passenger is, so no model can book for somebody else.
"""

from sqlite3 import Connection
from typing import Any, Literal, TypeVar

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import ToolException
from typing_extensions import TypedDict

from ferry_support.database import connect

Port = Literal["Haven", "Sund", "Holm", "Vik"]
Topic = Literal["refunds", "pets", "bicycles", "luggage"]
Row = TypeVar("Row")
RULES: dict[str, str] = {
    "refunds": "Tickets are refunded in full up to 48 hours before departure, later by half.",
    "pets": "Dogs travel free of charge on deck; cats need a carrier.",
    "bicycles": "A bicycle of your own costs 5.00 for each crossing.",
    "luggage": "Two pieces of luggage are free for each person.",
}
SYSTEM_PROMPT = (
    "You are the support desk of the Skerry Line, a ferry line between Haven, Sund, Holm, and Vik."
    " Never invent numbers of sailings, bookings, or offers. Ask the passenger for what you cannot"
    " look up."
)


class Sailing(TypedDict):
    sailing: str
    origin: str
    destination: str
    day: str
    departs: str
    arrives: str
    price: float
    places: int


class Booking(TypedDict):
    booking: str
    sailing: str
    persons: int
    cabin: str | None
    status: str


class Offer(TypedDict):
    offer: str
    kind: str
    place: str
    name: str
    price: float
    available: int


class Order(TypedDict):
    order: str
    offer: str
    amount: int
    status: str


# --- tools that read ------------------------------------------------------------------------------


def my_bookings(config: RunnableConfig) -> list[Booking]:
    """List the passenger's own bookings of sailings."""
    with connect() as db:
        return _bookings(db, config)


def my_orders(config: RunnableConfig) -> list[Order]:
    """List what the passenger ordered besides: inns, bicycles, tours."""
    with connect() as db:
        return _orders(db, config)


def search_sailings(origin: Port, destination: Port, day: str) -> list[Sailing]:
    """Find the sailings between two ports on a day (YYYY-MM-DD), in the order of departure."""
    sql = "SELECT * FROM sailings WHERE origin = ? AND destination = ? AND day = ? ORDER BY departs"
    with connect() as db:
        found = [_fields(Sailing, row) for row in db.execute(sql, (origin, destination, day))]
    if not found:
        raise ToolException(f"No ferry sails from {origin} to {destination} on {day}.")
    return found


def sailing_status(sailing: str) -> str:
    """Tell whether a sailing is on time, by its number."""
    with connect() as db:
        delay = _sailing(db, sailing)["delay"]
    return f"{sailing} is {delay} minutes late." if delay else f"{sailing} is on time."


def read_rules(topic: Topic) -> str:
    """Read the line's rules on a topic."""
    return RULES[topic]


def search_cabins(sailing: str) -> list[Offer]:
    """Find the cabins of a sailing, by its number."""
    return _offers("cabin", sailing)


def search_inns(island: Port) -> list[Offer]:
    """Find the inns of an island, with the price of a night."""
    return _offers("inn", island)


def search_bicycles(island: Port) -> list[Offer]:
    """Find the bicycles for rent on an island, with the price of a day."""
    return _offers("bicycle", island)


def search_tours(island: Port) -> list[Offer]:
    """Find the guided tours on an island, with the price for a person."""
    return _offers("tour", island)


# --- tools that act -------------------------------------------------------------------------------


def book_sailing(sailing: str, config: RunnableConfig, persons: int = 1) -> Booking:
    """Book places on a sailing, by its number."""
    with connect() as db:
        _take_places(db, sailing, persons)
        [made] = db.execute(
            "INSERT INTO bookings SELECT 'K' || (count(*) + 1), ?, ?, ?, NULL, 'booked'"
            " FROM bookings RETURNING *",
            (_passenger(config), sailing, persons),
        ).fetchall()
    return _fields(Booking, made)


def change_booking(booking: str, sailing: str, config: RunnableConfig) -> Booking:
    """Move a booking to another sailing, by their numbers."""
    with connect() as db:
        old = _booking(db, booking, config)
        _take_places(db, sailing, old["persons"])
        _take_places(db, old["sailing"], -old["persons"])
        db.execute("UPDATE bookings SET sailing = ? WHERE booking = ?", (sailing, booking))
        return _booking(db, booking, config)


def cancel_booking(booking: str, config: RunnableConfig) -> Booking:
    """Cancel a booking, by its number."""
    with connect() as db:
        old = _booking(db, booking, config)
        _take_places(db, old["sailing"], -old["persons"])
        db.execute("UPDATE bookings SET status = 'canceled' WHERE booking = ?", (booking,))
        return _booking(db, booking, config)


def reserve_cabin(booking: str, cabin: str, config: RunnableConfig) -> Booking:
    """Add a cabin to a booking, by the numbers of both."""
    with connect() as db:
        _booking(db, booking, config)
        _take_offer(db, "cabin", cabin, 1)
        db.execute("UPDATE bookings SET cabin = ? WHERE booking = ?", (cabin, booking))
        return _booking(db, booking, config)


def book_inn(inn: str, config: RunnableConfig, nights: int = 1) -> Order:
    """Book a room at an inn for some nights, by the inn's number."""
    return _order("inn", inn, nights, 1, config)


def rent_bicycle(bicycle: str, days: int, config: RunnableConfig) -> Order:
    """Rent a bicycle for some days, by its number."""
    return _order("bicycle", bicycle, days, 1, config)


def book_tour(tour: str, config: RunnableConfig, persons: int = 1) -> Order:
    """Book places on a guided tour, by its number."""
    return _order("tour", tour, persons, persons, config)


def cancel_order(order: str, config: RunnableConfig) -> Order:
    """Cancel what was ordered besides (inn, bicycle, tour), by the number of the order."""
    with connect() as db:
        if not any(own["order"] == order for own in _orders(db, config)):
            raise ToolException(f"You have no order {order}.")
        [changed] = db.execute(
            """UPDATE orders SET status = 'canceled' WHERE "order" = ? RETURNING *""", (order,)
        ).fetchall()
    return _fields(Order, changed)


def file_complaint(text: str, config: RunnableConfig) -> str:
    """File a complaint of the passenger with the line."""
    with connect() as db:
        db.execute("INSERT INTO complaints VALUES (?, ?)", (_passenger(config), text))
    return "Your complaint is filed; the line answers within five days."


SAFE = [
    *(my_bookings, my_orders, search_sailings, sailing_status, read_rules),
    *(search_cabins, search_inns, search_bicycles, search_tours),
]
SENSITIVE = [
    *(book_sailing, change_booking, cancel_booking, reserve_cabin),
    *(book_inn, rent_bicycle, book_tour, cancel_order, file_complaint),
]
DESKS = {
    "tickets": [
        *(search_sailings, sailing_status, search_cabins),
        *(book_sailing, change_booking, cancel_booking, reserve_cabin),
    ],
    "lodging": [search_inns, book_inn, my_orders, cancel_order],
    "outings": [search_bicycles, search_tours, rent_bicycle, book_tour],
}
"""The tools of each specialist; the front desk keeps the others."""


# --- what the tools share -------------------------------------------------------------------------


def _passenger(config: RunnableConfig) -> str:
    return str(config["configurable"]["passenger_id"])


def _fields(kind: type[Row], row: Any) -> Row:
    return kind(**{name: row[name] for name in kind.__annotations__})


def _bookings(db: Connection, config: RunnableConfig) -> list[Booking]:
    found = db.execute("SELECT * FROM bookings WHERE passenger = ?", (_passenger(config),))
    return [_fields(Booking, row) for row in found]


def _booking(db: Connection, booking: str, config: RunnableConfig) -> Booking:
    own = [one for one in _bookings(db, config) if one["booking"] == booking]
    if not own:
        raise ToolException(f"You have no booking {booking}.")
    return own[0]


def _orders(db: Connection, config: RunnableConfig) -> list[Order]:
    found = db.execute("SELECT * FROM orders WHERE passenger = ?", (_passenger(config),))
    return [_fields(Order, row) for row in found]


def _sailing(db: Connection, sailing: str) -> Any:
    found = db.execute("SELECT * FROM sailings WHERE sailing = ?", (sailing,)).fetchone()
    if found is None:
        raise ToolException(f"There is no sailing {sailing}. Search for sailings first.")
    return found


def _take_places(db: Connection, sailing: str, persons: int) -> None:
    places = _sailing(db, sailing)["places"]
    if places < persons:
        raise ToolException(f"Sailing {sailing} has {places} places left. Choose another one.")
    db.execute("UPDATE sailings SET places = places - ? WHERE sailing = ?", (persons, sailing))


def _offers(kind: str, place: str) -> list[Offer]:
    sql = "SELECT * FROM offers WHERE kind = ? AND place = ? ORDER BY offer"
    with connect() as db:
        found = [_fields(Offer, row) for row in db.execute(sql, (kind, place))]
    if not found:
        raise ToolException(f"No {kind} is offered at {place}.")
    return found


def _take_offer(db: Connection, kind: str, offer: str, taken: int) -> None:
    changed = db.execute(
        "UPDATE offers SET available = available - ? WHERE offer = ? AND kind = ? AND available >= ?",
        (taken, offer, kind, taken),
    )
    if not changed.rowcount:
        raise ToolException(f"The {kind} {offer} is not available. Choose another one.")


def _order(kind: str, offer: str, amount: int, taken: int, config: RunnableConfig) -> Order:
    with connect() as db:
        _take_offer(db, kind, offer, taken)
        [made] = db.execute(
            "INSERT INTO orders SELECT 'O' || (count(*) + 1), ?, ?, ?, 'ordered' FROM orders"
            " RETURNING *",
            (_passenger(config), offer, amount),
        ).fetchall()
    return _fields(Order, made)
