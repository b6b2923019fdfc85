"""A greenhouse: sensors, beds, plants and their care, fertilizer, and orders of seeds."""

from __future__ import annotations

from typing import Literal

from capgraph import AskAgain, CapabilityContext, capability_node
from tests.benchmarks.local_model.cases import Case, Domain, OneOf, call, record_call

House = Literal["north", "south", "palm"]
Quantity = Literal["temperature", "humidity", "light"]
Season = Literal["spring", "summer", "autumn", "winter"]
Strength = Literal["weak", "normal", "strong"]

_READINGS = {
    ("north", "temperature"): "18.5 °C",
    ("north", "humidity"): "61 %",
    ("north", "light"): "9,200 lux",
    ("south", "temperature"): "23.4 °C",
    ("south", "humidity"): "55 %",
    ("south", "light"): "14,800 lux",
    ("palm", "temperature"): "27.0 °C",
    ("palm", "humidity"): "83 %",
    ("palm", "light"): "11,300 lux",
}
_MILLILITERS = {"weak": 2.0, "normal": 4.0, "strong": 7.0}
_PLANTS = {
    "P7": ("Boston fern", "palm"),
    "P12": ("Meyer lemon", "south"),
    "P31": ("Alpine sedge", "north"),
}
_CARE = {
    "P7": {"summer": "water daily", "winter": "water twice a week", "spring": "repot"},
    "P12": {"summer": "water every other day", "winter": "keep at 8 °C", "autumn": "harvest"},
    "P31": {"summer": "shade at noon", "winter": "keep dry"},
}


def read_sensor(house: House, quantity: Quantity = "temperature") -> str:
    """Read the temperature, the humidity or the light of a house."""
    record_call("read_sensor", house=house, quantity=quantity)
    return f"{quantity} of the {house} house: {_READINGS[house, quantity]}"


def water_bed(bed: int, liters: float = 10.0) -> str:
    """Open the valve of a bed and water it."""
    record_call("water_bed", bed=bed, liters=liters)
    return f"Bed {bed} got {liters:g} liters."


def mix_fertilizer(liters: float, strength: Strength = "normal") -> str:
    """Compute how much concentrate an amount of water needs."""
    record_call("mix_fertilizer", liters=liters, strength=strength)
    return f"{_MILLILITERS[strength] * liters:g} ml of concentrate for {liters:g} liters."


def order_seeds(plant: str, packets: int, note: str = "") -> str:
    """Order packets of seeds from the supplier."""
    record_call("order_seeds", plant=plant, packets=packets, note=note)
    return f"Ordered: {packets} x {plant}."


def find_plant(name: str) -> str:
    """Find a plant of the collection by name: its number and the house that it is in."""
    found = _find(name)
    return f"No plant is called {name!r}." if found is None else found.get_summary()


def care_plan(plant_id: str, season: Season = "summer") -> str:
    """Tell how to care for a plant in a season, given the number that find_plant returns."""
    return _care(plant_id, season)


class Plant(CapabilityContext):
    plant_id: str
    name: str
    house: str

    def get_summary(self) -> str:
        return f"{self.name} has the number {self.plant_id} and is in the {self.house} house."


class Care(CapabilityContext):
    text: str

    def get_summary(self) -> str:
        return self.text


def _find(name: str) -> Plant | None:
    record_call("find_plant", name=name)
    for number, (full_name, house) in _PLANTS.items():
        if set(name.casefold().split()) & set(full_name.casefold().split()):
            return Plant(plant_id=number, name=full_name, house=house)
    return None


def _care(plant_id: str, season: Season) -> str:
    record_call("care_plan", plant_id=plant_id, season=season)
    if plant_id not in _PLANTS:
        return f"No plant has the number {plant_id!r}."
    return f"{_PLANTS[plant_id][0]} in {season}: {_CARE[plant_id].get(season, 'nothing special')}."


@capability_node(name="find_plant", examples=["where is the lemon tree?"])
def _find_plant(name: str) -> Plant:
    """Find a plant of the collection by name: its number and the house that it is in."""
    found = _find(name)
    if found is None:
        raise AskAgain(f"No plant is called {name!r}.")
    return found


@capability_node(name="care_plan", examples=["how do I care for the fern in winter?"])
def _care_plan(plant: Plant, season: Season = "summer") -> Care:
    """Tell how to care for a plant in a season."""
    return Care(text=_care(plant.plant_id, season))


