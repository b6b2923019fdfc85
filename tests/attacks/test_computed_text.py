"""Text of a data file that a library would compute with: units, formulas, names in SQL."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from capgraph.capabilities.contexts import QueryAnswer, QueryResult, ResultRow
from capgraph.capabilities.data.chart import PlottingParameters, draw_chart
from capgraph.capabilities.data.schema import read_tables
from capgraph.capabilities.data.session import open_session
from capgraph.capabilities.data.units import is_unit, unit_conversion, unit_in_name
from capgraph.capabilities.query import Query

POWERS = [
    "flow (3**3333333333)",
    "flow (3^3333333333)",
    "flow (m**3**3**3**3**3)",
    "flow [2**22222222222]",
    "flow (m³³³³³³³³³³)",
    "flow (33333 ** 33333)",
    "flow (m^99999999)",
    "flow (1e99999999)",
    "flow (kg**(9**9**9))",
]


@pytest.mark.parametrize("header", POWERS)
def test_a_header_with_a_power_is_not_computed(header: str) -> None:
    """In a process of its own: a computation of pint's holds the interpreter's lock."""
    code = f"from capgraph.capabilities.data.units import unit_in_name; unit_in_name({header!r})"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("header", "unit"),
    [
        ("flow (m3/h)", "m3/h"),
        ("flow (m³/h)", "m³/h"),
        ("flux (W/m²)", "W/m²"),
        ("flux (W/m**2)", "W/m**2"),
        ("density (kg m^-3)", "kg m^-3"),
        ("temp (°C)", "°C"),
        ("rate (degC/min)", "degC/min"),
        ("viscosity (Pa*s)", "Pa*s"),
    ],
)
def test_units_that_people_write_are_read(header: str, unit: str) -> None:
    assert unit_in_name(header) == unit


def test_units_are_converted_as_before() -> None:
    assert unit_conversion("m3/h", "L/s")[0] == pytest.approx(1 / 3.6)
    assert is_unit("kWh")
    assert not is_unit("3**3")


def drawn(folder: Path, *names: str, **wanted: Any) -> tuple[Path, str]:
    """Draw bars of these names as SVG, and return the file and its text."""
    answer = QueryAnswer(
        query=Query(aggregate="mean", value="flow ($kg$)", group_by=["site"]),
        table="flows",
        text="",
        rows=[ResultRow(value=float(n), group=[name]) for n, name in enumerate(names, 1)],
    )
    result = QueryResult(question="flow by site", answers=[answer], files=[])
    parameters = PlottingParameters(file_format="svg", **wanted)
    plot = draw_chart(result, parameters, {"output_dir": str(folder)})
    return Path(plot.path), Path(plot.path).read_text(encoding="utf-8")


def test_a_formula_in_a_title_or_name_is_shown_as_it_stands(tmp_path: Path) -> None:
    bad = r"$\frac{x$ and $\notacommand$"
    path, text = drawn(tmp_path, bad, r"cost $5 to $9", title=rf"Costs {bad}")
    assert path.stat().st_size > 1000
    assert r"\frac{x$ and $\notacommand$" in text  # the comments of an SVG hold its texts


@pytest.mark.parametrize(
    "name", [r"\$\frac{x$", r"\\$\frac$", "$$", "\\", "x" * 39 + "$" + "y" * 50 + "$"]
)
def test_no_escape_turns_a_name_into_a_formula(tmp_path: Path, name: str) -> None:
    """A variant: escapes of our own escape, and a cut between two dollar signs."""
    path, _ = drawn(tmp_path, name, f"{name} 2", title=name)
    assert path.stat().st_size > 1000


def test_long_titles_and_names_are_cut(tmp_path: Path) -> None:
    began = time.perf_counter()
    long = "site " * 40_000
    _, text = drawn(tmp_path, *[f"{long} {n}" for n in range(30)], title=long)
    assert time.perf_counter() - began < 60
    assert len(text) < 2_000_000


def test_a_plot_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: Any) -> None:
    from matplotlib.figure import Figure

    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("no glyph")

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(ValueError, match="no glyph"):
        drawn(tmp_path, "a", "b")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["v", "t", "w", "n", "g0", "s0", "hit", "run", "gap", "unread"])
def test_a_column_named_like_an_alias_of_our_own_sql_is_read(tmp_path: Path, name: str) -> None:
    rows = "\n".join(f"2024-01-{day:02},{'ab'[day % 2]},{day}" for day in range(1, 20))
    path = tmp_path / "data.csv"
    path.write_text(f"date,{name},flow\n{rows}\n")
    settings = {"data_folders": [str(path)]}
    with open_session(settings) as session:
        (profile,) = read_tables(session, [str(path)], settings)
    column = next(one for one in profile.columns if one.name == name)
    assert (column.kind, column.values) == ("category", ("a", "b"))
    assert profile.first == datetime(2024, 1, 1)


def test_a_column_named_v_with_missing_values_counts_no_empty_one(tmp_path: Path) -> None:
    """The alias was taken for the column of the same name."""
    path = tmp_path / "data.csv"
    path.write_text("v,site\n" + "".join(f"{n},{'' if n % 2 else 'x'}\n" for n in range(50)))
    settings = {"data_folders": [str(path)]}
    with open_session(settings) as session:
        (profile,) = read_tables(session, [str(path)], settings)
    assert next(c for c in profile.columns if c.name == "site").values == ("x",)


def test_no_progress_bar_reaches_the_output() -> None:
    with open_session({}) as session:
        assert session.query("SELECT current_setting('enable_progress_bar')") == [(False,)]
