"""Units of columns, which are read from names, inferred for temperatures, and converted with pint."""

from __future__ import annotations

import functools
import re
from typing import Any

from capgraph.base import ErrorSeverity, ValidationError, require_extra
from capgraph.capabilities.data.words import fold, split_name, word_set

_BRACKETED_TEXT = re.compile(r"[(\[]([^()\[\]]{1,40})[)\]]")
_MAX_BRACKETED_CHARS, _MAX_UNIT_CHARS = 16, 30
# Common spellings that pint does not know or misinterprets.
_UNIT_SPELLINGS = {
    "°c": "degC", "ºc": "degC", "deg c": "degC", "celsius": "degC", "centigrade": "degC",
    "degree celsius": "degC", "°f": "degF", "ºf": "degF", "deg f": "degF", "fahrenheit": "degF",
    "degree fahrenheit": "degF", "kmh": "km/h", "kph": "km/h", "mph": "mile/hour", "mps": "m/s",
    "m3/h": "m**3/h", "m³/h": "m**3/h", "m3": "m**3", "m³": "m**3", "m2": "m**2", "m²": "m**2",
    "lbs": "lb", "inches": "inch", "knots": "knot", "kn": "knot", "mbar": "millibar",
    "hpa": "hectopascal", "tonnes": "tonne", "metric ton": "tonne", "pounds": "lb",
}  # fmt: skip
_UNIT_WORDS = {
    "celsius": "°C", "degc": "°C", "fahrenheit": "°F", "degf": "°F", "kelvin": "K", "mm": "mm",
    "cm": "cm", "km": "km", "kmh": "km/h", "km/h": "km/h", "mph": "mph", "hpa": "hPa", "mbar": "mbar",
    "kpa": "kPa", "kw": "kW", "mw": "MW", "gw": "GW", "kwh": "kWh", "mwh": "MWh", "gwh": "GWh",
    "usd": "USD", "eur": "EUR", "gbp": "GBP", "pct": "%", "percent": "%", "ppm": "ppm",
    "kg": "kg", "lb": "lb", "lbs": "lb", "inch": "in", "hz": "Hz",
    "minutes": "min", "mins": "min", "hours": "h", "hrs": "h", "seconds": "s", "secs": "s",
}  # fmt: skip
DURATION_UNITS = word_set("min h s days")
_DURATION_WORDS = word_set(
    "duration downtime uptime delay wait waiting runtime travel ride trip call"
)
_SCALE_WORDS = word_set("k thousand tsd m mio mn million bn mrd billion")
_DIVISOR_UNITS = word_set("h s l kg km kwh mwh m2 m3")
_SPLIT = re.compile(r"[\W_]+")
_UNIT_SUFFIXES = {"c": "°C", "f": "°F", "g": "g", "m": "m", "s": "s", "h": "h", "l": "L", "w": "W"}
_UNIT_SYMBOLS = {"c": "°C", "f": "°F", "k": "K", "$": "USD", "€": "EUR", "£": "GBP"}
_DIMENSIONLESS_UNITS = {"%", "USD", "EUR", "GBP", "ppm", "ppb"}
# pint evaluates its input: "3**3333333333" would never finish.
_UNIT_FACTOR = r"°?[^\W\d_]+(?:_[^\W\d_]+)*(?:(?:\*\*|\^)?-?[1-4])?"
_UNIT_PATTERN = re.compile(rf"{_UNIT_FACTOR}(?:(?:\s*[/*·⋅]\s*|\s+){_UNIT_FACTOR}){{0,3}}")


