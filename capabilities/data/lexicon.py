"""Tables of the words and phrases in questions, independent of the data."""

from __future__ import annotations

import re

from capgraph.capabilities.data.words import word_set
from capgraph.capabilities.periods import expressions

_SYNONYMS = (
    "temperature temp tmax tmin tavg warm hot cold heat kalt warm heiss",
    "precipitation precip rain rainfall prcp rained rainy wet",
    "snow snowfall snowed snowy",
    "wind windspeed windy",
    "humidity humid",
    "weight mass weigh weighed heavy",
    "height tall",
    "age old",
    "speed velocity fast",
    "length long",
    "depth deep",
    "income gdp earnings wealth rich",
    "profit profitable",
    "price cost expensive cheap",
    "revenue sale turnover umsatz",
    "consumption verbrauch consumed",
    "customer kunde kunden",
    "branch filiale",
    "population pop inhabitant people populous populated",
    "power powerful horsepower",
    "outside outdoor outdoors aussen",
    "inside indoor indoors innen",
    "death die died dead killed fatality deadliest",
    "symbol ticker company",
    "mileage mpg",
    "production produce produced generation generate generated generating output",
    "latitude lat",
    "longitude lon lng",
    "altitude alt elevation",
    "departure dep",
    "arrival arr",
    "destination dest",
    "gender sex",
    "female woman women",
    "male man men",
    "expectancy exp",
    "minute min",
    "monday mon",
    "tuesday tue",
    "wednesday wed",
    "thursday thu",
    "friday fri",
    "saturday sat",
    "sunday sun",
)
CONCEPTS = {word: line.split()[0] for line in _SYNONYMS for word in line.split()}
"""Concept by synonym, for words in questions and column names."""

ADDITIVE_QUANTITIES = word_set(
    "revenue precipitation snow profit quantity amount unit consumption customer visitor "
    "death birth disease wound energy volume downtime production generation expense "
    "spending cost sold order marriage divorce count number"
)
"""Quantities whose values are added when rows are grouped."""
ADDITIVE_UNITS = frozenset({"kWh", "MWh", "GWh", "EUR", "USD", "GBP"})
AVERAGED_QUANTITIES = word_set(
    "temperature humidity wind speed pressure price rate ratio percent score index age "
    "weight height length expectancy per percap capita mean average co2 concentration level power load "
    "flow return yield unemployment inflation discount"
)
"""Quantities whose values are averaged when rows are grouped."""

# For each quantity: highest, lowest, more, and less.
_DEGREES = {
    None: (
        "highest largest biggest greatest maximum max maximal peak höchste größte most record"
        " strongest",
        "lowest smallest minimum min minimal least fewest weakest tiniest",
        "above over exceed exceeded exceeding more greater higher larger bigger pass passed"
        " surpass surpassed",
        "below under less fewer lower smaller",
    ),
    "temperature": (
        "hottest warmest mildest",
        "coldest coolest chilliest",
        "hotter warmer",
        "colder cooler",
    ),
    "precipitation": ("wettest rainiest", "driest", "wetter", "drier"),
    "snow": ("snowiest", "", "", ""),
    "wind": ("windiest breeziest stormiest", "calmest", "windier", "calmer"),
    "weight": ("heaviest", "lightest", "heavier", "lighter"),
    "age": ("oldest", "youngest", "older", "younger"),
    "height": ("tallest", "", "taller", ""),
    "speed": ("fastest", "slowest", "faster", "slower"),
    "length": ("longest", "shortest", "longer", "shorter"),
    "width": ("widest broadest", "narrowest", "wider broader", "narrower"),
    "distance": ("furthest farthest", "nearest closest", "further farther", "nearer closer"),
    "death": ("deadliest", "", "deadlier", ""),
    "depth": ("deepest", "shallowest", "deeper", "shallower"),
    "income": ("richest wealthiest", "poorest", "richer", "poorer"),
    "humidity": ("muggiest", "", "", ""),
    "price": ("dearest priciest costliest", "cheapest", "dearer pricier costlier", "cheaper"),
    "latitude": ("northernmost", "southernmost", "", ""),
    "longitude": ("easternmost", "westernmost", "", ""),
    "rows": ("busiest", "quietest", "", ""),
}
Degrees = dict[str, tuple[str | None, str]]


