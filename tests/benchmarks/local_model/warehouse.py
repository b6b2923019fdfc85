"""A warehouse: products, stock, suppliers, purchases, moves, pallets, shifts, and damage reports.

The set was held out until its first run, which had 15 of 20 requests right. No prompt or repair has its
words, names, or values.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from capgraph import AskAgain, CapabilityContext, capability_node
from tests.benchmarks.local_model.cases import Case, Domain, OneOf, call, record_call

Site = Literal["north", "south"]
Weekday = Literal["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
Shift = Literal["early", "late"]
Urgency = Literal["low", "high"]
Quantity = Annotated[int, Field(gt=0, description="Number of pieces.")]
Centimeters = Annotated[float, Field(gt=0)]

_PRODUCTS = {
    "P-204": ("hex bolt", "aisle 4"),
    "P-318": ("cordless drill", "aisle 9"),
    "P-551": ("safety gloves", "aisle 2"),
    "P-760": ("pallet jack", "aisle 12"),
}
_STOCK = {
    ("P-204", "north"): 4200,
    ("P-204", "south"): 150,
    ("P-318", "north"): 17,
    ("P-318", "south"): 0,
    ("P-551", "north"): 96,
    ("P-551", "south"): 310,
    ("P-760", "north"): 3,
    ("P-760", "south"): 1,
}
_SUPPLIERS = {
    "P-204": ("Hartmann Fasteners", 4),
    "P-318": ("Toolwerk", 11),
    "P-551": ("Safeline", 6),
    "P-760": ("Liftco", 28),
}
_TEAMS = {"early": ("Ines", "Marco"), "late": ("Priya", "Tom")}


class Product(CapabilityContext):
    sku: str
    name: str
    aisle: str

    def get_summary(self) -> str:
        return f"{self.name} is product {self.sku}, stored in {self.aisle}."


class StockLevel(CapabilityContext):
    text: str
    pieces: int

    def get_summary(self) -> str:
        return self.text


class Supplier(CapabilityContext):
    text: str

    def get_summary(self) -> str:
        return self.text


class Receipt(CapabilityContext):
    text: str

    def get_summary(self) -> str:
        return self.text


# --- plain functions ------------------------------------------------------------------------------


def find_product(name: str) -> str:
    """Look up a product by its name and return its SKU and the aisle where it is stored."""
    found = _find(name)
    return f"No product is called {name!r}." if found is None else found.get_summary()


def check_stock(sku: str, site: Site = "north") -> str:
    """Count the pieces of a product at a site, given the SKU that find_product returns."""
    return _stock(sku, site)[0]


def find_supplier(sku: str) -> str:
    """Return supplier and delivery time of a product, given the SKU that find_product returns."""
    return _supplier(sku)


def order_goods(sku: str, quantity: Quantity) -> str:
    """Buy pieces of a product from its supplier, given the SKU that find_product returns."""
    return _order(sku, quantity)


def move_stock(sku: str, quantity: Quantity, to_site: Site) -> str:
    """Move pieces of a product to another site, given the SKU that find_product returns."""
    return _move(sku, quantity, to_site)


def pallet_volume(length_cm: Centimeters, width_cm: Centimeters, height_cm: Centimeters) -> str:
    """Compute the volume of a pallet in cubic meters from its three sides in centimeters."""
    record_call("pallet_volume", length_cm=length_cm, width_cm=width_cm, height_cm=height_cm)
    return f"The volume is {length_cm * width_cm * height_cm / 1_000_000:g} cubic meters."


def show_shift(day: Weekday, shift: Shift = "early") -> str:
    """Show who works in the early or the late shift of a weekday."""
    record_call("show_shift", day=day, shift=shift)
    return f"{' and '.join(_TEAMS[shift])} work on {day}, {shift} shift."


def report_damage(item: str, urgency: Urgency = "low") -> str:
    """Report a damaged item or machine to the maintenance team."""
    record_call("report_damage", item=item, urgency=urgency)
    return f"Maintenance was told about {item} ({urgency} urgency)."


def _find(name: str) -> Product | None:
    record_call("find_product", name=name)
    words = {word.rstrip("s") for word in name.casefold().split()}
    for sku, (product, aisle) in _PRODUCTS.items():
        if words & {word.rstrip("s") for word in product.split()}:
            return Product(sku=sku, name=product, aisle=aisle)
    return None


def _stock(sku: str, site: Site) -> tuple[str, int]:
    record_call("check_stock", sku=sku, site=site)
    pieces = _STOCK.get((sku, site))
    if pieces is None:
        return f"No product has the SKU {sku!r}.", 0
    return f"{pieces} pieces of {sku} are at the {site} site.", pieces


def _supplier(sku: str) -> str:
    record_call("find_supplier", sku=sku)
    if sku not in _SUPPLIERS:
        return f"No product has the SKU {sku!r}."
    name, days = _SUPPLIERS[sku]
    return f"{name} supplies {sku} within {days} days."


def _order(sku: str, quantity: int) -> str:
    record_call("order_goods", sku=sku, quantity=quantity)
    return f"Ordered {quantity} pieces of {sku}."


def _move(sku: str, quantity: int, to_site: Site) -> str:
    record_call("move_stock", sku=sku, quantity=quantity, to_site=to_site)
    return f"{quantity} pieces of {sku} are on their way to the {to_site} site."


# --- capabilities ---------------------------------------------------------------------------------


@capability_node(name="find_product", examples=["where do we keep the ladders?"])
def _find_product(name: str) -> Product:
    """Look up a product by its name and return its SKU and the aisle where it is stored."""
    found = _find(name)
    if found is None:
        raise AskAgain(f"No product is called {name!r}.")
    return found


@capability_node(name="check_stock", examples=["how many ladders do we have in the south?"])
def _check_stock(product: Product, site: Site = "north") -> StockLevel:
    """Count the pieces of a product at a site."""
    text, pieces = _stock(product.sku, site)
    return StockLevel(text=text, pieces=pieces)


@capability_node(name="find_supplier", examples=["who delivers our ladders?"])
def _find_supplier(product: Product) -> Supplier:
    """Return supplier and delivery time of a product."""
    return Supplier(text=_supplier(product.sku))


@capability_node(
    name="order_goods", effect="once", requires_approval=True, examples=["buy 5 new ladders"]
)
def _order_goods(product: Product, quantity: Quantity) -> Receipt:
    """Buy pieces of a product from its supplier."""
    return Receipt(text=_order(product.sku, quantity))


@capability_node(name="move_stock", effect="once", examples=["send 2 ladders to the north site"])
def _move_stock(product: Product, quantity: Quantity, to_site: Site) -> Receipt:
    """Move pieces of a product to another site."""
    return Receipt(text=_move(product.sku, quantity, to_site))


# --- requests -------------------------------------------------------------------------------------

CASES = [
    Case(
        "volume",
        "How many cubic meters is a pallet of 120 by 80 by 150 cm?",
        (call("pallet_volume", length_cm=120, width_cm=80, height_cm=150),),
        "1.44",
    ),
    Case(
        "crate",
        "Compute the volume of a crate: length 200 cm, width 50 cm, height 40 cm.",
        (call("pallet_volume", length_cm=200, width_cm=50, height_cm=40),),
        "0.4",
    ),
    Case(
        "tuesday",
        "Who works in the late shift on Tuesday?",
        (call("show_shift", day="Tuesday", shift="late"),),
        "Priya",
    ),
    Case(
        "saturday",
        "Which people are in on Saturday morning for the early shift?",
        (call("show_shift", day="Saturday", shift="early"),),
        "Ines",
    ),
    Case(
        "aisle",
        "In which aisle are the safety gloves?",
        (call("find_product", name=OneOf("glove")),),
        "aisle 2",
    ),
    Case(
        "sku",
        "What is the SKU of the pallet jack?",
        (call("find_product", name=OneOf("jack")),),
        "P-760",
    ),
    Case(
        "forklift",
        "The forklift at gate 3 is leaking oil, please report it as urgent.",
        (call("report_damage", item=OneOf("forklift"), urgency="high"),),
        "forklift",
    ),
    Case(
        "shelf",
        "Please report a scratched shelf in aisle 7. There is no hurry.",
        (call("report_damage", item=OneOf("shelf"), urgency="low"),),
        "shelf",
    ),
    Case(
        "drills_north",
        "How many cordless drills are left at the north site?",
        (
            call("find_product", name=OneOf("drill")),
            call("check_stock", sku="P-318", site="north"),
        ),
        "17",
    ),
    Case(
        "gloves_south",
        "Check the stock of safety gloves in the south.",
        (
            call("find_product", name=OneOf("glove")),
            call("check_stock", sku="P-551", site="south"),
        ),
        "310",
    ),
    Case(
        "supplier",
        "Who supplies our hex bolts?",
        (call("find_product", name=OneOf("bolt")), call("find_supplier", sku="P-204")),
        "Hartmann",
    ),
    Case(
        "delivery_time",
        "How long does a delivery of pallet jacks take?",
        (call("find_product", name=OneOf("jack")), call("find_supplier", sku="P-760")),
        "28",
    ),
    Case(
        "order_drills",
        "Order 20 cordless drills.",
        (
            call("find_product", name=OneOf("drill")),
            call("order_goods", sku="P-318", quantity=20),
        ),
        "20",
    ),
    Case(
        "order_gloves",
        "We need 500 more safety gloves, please buy them.",
        (
            call("find_product", name=OneOf("glove")),
            call("order_goods", sku="P-551", quantity=500),
        ),
        "500",
    ),
    Case(
        "move_bolts",
        "Move 300 hex bolts to the south site.",
        (
            call("find_product", name=OneOf("bolt")),
            call("move_stock", sku="P-204", quantity=300, to_site="south"),
        ),
        "300",
    ),
    Case(
        "both_sites",
        "How many hex bolts do we have in the north and how many in the south?",
        (
            call("find_product", name=OneOf("bolt")),
            call("check_stock", sku="P-204", site="north"),
            call("check_stock", sku="P-204", site="south"),
        ),
        "150",
    ),
    Case(
        "shift_and_damage",
        "Show me the early shift of Friday, and report the broken scanner as urgent.",
        (
            call("show_shift", day="Friday", shift="early"),
            call("report_damage", item=OneOf("scanner"), urgency="high"),
        ),
        "Marco",
    ),
    Case("morning", "Good morning, nice to meet you."),
    Case("salary", "Raise the salary of Tom by ten percent."),
    Case("translate", "Translate our delivery terms into French."),
]

WAREHOUSE = Domain(
    name="warehouse",
    capabilities=[
        _find_product,
        _check_stock,
        _find_supplier,
        _order_goods,
        _move_stock,
        capability_node(examples=["volume of a box of 10 by 20 by 30 cm"])(pallet_volume),
        capability_node(examples=["who is in on Sunday?"])(show_shift),
        capability_node(effect="idempotent", examples=["report a dent in the gate"])(report_damage),
    ],
    tools=[
        find_product,
        check_stock,
        find_supplier,
        order_goods,
        move_stock,
        pallet_volume,
        show_shift,
        report_damage,
    ],
    effects=frozenset({"order_goods", "move_stock", "report_damage"}),
    approvals=frozenset({"order_goods"}),
    cases=CASES,
)
