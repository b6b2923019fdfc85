"""Every program of the comparison does the whole work, by itself and on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks import markdown, peers, run
from tests.benchmarks.model_use import model_use
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
    assert first == (3 if peer.package == "capgraph" else 2 if plans else 4)
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


async def test_more_capabilities_cost_no_more_prompt() -> None:
    few, many = await model_use(20), await model_use(200)
    assert many["model_calls"] == few["model_calls"]
    assert many["prompt_tokens"] <= 1.5 * few["prompt_tokens"]


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
