"""The picture of a run."""

from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import pytest

from capgraph.base import ConfigurationError
from capgraph.cli.timeline import Timeline
from capgraph.telemetry import StepFailed, StepFinished, StepStarted

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def noted(*events):
    picture = Timeline()
    for event in events:
        picture.record(event)
    return picture


def ended(key, after, took, kind=StepFinished, **more):
    moment = (BEGAN + timedelta(seconds=after)).isoformat()
    return kind(context_key=key, capability="look", duration=took, timestamp=moment, **more)


def words(svg):
    return " ".join("".join(ElementTree.fromstring(svg).itertext()).replace("\xa0", " ").split())


def test_attempts_are_drawn_in_start_order():
    failed = ended("b", 1.5, 1.5, StepFailed, severity="retriable", message="no")
    svg = noted(ended("a", 4.0, 1.0), failed, ended("b", 3.0, 1.25)).to_svg("Why <b>?")
    shown = words(svg)
    assert shown.index("1.50 s") < shown.index("1.25 s") < shown.index("1.00 s")
    assert shown.count("b (look)") == 2
    assert "Why <b>?" in shown


def test_empty_and_unfinished_timelines_are_drawn():
    assert words(noted(StepStarted(context_key="a", capability="look")).to_svg("empty"))


def test_untrusted_text_is_escaped_and_nothing_is_loaded():
    svg = noted(ended("\x1b[2J\u202ekey</svg>", 1, 1)).to_svg("\x1b]0;x\x07<script>")
    assert "\\x1b[2J\\u202ekey</svg>" in words(svg)
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "").replace(
        "https://www.textualize.io", ""
    )


def test_timeline_file_is_replaced_atomically(tmp_path):
    file = tmp_path / "deep" / "run.svg"
    noted().write(file, "one")
    noted().write(file, "two")
    assert "two" in file.read_text(encoding="utf-8")
    assert [found.name for found in file.parent.iterdir()] == ["run.svg"]
    with pytest.raises(ConfigurationError, match="cannot be written"):
        noted().write(tmp_path / "deep", "a folder")
    assert [found.name for found in tmp_path.iterdir()] == ["deep"]
