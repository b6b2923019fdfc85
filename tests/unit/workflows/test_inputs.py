"""Every kind of node gets the context and each mapped key, in graphs of both kinds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.tools import tool
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from capgraph import capability_node
from capgraph.agents import AgentResult, BaseAgent, ReActAgent, SupervisorOrchestrator
from capgraph.base import ConfigurationError
from capgraph.testing import ScriptedModel
from capgraph.workflows import DAGWorkflow, StateMachineWorkflow, WorkflowEdge, WorkflowNode

SEEN: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    SEEN.clear()


class Plain:
    async def execute(self, task: str, context: Any = None) -> Any:
        SEEN.append(context)
        return SimpleNamespace(output="done", success=True)


class Own(BaseAgent):
    async def execute(self, task: str, context: Any = None) -> AgentResult:
        SEEN.append(context)
        return AgentResult("done")


def reads_context(task: str, context: Any = None) -> str:
    SEEN.append(context)
    return "done"


def names_values(task: str, last_output: Any = None, draft: Any = None) -> str:
    SEEN.append({"last_output": last_output, "draft": draft})
    return "done"


@capability_node
async def declares_values(last_output: str = "", draft: str = "") -> str:
    """Read the last output."""
    SEEN.append({"last_output": last_output, "draft": draft})
    return "done"


def describes_values(last_output: str = "", draft: str = "") -> str:
    """Read the last output."""
    SEEN.append({"last_output": last_output, "draft": draft})
    return "done"


class Tool:
    """Return an agent whose tool reads the context of the run."""

    def __new__(cls) -> Any:
        from langgraph.runtime import get_runtime

        from tests.support.agents import call, calls

        def look() -> str:
            """Look."""
            SEEN.append(get_runtime().context)
            return "seen"

        return ReActAgent(ScriptedModel(responses=[calls(call("look")), "done"]), tools=[look])


TOOL = tool(describes_values)
KINDS = [Plain, Own, Tool, lambda: reads_context, lambda: declares_values, lambda: TOOL]


def write(task: str) -> str:
    return "a draft"


def in_a_row(node: WorkflowNode) -> Any:
    return DAGWorkflow([WorkflowNode("draft", write), node], [WorkflowEdge("draft", node.node_id)])


def machine(node: Any) -> Any:
    rules: Any = {"draft": [(None, "look")], "look": [(None, "END")]}
    return StateMachineWorkflow({"draft": write, "look": node}, rules, "draft", {"END"})


@pytest.mark.parametrize("made", KINDS)
async def test_a_dag_node_receives_earlier_outputs(made: Any) -> None:
    found = await in_a_row(WorkflowNode("look", made())).run({"task": "Write."})
    assert found.success, found.error
    assert SEEN[-1]["draft"] == "a draft"


@pytest.mark.parametrize("made", KINDS)
async def test_a_state_receives_the_last_output_and_earlier_ones(made: Any) -> None:
    found = await machine(made()).run({"task": "Write."})
    assert found.success, found.error
    assert (SEEN[-1]["last_output"], SEEN[-1]["draft"]) == ("a draft", "a draft")


@pytest.mark.parametrize("wrap", [in_a_row, machine])
@pytest.mark.parametrize("made", [*KINDS, lambda: names_values])
async def test_mapped_keys_are_passed(made: Any, wrap: Any) -> None:
    mapping = {"draft": "draft", "last_output": "tone"}
    if made() not in (declares_values, TOOL):
        mapping["task"] = "task"
    found = await wrap(WorkflowNode("look", made(), mapping)).run({"task": "x", "tone": "dry"})
    assert found.success, found.error
    assert (SEEN[-1]["draft"], SEEN[-1]["last_output"]) == ("a draft", "dry")


async def test_a_model_reads_the_last_output_and_mapped_keys() -> None:
    model = ScriptedModel(responses=["done", "done"])
    await machine(ReActAgent(model)).run({"task": "Review."})
    node = WorkflowNode("look", ReActAgent(model), {"task": "task", "text": "draft"})
    await in_a_row(node).run({"task": "Review."})
    first, second = (call.messages[-1].text for call in model.calls)
    assert first.startswith("Review.")
    assert '{"last_output": "a draft"}' in first
    assert '{"text": "a draft"}' in second


async def test_mapped_values_follow_the_task_of_the_workflow() -> None:
    for make in (ReActAgent, lambda model: create_agent(model, [])):
        drafts, reviews = (ScriptedModel(responses=[a, b]) for a, b in (("d1", "d2"), ("no", "ok")))
        flow = StateMachineWorkflow(
            {
                "draft": WorkflowNode("draft", make(drafts), {"remarks": "review"}),
                "review": WorkflowNode("review", make(reviews), {"text": "draft"}),
            },
            {
                "draft": [(None, "review")],
                "review": [(lambda found: found.output == "ok", "END"), (None, "draft")],
            },
            "draft",
            {"END"},
        )
        found = await flow.run({"task": "Write."})
        assert found.success, found.error
        read = [[call.messages[-1].text for call in model.calls] for model in (drafts, reviews)]
        assert read == [
            ["Write.", 'Write.\n\n{"remarks": "no"}'],
            ['Write.\n\n{"text": "d1"}', 'Write.\n\n{"text": "d2"}'],
        ]


def reviews_last(last_output: str) -> str:
    return f"read {last_output}"


def reviews_draft(draft: str) -> str:
    return f"read {draft}"


def reviews_keyword(*, task: str, draft: str) -> str:
    return f"read {draft}"


def reviews_all(**values: str) -> str:
    return f"read {values['draft']}"


@pytest.mark.parametrize("wrap", [in_a_row, machine])
@pytest.mark.parametrize("review", [reviews_draft, reviews_keyword, reviews_all])
async def test_the_first_argument_of_a_function_is_filled_by_name(review: Any, wrap: Any) -> None:
    for mapping in ({"draft": "draft"}, {} if review is not reviews_all else {"draft": "draft"}):
        found = await wrap(WorkflowNode("look", review, mapping)).run({"task": "Write."})
        assert found.outputs["look"].output == "read a draft"


async def test_a_function_of_the_last_output_alone_receives_it() -> None:
    found = await machine(reviews_last).run({"task": "Write."})
    assert found.outputs["look"].output == "read a draft"
    found = await in_a_row(WorkflowNode("look", reviews_last)).run({"task": "Write."})
    assert found.outputs["look"].output == "read Write.", "without earlier states: the task"


def test_an_unaccepted_input_of_a_capability_is_refused() -> None:
    for mapping in ({"text": "draft"}, {"task": "task", "text": "draft"}):
        for thing in (review, TOOL):
            with pytest.raises(ConfigurationError, match="text"):
                in_a_row(WorkflowNode("look", thing, mapping)).compile()


async def test_a_team_and_a_graph_of_messages_read_the_last_output() -> None:
    leader = ScriptedModel(responses=[{"subtasks": []}, {"answer": "ok"}])
    team = SupervisorOrchestrator(leader, {"plain": Plain()})
    await machine(team).run({"task": "Review."})
    assert "a draft" in leader.calls[0].messages[-1].text
    model = ScriptedModel(responses=["done"])
    await machine(create_agent(model, [])).run({"task": "Review."})
    assert "a draft" in model.calls[0].messages[-1].text


async def test_a_nested_workflow_receives_the_values() -> None:
    inner = DAGWorkflow([WorkflowNode("look", reads_context)])
    await machine(inner).run({"task": "Write."})
    assert SEEN[-1]["last_output"] == "a draft"


@capability_node
async def review(draft: str) -> str:
    """Review a draft."""
    return "good" if draft.count("!") == 2 else "more"


def revise(task: str, last_output: Any, draft: Any) -> str:
    SEEN.append((last_output, draft))
    return f"{draft or task}!"


class Reviser(BaseAgent):
    async def execute(self, task: str, context: Any = None) -> AgentResult:
        return AgentResult(f"{(context or {}).get('draft', task)}!")


@pytest.mark.parametrize(
    "draft",
    [
        Reviser(),
        WorkflowNode(
            "draft", revise, {"task": "task", "last_output": "last_output", "draft": "draft"}
        ),
    ],
)
@pytest.mark.parametrize(
    "reviewer", [review, lambda task, context: "good" if context["draft"] == "Go!!" else "more"]
)
async def test_a_cycle_of_draft_and_review_ends(draft: Any, reviewer: Any) -> None:
    flow = StateMachineWorkflow(
        {"draft": draft, "review": reviewer},
        {
            "draft": [(None, "review")],
            "review": [(lambda found: found.output == "good", "END"), (None, "draft")],
        },
        "draft",
        {"END"},
        max_transitions=10,
    )
    found = await flow.run({"task": "Go"})
    assert found.success, found.error
    assert found.outputs["draft"].output == "Go!!"
    assert found.metadata["path"] == ["draft", "review", "draft", "review", "END"]


class Task(TypedDict, total=False):
    task: str
    output: str


def test_an_unaccepted_mapped_key_is_refused() -> None:
    builder = StateGraph(Task).add_node("work", lambda state: {"output": "x"})
    graph = builder.add_edge(START, "work").compile(name="own")
    for thing in (write, graph):
        node = WorkflowNode("look", thing, {"task": "task", "tone": "draft"})
        with pytest.raises(ConfigurationError, match="tone"):
            in_a_row(node).compile()
        with pytest.raises(ConfigurationError, match="tone"):
            machine(node).compile()


def test_a_state_has_the_name_of_its_node() -> None:
    with pytest.raises(ConfigurationError, match="other"):
        machine(WorkflowNode("other", write))