def _expand_degrees(high: str, low: str, index: int) -> Degrees:
    return {
        word: (quantity, direction)
        for quantity, words in _DEGREES.items()
        for direction, word_list in ((high, words[index]), (low, words[index + 1]))
        for word in word_list.split()
    }


SUPERLATIVES = _expand_degrees("max", "min", 0)
COMPARATIVES = _expand_degrees(">", "<", 2)
AGGREGATES = {
    word: aggregate
    for aggregate, words in {
        "mean": "mean average avg typical typically averaged usual usually normal normally generally"
        " durchschnittlich mittel",
        "sum": "total sum totals altogether insgesamt gesamt combined",
        "median": "median",
        "std": "std",
    }.items()
    for word in words.split()
}
MAXIMUM_WORDS = word_set("max maximum high highest tmax")
MINIMUM_WORDS = word_set("min minimum low lowest tmin")
UNIT_ORDER = ["minute", "hour", "day", "week", "month", "quarter", "year", "decade"]
TIME_UNIT_WORDS = {**{unit: unit for unit in UNIT_ORDER}, "date": "day", "night": "day"}
FREQUENCY_ADJECTIVES = {
    "hourly": "hour", "daily": "day", "weekly": "week", "monthly": "month", "quarterly": "quarter",
    "yearly": "year", "annual": "year", "annually": "year",
}  # fmt: skip
ROW_NOUNS = word_set(
    "row record entry entries observation reading measurement item time sample case"
)
"""Words that refer to the rows of any table, in addition to the name of the file."""
FILLER_WORDS = word_set(
    "a an the of in on at for to is was were are be been being there it its what whats "
    "what's show me give tell please find get did do does has have had having this that "
    "our my we us all data dataset file table column value values figure figures recorded "
    "measured observed ever with and can could would you i want know see compute "
    "calculate how which who whose much many when you're they them their those these one "
    "ones happened happen occurred occur took place come came during within as so far "
    "from by's reported any actually around here so just degree degrees related lived "
    "living live world worldwide globally overall wie war waren hatte hatten wir es der "
    "die das den und bring brought earn earned achieve achieved handle handled"
    " see saw seen run ran single individual exactly approximately roughly lie located"
)
"""Words to ignore after all other words are parsed."""
TIME_PREPOSITIONS = word_set(
    "since between over during from until till before after through throughout by in on "
    "at for within of am im seit vor nach bis zwischen the and"
)
MOTION_VERBS = word_set(
    "drop dropped fall fell rise rose go went get got climb climbed stay stayed close closed reach"
    " reached cross crossed"
)
NUMBER_WORDS = {"zero": 0, **expressions.NUMBERS}
SCALE_WORDS = {"thousand": 1e3, "k": 1e3, "million": 1e6, "billion": 1e9, "bn": 1e9}


