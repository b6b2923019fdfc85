"""Units: read from column names, guessed for temperatures, converted for thresholds."""

from __future__ import annotations

import re

from capabilities.data.words import fold, name_words

_BRACKET = re.compile(r"[(\[]\s*([^()\[\]]{1,16}?)\s*[)\]]")
_WORDS: dict[str, str] = {
    "celsius": "°C", "degc": "°C", "centigrade": "°C", "fahrenheit": "°F", "degf": "°F",
    "kelvin": "K", "mm": "mm", "cm": "cm", "inch": "in", "inches": "in", "kmh": "km/h",
    "kph": "km/h", "mph": "mph", "mps": "m/s", "knot": "kn", "hpa": "hPa", "mbar": "mbar",
    "kpa": "kPa", "kw": "kW", "mw": "MW", "gw": "GW", "kwh": "kWh", "mwh": "MWh", "gwh": "GWh",
    "twh": "TWh", "watt": "W", "usd": "USD", "eur": "EUR", "gbp": "GBP", "dollar": "USD",
    "euro": "EUR", "pct": "%", "percent": "%", "percentage": "%", "ppm": "ppm", "ppb": "ppb",
    "kg": "kg", "lb": "lb", "lbs": "lb", "km": "km", "ms": "ms", "litre": "L", "liter": "L", "volt": "V",
    "ampere": "A", "hertz": "Hz", "hz": "Hz",
}  # fmt: skip
_AFTER_TEMPERATURE = {"c": "°C", "f": "°F", "k": "K"}
_SIGNS = {
    "c": "°C", "°c": "°C", "ºc": "°C", "deg c": "°C", "f": "°F", "°f": "°F", "deg f": "°F",
    "$": "USD", "€": "EUR", "£": "GBP", "km/h": "km/h", "m/s": "m/s", "w": "W", "m": "m",
    "in": "in", "h": "h", "s": "s", "v": "V", "a": "A", "l": "L", "g": "g", "t": "t",
}  # fmt: skip
_NUMBER_UNIT = re.compile(
    r"(?P<number>[-\u2212]?\d[\d,]*(?:\.\d+)?)\s*(?P<unit>°\s*[CF]|degrees?\s+(?:celsius|fahrenheit"
    r"|[cf]\b)|degrees?|celsius|fahrenheit|[CF]\b|mm\b|cm\b|inch(?:es)?\b|%|percent\b|ppm\b|kwh?\b"
    r"|mwh?\b|km/h|m/s|mph\b|usd\b|dollars?\b|euros?\b|k\b|thousand\b|million\b|billion\b)?",
    re.IGNORECASE,
)
_SCALE = {"k": 1e3, "thousand": 1e3, "million": 1e6, "billion": 1e9}


def unit_in_name(name: str, quantity: str | None = None) -> str | None:
    """Read the unit that a column name carries.

    >>> unit_in_name("Temp (°C)"), unit_in_name("wind_speed_kmh"), unit_in_name("price")
    ('°C', 'km/h', None)
    """
    match = _BRACKET.search(name)
    if match:
        text = match[1].strip()
        return _SIGNS.get(fold(text).replace("º", "°"), _WORDS.get(fold(text), text))
    if "°" in name:
        letter = name[name.index("°") + 1 : name.index("°") + 2].lower()
        return _AFTER_TEMPERATURE.get(letter)
    words = name_words(name)
    if len(words) > 1 and words[-2:] == ["km", "h"]:
        return "km/h"
    if words and quantity == "temperature" and len(words) > 1:
        found = _AFTER_TEMPERATURE.get(words[-1])
        if found:
            return found
    for word in reversed(words):
        if word in _WORDS and (len(words) > 1 or word not in ("ms", "dollar", "euro")):
            return _WORDS[word]
    return "%" if name.strip().endswith("%") else None


def is_unit_word(word: str) -> bool:
    """Say whether a word of a column name is only its unit."""
    return word in _WORDS or word in ("c", "f", "k", "deg", "m", "s", "h", "w")


def guess_temperature_unit(lowest: float, highest: float) -> str | None:
    """Guess the unit of temperatures from their range, where the range leaves no doubt.

    Air and water temperatures of places where people measure: above 60 is too hot for Celsius,
    and a year that never passes 45 would be polar in Fahrenheit.

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


def number_with_unit(text: str) -> tuple[float, str | None] | None:
    """Read a number and the unit behind it.

    >>> number_with_unit("90 °F"), number_with_unit("1.5k"), number_with_unit("7,601")
    ((90.0, '°F'), (1500.0, None), (7601.0, None))
    """
    match = _NUMBER_UNIT.search(text)
    if match is None:
        return None
    number = float(match["number"].replace(",", "").replace("\u2212", "-"))
    unit = fold(match["unit"] or "")
    if unit in _SCALE:
        return number * _SCALE[unit], None
    if unit.endswith(("c", "celsius")) and unit not in ("", "degrees"):
        return number, "°C"
    if unit.endswith(("f", "fahrenheit")):
        return number, "°F"
    return number, _WORDS.get(unit.rstrip("s")) or _WORDS.get(unit) or _SIGNS.get(unit)


def convert(value: float, unit: str | None, target: str | None) -> float:
    """Convert between the units of temperature and length that questions use; else leave it.

    >>> convert(30, "°C", "°F"), convert(1, "in", "mm")
    (86.0, 25.4)
    """
    if unit == target or unit is None or target is None:
        return value
    if (unit, target) == ("°C", "°F"):
        return value * 9 / 5 + 32
    if (unit, target) == ("°F", "°C"):
        return (value - 32) * 5 / 9
    factors = {("in", "mm"): 25.4, ("cm", "mm"): 10.0, ("mm", "in"): 1 / 25.4, ("mm", "cm"): 0.1}
    factors |= {("km/h", "m/s"): 1 / 3.6, ("m/s", "km/h"): 3.6, ("cm", "in"): 1 / 2.54}
    return value * factors.get((unit, target), 1.0)
