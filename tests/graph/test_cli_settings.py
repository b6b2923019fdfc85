"""``capgraph settings``, and what the settings mean at the command line."""

import json
import sys

import pytest

from tests.support.commands import project, typed


@pytest.fixture
def home(tmp_path, monkeypatch):
    with project(tmp_path, monkeypatch, {}) as folder:
        yield folder


@pytest.fixture
def capgraph(home, capsys):
    return typed(capsys)


def test_every_key_is_shown_with_its_value_and_source(capgraph, home, monkeypatch):
    (home / "capgraph.yml").write_text(
        "name: tank\nlimits: {max_parallel: 3, max_planning_attempts: 9}\n"
        "models: {answer: {model: 'openai:x', api_key: sk-123456789}}\n"
        "persistence: {url: 'postgresql://me:hidden@db/x'}\n"
    )
    monkeypatch.setenv("CAPGRAPH_LIMITS__MAX_PARALLEL", "4")
    monkeypatch.setenv("CAPGRAPH_MODELS__DEFAULT__MODEL", "openai:y")
    code, out, _ = capgraph("settings", "--json")
    assert code == 0
    found = {row["key"]: row for row in json.loads(out)}
    assert found["name"] == {"key": "name", "value": "tank", "source": "capgraph.yml"}
    told = found["limits.max_parallel"]
    assert (told["value"], told["source"]) == (4, "CAPGRAPH_LIMITS__MAX_PARALLEL")
    assert found["limits.max_planning_attempts"]["source"] == "capgraph.yml"
    assert found["selection.strategy"]["source"] == "default"
    assert found["models"]["source"] == "CAPGRAPH_MODELS__DEFAULT__MODEL"
    assert found["data_folders"] == {
        "key": "data_folders",
        "value": [str(home)],
        "source": "command line",
    }
    _, text, _ = capgraph("settings")
    assert "limits.max_parallel\t4\tCAPGRAPH_LIMITS__MAX_PARALLEL" in text
    for shown in (out, text):
        assert "hidden" not in shown
        assert "123456789" not in shown
    monkeypatch.setenv("CAPGRAPH_LIMITS__MAX_PARALLEL", "four")
    _, _, err = capgraph("settings")
    assert "capgraph.yml; environment: CAPGRAPH_LIMITS__MAX_PARALLEL" in " ".join(err.split())


def test_the_schema_knows_every_key_and_says_what_it_means(capgraph):
    code, out, _ = capgraph("settings", "--schema")
    schema = json.loads(out)
    assert code == 0
    assert schema["additionalProperties"] is False
    assert schema["properties"]["name"]["description"] == "Name of the agent."
    limits = schema["$defs"]["Limits"]
    assert all("description" in field for field in limits["properties"].values())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: a\nname: b\n", "'name' occurs twice, in lines 1 and 2"),
        ("limits: {max_paralel: 2}\n", "write 'max_parallel'"),
        ("limits: {max_parallel: true}\n", "limits.max_parallel"),
        ("limits: {run_timeout_seconds: .inf}\n", "limits.run_timeout_seconds"),
    ],
)
def test_what_would_do_nothing_or_wait_for_ever_is_refused(capgraph, home, text, words):
    (home / "capgraph.yml").write_text(text)
    for command in (["settings"], ["ask", "x"], ["capabilities"]):
        code, _, err = capgraph(*command)
        assert code == 2
        assert words in err


def test_a_variable_a_letter_off_is_refused(capgraph, monkeypatch):
    monkeypatch.setenv("CAPGRAPH_APPROVAL__STEPS", "all")
    code, _, err = capgraph("ask", "x")
    assert code == 2
    assert "CAPGRAPH_APPROVALS__STEPS" in err


def test_memory_holds_across_threads_and_belongs_to_who_asks(capgraph, home):
    config = "modules: [capgraph.capabilities.memory]\n"
    (home / "capgraph.yml").write_text(config)
    code, out, _ = capgraph("ask", "Remember that my station is KSEA", "-t", "one", "-q")
    assert (code, out) == (0, "I will remember: my station is KSEA.\n")
    ask = ("ask", "What do you remember about me?", "-q")
    assert capgraph(*ask)[1] == "You told me: my station is KSEA.\n"
    (home / "capgraph.yml").write_text(f"{config}user: somebody.else@example.org\n")
    assert capgraph(*ask)[1] == "I remember nothing about that.\n"


def test_only_files_of_the_working_folder_and_of_data_are_read(capgraph, home, tmp_path_factory):
    far = tmp_path_factory.mktemp("far") / "far.csv"
    far.write_text("day,wind\n2024-01-01,3\n2024-01-02,5\n")
    question = f"What is the mean wind in {far}?"
    code, out, _ = capgraph("ask", question, "--json")
    assert code != 0
    assert "4" not in json.loads(out.splitlines()[-1])["answer"].replace(str(far), "")
    code, out, _ = capgraph("ask", "What is the mean wind?", "--data", str(far), "-q")
    assert code == 0
    assert "4" in out


OFFLINE = """
from capgraph import capability_node


@capability_node(examples=["pay the bill"], effect="once")
def pay(amount: float) -> str:
    \"\"\"Pay an amount of money.\"\"\"
    return f"paid {amount}"


@capability_node
async def ask_a_model(question: str = "") -> str:
    \"\"\"Ask a model past the meter.\"\"\"
    return str(await MODEL.ainvoke(question, {"callbacks": []}))
"""


def test_check_warns_of_what_works_otherwise_than_one_may_think(capgraph, home):
    (home / "offline_toys.py").write_text(OFFLINE)
    (home / "capgraph.yml").write_text("modules: [offline_toys]\ncapabilities: {payy: {}}\n")
    code, out, _ = capgraph("check", "--db", "memory", "--json")
    sys.modules.pop("offline_toys", None)
    warnings = [found for found in json.loads(out) if found["level"] == "warning"]
    assert code == 0
    assert all(found["fix"] for found in warnings)
    told = "\n".join(found["text"] for found in warnings)
    for words in (
        "'pay' requires the parameters amount",
        "'pay' has effect='once', but there is no saver",
        "offline_toys, line 14: a call with its own callbacks",
        "'ask_a_model' has no examples",
        "capabilities.payy: no capability with this name is registered",
    ):
        assert words in told, words
    _, out, _ = capgraph("check", "--json")
    assert "there is no saver" not in out