def _compile_phrase(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


NUMBER_PATTERN = re.compile(r"[-\u2212]?\d[\d,]*(?:\.\d+)?")
CLAUSE_BREAK = _compile_phrase(
    r"(?<!\s)\s*+[,;?.\u2013]\s++(?:and\s++)?(?=(?:how|which|what|when|in which|on which)\b)"
    r"|(?<!\s)\s++-\s++(?=(?:which|what|when)\b)"
    r"|(?<!\s)\s++and\s++(?=how (?:did|do|does|have|has)\b)"
)
FOLLOW_UP_PHRASE = _compile_phrase(r"^\W*(?:and|what about|how about|und|or)\b")
CHART_PHRASE = _compile_phrase(
    r"\b(?:(?:make|draw|show|give me|create)\s+)?(?:me\s+)?(?:an?\s+|the\s+)?(?:(?:bar|line|svg|png)\s+)?"
    r"(?:plot|chart|graph|figure|picture|diagram|visuali[sz]e|draw)s?\b(?:\s+(?:of|for|showing|with))?"
    r"|\bas (?:an?\s+)?(?:svg|png|bars?|lines?|(?:bar|line)? ?(?:chart|plot|graph))\b"
)
PRECIPITATION_VERB = _compile_phrase(
    r"(?<=\brain )fell\b|(?<=\bsnow )fell\b|(?<=\bprecipitation )fell\b"
)
COUNT_PHRASE = _compile_phrase(
    r"\b(?:how many|how often|how many times|wie viele|(?:the )?(?:number|count|amount) of)\b|^\W*count(?: the)?\b"
)
_LIMIT_WORDS = r"(?:above|over|below|under|exceed(?:s|ed)?|pass(?:es|ed)?|surpass(?:es|ed)?|more than|less than)\b"
QUESTION_KINDS = [
    ("trend", _compile_phrase(r"\b(?:trend|slope)(?:\s+(?:of|in))?\b")),
    (
        "streak",
        _compile_phrase(
            r"\blongest\s+(?:streak|run|stretch|period|spell)(?:\s+of)?(?:\s+consecutive)?"
        ),
    ),
    (
        "crossing",
        _compile_phrase(
            rf"\bfirst\s+(?:\w+\s+)?(?={_LIMIT_WORDS})"
            r"|\bfor the first time\b|\b(?:the )?first time\b"
        ),
    ),
    (
        "last crossing",
        _compile_phrase(
            rf"\blast\s+(?={_LIMIT_WORDS})|\bfor the last time\b|\b(?:the )?last time\b"
        ),
    ),
    (
        "rolling",
        _compile_phrase(
            r"\b(?P<n>\d+)[\s-]?(?P<unit>h|hour|day|week|month|year)?s?[\s-]*(?:point\s+)?"
            r"(?:moving|rolling|running)\s+(?:average|mean)\b"
        ),
    ),
    ("percentile", _compile_phrase(r"\b(?P<n>\d{1,2})(?:st|nd|rd|th) percentile\b")),
    (
        "gaps",
        _compile_phrase(
            r"\bhow many (?P<unit>\w+?)s? (?:are|is|were) missing\b(?:\s+(?:from|in)\s+(?:the\s+)?"
            r"(?:log|data|file|table|series|record))?"
        ),
    ),
    (
        "share",
        _compile_phrase(
            r"\b(?:what\s+)?(?:share|fraction|proportion|percentage|percent|pct|%)\s+of\b"
        ),
    ),
    (
        "distinct",
        _compile_phrase(r"\b(?:how many|number of|count of) (?:different|distinct|unique)\b"),
    ),
    ("count", COUNT_PHRASE),
    (
        "correlation",
        _compile_phrase(
            r"\bcorrelat\w*(?:\s+(?:with|to|between))?|\brelated\b"
            r"|\b(?:relationship|connection|relation|link|association)\s+between\b"
        ),
    ),
    (
        "list",
        _compile_phrase(r"^\W*(?:list|name|show|what are|which are)\s+(?:all\s+)?(?:the\s+)?"),
    ),
    ("", _compile_phrase(r"\b(?P<std>standard deviation)\b")),
]
"""Kinds of questions and their phrases. The first matching phrase determines the kind."""
HOW_DID_PHRASE = _compile_phrase(r"^\W*(?:show )?how\s+(?:did|do|does|have|has)\b")
DEVELOPMENT_VERB = _compile_phrase(
    r"\b(?:move[ds]?|develop(?:ed)?|vary|varied|change[ds]?|evolve[ds]?)\b"
    r"(?:\s+(?:over|through|throughout|during))?(?:\s+(?:the\s+)?time)?"
)
COMPARISON_PHRASE = _compile_phrase(
    r"\b(?:diff\w*ence|compared? (?:to|with)|compare|versus|vs|change[ds]?|develop(?:ed)?"
    r"|by how much|than)\b(?:\s+(?:in|between|of)\b)?"
)
CHANGE_VERB = _compile_phrase(r"\b(?:chang|gr[eo]w|differ|compar|ris|fall|fell|rose)\w*")
WHEN_CLAUSE = _compile_phrase(
    r"\band\s+(?:when|(?:in|on|at)\s+(?:which|what)\s+(?P<unit>\w+)|on which)\b"
)
_ADJECTIVES = {
    None: ("high big large great strong good", "low small little weak bad"),
    "temperature": ("hot warm mild", "cold cool chilly"),
    "precipitation": ("wet rainy", "dry"),
    "snow": ("snowy", ""),
    "wind": ("windy breezy stormy", "calm"),
    "humidity": ("humid muggy", ""),
    "weight": ("heavy", "light"),
    "age": ("old", "young"),
    "height": ("tall", ""),
    "speed": ("fast quick", "slow"),
    "length": ("long", "short"),
    "width": ("wide broad", "narrow"),
    "depth": ("deep", "shallow"),
    "distance": ("far", "near"),
    "price": ("expensive dear pricey costly", "cheap"),
    "income": ("rich wealthy", "poor"),
    "power": ("powerful", ""),
    "population": ("populous populated", ""),
}
ADJECTIVES = {
    word: (quantity, direction)
    for quantity, words in _ADJECTIVES.items()
    for direction, word_list in zip(("max", "min"), words, strict=True)
    for word in word_list.split()
}
"""Quantity and direction of adjectives, as in "how cold did it get" and "most expensive"."""
HOW_PHRASE = _compile_phrase(rf"\bhow (?P<word>{'|'.join(ADJECTIVES)})\b(?=(?P<rest>.*))")
REACHED_EXTREME = _compile_phrase(
    r"\s+(?:did|has|have|does)\b.*\b(?:get|go|got|gone|reach(?:ed)?|become|rise|climb|fall|drop|sink|run)\b"
    r"|.*\b(?:at (?:most|best|worst|its|the) ?(?:peak|highest|lowest|maximum|minimum|extreme)?\W*$)"
)
AT_EXTREME = _compile_phrase(r"\bat (?:most|best|worst|(?:its|the) (?:peak|extreme))(?=\W*$)")
HOW_EXTREME_VERB = _compile_phrase(
    r"\b(?:did|has|have|does)\b|\b(?:get|go|got|gone|reach|become|rise|climb|fall|drop|sink)(?=\W*$)"
)
EXTREME_REACHED_PHRASE = _compile_phrase(
    r"\b(?:drop(?:ped)?|fall|fell|sink|sank|go|went|climb(?:ed)?|rise|rose|reach(?:ed)?|hit|come|came"
    r"|get|got|be)\s+(?:down\s+|up\s+)?(?:to\s+|at\s+)?(?:(?:its|their|the)\s+)?"
    r"(?=(?:absolute\s+)?(?:min|max|low|high|peak|record|top)\w*)"
)
HOW_CLAUSE = _compile_phrase(
    r"(?<!\s)(?:\s*+,\s++|\s++)and\s++how\s++(?:low|high|cold|hot|warm|strong|windy|fast|big|large|heavy|much|deep)"
    r"(?:\s+(?:was|did)\s+it(?:\s+(?:get|go))?)?(?=\s*+[?.!]*+\s*+$)"
)
"""Phrase that asks for an extreme's value, which every answer states anyway."""
POSSESSION_VERB = _compile_phrase(
    r"\b(?:had|has|have|saw|show(?:s|ed)?|record(?:s|ed)?|with|see)\b"
)
STATE_VERB = _compile_phrase(r"\b(?:is|are)\b")
TREND_VERB = _compile_phrase(
    r"\b(?:rise|rose|risen|fall|fell|fallen|grow|grew|grown|increase[ds]?|decrease[ds]?|drop(?:ped)?"
    r"|climb(?:ed)?|shr[aiu]nk|decline[ds]?|gain(?:ed)?|lost|lose)\b"
)
DANGLING_WORDS = _compile_phrase(
    r"(?<!\s)\s++(?:of|for|by|with)(?=\s++(?:in|on|at|during|since|between|from|to|of|for|by|with)\b)"
    r"|(?:(?<!\s)\s++(?:in|of|on|at|for|with|by|from|the|an?)\b){1,4}\s*+(?=[?.!]*+$)"
    r"|(?<!\s)\s++(?=[?.!]*+$)"
)
ESSENTIAL_WORD = _compile_phrase(
    r"\b(?:best|worst|first|last|same|any|more|less|than|not|no|non|why|per|each|without|except"
    rf"|{'|'.join([*SUPERLATIVES, *COMPARATIVES])})\b"
)
"""Words that change the meaning of a question, so that they must not be dropped."""
SALES_PHRASE = _compile_phrase(
    r"\b(?P<best>best|top|most|worst|least)[\s-]+(?:selling|sold)\b"
    r"|\b(?P<verb>loses?|lost|makes?|made|earns?)\s+the\s+(?P<most>most|least)(?:\s+money)?\b"
    r"|\b(?P<most2>most|least)\s+profitable\b"
    r"|\b(?:biggest|largest|greatest|highest|worst)\s+(?P<loss>loss)(?:es)?\b"
)
"""Phrases that ask for the extremes of sales and profit."""
GROUP_PHRASE = _compile_phrase(
    r"\b(?:(?:grouped|broken down|split) by|(?:for|in|on) (?:each|every)|by|per|each|every|across)\b"
)
HIGH_LOW_NOUN = _compile_phrase(
    r"\b(?P<kind>daily|day's|the|average|mean|median|typical|usual|normal|overnight|lowest|highest|record"
    r"|absolute|its|their|an?)\s+(?P<word>high|low)\b|\b(?P<plural>highs|lows)\b"
)
RECORD_WORDS = word_set("record absolute")
AFTER_NOUN = _compile_phrase(
    r"\W*(?:$|(?:in|on|of|for|during|since|between|at|by|from|over|ever|and|before|after|was|were|is)\b)"
)
"""Text that may follow a noun: the end, or a word that does not continue the noun."""
MISSING_PHRASE = _compile_phrase(
    r"\b(?:(?:have|has|had|with)\s+)?(?:no|without|lack|lacks|lacking|missing)\b"
    r"|\b(?:is|are|was|were)\s+(?:unknown|missing|empty|blank|not (?:known|given|recorded))\b"
)
SIGN_ADJECTIVE = _compile_phrase(
    r"\b(?P<sign>negative|positive)\b|\b(?P<loss>(?:lose|lost|losing)\s+money|(?:make|made)\s+a\s+loss)\b"
)
MARGIN_PHRASE = _compile_phrase(r"\b(?:profit\s+)?margin\b")
TOP_PHRASE = _compile_phrase(
    r"\b(?:the\s+)?(?:(?P<top>top)|first)\s+(?P<a>\d+|\w+)\b"
    rf"|\b(?P<b>\d+|\w+)\s+(?=(?:\w+\s+){{0,3}}(?:with the\s+)?(?:{'|'.join(SUPERLATIVES)})\b)"
)
TIME_PART_PHRASES = [
    (
        "hour_of_day",
        _compile_phrase(r"\bhours? of (?:the )?day\b|(?<=\bat what )hour\b|(?<=\bat which )hour\b"),
    ),
    ("weekday", _compile_phrase(r"\bdays? of (?:the )?week\b|\bweekdays?\b")),
    ("month_of_year", _compile_phrase(r"\bmonths? of (?:the )?year\b")),
]
BOOLEAN_WORDS = {True: ("yes", "true", "y", "1"), False: ("no", "false", "n", "0")}
PERSON_NOUNS = word_set(
    "people person passenger patient student employee guest participant member victim soldier"
)
CASUALTIES = word_set("death wound disease casualty injury")
ACTION_VERBS = word_set(
    "sold sell bought buy made make used use produced generated flown driven travelled traveled paid"
)
"""Verbs that may accompany a named column without changing the meaning."""
OPPOSITES = {"died": "survived", "perished": "survived", "drowned": "survived"}
"""Verbs that negate a yes/no column, by opposite."""
UNIT_QUANTITIES = {
    "energy": word_set("Wh kWh MWh GWh J kJ MJ"),
    "electricity": word_set("Wh kWh MWh GWh"),
    "power": word_set("W kW MW GW"),
    "pressure": word_set("bar mbar hPa kPa Pa psi"),
    "money": word_set("EUR USD GBP"),
}
"""Quantities by the units that imply them."""
MEDIUM_NOUNS = word_set("water air sea ambient surface outside outdoor")
"""Nouns that may precede a quantity if a single column measures it."""
WEATHER_SUBJECTS = MEDIUM_NOUNS | {"it"}
"""Subjects of a question about temperature, such as "it" in "was it below zero"."""
_PARAPHRASES = (
    (r"\b(?:on record|in (?:the )?(?:records|history)|of all times?)\b", ""),
    (r"\ball[- ]time\b", "record"),
    (r"\b(?:most (?:common|frequent|popular)|commonest)\b", "most rows"),
    (r"\b(?:least (?:common|frequent|popular)|rarest)\b", "fewest rows"),
    (
        r"\b(which|what) (month|hour|day)(?= \w+ (?:usually|typically|normally|generally)\b)",
        r"\1 \2 of the part",
    ),
    (r"\bmonth of the part\b", "month of the year"),
    (r"\bhour of the part\b", "hour of the day"),
    (r"\bday of the part\b", "day of the week"),
    (r"\b(?:go|goes|went|gone) up\b", "rise"),
    (r"\b(?:go|goes|went|gone) down\b", "fall"),
    (r"\bnorth of (?=\d)", "latitude above "),
    (r"\bsouth of (?=\d)", "latitude below "),
    (r"\beast of (?=\d)", "longitude above "),
    (r"\bwest of (?=\d)", "longitude below "),
    (
        r"\blongest dry (?:spell|period|streak|stretch|run)\b",
        "longest streak with precipitation of 0",
    ),
    (
        r"\blongest (?:wet|rainy) (?:spell|period|streak|stretch|run)\b",
        "longest streak with precipitation above 0",
    ),
)
_PARAPHRASE_RULES = [(_compile_phrase(pattern), words) for pattern, words in _PARAPHRASES]


def paraphrase(question: str) -> str:
    """Replace idioms in a question with words that the question parser supports.

    >>> paraphrase("What is the most common color?")
    'What is the most rows color?'
    """
    for pattern, words in _PARAPHRASE_RULES:
        question = pattern.sub(words, question)
    return question


NONZERO_WORDS = word_set("rainy wet snowy rain rained snow snowed")
FELL_PHRASE = _compile_phrase(
    r"\b(?:rainy|wet|snowy|(?:rain|snow)ed|(?:did|does|had|with|saw|see|was|any)\s+(?:it\s+|any\s+)?(?:rain|snow))\b"
)
"""Phrases that ask for a day with rain or snow."""
MEASURE_NOUNS = word_set(
    "speed level concentration count price content reading value amount figure"
)
HIGHER_IS_BETTER = word_set("yield score revenue profit return mileage margin survival rating")
LOWER_IS_BETTER = word_set(
    "delay downtime cost expense death loss unemployment inflation error late"
)
