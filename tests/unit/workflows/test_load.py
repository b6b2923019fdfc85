"""Workflows from YAML files, and ``capgraph run``."""

import asyncio
import json
import textwrap

import pytest
from typer.testing import CliRunner

from capgraph.base import ConfigurationError
from capgraph.workflows import load_workflow


@pytest.fixture
def written(tmp_path):
    def write(text, name="flow.yml"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    return write


def run(flow, given):
    return asyncio.run(flow.run(given))


AGENTS = {"up": lambda task: task.upper(), "count": lambda task: {"n": len(task)}}


def test_a_dag_with_conditions(written):
    file = written("""
        kind: dag
        nodes:
          - {id: size, agent: count, outputs: {n: length}}
          - {id: long, agent: up, inputs: {task: length}}
          - {id: short, agent: up}
        edges:
          - {source: size, target: long, when: {of: output.n, is: ">", than: 3}}
          - {source: size, target: short, when: {not: {of: output.n, is: ">", than: 3}}}
    """)
    flow = load_workflow(file, agents=AGENTS)
    assert (run(flow, {"task": "abcdef"})).final_output == "6"
    assert (run(flow, {"task": "ab"})).final_output == "AB"


def test_a_state_machine_and_an_event_driven_one(written):
    machine = load_workflow(
        written("""
            kind: state_machine
            states: {first: up, again: up}
            transitions:
              first: [{to: again, when: {of: output, is: "==", than: "X"}}, {to: END}]
              again: [{to: END}]
            initial_state: first
            terminal_states: [END]
        """),
        AGENTS,
    )
    assert (run(machine, {"task": "x"})).metadata["path"] == ["first", "again", "END"]
    assert (run(machine, {"task": "y"})).metadata["path"] == ["first", "END"]
    events = load_workflow(
        written("""
            kind: event_driven
            handlers: [{event: task, agent: up, gives: done}]
            terminal_event: done
        """),
        AGENTS,
    )
    assert (run(events, {"task": "x"})).final_output == "X"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("kind: tree", "kind|tag"),
        (
            "{kind: dag, nodes: [{id: a, agent: nobody}]}",
            "the agent 'nobody', which is unknown.*Use one of: count, up",
        ),
        ("{kind: dag, nodes: [{id: a, agent: up, input: {}}]}", "unknown key"),
        (
            "{kind: dag, nodes: [{id: a, agent: up}], edges: [{source: a, target: b}]}",
            "no node 'b'",
        ),
        (
            "{kind: dag, nodes: [{id: a, agent: up}], edges: [{source: a, target: a, when: {is: 1}}]}",
            "is not a condition",
        ),
        ("{kind: dag, agents: {x: 'nothing.here:x'}, nodes: []}", "cannot be imported"),
    ],
)
def test_invalid_files_are_refused(written, text, told):
    with pytest.raises(ConfigurationError, match=told):
        load_workflow(written(text), AGENTS)


def test_capgraph_run_uses_capabilities_by_name_and_stores_the_run(written, tmp_path):
    from capgraph.cli.main import app

    written(
        """
        from langgraph.types import interrupt

        from capgraph import capability_node

        @capability_node
        async def level(tank: int = 3) -> float:
            "Measures the level of a tank."
            return 7.0 * tank

        def report(task):
            return f"{task}, {interrupt('Who signs?')}"
        """,
        "tanks_of_a_flow.py",
    )
    config = written("{modules: [tanks_of_a_flow]}", "agent.yml")
    flow = written("""
        kind: dag
        agents: {report: "tanks_of_a_flow:report"}
        nodes: [{id: level, agent: level}, {id: report, agent: report, inputs: {task: level}}]
        edges: [{source: level, target: report}]
    """)
    common = ["--config", str(config), "--db", f"sqlite:///{tmp_path / 'runs.db'}"]

    def capgraph(*args):
        return CliRunner().invoke(app, ["run", str(flow), *args, *common])

    first = capgraph("How full?", "--thread", "t")
    assert first.exit_code == 4, first.output
    assert "Who signs?" in first.output
    second = capgraph("--thread", "t", "--answer", "Ada", "--json")
    assert second.exit_code == 0, second.output
    found = json.loads(second.stdout)
    assert found["final_output"] == "21.0, Ada"
    assert found["outputs"]["level"]["output"] == 21.0
    nothing = capgraph("--thread", "new")
    assert isinstance(nothing.exception, ConfigurationError)
    assert "thread 'new' has no unfinished run" in str(nothing.exception)


def test_a_configured_role_is_the_caller_of_a_workflow(written, tmp_path):
    from capgraph.cli.main import app

    written(
        """
        from capgraph import capability_node

        @capability_node
        async def guarded_level() -> float:
            "Measures the level of a tank."
            return 7.0
        """,
        "guarded_tanks.py",
    )
    roles = "permissions: {roles: [{role: operator, mode: full_access}]}"
    flow = written("""
        kind: dag
        nodes: [{id: level, agent: guarded_level}]
        edges: []
    """)

    def capgraph(config):
        common = ["--config", str(config), "--db", "memory"]
        return CliRunner().invoke(app, ["run", str(flow), "How full?", *common])

    base = f"modules: [guarded_tanks]\n{roles}\n"
    allowed = capgraph(written(base + "role: operator", "allowed.yml"))
    assert allowed.exit_code == 0, allowed.output
    assert "7.0" in allowed.stdout
    assert capgraph(written(base, "denied.yml")).exit_code != 0
