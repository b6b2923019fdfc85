"""Questions about data that the capabilities learn to be chosen by, without a model.

They are shared: whoever asks for a value needs the data and, often, its time. Varied words and
fields matter more than their number, because the offline choice compares words.
"""

from __future__ import annotations

from importlib import resources

from framework.base import ClassifierExample


def examples(**kinds: str) -> list[ClassifierExample]:
    """Return examples for a classifier guide.

    Args:
        **kinds: Why a kind of ``examples.txt`` needs the capability; after ``no:`` why not.

    >>> examples(unrelated="no: needs no data")[0].result
    False
    """
    text = resources.files("capabilities.data").joinpath("examples.txt").read_text("utf-8")
    lines = [line.split(": ", 1) for line in text.splitlines() if not line.startswith("#")]
    return [
        ClassifierExample(
            question, not kinds[kind].startswith("no: "), kinds[kind].removeprefix("no: ")
        )
        for kind, question in lines
        if kind in kinds
    ]
