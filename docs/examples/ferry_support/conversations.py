"""Conversations with the support desk, and what the database must hold after each."""

from ferry_support.database import connect

CONVERSATIONS: dict[str, list[str]] = {
    "five turns": [
        "Which bookings do I have?",
        "Book the cheapest sailing from Haven to Sund on 2026-06-12 for 2 persons.",
        "May my dog come along?",
        "Book the lighthouse walk on Sund for 2 persons and rent the city bicycle on Sund for 1 day.",
        "Thank you!",
    ],
    "search, then book": [
        "Book the cheapest sailing from Haven to Sund on 2026-06-12 for 2 persons.",
        "Book the earliest sailing from Holm to Haven on 2026-06-16 for 1 person.",
        "Book the latest sailing from Sund to Holm on 2026-06-14 for 2 persons.",
    ],
    "compare, then choose": [
        "Compare the inns on Sund and Holm, and book the cheapest free room for 2 nights.",
        "Compare the sailings from Haven to Vik on 2026-06-20 and 2026-06-21, and book the"
        " cheaper one for 1 person.",
        "Compare the bicycles on Sund and Holm, and rent the cheapest for 1 day.",
    ],
    "fix after an error": [
        "Book S4 for 2 persons; if it is full, the next one from Sund to Holm on 2026-06-14.",
        "Reserve cabin C1 for K2, or another one of S9 if it is taken.",
        "Find the sailings from Haven to Holm on 2026-06-14, or from Sund if there are none.",
    ],
    "ask, then go on": [
        "Rent the electric bicycle on Sund.",
        "For 2 days.",
        "Book the seal watching on Sund.",
        "For 3 persons.",
        "Book the Old Customs House on Holm.",
        "For 1 night.",
    ],
    "three hand-overs": [
        "Book the cheapest sailing from Haven to Sund on 2026-06-12 for 2 persons.",
        "Book The Lantern on Sund for 2 nights.",
        "Book the seal watching on Sund for 2 persons.",
    ],
}
"""Names of conversations to what the passenger says, turn by turn."""

RESULTS: dict[str, set[tuple[str, int]]] = {
    "five turns": {("S2", 2), ("T2", 2), ("B1", 1)},
    "search, then book": {("S2", 2), ("S7", 1), ("S6", 2)},
    "compare, then choose": {("I2", 2), ("S10", 1), ("B4", 1)},
    "fix after an error": {("S5", 2), ("C2", 1)},
    "ask, then go on": {("B2", 2), ("T1", 3), ("I6", 1)},
    "three hand-overs": {("S2", 2), ("I2", 2), ("T1", 2)},
}
"""Names of conversations to what is booked and ordered in the end, with the amounts."""

_PARTS = ("five turns", "compare, then choose", "fix after an error", "ask, then go on")
CONVERSATIONS["thirty turns"] = [
    *(said for name in _PARTS for said in CONVERSATIONS[name]),
    *(f"Is S{number} on time?" for number in range(1, 11)),
    *(f"What are the rules on {topic}?" for topic in ("refunds", "bicycles", "luggage")),
]
RESULTS["thirty turns"] = {result for name in _PARTS for result in RESULTS[name]}


def results() -> set[tuple[str, int]]:
    """Return what the database holds beside the two bookings that it began with."""
    with connect() as db:
        booked = db.execute("SELECT sailing, persons FROM bookings WHERE booking > 'K2'")
        cabins = db.execute("SELECT cabin, 1 FROM bookings WHERE cabin IS NOT NULL")
        ordered = db.execute("SELECT offer, amount FROM orders WHERE status = 'ordered'")
        return {tuple(row) for found in (booked, cabins, ordered) for row in found}
