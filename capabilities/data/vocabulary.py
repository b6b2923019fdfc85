"""What people call the quantities that tables hold, and what columns call them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Direction = Literal["max", "min"]
Aspect = Literal["high", "low", "mean"]


@dataclass(frozen=True)
class Quantity:
    """A kind of measurement.

    Attributes:
        key: Its name, also the canonical word for it.
        words: Words, in their simple form, that mean it in questions and column names.
        additive: Whether values of shorter times add up to those of longer ones.
        weak: Words that point to it only when nothing else does.
    """

    key: str
    words: frozenset[str]
    additive: bool = False
    weak: frozenset[str] = frozenset()


def _quantity(key: str, words: str, additive: bool = False, weak: str = "") -> Quantity:
    return Quantity(key, frozenset(words.split()), additive, frozenset(weak.split()))


QUANTITIES: dict[str, Quantity] = {
    quantity.key: quantity
    for quantity in (
        _quantity(
            "temperature",
            "temperature temp tmp temper tmax tmin tavg tmean t2m tmpf tmpc airtemp degree",
            weak="heat",
        ),
        _quantity(
            "precipitation",
            "precipitation precip prcp prec pcp ppt rain rainfall rained raining",
            additive=True,
        ),
        _quantity("snow", "snow snowfall snwd snowdepth", additive=True),
        _quantity("wind", "wind windspeed wspd wdsp ws awnd gust breeze"),
        _quantity("humidity", "humidity humid rh relhum moisture"),
        _quantity("pressure", "pressure slp barometer barometric"),
        _quantity("sunshine", "sunshine insolation tsun sunlight", additive=True),
        _quantity("radiation", "radiation irradiance ghi dni"),
        _quantity("cloud", "cloud cloudiness cloudcover overcast"),
        _quantity(
            "price",
            "price cost quote closing close adjclose expensive cheap",
            weak="stock share value worth trade traded trading",
        ),
        _quantity("volume", "volume traded", additive=True),
        _quantity("sale", "sale sold", additive=True),
        _quantity("revenue", "revenue turnover takings", additive=True, weak="sale sold"),
        _quantity("profit", "profit earning margin", additive=True),
        _quantity("employment", "employment employee worker job employed staff workforce payroll"),
        _quantity("unemployment", "unemployment unemployed jobless joblessness"),
        _quantity("power", "power horsepower kw mw watt load wattage demand"),
        _quantity(
            "energy",
            "energy kwh mwh gwh generation generated electricity consumption consumed produced "
            "production output",
            additive=True,
        ),
        _quantity("co2", "co2 carbon dioxide", weak="emission concentration"),
        _quantity("population", "population inhabitant resident", weak="people"),
        _quantity("income", "income gdp salary wage pay"),
        _quantity("life", "life expectancy lifespan"),
        _quantity("death", "death died killed fatality casualty dead", additive=True),
        _quantity("passenger", "passenger rider ridership traveller traveler", additive=True),
        _quantity("visitor", "visitor visit pageview view", additive=True),
        _quantity("speed", "speed velocity fast slow"),
        _quantity("distance", "distance mileage mile kilometre kilometer", additive=True),
        _quantity("duration", "duration runtime lasted elapsed"),
        _quantity("weight", "weight mass weigh"),
        _quantity("height", "height tall elevation altitude"),
        _quantity("age", "age aged old"),
        _quantity("yield", "yield harvest crop"),
        _quantity("latitude", "latitude lat"),
        _quantity("longitude", "longitude lon lng"),
    )
}

# Column names that say both the quantity and which of its daily values.
COMPACT: dict[str, tuple[str, Aspect]] = {
    "tmax": ("temperature", "high"),
    "tmin": ("temperature", "low"),
    "tavg": ("temperature", "mean"),
    "tmean": ("temperature", "mean"),
    "tempmax": ("temperature", "high"),
    "tempmin": ("temperature", "low"),
    "maxtemp": ("temperature", "high"),
    "mintemp": ("temperature", "low"),
    "maxt": ("temperature", "high"),
    "mint": ("temperature", "low"),
}
ASPECTS: dict[str, Aspect] = {
    **dict.fromkeys(("high", "max", "maximum", "hi", "highest", "peak", "upper"), "high"),
    **dict.fromkeys(("low", "min", "minimum", "lo", "lowest", "lower"), "low"),
    **dict.fromkeys(("mean", "avg", "average"), "mean"),
}

# Adjective: quantity (if it names one), direction. Comparative forms stand beside superlatives.
ADJECTIVES: dict[str, tuple[str | None, Direction]] = {}


def _adjectives(quantity: str | None, direction: Direction, words: str) -> None:
    ADJECTIVES.update(dict.fromkeys(words.split(), (quantity, direction)))


_adjectives("temperature", "max", "hottest warmest hotter warmer hot warm mildest milder")
_adjectives(
    "temperature", "min", "coldest coolest colder cooler cold chilliest chillier frostiest freezing"
)
_adjectives("precipitation", "max", "wettest rainiest wetter rainier wet soggiest")
_adjectives("precipitation", "min", "driest drier dryest dryer dry")
_adjectives("wind", "max", "windiest windier windy stormiest stormier gustiest breeziest")
_adjectives("wind", "min", "calmest calmer stillest")
_adjectives("snow", "max", "snowiest snowier")
_adjectives("sunshine", "max", "sunniest sunnier")
_adjectives("cloud", "max", "cloudiest cloudier")
_adjectives("humidity", "max", "muggiest")
_adjectives("price", "max", "priciest pricier dearest dearer")
_adjectives("price", "min", "cheapest cheaper")
_adjectives("income", "max", "richest richer wealthiest")
_adjectives("income", "min", "poorest poorer")
_adjectives("age", "max", "oldest")
_adjectives("age", "min", "youngest")
_adjectives("weight", "max", "heaviest")
_adjectives("weight", "min", "lightest")
_adjectives("height", "max", "tallest")
_adjectives("speed", "max", "fastest")
_adjectives("speed", "min", "slowest")
_adjectives("power", "max", "powerful")
_adjectives("death", "max", "deadliest bloodiest")
_adjectives("population", "max", "populous")
_adjectives("latitude", "max", "northernmost")
_adjectives("latitude", "min", "southernmost")
_adjectives("longitude", "max", "easternmost")
_adjectives("longitude", "min", "westernmost")
_adjectives(
    None,
    "max",
    "highest largest biggest greatest most maximum max peak best top strongest busiest maximal "
    "higher larger bigger greater more record longest peaked maxed peaking",
)
_adjectives(
    None,
    "min",
    "lowest smallest least fewest minimum min worst bottom weakest quietest minimal trough "
    "lower smaller less fewer shortest bottomed",
)

# Names of companies and states that tables hold as codes.
CODES: dict[str, tuple[str, ...]] = {
    "apple": ("AAPL",),
    "amazon": ("AMZN",),
    "google": ("GOOG", "GOOGL"),
    "alphabet": ("GOOG", "GOOGL"),
    "microsoft": ("MSFT",),
    "tesla": ("TSLA",),
    "facebook": ("FB", "META"),
    "meta": ("META", "FB"),
    "netflix": ("NFLX",),
    "nvidia": ("NVDA",),
    "intel": ("INTC",),
    "oracle": ("ORCL",),
    "cisco": ("CSCO",),
    "disney": ("DIS",),
    "walmart": ("WMT",),
    "boeing": ("BA",),
    "ford": ("F",),
    "starbucks": ("SBUX",),
    "nike": ("NKE",),
    "big blue": ("IBM",),
    "s&p": ("SPX", "SPY", "GSPC"),
    "los angeles": ("LA",),
    "san francisco": ("SF",),
    "new york": ("NY", "NYC"),
    "united states": ("US", "USA"),
    "america": ("US", "USA"),
    "united kingdom": ("UK", "GB", "GBR"),
    "britain": ("UK", "GB", "GBR"),
    "women": ("FEMALE", "F", "WOMEN", "WOMAN"),
    "woman": ("FEMALE", "F", "WOMEN", "WOMAN"),
    "men": ("MALE", "M", "MEN", "MAN"),
    "germany": ("DE", "DEU"),
    "france": ("FR", "FRA"),
}
_STATES = (
    "AL Alabama,AK Alaska,AZ Arizona,AR Arkansas,CA California,CO Colorado,CT Connecticut,"
    "DE Delaware,FL Florida,GA Georgia,HI Hawaii,ID Idaho,IL Illinois,IN Indiana,IA Iowa,"
    "KS Kansas,KY Kentucky,LA Louisiana,ME Maine,MD Maryland,MA Massachusetts,MI Michigan,"
    "MN Minnesota,MS Mississippi,MO Missouri,MT Montana,NE Nebraska,NV Nevada,NH New Hampshire,"
    "NJ New Jersey,NM New Mexico,NY New York,NC North Carolina,ND North Dakota,OH Ohio,"
    "OK Oklahoma,OR Oregon,PA Pennsylvania,RI Rhode Island,SC South Carolina,SD South Dakota,"
    "TN Tennessee,TX Texas,UT Utah,VT Vermont,VA Virginia,WA Washington,WV West Virginia,"
    "WI Wisconsin,WY Wyoming"
)
for _entry in _STATES.split(","):
    _code, _, _state = _entry.partition(" ")
    CODES[_state.lower()] = (*CODES.get(_state.lower(), ()), _code)

# What people call the things that a column of names tells apart.
ENTITY_WORDS: dict[str, frozenset[str]] = {
    "symbol": frozenset(["stock", "company", "ticker", "share", "symbol", "firm"]),
    "ticker": frozenset(["stock", "company", "ticker", "share", "symbol", "firm"]),
    "source": frozenset(["source", "fuel", "origin"]),
    "country": frozenset(["country", "nation"]),
    "sector": frozenset(["sector", "industry", "branch"]),
    "site": frozenset(["site", "place", "location", "station"]),
    "station": frozenset(["station", "site", "place", "location"]),
    "city": frozenset(["city", "town", "place", "location"]),
    "product": frozenset(["product", "item", "article"]),
    "gender": frozenset(["gender", "sex"]),
    "neighborhood": frozenset(["neighborhood", "neighbourhood", "area", "district"]),
}


def canonical(word: str) -> str:
    """Return the quantity that a simple word means, or the word itself.

    >>> canonical("prcp"), canonical("rainfall"), canonical("banana")
    ('precipitation', 'precipitation', 'banana')
    """
    return _CANONICAL.get(word, word)


_CANONICAL = {
    word: quantity.key for quantity in reversed(QUANTITIES.values()) for word in quantity.words
}

_STOP = """
a an and any are as at be been being but by can could did do does doing for from had has have how
i if in into is it its itself just let like me might mine my no nor not of off on once one only or
other our out over own please per same shall she he should show so some such tell than that the
their them then there these they this those through to too under until up us use using very was we
were what whatever when where whether which while who whom whose why will with within without
would you your give find get list see want know need look looks looked exactly about across after
again against all almost along also although always among around because before behind below
between both compute calculate determine report display plot graph chart draw make figure picture
visualise visualize describe summarise summarize explain say said happen happened happening occur
occurred go went gone going come came move moved moving movement behave behaved develop developed
evolve evolved vary varied fluctuate during each every ever many much more less whole entire
overall time times period periods day days week weeks month months quarter quarters year years
hour hours season seasons decade decades minute minutes daily hourly weekly monthly yearly annual
annually quarterly date dates weekday weekdays weekend weekends spring summer autumn fall winter
morning afternoon evening night noon midnight today yesterday tomorrow ago last next past previous
current since recent recently latest earliest early late mid begin began beginning start started
end ended first second third typical typically usual usually normally generally general reach
reached hit value values number numbers reading readings measurement measurements measured measure
level levels figures data dataset file table column columns row rows record records recorded
observation observations entry entries point points series fact facts case cases unit units amount
quantity total totals sum mean average averages avg median mode count counts counted standard
deviation std variance spread range ranges percentile quantile quartile minimum maximum min max
minimal maximal highest lowest high low higher lower highs lows peak peaks peaked trough extreme
extremes hottest coldest warmest coolest wettest driest windiest calmest most least best worst
biggest smallest largest greatest fewest top bottom better worse big small large little above
exceed exceeds exceeded exceeding greater fewer equal equals threshold cross crossed pass passed
consecutive streak longest shortest long short spell run trend trends trending slope rate change
changed changes changing increase increased increases increasing decrease decreased decreases
decreasing decline declined grow grew growth grown rise rose rises risen rising raise fell falls
fallen falling drop dropped drops dropping gain gained gains lose lost loss climb climbed surge
surged plunge plunged percent percentage percentages proportion share shares fraction ratio
relative absolute difference differences differ differed different compare compared comparing
comparison versus vs relation relationship correlate correlated correlation anomaly anomalies
anomalous outlier outliers unusual unusually abnormal abnormally spike spikes strange odd frequent
frequently often rare common rarely commonly breakdown broken down split grouped group groups
distribution histogram line bar png svg image pdf question answer thanks thank hello hi hey help
maybe perhaps really actually roughly approximately kind sort type thing things lot did't didn't
don't what's which's it's let's i'd i'm january february march april may june july august
september october november december jan feb mar apr jun jul aug sep sept oct nov dec monday
tuesday wednesday thursday friday saturday sunday two three four five six seven eight nine ten
hundred thousand million billion new old take took taken done stand stood cost costs worth saw
seen became become remain remained stay stayed keep kept available cover covers covered contain
contains contained include includes included exist exists historical history christmas easter
thanksgiving term terms given based according respectively respect side averaged
"""
STOP_WORDS = frozenset(_STOP.split())
