"""A run as a picture."""

from xml.etree import ElementTree

import pytest

from framework.base import ConfigurationError
from framework.cli.progress import Span
from framework.cli.timeline import timeline_svg, write_timeline

SVG = "{http://www.w3.org/2000/svg}"
SPANS = [
    Span("orchestrator", 100.0, 100.5, "framework", "Planning"),
    Span("sky", 101.0, 102.0, "failed", "look"),
    Span("sky", 102.5, 103.0, "done", "look"),
    Span("art", 102.0, None, "running", "paint"),
]


def bars(svg):
    root = ElementTree.fromstring(svg)
    return {
        group.find(f"{SVG}title").text: group.find(f"{SVG}rect") for group in root.iter(f"{SVG}g")
    }


def test_bars_lie_where_their_times_are():
    drawn = bars(timeline_svg(SPANS, "A run"))
    first, second = drawn["sky: look, 1.00 s"], drawn["sky: look, 0.50 s"]
    assert first.get("y") == second.get("y")
    assert float(first.get("width")) == pytest.approx(2 * float(second.get("width")), abs=0.2)
    assert float(second.get("x")) - float(first.get("x")) == pytest.approx(
        1.5 * float(first.get("width")), abs=0.2
    )
    assert first.get("fill") != second.get("fill")
    assert drawn["art: paint, 1.00 s"].get("y") != first.get("y")


@pytest.mark.parametrize("text", ["<script>&'\"]]>", "\x00\x1b[2J\ud800\uffff", "x" * 5000])
def test_any_text_makes_well_formed_xml(text):
    svg = timeline_svg([Span(text, 0.0, 1.0, "done", text)], text)
    root = ElementTree.fromstring(svg.encode())
    assert root.find(f"{SVG}script") is None


@pytest.mark.parametrize("spans", [[], [Span("a", 5.0, 5.0, "done")], [Span("a", 0, 1e6, "done")]])
def test_runs_of_any_length_can_be_drawn(spans):
    root = ElementTree.fromstring(timeline_svg(spans, "A run"))
    assert len(root.findall(f"{SVG}line")) <= 12


def test_the_file_is_written_whole(tmp_path):
    write_timeline(SPANS, tmp_path / "deep" / "t.svg", "A run")
    assert ElementTree.parse(tmp_path / "deep" / "t.svg").getroot().tag == f"{SVG}svg"
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["t.svg"]


def test_a_place_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"cannot be written.*Fix: .*--timeline"):
        write_timeline(SPANS, tmp_path / "file" / "t.svg", "A run")
