"""Size of data of several types, measured only as far as a limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from capgraph.helpers.data_size import exceeds_bytes


@dataclass
class Row:
    text: str


@pytest.mark.parametrize(
    "value",
    [
        "é" * 500,
        b"x" * 1_000,
        {"k" * 1_000: 1},
        [0] * 125,
        Row("x" * 1_000),
        AIMessage("x" * 1_000),
    ],
)
def test_each_type_counts_its_contents(value: Any) -> None:
    assert exceeds_bytes(value, 999)
    assert not exceeds_bytes(value, 2_000)
