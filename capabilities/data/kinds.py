"""What sort of question a clause is, by the phrases that show it."""

from __future__ import annotations

from typing import Literal

from capabilities.data.clause import BothError, Clause, Superlative
from capabilities.data.lexicon import (
    AGGREGATES,
    COMPARATIVES,
    UNITS,
)
from capabilities.data.mentions import (
    Mention,
    aspect,
)
from capabilities.data.phrases import (
    AND_WHEN,
    CHANGE,
    COUNT,
    CROSSING,
    DISTINCT,
    FELL,
    GAPS,
    GET,
    HOW_DID,
    LIST,
    MOVED,
    PERCENTILE,
    PICTURE,
    RELATED,
    ROLLING,
    SHARE,
    STD,
    STREAK,
    TREND,
)


class Kinds(Clause):
    """Recognises the sort of a clause and which aggregate it asks for."""

    def _kind(self) -> str:
        """Recognise what sort of question it is by the words that show it."""
        while self._take(PICTURE):
            self.picture = True
        self._take(FELL)
        return self._plain_kind() or self._numbered_kind() or self._counted_kind()

    def _plain_kind(self) -> str:
        """Recognise the sorts that one phrase shows."""
        if self._take(TREND):
            return "trend"
        if self._take(STREAK):
            return "streak"
        if self._take(CROSSING):
            self._take(COUNT)
            return "crossing"
        return ""

    def _numbered_kind(self) -> str:
        """Recognise the sorts that come with a number or a unit."""
        frequency = self.profile.frequency
        if rolling := self._take(ROLLING):
            unit = {"h": "hour"}.get(rolling["unit"] or "", (rolling["unit"] or "").rstrip("s"))
            if unit and unit != frequency:
                raise self._unplaced([unit])
            self.number = float(rolling["n"])
            return "rolling"
        if percentile := self._take(PERCENTILE):
            self.number = float(percentile[1])
            return "percentile"
        if gaps := self._take(GAPS):
            if gaps["unit"].lower() != frequency:
                raise self._unplaced([gaps["unit"]])
            return "gaps"
        if get := self._take(GET):
            direction: Literal["max", "min"] = "min" if get["word"].lower() == "cold" else "max"
            place = next(p for p, w in enumerate(self.words) if w.end == get.end())
            self.slots.superlative = Superlative(place, "temperature", direction, get["word"])
        asked = self._take(AND_WHEN)  # the time of an extreme is always said
        if asked and asked["unit"] and UNITS.get(asked["unit"].lower()) != frequency:
            raise self._unplaced([asked["unit"]])
        return ""

    def _counted_kind(self) -> str:
        """Recognise counts, shares and lists, and which aggregate is asked for."""
        kind = "share" if self._take(SHARE) else ""
        if not kind and not COUNT.search(self.text) and self._take(RELATED):
            return "correlation"
        for pattern, name in ((DISTINCT, "distinct"), (COUNT, "count"), (LIST, "list")):
            if not kind and self._take(pattern):
                kind = name
        if self._take(STD):
            self.slots.aggregate = "std"
        if len(self.times.intervals) > 1 or len(self.times.endpoints) == 2:
            self._take(CHANGE)
            self._compared_concept()
        elif HOW_DID.match(self.text):
            moved = [m for m in MOVED.finditer(self.text) if self._places(*m.span())]
            if len(moved) > 1:
                for match in moved:
                    self.free -= self._places(*match.span())
                return "moved"
        self._find_aggregate()
        return kind

    def _find_aggregate(self) -> None:
        for place in sorted(self.free):
            name = AGGREGATES.get(self.words[place].stem)
            if name is not None:
                self.free.discard(place)
                if self.slots.aggregate not in (None, name):
                    raise self._unplaced([self.words[place].text])
                self.slots.aggregate = name

    def _compared_concept(self) -> None:
        """Read "warmer" in a comparison of two periods."""
        for place in sorted(self.free):
            known = COMPARATIVES.get(self.words[place].stem)
            if known is None or known[0] is None:
                continue
            columns = self._by_concept(known[0], self.aspect)
            self.free.discard(place)
            if sorted(aspect(c) or "" for c in columns) == ["max", "min"]:
                raise BothError
            if len(columns) != 1:
                raise self._unplaced([self.words[place].text])
            self.slots.values.append(Mention(columns[0], frozenset({place})))
