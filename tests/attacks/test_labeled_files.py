"""Labels of a file that one step wrote and another step reads by the path of the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from capgraph import BaseCapability, CapabilityContext, capability_node
from capgraph.governance import InformationFlow
from capgraph.stores import open_saver

sent: list[str] = []


class Page(CapabilityContext):
    """Page that a stranger wrote, stored as a file."""

    CONTEXT_CATEGORY = "ARTIFACT"
    path: str


class Copy(CapabilityContext):
    """Text without a label of its own."""

    text: str


@pytest.fixture(autouse=True)
def _nothing_sent() -> None:
    sent.clear()


def capabilities(folder: Path, writes: str = "result") -> list[Any]:
    """Return capabilities that write a secret page, read a file by its path, and mail a text."""

    @capability_node(labels=["secret"])
    def fetch(path: str) -> Any:
        """Write a page to a file."""
        Path(path).write_text("the safe is open")
        return Page(path=path) if writes == "result" else {}

    @capability_node
    def read(path: str) -> Copy:
        """Read a file."""
        found = Path(path.removeprefix("file://"))
        return Copy(text=(found if found.is_absolute() else folder / found).read_text())

    @capability_node
    class Mail(BaseCapability):
        name = "mail"
        description = "Mail a text."
        requires = ["COPY"]
        sends_externally = True

        async def execute(self) -> dict[str, Any]:
            sent.append(self.inputs["COPY"].text)
            return {}

    @capability_node(sends_externally=True)
    def attach(path: str) -> dict[str, Any]:
        """Mail a file."""
        sent.append(Path(path).read_text())
        return {}

    return [Page, Copy, fetch, read, Mail, attach]


FLOW = InformationFlow(on_violation="deny")


async def run(it: Any, thread: str) -> dict[str, Any]:
    given = {"messages": [("user", f"Do {thread}")]}
    return dict(await it.graph.ainvoke(given, it.config(thread, user_id="ann")))


@pytest.mark.parametrize("writes", ["result", "parameter"])
@pytest.mark.parametrize("spelling", ["{}", "file://{}", "{folder}/x/../page.txt", "{folder}/link"])
async def test_a_file_keeps_its_labels_in_another_thread(
    tmp_path: Path, agent: Any, step: Any, writes: str, spelling: str
) -> None:
    page = tmp_path / "page.txt"
    (tmp_path / "x").mkdir()
    (tmp_path / "link").symlink_to(page)
    named = spelling.format(page, folder=tmp_path)
    plans = [
        [step("a", "fetch", {"path": str(page)})],
        [step("b", "read", {"path": named}), step("c", "mail", COPY="b")],
    ]
    options: dict[str, Any] = {"checkpointer": InMemorySaver(), "policies": [FLOW]}
    it = agent(*capabilities(tmp_path, writes), plans=plans, **options)
    await run(it, "1")
    out = await run(it, "2")
    assert out["capability_context_data"]["COPY"]["b"]["text"] == "the safe is open"
    assert sent == []
    assert "secret" in out["capability_context_labels"]["COPY"]["b"]


@pytest.mark.parametrize("saver", [None, InMemorySaver()])
async def test_a_file_is_not_sent_by_its_path(
    tmp_path: Path, agent: Any, step: Any, saver: Any
) -> None:
    page = str(tmp_path / "page.txt")
    plans = [[step("a", "fetch", {"path": page})], [step("b", "attach", {"path": page})]]
    it = agent(*capabilities(tmp_path), plans=plans, policies=[FLOW], checkpointer=saver)
    await run(it, "1")
    assert Path(page).exists()
    await run(it, "2")
    assert sent == []


async def test_labels_of_a_file_survive_a_new_process(
    tmp_path: Path, agent: Any, step: Any
) -> None:
    page = str(tmp_path / "page.txt")
    plans = [[step("a", "fetch", {"path": page})], [step("b", "attach", {"path": page})]]
    for number, plan in enumerate(plans):
        async with open_saver(f"sqlite:///{tmp_path / 't.db'}") as saver:
            items = capabilities(tmp_path)
            it = agent(*items, plans=[plan], policies=[FLOW], checkpointer=saver)
            await run(it, str(number))
    assert sent == []


async def test_a_relative_name_in_a_data_folder_has_the_labels_of_the_file(
    tmp_path: Path, agent: Any, step: Any
) -> None:
    plans = [
        [step("a", "fetch", {"path": str(tmp_path / "page.txt")})],
        [step("b", "read", {"path": "page.txt"}), step("c", "mail", COPY="b")],
    ]
    options: dict[str, Any] = {"checkpointer": InMemorySaver(), "policies": [FLOW]}
    options["settings"] = {"data_folders": [str(tmp_path)]}
    it = agent(*capabilities(tmp_path), plans=plans, **options)
    await run(it, "1")
    await run(it, "2")
    assert sent == []


async def test_files_that_no_labeled_step_wrote_are_sent(
    tmp_path: Path, agent: Any, step: Any
) -> None:
    (tmp_path / "own.txt").write_text("hello")
    plans = [
        [step("a", "fetch", {"path": str(tmp_path / "page.txt")})],
        [step("b", "attach", {"path": str(tmp_path / "own.txt")})],
    ]
    options: dict[str, Any] = {"checkpointer": InMemorySaver(), "policies": [FLOW]}
    it = agent(*capabilities(tmp_path), plans=plans, **options)
    await run(it, "1")
    await run(it, "2")
    assert sent == ["hello"]
