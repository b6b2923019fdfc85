"""The ferry line's database: SQLite, one file, one transaction for each tool call."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

SCHEMA = """
CREATE TABLE sailings (sailing TEXT PRIMARY KEY, origin TEXT, destination TEXT, day TEXT, departs TEXT,
    arrives TEXT, price REAL, places INTEGER, delay INTEGER DEFAULT 0);
CREATE TABLE bookings (booking TEXT PRIMARY KEY, passenger TEXT, sailing TEXT, persons INTEGER,
    cabin TEXT, status TEXT);
CREATE TABLE offers (offer TEXT PRIMARY KEY, kind TEXT, place TEXT, name TEXT, price REAL, available INTEGER);
CREATE TABLE complaints (passenger TEXT, text TEXT);
CREATE TABLE orders ("order" TEXT PRIMARY KEY, passenger TEXT, offer TEXT, amount INTEGER, status TEXT);
"""
SAILINGS = [  # number, from, to, day, departs, arrives, price, places, minutes late
    ("S1", "Haven", "Sund", "2026-06-12", "08:00", "09:40", 41.0, 20, 0),
    ("S2", "Haven", "Sund", "2026-06-12", "12:30", "14:10", 29.0, 12, 0),
    ("S3", "Haven", "Sund", "2026-06-12", "17:45", "19:25", 36.0, 30, 25),
    ("S4", "Sund", "Holm", "2026-06-14", "09:00", "09:50", 22.0, 0, 0),
    ("S5", "Sund", "Holm", "2026-06-14", "13:15", "14:05", 18.0, 8, 0),
    ("S6", "Sund", "Holm", "2026-06-14", "19:00", "19:50", 25.0, 40, 0),
    ("S7", "Holm", "Haven", "2026-06-16", "07:30", "09:55", 33.0, 15, 0),
    ("S8", "Holm", "Haven", "2026-06-16", "16:00", "18:25", 27.0, 6, 0),
    ("S9", "Haven", "Vik", "2026-06-20", "10:00", "18:30", 55.0, 9, 0),
    ("S10", "Haven", "Vik", "2026-06-21", "10:00", "18:30", 45.0, 9, 0),
]
EXTRA = [("14:00", "15:20"), ("14:40", "16:00"), ("15:20", "16:40"), ("16:30", "17:50")]
"""Departures and arrivals of the fast boats of each day, which are dearer."""
OFFERS = [  # number, kind, place, name, price, how many are available
    ("C1", "cabin", "S9", "inside cabin", 40.0, 0),
    ("C2", "cabin", "S9", "sea view cabin", 75.0, 1),
    ("C3", "cabin", "S10", "inside cabin", 40.0, 5),
    ("I1", "inn", "Sund", "Harbor Inn", 95.0, 4),
    ("I2", "inn", "Sund", "The Lantern", 80.0, 2),
    ("I3", "inn", "Sund", "Pilot House", 120.0, 3),
    ("I4", "inn", "Sund", "Seaview Rooms", 105.0, 1),
    ("I5", "inn", "Holm", "Mill House", 70.0, 0),
    ("I6", "inn", "Holm", "Old Customs House", 110.0, 5),
    ("I7", "inn", "Holm", "The Net Loft", 90.0, 2),
    ("I8", "inn", "Holm", "Orchard Farm", 100.0, 6),
    ("B1", "bicycle", "Sund", "city bicycle", 12.0, 6),
    ("B2", "bicycle", "Sund", "electric bicycle", 28.0, 2),
    ("B3", "bicycle", "Sund", "cargo bicycle", 34.0, 2),
    ("B4", "bicycle", "Holm", "city bicycle", 10.0, 1),
    ("B5", "bicycle", "Holm", "tandem", 26.0, 2),
    ("T1", "tour", "Sund", "seal watching", 35.0, 10),
    ("T2", "tour", "Sund", "lighthouse walk", 15.0, 10),
    ("T3", "tour", "Sund", "bird cliffs", 25.0, 12),
    ("T4", "tour", "Sund", "night fishing", 60.0, 3),
    ("T5", "tour", "Holm", "amber workshop", 20.0, 4),
]


def all_sailings() -> list[tuple[Any, ...]]:
    """Return the sailings, with four fast boats on each route and day."""
    routes = dict.fromkeys(one[1:4] for one in SAILINGS)
    boats = [
        (*route, departs, arrives, 70.0, 60, 0) for route in routes for departs, arrives in EXTRA
    ]
    return [*SAILINGS, *((f"S{number}", *boat) for number, boat in enumerate(boats, 11))]


def make_database(path: str) -> None:
    """Write a fresh database: the sailings, the offers on the islands, and Ada's two bookings."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(SCHEMA)
        connection.executemany(
            f"INSERT INTO sailings VALUES ({', '.join('?' * 9)})", all_sailings()
        )
        connection.executemany("INSERT INTO offers VALUES (?, ?, ?, ?, ?, ?)", OFFERS)
        connection.executemany(
            "INSERT INTO bookings VALUES (?, 'ada', ?, ?, NULL, 'booked')",
            [("K1", "S7", 2), ("K2", "S9", 1)],
        )


@contextmanager
def connect() -> Iterator[sqlite3.Connection]:
    """Open the database that ``FERRY_DATABASE`` names; commit at the end, roll back on an error."""
    path = os.environ.get("FERRY_DATABASE", "ferry.sqlite")
    with closing(sqlite3.connect(path, timeout=30)) as connection, connection:
        connection.row_factory = sqlite3.Row
        yield connection
