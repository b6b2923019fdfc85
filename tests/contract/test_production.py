"""A whole declaration in YAML: checked before it runs, and kept when it does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from capgraph import BaseCapability, CapabilityContext, bind, build_graph, capability_node
from capgraph.base import ConfigurationError
from capgraph.cli.main import app
from capgraph.configs.settings import load_settings
from tests.support.doors import last_words, status

PRODUCTION = Path(__file__).parent.parent.parent / "configs" / "production.yml"


def check(file: Path, *more: str) -> tuple[int, list[dict[str, Any]]]:
    done = CliRunner().invoke(app, ["check", "--config", str(file), "--json", *more])
    return done.exit_code, json.loads(done.stdout)


@pytest.mark.may_block
def test_the_declaration_that_comes_along_can_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, found = check(PRODUCTION)
    assert (code, [entry for entry in found if entry["level"] != "ok"]) == (0, [])
    kept = {entry["area"] for entry in found}
    assert {"behaviors", "permissions", "policies", "sinks", "budgets", "database"} <= kept


@pytest.mark.parametrize(
    ("wrong", "area", "told"),
    [
        ({"permissions": {"roles": [{"role": "a", "mode": "all"}]}}, "permissions", "READ_ONLY"),
        (
            {"permissions": {"roles": [{"role": "a", "mode": "read_only", "denied_tools": ["x"]}]}},
            "permissions",
            "'x'",
        ),
        ({"budgets": [{"token": 3}]}, "budgets", "token"),
        ({"budgets": [{"tokens": -3}]}, "budgets", "-3"),
        ({"behaviors": [{"use": "retries"}]}, "behaviors", "retries"),
        ({"policies": [{"use": "information_flo"}]}, "policies", "information_flo"),
        (
            {"policies": [{"use": "information_flow", "on_violation": "skip"}]},
            "policies",
            "skip",
        ),
        (
            {"policies": [{"use": "information_flow", "labels": {"personal": "inside"}}]},
            "policies",
            "inside",
        ),
        (
            {"policies": [{"use": "policy_engine", "rules": [{"use": "PolicyRule", "name": "a"}]}]},
            "policies",
            "condition",
        ),
        ({"policies": [{"use": "Budget", "tokens": 3}]}, "policies", "Invalid policy"),
        ({"answer_gate": {"use": "QualityGate", "required_level": 9}}, "answer_gate", "9"),
        ({"sinks": [{"use": "json_line"}]}, "sinks", "json_line"),
    ],
)
@pytest.mark.may_block
def test_what_cannot_be_kept_is_said_before_anything_runs(
    tmp_path: Path, wrong: dict[str, Any], area: str, told: str
) -> None:
    file = tmp_path / "agent.yml"
    file.write_text(json.dumps(wrong))
    code, found = check(file)
    assert code != 0
    assert [e for e in found if e["level"] == "error" and e["area"] == area and told in e["text"]]
    with pytest.raises(ConfigurationError, match=area):
        bind([], settings=load_settings(file))


async def test_permissions_of_the_settings_hold(tmp_path: Path) -> None:
    @capability_node
    class Wipe(BaseCapability):
        name = "wipe"
        description = "Wipe everything"
        effect = "idempotent"

        async def execute(self) -> dict[str, Any]:
            return {}

    roles = [
        {"role": "editor", "mode": "workspace_write"},
        {"role": "visitor", "mode": "read_only"},
    ]
    settings = load_settings(permissions={"roles": roles})
    graph = build_graph([Wipe], settings=settings)
    plan = {"steps": [{"context_key": "a", "capability": "wipe", "task_objective": "Wipe"}]}
    for who, ended in (("editor", "completed"), ("visitor", "failed"), (None, "failed")):
        given = {"messages": [("user", "Wipe it")], "planning_execution_plan": plan}
        out = await graph.ainvoke(given, {"configurable": {"role": who} if who else {}})
        assert status(out) == ended
        assert ("permission denied" in last_words(out)) is (ended == "failed")
    open_to_all = build_graph([Wipe], settings=load_settings())
    given = {"messages": [("user", "Wipe it")], "planning_execution_plan": plan}
    assert status(await open_to_all.ainvoke(given)) == "completed"


async def test_information_flow_of_the_settings_holds() -> None:
    class Mail(CapabilityContext):
        labels = {"personal"}

        text: str = "her hip"

    done: list[str] = []

    @capability_node
    class ReadMail(BaseCapability):
        name = "read_mail"
        description = "Read the mail"
        provides = [Mail]

        async def execute(self) -> Mail:
            return Mail()

    @capability_node
    class Post(BaseCapability):
        name = "post"
        description = "Post it"
        requires = [Mail]
        sends_externally = True

        async def execute(self) -> dict[str, Any]:
            done.append("posted")
            return {}

    flow = {"use": "information_flow", "on_violation": "deny", "labels": {"personal": "outside"}}
    plan = {
        "steps": [
            {"context_key": "a", "capability": "read_mail", "task_objective": "Read"},
            {
                "context_key": "b",
                "capability": "post",
                "task_objective": "Post",
                "inputs": [{"MAIL": "a"}],
            },
        ]
    }
    given: Any = {"messages": [("user", "Post it")], "planning_execution_plan": plan}
    for policies, posted in (([], ["posted"]), ([flow], [])):
        done.clear()
        settings = load_settings(policies=policies)
        out = await build_graph([Mail, ReadMail, Post], settings=settings).ainvoke(given)
        assert done == posted
    assert "personal" in last_words(out)


def see(event: Any) -> None:
    SEEN.append(event["event_type"])


SEEN: list[str] = []


class Watch:
    """A sink of an application's own."""

    def __init__(self, take: Any) -> None:
        self._take = take

    def emit(self, event: Any) -> None:
        self._take(event)


def good(_: Any) -> int:
    return 2


async def test_what_takes_a_function_is_given_it_by_name() -> None:
    SEEN.clear()
    settings = load_settings(
        sinks=[{"use": f"{__name__}:Watch", "take": {"object": f"{__name__}:see"}}],
        answer_gate={
            "use": "quality_gate",
            "required_level": 3,
            "check": {"object": f"{__name__}:good"},
        },
    )
    out = await build_graph([], settings=settings).ainvoke({"messages": [("user", "Hello")]})
    assert "turn_finished" in SEEN
    assert out["execution_outcome"]["status"] == "failed"
