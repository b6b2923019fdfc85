"""How questions say what they want: the phrases that a clause is searched for."""

from __future__ import annotations

import re

from capabilities.data.words import words_set

ORDER = ["minute", "hour", "day", "week", "month", "quarter", "year", "decade"]
NUMBER = re.compile(r"[-\u2212]?\d[\d,]*(?:\.\d+)?")
NUMBERS = {
    "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8,
    "nine": 9, "ten": 10, "zero": 0, "twenty": 20, "hundred": 100,
}  # fmt: skip
SCALES = {"thousand": 1e3, "k": 1e3, "million": 1e6, "billion": 1e9, "bn": 1e9}
CLAUSE = re.compile(
    r"\s*[,;?.\u2013]\s+(?:and\s+)?(?=(?:how|which|what|when|in which|on which)\b)|\s+-\s+(?=(?:which|what|when)\b)"
    r"|\s+and\s+(?=how (?:did|do|does|have|has)\b)",
    re.IGNORECASE,
)
FOLLOWING = re.compile(r"^\W*(?:and|what about|how about|und|or)\b", re.IGNORECASE)
COUNT = re.compile(
    r"\b(?:how many|wie viele|(?:the )?(?:number|count|amount) of)\b|^\W*count(?: the)?\b", re.I
)
SHARE = re.compile(
    r"\b(?:what\s+)?(?:share|fraction|proportion|percentage|percent|pct|%)\s+of\b", re.IGNORECASE
)
GROUP = re.compile(
    r"\b(?:(?:grouped|broken down|split) by|for (?:each|every)|in (?:each|every)|on (?:each|every)"
    r"|by|per|each|every|across)\b",
    re.IGNORECASE,
)
LIST = re.compile(r"^\W*(?:list|name|show|what are|which are)\s+(?:all\s+)?(?:the\s+)?", re.I)
RELATED = re.compile(
    r"\bcorrelat\w*(?:\s+(?:with|to|between))?|\brelated\b|\b(?:relationship|connection|relation)"
    r"\s+between\b",
    re.IGNORECASE,
)
GAPS = re.compile(
    r"\bhow many (?P<unit>\w+?)s? (?:are|is|were) missing\b(?:\s+(?:from|in)\s+(?:the\s+)?"
    r"(?:log|data|file|table|series|record))?",
    re.IGNORECASE,
)
AND_WHEN = re.compile(
    r"\band\s+(?:when|(?:in|on|at)\s+(?:which|what)\s+(?P<unit>\w+)|on which)\b", re.IGNORECASE
)
GET = re.compile(r"\bhow (?P<word>cold|hot|warm)(?= did it get\b)", re.IGNORECASE)
BEFORE_TIME = words_set(
    "since between over during from until till before after through throughout by in on "
    "at for within of am im seit vor nach bis zwischen"
)
MOVING = words_set("drop dropped fall fell rise rose go went get got climb climbed stay stayed")
FELL = re.compile(r"(?<=\brain )fell\b|(?<=\bsnow )fell\b|(?<=\bprecipitation )fell\b", re.I)
TREND = re.compile(r"\b(?:trend|slope)(?:\s+(?:of|in))?\b", re.IGNORECASE)
NOUN_ASPECT = re.compile(
    r"\b(?:daily|day's|the|average|mean|median|record|overnight|lowest|highest)\s+(high|low)\b"
    r"|\b(highs|lows)\b",
    re.IGNORECASE,
)
PICTURE = re.compile(
    r"\b(?:(?:make|draw|show|give me|create)\s+)?(?:me\s+)?(?:an?\s+|the\s+)?(?:(?:bar|line|svg|png)\s+)?"
    r"(?:plot|chart|graph|figure|picture|diagram|visuali[sz]e|draw)s?\b(?:\s+(?:of|for|showing|with))?"
    r"|\bas (?:an?\s+)?(?:svg|png|bars?|lines?|(?:bar|line)? ?(?:chart|plot|graph))\b",
    re.IGNORECASE,
)
MEASURES = words_set("speed level concentration count")
GOOD = words_set("yield score revenue profit return sale")
CROSSING = re.compile(
    r"\bfirst\s+(?:(?:go|went|rise|rose|climb(?:ed)?|get|got|fall|fell|drop(?:ped)?|come|came)\s+)?"
    r"(?=(?:above|over|below|under|exceed|pass|surpass)\w*)",
    re.IGNORECASE,
)
STREAK = re.compile(
    r"\blongest\s+(?:streak|run|stretch|period|spell)(?:\s+of)?(?:\s+consecutive)?", re.IGNORECASE
)
MISSING = re.compile(
    r"\b(?:(?:have|has|had|with)\s+)?(?:no|without|lack|lacks|lacking|missing)\b"
    r"|\b(?:is|are|was|were)\s+(?:unknown|missing|empty|blank|not (?:known|given|recorded))\b",
    re.IGNORECASE,
)
CHANGE = re.compile(
    r"\b(?:diff\w*ence|compared? (?:to|with)|compare|versus|vs|change[ds]?|develop(?:ed)?"
    r"|by how much|than)\b(?:\s+(?:in|between|of)\b)?",
    re.IGNORECASE,
)
MOVED = re.compile(
    r"\b(?:how|show how)\s+(?:did|do|does|have|has)\b|\b(?:move[ds]?|develop(?:ed)?|vary|varied"
    r"|change[ds]?|evolve[ds]?)\b(?:\s+(?:over|through|throughout|during))?(?:\s+(?:the\s+)?time)?",
    re.IGNORECASE,
)
PERCENTILE = re.compile(r"\b(\d{1,2})(?:st|nd|rd|th) percentile\b", re.IGNORECASE)
STD = re.compile(r"\bstandard deviation\b|\bstd\b", re.IGNORECASE)
DISTINCT = re.compile(r"\bhow many (?:different|distinct|unique)\b", re.IGNORECASE)
SIGN = re.compile(r"\b(negative|positive)\b", re.IGNORECASE)
TOP = re.compile(
    r"\b(?:the\s+)?(?:top|first)\s+(?P<a>\d+|\w+)\b"
    r"|\b(?P<b>\d+|\w+)\s+(?=(?:\w+\s+){0,3}(?:with the\s+)?(?:highest|lowest|most|least|fewest"
    r"|largest|smallest|hottest|coldest|warmest|wettest|biggest|heaviest)\b)",
    re.IGNORECASE,
)
ROLLING = re.compile(
    r"\b(?P<n>\d+)[\s-]?(?P<unit>h|hours?|days?|weeks?|months?|years?)?[\s-]*(?:point\s+)?"
    r"(?:moving|rolling|running)\s+(?:average|mean)\b",
    re.IGNORECASE,
)
HOW_DID = re.compile(r"\W*(?:how|show how)\s+(?:did|do|does|have|has)\b", re.IGNORECASE)
GREW = re.compile(r"\b(?:chang|gr[eo]w|differ|compar|ris|fall|fell|rose)\w*", re.IGNORECASE)
WITH_SOME = words_set("rainy wet snowy")