_PALM = (
    ("user", "How humid is it in the palm house?"),
    ("assistant", "The humidity of the palm house is 83 %."),
)
_CONCENTRATE = (
    ("user", "How much concentrate do I need for 5 liters?"),
    ("assistant", "You need 20 ml of concentrate for 5 liters."),
)

CASES = [
    Case(
        "north",
        "How warm is it in the north house?",
        (call("read_sensor", house="north", quantity="temperature"),),
        "18.5",
    ),
    Case(
        "palm_humidity",
        "Check the humidity of the palm house.",
        (call("read_sensor", house="palm", quantity="humidity"),),
        "83",
    ),
    Case(
        "light",
        "Do the plants in the south house get enough light? Give me the reading.",
        (call("read_sensor", house="south", quantity="light"),),
        "14,800",
    ),
    Case("bed_4", "Water bed 4.", (call("water_bed", bed=4, liters=10),), "4"),
    Case(
        "bed_9",
        "Please give bed 9 25 liters of water.",
        (call("water_bed", bed=9, liters=25),),
        "25",
    ),
    Case(
        "concentrate",
        "How much concentrate do I need for 12 liters?",
        (call("mix_fertilizer", liters=12, strength="normal"),),
        "48",
    ),
    Case(
        "weak",
        "I want a weak fertilizer for 20 liters of water. How many ml?",
        (call("mix_fertilizer", liters=20, strength="weak"),),
        "40",
    ),
    Case(
        "seeds",
        "Order 3 packets of basil seeds.",
        (call("order_seeds", plant=OneOf("basil"), packets=3),),
        "basil",
    ),
    Case(
        "seeds_note",
        "We are out of tomato seeds: order six packets, with the note 'before Easter'.",
        (call("order_seeds", plant=OneOf("tomato"), packets=6, note=OneOf("Easter")),),
        "tomato",
    ),
    Case(
        "lemon",
        "In which house is the Meyer lemon?",
        (call("find_plant", name=OneOf("Meyer", "lemon")),),
        "south",
    ),
    Case("sedge", "What number has the sedge?", (call("find_plant", name=OneOf("sedge")),), "P31"),
    Case(
        "fern_winter",
        "How should I care for the Boston fern in winter?",
        (
            call("find_plant", name=OneOf("fern", "Boston")),
            call("care_plan", plant_id="P7", season="winter"),
        ),
        "twice a week",
    ),
    Case(
        "lemon_autumn",
        "Care plan for the Meyer lemon, autumn.",
        (
            call("find_plant", name=OneOf("lemon", "Meyer")),
            call("care_plan", plant_id="P12", season="autumn"),
        ),
        "harvest",
    ),
    Case(
        "sedge_care",
        "What does the alpine sedge need this summer?",
        (
            call("find_plant", name=OneOf("sedge", "alpine")),
            call("care_plan", plant_id="P31", season="summer"),
        ),
        "noon",
    ),
    Case(
        "two_houses",
        "Compare the temperature of the north house and the south house.",
        (
            call("read_sensor", house="north", quantity="temperature"),
            call("read_sensor", house="south", quantity="temperature"),
        ),
        "23.4",
    ),
    Case(
        "water_and_read",
        "Water bed 2 with 5 liters and tell me the humidity in the north house.",
        (
            call("water_bed", bed=2, liters=5),
            call("read_sensor", house="north", quantity="humidity"),
        ),
        "61",
    ),
    Case(
        "and_south",
        "And in the south house?",
        (call("read_sensor", house="south", quantity="humidity"),),
        "55",
        earlier=_PALM,
    ),
    Case(
        "but_strong",
        "And if I want it strong?",
        (call("mix_fertilizer", liters=5, strength="strong"),),
        "35",
        earlier=_CONCENTRATE,
    ),
    Case("evening", "Good evening!"),
    Case("invoice", "Pay the invoice of the electricity company, 240 euros."),
]

GREENHOUSE = Domain(
    name="greenhouse",
    capabilities=[
        capability_node(examples=["what is the temperature in the palm house?"])(read_sensor),
        capability_node(effect="once", examples=["water bed 3 with 8 liters"])(water_bed),
        capability_node(examples=["how much concentrate for 5 liters?"])(mix_fertilizer),
        capability_node(effect="once", examples=["order two packets of carrot seeds"])(order_seeds),
        _find_plant,
        _care_plan,
    ],
    tools=[read_sensor, water_bed, mix_fertilizer, order_seeds, find_plant, care_plan],
    effects=frozenset({"water_bed", "order_seeds"}),
    approvals=frozenset(),
    cases=CASES,
)
