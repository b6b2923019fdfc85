"""Detection of model calls that do not inherit the run's callbacks."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from capgraph.cli.commands.check import check_registry
from capgraph.configs.settings import Settings
from capgraph.models.unmetered_calls import find_unmetered_calls

SOURCE = """
from capgraph import BaseCapability, CapabilityContext, capability_node


class Said(CapabilityContext):
    text: str


@capability_node
class Chat(BaseCapability):
    name = "chat"
    description = "Chat"
    provides = ["SAID"]

    async def execute(self):
        model = self.chat_model()
        await model.ainvoke("counted")
        await model.ainvoke("counted", {"tags": ["x"]})
        await model.ainvoke("lost", {"callbacks": []})
        await model.ainvoke("lost", config=dict(callbacks=[]))
        await asyncio.to_thread(model.invoke, "counted")
        await asyncio.get_running_loop().run_in_executor(None, model.invoke, "lost")
        Thread(target=model.invoke, args=("lost",)).start()
        return Said(text=(await model.with_config(callbacks=[]).ainvoke("lost")).text)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "chatty_capabilities.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("chatty_capabilities")
    yield "chatty_capabilities"
    del sys.modules["chatty_capabilities"]


def test_calls_with_own_callbacks_are_found(module: str) -> None:
    assert find_unmetered_calls(module) == [19, 20, 22, 23, 24]


def test_module_without_source_has_no_findings() -> None:
    assert find_unmetered_calls("sys") == find_unmetered_calls("no_such_module") == []


def test_check_command_reports_unmetered_calls(module: str) -> None:
    findings = check_registry(Settings(modules=[module]), offline=True, url="")
    told = [finding for finding in findings if "callbacks" in finding.text]
    assert [finding.level for finding in told] == ["warning"] * 5
    assert "chatty_capabilities, line 19" in told[0].text
