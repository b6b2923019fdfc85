"""What the name of a column says."""

from __future__ import annotations

from dataclasses import dataclass

from capabilities.data.units import is_unit_word
from capabilities.data.vocabulary import ASPECTS, COMPACT, QUANTITIES, Aspect, canonical
from capabilities.data.words import name_words

_FILLERS = {"and", "of", "the", "in", "per", "by", "for", "to", "at", "a"}


@dataclass(frozen=True)
class Meaning:
    """What a column name says.

    Attributes:
        words: Its words without unit and aspect, each as the quantity it means, if any.
        literal: The same words as written.
        aspect: Whether it is the highest, lowest or mean value of a time.
    """

    words: tuple[str, ...]
    literal: tuple[str, ...]
    aspect: Aspect | None

    @property
    def quantity(self) -> str | None:
        """The quantity that the column measures, if its name tells."""
        return next((word for word in self.words if word in QUANTITIES), None)


def meaning_of(name: str) -> Meaning:
    """Read a column name.

    >>> meaning_of("temp_max")
    Meaning(words=('temperature',), literal=('temp',), aspect='high')
    """
    pieces = [word for word in name_words(name) if word not in _FILLERS] or name_words(name)
    words: list[str] = []
    literal: list[str] = []
    aspect: Aspect | None = None
    whole = "".join(pieces)
    if whole in COMPACT and (len(pieces) == 1 or len(pieces[0]) == 1):
        quantity, aspect = COMPACT[whole]
        return Meaning((quantity,), (whole,), aspect)
    for index, piece in enumerate(pieces):
        if piece in COMPACT:
            quantity, aspect = COMPACT[piece]
            words.append(quantity)
            literal.append(piece)
        elif piece in ASPECTS and len(pieces) > 1:
            aspect = ASPECTS[piece]
        elif index > 0 and is_unit_word(piece) and words:
            continue
        elif not piece.isdigit() or len(pieces) == 1:
            words.append(canonical(piece))
            literal.append(piece)
    if not words and len(pieces) == 1:
        words, literal = [pieces[0]], [pieces[0]]
    return Meaning(tuple(dict.fromkeys(words)), tuple(dict.fromkeys(literal)), aspect)
