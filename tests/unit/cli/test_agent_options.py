"""From options to settings, data and database."""

import asyncio
import sys
from pathlib import Path

import pytest

from capgraph.base import CapabilityContext, ConfigurationError
from capgraph.cli.agent import (
    check_thread_id,
    config_files,
    database_url,
    new_thread_id,
    open_agent,
    read_settings,
    resolve_data_files,
)
from capgraph.configs.settings import Settings
from capgraph.graph.turn_runner import file_contexts
from capgraph.registry import Registry


class FileList(CapabilityContext):
    CONTEXT_TYPE = "DATA_SOURCE"
    files: list[str]


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "platform", "linux")
    return tmp_path


@pytest.fixture
def registry():
    registry = Registry(provided_types=["DATA_SOURCE"])
    registry.register(FileList)
    return registry


def test_configuration_precedence(home, monkeypatch):
    assert config_files(None)[0].name == "data_agent.yml"
    assert config_files(None)[0].is_file()
    (home / "capgraph.yml").write_text("name: local")
    assert read_settings(None).name == "local"
    (home / "other.yml").write_text("name: other")
    assert read_settings(Path("other.yml")).name == "other"
    monkeypatch.setenv("CAPGRAPH_CONFIG", "other.yml")
    assert read_settings(None).name == "other"


def test_modules_next_to_the_configuration_do_not_shadow_installed_ones(home):
    (home / "deep").mkdir()
    (home / "deep" / "my.yml").write_text("name: mine")
    read_settings(Path("deep/my.yml"))
    assert sys.path[-1] == str(home / "deep")


def test_missing_configuration_is_named(home):
    with pytest.raises(ConfigurationError, match=r"'none.yml' cannot be read"):
        read_settings(Path("none.yml"))


async def test_data_option_replaces_configured_files(home):
    (home / "capgraph.yml").write_text(
        "modules: [capgraph.capabilities.contexts]\n"
        "provided_types: [DATA_SOURCE, TIME_RANGE]\n"
        "context: {DATA_SOURCE: {a: {files: [x]}}, TIME_RANGE: {b: {label: all}}}\n"
    )
    settings = await asyncio.to_thread(read_settings, None)
    async with open_agent(settings, db="memory", data=["vega:new.csv"]) as agent:
        assert set(agent.settings.context) == {"TIME_RANGE"}
        assert agent.data == {"DATA_SOURCE": {"data": {"files": ["vega:new.csv"]}}}
    async with open_agent(settings, db="memory") as agent:
        assert set(agent.settings.context) == {"DATA_SOURCE", "TIME_RANGE"}
        assert agent.data == {}


def test_data_files_are_resolved_from_any_folder(home, registry):
    (home / "my data.csv").write_text("a")
    given = file_contexts(registry, resolve_data_files(["my data.csv", "vega:seattle-weather.csv"]))
    files = [str(home / "my data.csv"), "vega:seattle-weather.csv"]
    assert given == {"DATA_SOURCE": {"data": {"files": files}}}


def test_missing_data_file_is_named(home, registry):
    with pytest.raises(ConfigurationError, match=r"'no.csv' does not exist"):
        resolve_data_files(["no.csv"])


def test_agent_without_data_capability_rejects_files(home):
    with pytest.raises(ConfigurationError, match=r"no provided context type.*Fix:"):
        file_contexts(Registry(), ["x.csv"])


def test_database_precedence(home):
    settings = Settings()
    assert database_url(None, settings) == f"sqlite:///{home}/data/capgraph/threads.sqlite"
    assert (home / "data" / "capgraph").stat().st_mode & 0o077 == 0
    configured = Settings(persistence={"url": "postgresql://db/x"})
    assert database_url(None, configured) == "postgresql://db/x"
    assert database_url("memory", configured) == "memory"
    assert database_url("my threads#1.db", settings) == f"sqlite:///{home}/my%20threads%231.db"


def test_uncreatable_data_folder_is_reported(home):
    (home / "data").write_text("a file")
    with pytest.raises(ConfigurationError, match=r"cannot be created.*--db"):
        database_url(None, Settings())


@pytest.mark.parametrize("bad", ["", "   ", "a\nb", "\x1b[2J", "x" * 201, "a\u202eb"])
def test_unprintable_thread_ids_are_rejected(bad):
    with pytest.raises(ConfigurationError, match="thread id"):
        check_thread_id(bad)


def test_new_thread_ids_are_unique_and_valid():
    ids = {new_thread_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(check_thread_id(item) == item for item in ids)


@pytest.mark.may_block
async def test_command_line_may_read_working_folder_and_data_files(home, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "far.csv"
    elsewhere.write_text("a\n1\n")
    settings = read_settings(None)
    assert settings.data_folders == [str(home)]
    async with open_agent(settings, db="memory", data=[str(elsewhere), "vega:cars.json"]) as agent:
        assert agent.settings.data_folders == [str(home), str(elsewhere)]


def test_configured_folders_replace_the_working_folder(home):
    (home / "capgraph.yml").write_text("data_folders: [/srv/data]\n")

    assert read_settings(None).data_folders == ["/srv/data"]
    assert read_settings(None, is_shared=True).data_folders == ["/srv/data"]


def test_shared_agent_reads_only_configured_folders(home):
    # Threads of others and tokens may lie in the working folder.
    assert read_settings(None, is_shared=True).data_folders == []
    assert Settings().data_folders == []
