"""What calls used and cost: unknown prices are unknown, tables do not leak, sinks block nobody."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from capgraph.base import ValidationError
from capgraph.compat.session_usage import (
    FanoutUsageSink,
    NoopUsageSink,
    RingBufferUsageSink,
    SqliteUsageSink,
    UsageTracker,
)
from capgraph.telemetry import (
    ModelPricing,
    PriceTable,
    UsageSnapshot,
    format_cost,
    has_pricing,
    load_pricing_from_file,
    register_pricing,
)

CALL = UsageSnapshot(input_tokens=1000, output_tokens=100)


@pytest.mark.row("T25")
def test_an_unknown_price_is_unknown_and_no_budget_holds_it() -> None:
    tracker = UsageTracker()
    tracker.record_turn("nobody-knows-this", CALL)
    assert tracker.cost_for_turn("nobody-knows-this", CALL) is None
    assert tracker.total_cost() is None
    assert tracker.budget_remaining(1.0) is None
    assert tracker.is_over_budget(1_000_000.0)
    assert tracker.format_cost() == "unknown"
    assert tracker.per_model_summary() == {"nobody-knows-this": None}


def test_nothing_used_costs_nothing() -> None:
    tracker = UsageTracker()
    assert tracker.total_cost() == 0
    assert not tracker.is_over_budget(0.0)


def test_prices_come_from_genai_prices() -> None:
    pytest.importorskip("genai_prices")
    assert has_pricing("gpt-5-mini")
    assert has_pricing("openai:gpt-5-mini")
    cost = UsageTracker().cost_for_turn("gpt-5-mini", CALL)
    assert cost is not None
    assert 0 < cost < 0.01


def test_a_name_is_found_whole_then_by_the_longest_beginning_of_words() -> None:
    table = PriceTable(
        {"m": ModelPricing(1, 1), "m-big": ModelPricing(2, 2)}, use_genai_prices=False
    )
    million = UsageSnapshot(input_tokens=1_000_000)
    assert table.cost("M", million) == 1
    assert table.cost("m-big-2026", million) == 2
    assert table.cost("m-small", million) == 1
    assert table.cost("mega", million) is None  # another model, not a version of this one


@pytest.mark.row("T25")
def test_a_price_put_into_one_table_is_seen_in_no_other() -> None:
    mine, other = PriceTable(), PriceTable()
    register_pricing("house-x", ModelPricing(1, 1), table=mine)
    assert has_pricing("house-x", table=mine)
    assert not has_pricing("house-x", table=other)
    assert not has_pricing("house-x")


def test_a_price_of_the_process_is_used_where_no_table_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = PriceTable()
    monkeypatch.setattr(PriceTable, "of_process", staticmethod(lambda: table))
    register_pricing("house-y", ModelPricing(1.0, 10.0))
    assert has_pricing("House-Y")
    tracker = UsageTracker(prices=table)
    tracker.record_turn("house-y", CALL)
    assert tracker.total_cost() == pytest.approx(0.002)
    register_pricing("house-y", ModelPricing(5, 5), on_conflict="keep")
    assert tracker.total_cost() == pytest.approx(0.002)
    with pytest.raises(ValueError, match="already has a price"):
        register_pricing("house-y", ModelPricing(5, 5), on_conflict="error")


def test_cached_tokens_have_their_own_prices() -> None:
    price = ModelPricing(10, 20, cache_write_per_million=12, cache_read_per_million=1)
    used = UsageSnapshot(100, 10, cache_write_tokens=50, cache_read_tokens=1000)
    assert price.cost(used) == pytest.approx((1000 + 200 + 600 + 1000) / 1e6)
    hour = ModelPricing(10, 20, cache_write_per_million=12, cache_write_1h_per_million=20)
    kept = UsageSnapshot(cache_write_tokens=1_000_000, cache_ttl="1h")
    assert hour.cost(kept) == 20


@pytest.mark.parametrize("number", [-1, 1.5, True, float("nan")])
def test_usage_is_whole_numbers_from_zero(number: Any) -> None:
    with pytest.raises(ValueError, match="integer"):
        UsageSnapshot(input_tokens=number)


@pytest.mark.parametrize("number", [-1.0, float("nan"), float("inf")])
def test_a_price_is_a_number_from_zero(number: float) -> None:
    with pytest.raises(ValueError, match="input_per_million"):
        ModelPricing(number, 1.0)


def test_prices_are_read_from_a_file(tmp_path: Path) -> None:
    file, table = tmp_path / "prices.json", PriceTable(use_genai_prices=False)
    file.write_text('{"models": {"m": {"input_per_million": 2, "output_per_million": 4}}}')
    load_pricing_from_file(file, table=table)
    assert table.find("M") == ModelPricing(2, 4)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("{}", "'models'"),
        ("[1]", "list indices"),
        ("prices", "Expecting value"),
        ('{"models": {"m": {"input": 2}}}', "'input'"),
        ('{"models": {"m": {"input_per_million": -2, "output_per_million": 1}}}', "-2"),
    ],
)
def test_a_file_of_something_else_holds_no_prices(tmp_path: Path, text: str, cause: str) -> None:
    file = tmp_path / "prices.json"
    file.write_text(text)
    with pytest.raises(ValidationError, match=f"prices.json.*{cause}.*Fix:"):
        load_pricing_from_file(file)


def test_a_summary_has_the_names_of_its_source() -> None:
    tracker = UsageTracker(prices=PriceTable({"m": ModelPricing(2.0, 4.0)}, use_genai_prices=False))
    tracker.record_turn("m", UsageSnapshot(input_tokens=1_000_000))
    told = tracker.summary()
    assert (told["turns"], told["total_input_tokens"]) == (1, 1_000_000)
    assert (told["total_cost_usd"], told["formatted_cost"]) == (2.0, "$2.00")


def test_usage_round_trips_through_dictionaries_and_json() -> None:
    used = UsageSnapshot(input_tokens=1, tool_calls=2)
    assert UsageSnapshot.from_json(used.to_json()) == used
    used = UsageSnapshot(1, 2, 3, 4, "5m", 5)
    assert UsageSnapshot.from_dict({**used.to_dict(), "later": 1}) == used
    assert used.total_tokens == 10


def test_amounts_are_written_as_people_read_them() -> None:
    assert [format_cost(c) for c in (0.0, 0.0042, 0.01, 12.345)] == [
        "$0.00",
        "$0.0042",
        "$0.01",
        "$12.35",
    ]


@pytest.mark.row("T25")
def test_a_tracker_may_be_read_while_others_write() -> None:
    tracker = UsageTracker(prices=PriceTable({"m": ModelPricing(1, 1)}))

    def write() -> None:
        for _ in range(500):
            tracker.record_turn("m", UsageSnapshot(input_tokens=1, tool_calls=1))

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        tracker.summary()
    assert tracker.total_tool_calls == 2000
    assert tracker.total_input_tokens == 2000


@pytest.mark.row("T24")
def test_a_ring_buffer_keeps_the_latest_calls() -> None:
    sink = RingBufferUsageSink(capacity=2)
    for name in "abc":
        sink.record(name, CALL, 0.1)
    assert [model for model, _, _ in sink.records] == ["b", "c"]
    sink.clear()
    assert sink.records == []


@pytest.mark.row("T24")
def test_all_sinks_are_tried_before_an_error_is_raised() -> None:
    class Broken:
        def record(self, model: str, usage: UsageSnapshot, cost_usd: float | None) -> None:
            raise OSError(model)

    kept = RingBufferUsageSink()
    with pytest.raises(OSError, match="m") as caught:
        FanoutUsageSink([Broken(), NoopUsageSink(), kept, Broken()]).record("m", CALL, None)
    assert len(kept.records) == 1
    assert len(caught.value.__notes__) == 1


@pytest.mark.row("T24")
async def test_a_file_of_usage_is_written_off_the_loop(tmp_path: Path) -> None:
    sink = SqliteUsageSink(tmp_path / "usage.db")  # blockbuster refuses I/O on the loop
    sink.record("a", CALL, 0.5)
    sink.record("a", CALL, 0.25)
    sink.record("b", CALL, None)
    sink.record("b", CALL, 1.0)
    totals = await asyncio.to_thread(sink.totals)
    assert totals["a"] == {
        "calls": 2,
        "input_tokens": 2000,
        "output_tokens": 200,
        "tool_calls": 0,
        "cost_usd": 0.75,
    }
    assert totals["b"]["cost_usd"] is None
    await asyncio.to_thread(sink.close)
    again = SqliteUsageSink(tmp_path / "usage.db")
    assert (await asyncio.to_thread(again.totals))["a"]["calls"] == 2
    await asyncio.to_thread(again.close)


@pytest.mark.row("T24")
def test_a_full_sink_counts_dropped_calls(tmp_path: Path) -> None:
    sink = SqliteUsageSink(tmp_path / "usage.db", capacity=0)
    sink.record("a", CALL, 0.5)
    assert sink.lost == 1
    sink.close()


def test_an_unwritable_file_raises_no_error(tmp_path: Path) -> None:
    sink = SqliteUsageSink(tmp_path / "no" / "usage.db")
    sink.record("a", CALL, 0.5)
    sink.flush()
    assert sink.lost == 1
    sink.close()
