"""What words of a question mean for data, whatever the file: the only list of words there is."""

from __future__ import annotations

from capabilities.data.words import words_set

CONCEPTS: dict[str, str] = {
    word: name
    for name, words in {
        "temperature": "temperature temp tmax tmin tavg warm hot cold heat kalt warm heiss",
        "precipitation": "precipitation precip rain rainfall prcp rained rainy wet",
        "snow": "snow snowfall snowed snowy",
        "wind": "wind windspeed windy",
        "humidity": "humidity humid",
        "weight": "weight mass weigh weighed heavy",
        "height": "height tall",
        "age": "age old",
        "speed": "speed velocity fast",
        "length": "length long",
        "price": "price cost expensive cheap",
        "revenue": "revenue sale turnover umsatz",
        "consumption": "consumption verbrauch consumed",
        "customer": "customer kunde kunden",
        "branch": "branch filiale",
        "population": "population pop inhabitant people",
        "latitude": "latitude lat",
        "longitude": "longitude lon lng",
        "altitude": "altitude alt elevation",
        "departure": "departure dep",
        "arrival": "arrival arr",
        "destination": "destination dest",
        "gender": "gender sex",
        "female": "female woman women",
        "male": "male man men",
        "expectancy": "expectancy exp",
        "minute": "minute min",
        "return": "return returns",
        **{
            f"{day}day": f"{day}day {short}"
            for day, short in (
                ("mon", "mon"),
                ("tues", "tue"),
                ("wednes", "wed"),
                ("thurs", "thu"),
                ("fri", "fri"),
                ("satur", "sat"),
                ("sun", "sun"),
            )
        },
    }.items()
    for word in words.split()
}
"""Words that mean the same, in a question as in the name of a column."""

ADDITIVE = words_set(
    "revenue precipitation snow profit quantity amount unit consumption customer visitor "
    "death birth disease wound energy volume downtime production generation expense "
    "spending cost sold order marriage divorce count number"
)
"""What is added up over rows; a total of it is what one asks for."""
ADDITIVE_UNITS = frozenset({"kWh", "MWh", "GWh", "EUR", "USD", "GBP"})
AVERAGED = words_set(
    "temperature humidity wind speed pressure price rate ratio percent score index age "
    "weight height length expectancy per mean average co2 concentration level power load "
    "flow return yield unemployment inflation discount"
)
"""What is averaged over rows."""

_MORE = words_set("highest largest biggest greatest maximum max maximal peak höchste größte")
_LESS = words_set("lowest smallest minimum min minimal least")
SUPERLATIVES: dict[str, tuple[str | None, str]] = {
    **dict.fromkeys(_MORE, (None, "max")),
    **dict.fromkeys(_LESS, (None, "min")),
    "most": (None, "max"), "fewest": (None, "min"), "record": (None, "max"),
    "hottest": ("temperature", "max"), "warmest": ("temperature", "max"),
    "coldest": ("temperature", "min"), "coolest": ("temperature", "min"),
    "wettest": ("precipitation", "max"), "rainiest": ("precipitation", "max"),
    "driest": ("precipitation", "min"), "snowiest": ("snow", "max"), "windiest": ("wind", "max"),
    "heaviest": ("weight", "max"), "lightest": ("weight", "min"), "oldest": ("age", "max"),
    "youngest": ("age", "min"), "tallest": ("height", "max"), "fastest": ("speed", "max"),
    "slowest": ("speed", "min"), "northernmost": ("latitude", "max"),
    "southernmost": ("latitude", "min"), "easternmost": ("longitude", "max"),
    "westernmost": ("longitude", "min"), "cheapest": ("price", "min"), "dearest": ("price", "max"),
    "busiest": ("rows", "max"), "quietest": ("rows", "min"),
}  # fmt: skip
COMPARATIVES: dict[str, tuple[str | None, str]] = {
    "above": (None, ">"), "over": (None, ">"), "exceed": (None, ">"), "exceeded": (None, ">"),
    "exceeding": (None, ">"), "more": (None, ">"), "greater": (None, ">"), "higher": (None, ">"),
    "larger": (None, ">"), "bigger": (None, ">"), "pass": (None, ">"), "passed": (None, ">"),
    "surpass": (None, ">"), "surpassed": (None, ">"), "below": (None, "<"), "under": (None, "<"),
    "less": (None, "<"), "fewer": (None, "<"), "lower": (None, "<"), "smaller": (None, "<"),
    "hotter": ("temperature", ">"), "warmer": ("temperature", ">"), "colder": ("temperature", "<"),
    "cooler": ("temperature", "<"), "wetter": ("precipitation", ">"),
    "drier": ("precipitation", "<"), "windier": ("wind", ">"), "heavier": ("weight", ">"),
    "lighter": ("weight", "<"), "older": ("age", ">"), "younger": ("age", "<"),
    "taller": ("height", ">"), "faster": ("speed", ">"), "slower": ("speed", "<"),
    "longer": ("length", ">"), "shorter": ("length", "<"), "cheaper": ("price", "<"),
}  # fmt: skip
_MEAN = words_set(
    "mean average avg typical typically averaged durchschnittlich durchschnitt mittel"
)
AGGREGATES = {
    **dict.fromkeys(_MEAN, "mean"),
    **dict.fromkeys(words_set("total sum totals altogether insgesamt gesamt combined"), "sum"),
    "median": "median", "std": "std",
}  # fmt: skip
HIGH = frozenset({"max", "maximum", "high", "highest", "tmax"})
LOW = frozenset({"min", "minimum", "low", "lowest", "tmin"})
UNITS = {
    "minute": "minute", "hour": "hour", "day": "day", "night": "day", "date": "day",
    "week": "week", "month": "month", "quarter": "quarter", "year": "year", "decade": "decade",
}  # fmt: skip
REGULAR = {
    "hourly": "hour", "daily": "day", "weekly": "week", "monthly": "month", "quarterly": "quarter",
    "yearly": "year", "annual": "year", "annually": "year",
}  # fmt: skip
ROWS = words_set("row record entry entries observation reading measurement item time sample case")
"""Words for the rows of any table; the name of the file is one, too."""
NOTHING = words_set(
    "a an the of in on at for to is was were are be been being there it its what whats "
    "what's show me give tell please find get did do does has have had having this that "
    "our my we us all data dataset file table column value values figure figures recorded "
    "measured observed ever with and can could would you i want know see compute "
    "calculate how which who whose much many when you're they them their those these one "
    "ones happened happen occurred occur took place come came during within as so far "
    "from by's reported any actually around here so just degree degrees related lived "
    "living live world worldwide globally overall wie war waren hatte hatten wir es der "
    "die das den und"
)
"""Words that carry nothing once all the others are placed."""
