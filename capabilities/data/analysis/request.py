"""What a question asks to be computed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from capabilities.data.units import number_with_unit
from capabilities.data.vocabulary import ADJECTIVES, Direction
from capabilities.data.words import blank, quoted_names, words_of

Statistic = Literal[
    "max", "min", "mean", "median", "sum", "count", "std", "range", "percentile", "trend",
    "change", "breakdown", "compare", "threshold", "crossing", "run", "anomalies", "share",
    "correlation", "mode", "describe", "values",
]  # fmt: skip
Unit = Literal[
    "hour", "day", "week", "month", "quarter", "year", "season", "decade", "weekday",
    "hour_of_day", "month_of_year", "weekend", "series",
]  # fmt: skip
_UNIT = (
    r"(?P<unit>days?\s+of\s+(?:the\s+)?week|weekdays?|hours?\s+of\s+(?:the\s+)?day|time\s+of\s+day"
    r"|months?\s+of\s+(?:the\s+)?year|calendar\s+months?|time\s+of\s+(?:the\s+)?year|hours?|days?"
    r"|weeks?|months?|quarters?|years?|seasons?|decades?)\b"
)
_WHICH = re.compile(rf"\b(?:which|what)\s+(?:single\s+|individual\s+)?{_UNIT}", re.I)
_BY = re.compile(
    r"\b(?:by|per|each|every|for each|of each|for every|across(?: the)?|over the"
    rf"|rank(?:ing)?(?: of)?(?: the| all)?)\s+{_UNIT}",
    re.I,
)
_ADVERB = re.compile(
    r"\b(daily(?!\s+(?:high|low|max|min|range))|hourly|weekly|monthly|quarterly|yearly|annual|annually|seasonal)\b",
    re.I,
)
_ADVERBS: dict[str, Unit] = {
    "hourly": "hour", "daily": "day", "weekly": "week", "monthly": "month", "quarterly": "quarter",
    "yearly": "year", "annual": "year", "annually": "year", "seasonal": "season",
}  # fmt: skip
_PATTERNS: list[tuple[Statistic, str]] = [
    ("mode", r"(?:most|least)\s+(?:common|frequent|often|popular)"),
    ("share", r"(?:what|which)?\s*(?:share|proportion|fraction|percentage|percent|part) of"
              r"|(?:share|proportion|percentage) "),
    ("correlation", r"correlat\w*|relationship|related|depend\w*\s+on|association"),
    ("anomalies", r"anomal\w*|outliers?|unusual\w*|abnormal\w*|spikes?|strange|odd values"),
    ("run", r"spells?|streaks?|consecutive|in a row|longest (?:run|period|stretch)"),
    ("percentile", r"percentiles?|quartiles?|quantiles?|p\d\d\b"),
    ("median", r"medians?"),
    ("std", r"standard deviations?|std\.?|variab\w*|volatil\w*|variance|dispersion"),
    ("range", r"range|swing|spread|min(?:imum)? and max(?:imum)?"
              r"|max(?:imum)? and min(?:imum)?"),
    ("mean", r"averages?|averaged|means?|avg|on average|typical\w*|usual\w*|normally"),
    ("sum", r"totals?|sum|altogether|in all|combined|cumulative|overall amount|accumulat\w*"),
    ("compare", r"compar\w*|versus|vs\.?|differ\w*|contrast"),
    ("trend", r"trend\w*|slope|over time|over (?:those|these|the) (?:\w+ )?(?:hours|days|weeks|months"
              r"|years|decades|period)|regression|(?:getting|became|become|becoming)\s+\w+er\b|rising"
              r"|falling|increasing|decreasing|declining|growing"),
    ("change", r"chang\w*|growth|grow|grew|grown|rose|risen|fell|fallen|increased?|decreased?|declined?"
               r"|dropped|gain(?:s|ed)?|los[et]|losing|loses|shed|added|climbed|how much (?:did|has|have) .* (?:rise|fall|drop|gain|lose)"
               r"|returns?\b|perform\w*|how did .* do\b"),
    ("describe", r"summar\w*|describe|overview|statistics|tell me about|distribution"),
]  # fmt: skip
_COMPILED = [(name, re.compile(rf"\b(?:{text})(?!\w)", re.I)) for name, text in _PATTERNS]
_MOVED = re.compile(
    r"\bhow (?:did|does|do|has|have|is|was|were)\b.*?\b(?:mov|chang|develop|evolv|var|behav|progress|go\b|gone"
    r"|fluctuat|trend|look)\w*",
    re.I,
)
_COUNTED = re.compile(
    r"\bhow (?:many|often|frequent\w*)\b|\bnumber of\b|\bcount (?:of|the|how)|\bcount\b", re.I
)
_HOW_MUCH = re.compile(r"\bhow much\b", re.I)
_TOP = re.compile(
    r"\b(?:top|bottom|first|best|worst)\s+(\d+|two|three|four|five|six|seven|eight|nine|ten)\b"
    r"|\b(\d+|two|three|four|five|six|seven|eight|nine|ten)\s+(?=(?:\w+est|most|least|top|best|worst)\b)",
    re.I,
)
_TOP_WORDS = dict(
    zip(
        ["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"],
        range(2, 11),
        strict=True,
    )
)
_NUMBER = r"(?P<n>[-\u2212$€£]?\s?\d[\d,]*(?:\.\d+)?\s*(?:°\s*[CF]\b|degrees?(?:\s+(?:celsius|fahrenheit|[CF]\b))?|[a-zA-Z%/°]{0,12}))"
_ABOVE = re.compile(
    r"\b(?:above|over|more than|greater than|higher than|larger than|warmer than|hotter than"
    r"|exceed(?:s|ed|ing)?|pass(?:es|ed)?|surpass(?:es|ed)?|cross(?:es|ed)?|beyond|topped)\s+"
    rf"(?:the\s+)?{_NUMBER}|>\s*{_NUMBER.replace('?P<n>', '?P<n2>')}",
    re.I,
)
_BELOW = re.compile(
    r"\b(?:below|under|less than|fewer than|lower than|smaller than|colder than|cooler than"
    rf"|drop(?:s|ped)? below|beneath)\s+(?:the\s+)?{_NUMBER}|<\s*{_NUMBER.replace('?P<n>', '?P<n2>')}",
    re.I,
)
_AT_LEAST = re.compile(
    rf"\b(?:at least|no less than|not less than|reach(?:es|ed|ing)?|hit|of)\s+{_NUMBER}(?:\s+or\s+(?:more|above|higher))?"
    rf"|>=\s*{_NUMBER.replace('?P<n>', '?P<n2>')}",
    re.I,
)
_OR_MORE = re.compile(rf"{_NUMBER}\s+(?:or\s+(?:more|above|higher|warmer|hotter)|\+)", re.I)
_OR_LESS = re.compile(rf"{_NUMBER}\s+or\s+(?:less|below|lower|fewer|colder|cooler)", re.I)
_AT_MOST = re.compile(rf"\b(?:at most|no more than|not more than)\s+{_NUMBER}", re.I)
_EQUAL = re.compile(
    rf"\b(?:have|has|had|having|with|exactly|equals?|equal to|was|were)\s+(?:exactly\s+)?{_NUMBER}",
    re.I,
)
_FREEZING = re.compile(
    r"\b(?:below|under|sub)[\s-]?(?:freezing|zero)\b|\bfreezing\b|\bfrost\w*\b", re.I
)
_FIRST = re.compile(r"\b(first|last|earliest|latest)\b", re.I)
_SINGLE = re.compile(
    r"\b(?:when|what (?:day|date|month|year)|which (?:day|date|month|year))\b", re.I
)


@dataclass(frozen=True)
class Threshold:
    """A limit and on which side of it values are meant."""

    operator: Literal[">", "<", ">=", "<=", "="]
    value: float
    unit: str | None = None


@dataclass
class Request:
    """What is asked.

    Attributes:
        statistics: What to compute, in the order of importance.
        directions: Extremes, each with the quantity that its adjective names.
        top: How many of the most extreme.
        group: Unit of time, or ``series``, to group by.
        grouped_extreme: Whether the group with the extreme is asked for ("which month").
        percentile: Between 0 and 1.
        threshold: The limit of "days above 30".
        crossing: Whether the first or last time is asked for.
        comparative: Whether an adjective compares two ("warmer").
        mean_of: Unit whose totals are averaged ("average monthly rainfall").
        counted: What "how many" counts, such as ``days``.
    """

    statistics: list[Statistic] = field(default_factory=list)
    directions: list[tuple[Direction, str | None]] = field(default_factory=list)
    top: int = 1
    group: Unit | None = None
    grouped_extreme: bool = False
    percentile: float | None = None
    threshold: Threshold | None = None
    crossing: Literal["first", "last"] | None = None
    comparative: bool = False
    mean_of: Unit | None = None
    counted: str | None = None
    how_much: bool = False

    def asks(self, *names: Statistic) -> bool:
        """Say whether any of these statistics is asked for."""
        return any(name in self.statistics for name in names)


def parse_request(
    text: str, spans: list[tuple[int, int]] | None = None, names: Sequence[str] = ()
) -> Request:
    """Read what a question asks to be computed.

    Args:
        text: The question.
        spans: Its words about time, which are no thresholds.
        names: Names of columns, whose words ask for nothing.

    >>> parse_request("Which month was wettest?").group
    'month'
    """
    quoted = [(begin, end) for _, begin, end in quoted_names(text)]
    # Only names that nobody writes by chance: "temp_min" asks for no minimum.
    odd = "|".join(re.escape(name) for name in names if re.search(r"[\W_]", name))
    named = [match.span() for match in re.finditer(odd, text, re.I)] if odd else []
    plain = blank(text, [*(spans or []), *quoted, *named])
    request = Request()
    _read_group(plain, request)
    _read_named_group(text, request)
    _read_mean_of(plain, request)
    request.threshold = _threshold(plain)
    _read_adjectives(plain, request)
    for name, pattern in _COMPILED:
        if pattern.search(plain):
            request.statistics.append(name)
    if _MOVED.search(plain) and "trend" not in request.statistics:
        request.statistics.append("trend")
    _read_counts(plain, request)
    top = _TOP.search(plain)
    if top:
        said = (top[1] or top[2]).lower()
        request.top = max(1, min(50, int(said) if said.isdigit() else _TOP_WORDS[said]))
    percentile = re.search(
        r"(\d{1,2}(?:\.\d+)?)\s*(?:th|st|nd|rd)?\s*(?:percentile|quantile)|\bp(\d\d)\b", plain, re.I
    )
    if percentile:
        request.percentile = float(percentile[1] or percentile[2]) / 100
    elif "percentile" in request.statistics:
        request.percentile = 0.75 if re.search(r"upper|third|top", plain, re.I) else 0.25
    request.how_much = bool(_HOW_MUCH.search(plain))
    return request


def unit_named(said: str) -> Unit:
    """Name the unit that words mean.

    >>> unit_named("day of the week"), unit_named("years")
    ('weekday', 'year')
    """
    words = " ".join(said.lower().split())
    if words.startswith("weekday") or ("day" in words and "week" in words):
        return "weekday"
    if (words.startswith("hour") and "day" in words) or words.startswith("time of day"):
        return "hour_of_day"
    if "calendar" in words or ("month" in words and "year" in words) or words.startswith("time of"):
        return "month_of_year"
    return words.rstrip("s")  # type: ignore[return-value]


def _read_group(text: str, request: Request) -> None:
    which = _WHICH.search(text)
    by = _BY.search(text)
    superlative = re.search(
        rf"\b(?P<adjective>\w+est|most|least|best|worst|top|peak|record)\s+(?:[\w-]+\s+){{0,2}}?{_UNIT}",
        text,
        re.I,
    )
    if superlative and superlative["adjective"].lower() not in ADJECTIVES:
        superlative = None
    adverb = _ADVERB.search(text)
    if which:
        request.group, request.grouped_extreme = unit_named(which["unit"]), True
    elif superlative:
        request.group, request.grouped_extreme = unit_named(superlative["unit"]), True
    elif by:
        request.group = unit_named(by["unit"])
    elif adverb:
        request.group = _ADVERBS[adverb[1].lower()]
    if request.group and not request.grouped_extreme:
        request.statistics.append("breakdown")


def _read_adjectives(text: str, request: Request) -> None:
    words = words_of(text)
    for index, word in enumerate(words):
        plain = word.text.lower()
        found = ADJECTIVES.get(plain)
        if found is None or plain in (
            "hot",
            "cold",
            "warm",
            "cool",
            "wet",
            "windy",
            "dry",
            "freezing",
        ):
            continue
        following = words[index + 1].text.lower() if index + 1 < len(words) else ""
        if following == "than" and request.threshold is not None:
            continue
        if plain in ("most", "least") and (
            following in ("common", "frequent", "often", "popular", "expensive", "of", "recent")
            or text[: word.begin].lower().rstrip().endswith(" at")
        ):
            if following == "expensive":
                _add_direction(request, "max" if plain == "most" else "min", "price")
            continue
        if plain in ("longest", "shortest") and following in ("dry", "wet", "spell", "streak", "run",
                                                             "period", "rainy", "hot", "cold"):  # fmt: skip
            continue
        if plain == "record" and following in ("", "count", "rows"):
            continue
        if plain in ("maximum", "minimum", "max", "min") and re.search(
            r"\b(?:average|mean|median|total)\s*$", text[: word.begin], re.I
        ):
            continue
        if (plain.endswith("er") and plain not in ("water", "other", "lower")) or plain in (
            "more",
            "less",
            "lower",
        ):
            request.comparative = True
            continue
        quantity, direction = found
        if plain in ("more", "less"):
            continue
        _add_direction(request, direction, quantity)


def _read_mean_of(text: str, request: Request) -> None:
    """Read "average monthly rainfall" and "mean rainfall per year"."""
    match = re.search(
        r"\b(?:average|mean|typical|usual)\s+(daily|weekly|monthly|quarterly|yearly|annual)\b"
        rf"|\b(?:average|mean)\b[^.?!]*?\bper\s+{_UNIT}",
        text,
        re.I,
    )
    if match:
        request.mean_of = _ADVERBS[match[1].lower()] if match[1] else unit_named(match["unit"])


def _read_named_group(text: str, request: Request) -> None:
    """Read "the driest summer" and "which July was hottest": one value for each of them."""
    names = "summers?|winters?|springs?|autumns?|falls?"
    months = "january|february|march|april|may|june|july|august|september|october|november|december"
    if re.search(r"\bweekends?\b", text, re.I) and re.search(r"\bweekdays?|workdays?", text, re.I):
        request.group = "weekend"
        request.statistics.append("breakdown")
        return
    each = re.search(rf"\b(?:by|per|each|every)\s+(?:{names})\b", text, re.I)
    if each:
        request.group = "season"
        request.statistics.append("breakdown")
        return
    match = re.search(
        rf"\b(?:(?P<word>\w+est|most|least|best|worst)\s+(?:\w+\s+)?|(?:which|what)\s+)"
        rf"(?:(?P<season>{names})|(?P<month>{months}))\b(?!\s+(?:of\s+)?\d)",
        text,
        re.I,
    )
    if match is None or (match["word"] and match["word"].lower() not in ADJECTIVES):
        return
    request.group = "season" if match["season"] else "month"
    request.grouped_extreme = True
    request.statistics = [name for name in request.statistics if name != "breakdown"]


def _add_direction(request: Request, direction: Direction, quantity: str | None) -> None:
    if (direction, quantity) not in request.directions:
        request.directions.append((direction, quantity))
    if direction not in request.statistics:
        request.statistics.append(direction)


def _read_counts(text: str, request: Request) -> None:
    counted = _COUNTED.search(text)
    if counted:
        rest = text[counted.end() : counted.end() + 60]
        noun = re.search(
            r"\b(minutes?|hours?|days?|nights?|weeks?|months?|quarters?|years?|times)\b", rest, re.I
        )
        request.counted = noun[1].lower().rstrip("s") if noun else ""
        request.statistics.append("count")
    if request.threshold is None:
        return
    first = _FIRST.search(text)
    if first and not request.directions and "run" not in request.statistics:
        request.crossing = "first" if first[1].lower() in ("first", "earliest") else "last"
        request.statistics.append("crossing")
    elif "run" not in request.statistics:
        if not counted and _SINGLE.search(text) and not request.directions:
            request.crossing = "first"
            request.statistics.append("crossing")
        else:
            request.statistics.append("threshold")


def _threshold(text: str) -> Threshold | None:
    if re.search(r"\btop\s+\d", text, re.I):
        text = re.sub(r"\btop\s+\d+", "", text, flags=re.I)
    rules: list[tuple[re.Pattern[str], Literal[">", "<", ">=", "<="]]] = [
        (_OR_MORE, ">="), (_OR_LESS, "<="), (_AT_MOST, "<="), (_ABOVE, ">"), (_BELOW, "<"),
        (_AT_LEAST, ">="),
    ]  # fmt: skip
    for pattern, operator in rules:
        match = pattern.search(text)
        if not match:
            continue
        said = next((v for v in match.groupdict().values() if v), None)
        if said is None or (operator == ">=" and match[0].lower().startswith("of ")):
            continue
        number = number_with_unit(said)
        if number is not None and not _counts_time(said):
            return Threshold(operator, *number)
    frozen = _FREEZING.search(text)
    if frozen:
        return Threshold("<", 0.0, None if "zero" in frozen[0].lower() else "°C")
    if re.search(r"\bnegative\b", text, re.I) and not re.search(r"correlat", text, re.I):
        return Threshold("<", 0.0)
    if re.search(r"\b(?:was|were|is|are)\b.*\bpositive\b", text, re.I):
        return Threshold(">", 0.0)
    equal = _EQUAL.search(text)
    if equal and _COUNTED.search(text) and not _counts_time(equal[0]):
        number = number_with_unit(equal["n"])
        return Threshold("=", *number) if number else None
    return None


def _counts_time(said: str) -> bool:
    """Say whether a number counts days or years and limits no value."""
    return bool(re.search(r"\d\s*(?:days?|weeks?|months?|years?|hours?|times)\b", said, re.I))