def unit_in_name(name: str) -> str | None:
    """Return the unit that a column name states, or ``None`` if the name has no unit.

    >>> unit_in_name("Temp (°C)"), unit_in_name("body_mass_g"), unit_in_name("speed_m_s")
    ('°C', 'g', 'm/s')
    >>> unit_in_name("price")
    """
    bracketed = (match[1].strip() for match in _BRACKETED_TEXT.finditer(name))
    text = next((one for one in bracketed if 0 < len(one) <= _MAX_BRACKETED_CHARS), None)
    if text:
        return (
            _UNIT_SYMBOLS.get(fold(text))
            or _UNIT_WORDS.get(fold(text))
            or (text if _parse(text) else None)
        )
    if "°" in name:
        return _UNIT_SYMBOLS.get(name[name.index("°") + 1 : name.index("°") + 2].lower())
    words, tokens = split_name(name), [token for token in _SPLIT.split(name) if token]
    folded = [fold(token) for token in tokens]  # keeps "kW" together
    percent = "%" if name.strip().endswith("%") else None
    if len(words) < 2 or "per" in words[:-1]:  # the last word is the quantity or a divisor
        return percent
    if folded[-1] == "min" and _DURATION_WORDS.intersection(words):
        return "min"  # in other names it may mean the minimum
    if folded[-1] in _DIVISOR_UNITS and {*folded[:-1][-1:]} & {*_UNIT_WORDS, *_UNIT_SUFFIXES}:
        ratio = "/".join(tokens[-2:])  # speed_m_s, emission_g_km
        return _UNIT_WORDS.get(fold(ratio)) or (ratio if _parse(ratio) else None)
    candidates = (
        _UNIT_WORDS[word] for word in [*reversed(folded), *reversed(words)] if word in _UNIT_WORDS
    )
    if unit := next(candidates, None):
        # Scaled amounts and areas have other units: "thousand EUR", "m2".
        scaled = unit in _DIMENSIONLESS_UNITS and _SCALE_WORDS.intersection(words)
        if scaled or words[-1].isdigit() or folded[-1][0].isdigit():
            return None
        small = f"m{unit[1:]}"
        return small if unit[0] == "M" and small in tokens else unit
    if words[-1] in _UNIT_SUFFIXES and (words[-1] == folded[-1] or len(words[-2]) > 1):
        return _UNIT_SUFFIXES[words[-1]]
    return percent


def guess_temperature_unit(lowest: float, highest: float) -> str | None:
    """Infer the temperature unit from a range of values, or return ``None`` if it is ambiguous.

    The rules assume air or water temperatures in inhabited places. Values above 60 are too hot
    for Celsius, and a year that never exceeds 45 would be polar in Fahrenheit.

    >>> guess_temperature_unit(-1.6, 35.6), guess_temperature_unit(30.1, 74.9)
    ('°C', '°F')
    """
    if lowest > 180 and highest < 340:
        return "K"
    if 60 < highest < 140:
        return "°F"
    if highest <= 50 and lowest < 20 and highest - lowest <= 90:
        return "°C"
    return None


@functools.cache
def _registry() -> Any:
    pint = require_extra("pint", "data")
    return pint.UnitRegistry(autoconvert_offset_to_baseunit=True, cache_folder=None)


@functools.lru_cache(maxsize=512)
def _parse(unit: str) -> Any:
    """Parse the name of a unit with pint, or return ``None`` if the unit is unknown."""
    if len(unit) > _MAX_UNIT_CHARS:
        return None
    text = _UNIT_SPELLINGS.get(fold(unit)) or _UNIT_SPELLINGS.get(unit.lower()) or unit
    if _UNIT_PATTERN.fullmatch(text) is None:
        return None
    try:
        return _registry().Unit(text)
    except Exception:  # pint raises a dozen types for invalid units
        return None


def is_unit(text: str) -> bool:
    """Return True if a string is the name or symbol of a unit.

    >>> is_unit("kg"), is_unit("banana")
    (True, False)
    """
    return text in _DIMENSIONLESS_UNITS or _parse(text) is not None


def unit_conversion(unit: str | None, target: str | None) -> tuple[float, float]:
    """Return the factor and offset that convert values from one unit to a different unit.

    If either unit is ``None``, values are not converted.

    Raises:
        ValidationError: A unit is invalid, or the units measure different quantities.

    >>> unit_conversion("kg", "g"), unit_conversion("USD", None)
    ((1000.0, 0.0), (1.0, 0.0))
    """
    if unit is None or target is None or unit == target:
        return 1.0, 0.0
    source, goal = _parse(unit), _parse(target)
    if source is not None and goal is not None and source.dimensionality == goal.dimensionality:
        quantity = _registry().Quantity
        zero = float(quantity(0.0, source).to(goal).magnitude)
        one = float(quantity(1.0, source).to(goal).magnitude)
        return round(one - zero, 12) if abs(one - zero) > 1e-6 else one - zero, round(zero, 9)
    raise ValidationError(
        f"The unit {unit} cannot be converted to {target}.",
        fix="Use a unit of the same quantity, or no unit.",
        severity=ErrorSeverity.REPLANNING,
    )
