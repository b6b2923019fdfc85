"""Every program of the comparison does the whole work, by itself and on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks import markdown, peers, run
from tests.benchmarks.costs import cost
from tests.benchmarks.peers import rounds

pytestmark = [
    pytest.mark.may_block,  # some of the programs block, which is theirs to decide
    pytest.mark.filterwarnings("default"),
]


@pytest.mark.parametrize("peer", peers.PEERS, ids=lambda peer: peer.name)
@pytest.mark.parametrize("kept", [False, True])
async def test_each_program_takes_every_dependent_step(
    peer: peers.Peer, kept: bool, tmp_path: Path
) -> None:
    if peer.version() is None:
        pytest.skip(f"{peer.package} is not installed")
    if kept and not peer.keeps:
        pytest.skip(f"{peer.name} keeps nothing")
    tally = peers.Tally()
    work = peers.Work(3, tally)
    async with peer.prepare(work, tmp_path if kept else None) as once:
        assert await once() == 3
        first = tally.calls
        assert await once() == 3
    plans = peer.package in {"capgraph", "langgraph"}
    assert first == (2 if plans else 4)
    assert tally.calls == 2 * first
    assert tally.prompt_chars > len(work.request)
    written = sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())
    assert bool(written) == kept


async def test_rows_of_what_is_there_and_of_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    absent = peers.Peer("absent", "absent", "no-such-distribution", "SQLite: all")
    present = [peer for peer in peers.PEERS if peer.package in {"capgraph", "langgraph"}]
    monkeypatch.setattr(rounds, "PEERS", (*present, absent))
    versions = {"capgraph": "1", "langgraph": "2"}
    monkeypatch.setattr(peers.Peer, "version", lambda peer: versions.get(peer.package))
    rows = run.peer_rows(await rounds.compare(steps=3, rounds=2))
    assert len({len(row) for row in rows} | {len(run.PEER_COLUMNS)}) == 1
    assert [row[3] for row in rows if row[0] == "capgraph 1"] == ["1.00", "1.00"]
    assert [row[1] for row in rows if row[0] == "absent"] == [rounds.INSTALL]


async def test_a_program_that_gives_a_wrong_value_is_not_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hand = next(peer for peer in peers.PEERS if peer.package == "langgraph")
    monkeypatch.setattr(rounds, "PEERS", (hand,))
    monkeypatch.setattr("tests.benchmarks.peers.by_hand.TOOLS", {peers.TOOL: _stuck})
    with pytest.raises(AssertionError, match="not 3"):
        await rounds.compare(steps=3, rounds=1)


async def _stuck(value: int) -> int:
    return 1


@pytest.mark.parametrize(
    ("steps", "tools", "calls", "tokens"),
    [(0, 2, 1, 400), (1, 2, 2, 600), (2, 2, 2, 600), (0, 200, 1, 1_200), (2, 200, 3, 1_800)],
)
async def test_what_a_request_costs(steps: int, tools: int, calls: int, tokens: int) -> None:
    tally = await cost("capgraph", steps, tools)
    assert tally.calls == calls
    assert tally.prompt_chars // 4 <= tokens


async def test_more_tools_cost_no_more_prompt() -> None:
    few, many = await cost("capgraph", 1, 20), await cost("capgraph", 1, 200)
    assert many.prompt_chars <= 1.5 * few.prompt_chars


@pytest.mark.parametrize(("steps", "tools"), [(10, 2), (10, 20), (1, 200)])
async def test_from_ten_steps_on_or_with_many_tools_an_agent_loop_costs_more(
    steps: int, tools: int
) -> None:
    ours = await cost("capgraph", steps, tools)
    loop = await cost("LangChain create_agent", steps, tools)
    assert ours.prompt_chars + ours.answer_chars < loop.prompt_chars + loop.answer_chars


async def test_a_plan_is_at_most_twice_as_long_as_the_calls_it_stands_for() -> None:
    ours = await cost("capgraph", 10, 2)
    loop = await cost("LangChain create_agent", 10, 2)
    assert ours.answer_chars <= 2 * loop.answer_chars


def test_results_go_between_the_marks_of_the_documentation(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text(f"before\n{markdown.BEGIN}\nold\n{markdown.END}\nafter\n", encoding="utf-8")
    for text in ("one", "two"):
        markdown.replace_results(file, text)
    expected = f"before\n{markdown.BEGIN}\n\ntwo\n\n{markdown.END}\nafter\n"
    assert file.read_text("utf-8") == expected
    file.write_text("no marks", encoding="utf-8")
    with pytest.raises(ValueError, match="no place"):
        markdown.replace_results(file, "three")
