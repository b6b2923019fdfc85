"""Evaluation of a set: checks, isolation of cases, and failures."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from capgraph import BaseCapability, Registry, capability_node
from capgraph.base import ConfigurationError, ErrorSeverity
from capgraph.base.errors import CapabilityError
from capgraph.configs.settings import load_settings
from capgraph.evaluation import (
    CaseResult,
    Dataset,
    JudgeSettings,
    Report,
    Thresholds,
    evaluate,
)
from capgraph.testing import ModelCall, ScriptedModel
from tests.support.totals import Numbers, Total, add, read


def registry_of(*more: Any) -> Registry:
    registry = Registry()
    for item in (Numbers, Total, read, add, *more):
        registry.register(item)
    return registry


def without_reading() -> Registry:
    registry = Registry(provided_types=["NUMBERS"])
    for item in (Numbers, Total, add):
        registry.register(item)
    return registry


def dataset_of(*cases: dict[str, Any]) -> Dataset:
    named = [
        {"name": f"case {number}", "request": "Total?", **case} for number, case in enumerate(cases)
    ]
    return Dataset.model_validate({"version": 1, "name": "tiny", "cases": named})


TOTAL = {
    "request": "What is the total of the numbers?",
    "capabilities": ["read", "add"],
    "edges": ["read -> add"],
    "answer": [{"number": 3}],
}


async def run(*cases: dict[str, Any], registry: Registry | None = None, **options: Any) -> Report:
    return await evaluate(dataset_of(*cases), registry or registry_of(), **options)


async def test_choice_plan_answer_and_outcome_are_checked_offline() -> None:
    report = await run(
        TOTAL,
        {"request": "Sing a love song", "capabilities": [], "outcome": "failed"},
        {**TOTAL, "answer": [{"number": 4}]},
    )
    assert [result.passed for result in report.results] == [True, True, False]
    assert report.results[2].problems == ["- the answer does not contain the number 4"]
    figures = report.figures
    assert (figures["precision"], figures["node_f1"], figures["edge_f1"]) == (1, 1, 1)
    assert figures["model_calls"] == 0
    assert all(result.seconds > 0 for result in report.results)


class Seen:
    """Which values of a step the threads of a run had seen."""

    def __init__(self) -> None:
        self.before: list[bool] = []


async def test_cases_share_neither_thread_nor_store() -> None:
    seen = Seen()

    class Note(BaseCapability):
        name = "note"
        description = "Makes a note"
        provides = ["NOTE"]
        always_active = False

        async def execute(self) -> dict[str, Any]:
            store = self.runtime.store
            seen.before.append(await store.aget(("notes",), "last") is not None)
            await store.aput(("notes",), "last", {"text": self.task})
            return {"NOTE": {"text": self.task}}

    registry = registry_of(capability_node(Note))
    note = {"request": "note: makes a note", "capabilities": ["note"]}
    await run(note, {**note, "earlier": ["note: makes a note"]}, registry=registry)
    assert seen.before == [False, False, True]


async def test_context_data_of_a_case_reaches_its_plan() -> None:
    context = {"NUMBERS": {"given": {"values": [20, 22]}}}
    case = {**TOTAL, "context": context, "capabilities": ["add"], "edges": []}
    report = await run({**case, "answer": [{"number": 42}]}, registry=without_reading())
    assert report.results[0].problems == []


async def test_exception_is_an_outcome_and_other_cases_run() -> None:
    @capability_node(examples=["open the vault"])
    async def open_vault() -> Total:
        """Open the vault."""
        raise CapabilityError("The vault is gone.", severity=ErrorSeverity.FATAL)

    registry = registry_of(open_vault)
    vault = {"request": "Please open the vault", "answer": [], "outcome": "failed"}
    report = await run(vault, {**vault, "outcome": "raised"}, TOTAL, registry=registry)
    assert [result.passed for result in report.results] == [False, True, True]
    assert report.results[0].problems == ["- outcome failed", "+ outcome raised"]
    assert "The vault is gone" in report.results[0].reason


async def test_case_that_raises_reports_its_usage() -> None:
    @capability_node(examples=["open the vault"])
    async def open_vault() -> Total:
        """Open the vault."""
        raise CapabilityError("The vault is gone.", severity=ErrorSeverity.FATAL)

    model = ScriptedModel(responses=[{"steps": [{"capability": "open_vault"}]}])
    case = {"request": "Open the vault", "outcome": "raised"}
    report = await run(case, registry=registry_of(open_vault), model=model)
    assert report.results[0].outcome == "raised"
    assert report.results[0].model_calls == 1
    assert report.results[0].input_tokens > 10


async def test_waiting_for_an_approval_is_an_outcome() -> None:
    @capability_node(examples=["delete everything"], requires_approval=True)
    async def delete() -> Total:
        """Delete everything."""
        return Total(value=0)

    case = {"request": "delete everything", "capabilities": ["delete"], "outcome": "waiting"}
    report = await run(case, registry=registry_of(delete))
    assert report.results[0].problems == []


def answers(call: ModelCall) -> Any:
    if call.schema == "Task":
        return {
            "task": "Total?",
            "depends_on_chat_history": False,
            "depends_on_user_memory": False,
        }
    if call.schema == "Choice":
        return {"reason": "It adds.", "capabilities": ["add"]}
    if call.schema == "ExecutionPlan":
        steps = [
            {"context_key": "n", "capability": "read", "task_objective": "Read"},
            {
                "context_key": "t",
                "capability": "add",
                "task_objective": "Add",
                "inputs": [{"NUMBERS": "n"}],
            },
        ]
        return {"steps": steps}
    return AIMessage(
        content="The total is 3.",
        usage_metadata={"input_tokens": 10, "output_tokens": 5, "total_tokens": 15},
    )


async def test_usage_counts_only_the_checked_turn() -> None:
    model = ScriptedModel(responses=answers)
    report = await run(TOTAL, {**TOTAL, "earlier": ["Total?"]}, model=model)
    first, second = report.results
    assert first.problems == []
    assert first.model_calls == 2
    assert first.input_tokens > 10
    assert first.output_tokens > 5
    # The second turn's request needs no extraction; the first turn of its thread is not counted.
    assert second.model_calls == 2
    assert len(model.calls) == 2 + 2 + 2


async def test_concurrent_results_keep_the_order_of_the_set() -> None:
    running = 0
    most = 0
    together = asyncio.Event()

    @capability_node(examples=["wait a little"])
    async def wait() -> Total:
        """Wait a little."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        if most > 1:
            together.set()
        await together.wait()
        running -= 1
        return Total(value=1)

    heard: list[CaseResult] = []
    cases = [{"request": "wait a little", "capabilities": ["wait"]} for _ in range(6)]
    report = await run(*cases, registry=registry_of(wait), jobs=3, on_case=heard.append)
    assert [result.case.name for result in report.results] == [f"case {n}" for n in range(6)]
    assert len(heard) == 6
    assert 1 < most <= 3


async def test_all_unknown_names_are_listed() -> None:
    with pytest.raises(ConfigurationError) as caught:
        await run(
            {"capabilities": ["red"], "optional": ["plot"]},
            {"context": {"NUMBRS": {"given": {}}}},
        )
    text = str(caught.value)
    assert "cases[0].capabilities[0]: unknown capability 'red'. Did you mean 'read'?" in text
    assert "cases[0].optional[0]: unknown capability 'plot'." in text
    assert "cases[1].context.NUMBRS" in text


async def test_settings_come_from_the_configuration() -> None:
    settings = load_settings(context={"NUMBERS": {"given": {"values": [5]}}})
    case = {**TOTAL, "capabilities": ["add"], "edges": [], "answer": [{"number": 5}]}
    report = await run(case, settings=settings, registry=without_reading())
    assert report.results[0].problems == []


@pytest.mark.parametrize("outcome", ["completed", "failed", "no_capability"])
async def test_no_capability_is_the_same_outcome_with_and_without_a_model(
    outcome: str,
) -> None:
    case = {"request": "Sing a love song", "capabilities": [], "outcome": outcome}
    model = ScriptedModel(responses=[{"steps": []}, "I cannot sing."] * 2)
    offline, with_model = await run(case), await run(case, model=model)
    assert model.calls
    assert [r.results[0].outcome for r in (offline, with_model)] == ["no_capability"] * 2
    assert [r.figures["passed"] for r in (offline, with_model)] == [1.0, 1.0]


async def test_failing_model_is_not_no_capability() -> None:
    case = {"request": "Sing a love song", "capabilities": []}
    report = await run(case, model=ScriptedModel(responses=[PermissionError("no key")] * 9))
    assert report.results[0].outcome == "failed"
    assert not report.results[0].passed


async def test_judge_verdicts_are_reported_and_compared_with_labels() -> None:
    verdicts = [
        {"reason": "It names the total.", "accepted": True},
        {"reason": "It names none.", "accepted": False},
        {"reason": "It is friendly.", "accepted": True},
        {"reason": "It is rude.", "accepted": True},
    ]
    judge = {
        "model": ScriptedModel(responses=verdicts),
        "rubric": "The answer names the total.",
        "labels": [
            {"request": "Total?", "answer": "It is 3, dear.", "accepted": True},
            {"request": "Total?", "answer": "Ask somebody else.", "accepted": False},
        ],
    }
    cases = [{**TOTAL, "name": "total"}, {**TOTAL, "name": "again"}]
    dataset = Dataset.model_validate({"version": 1, "name": "t", "cases": cases, "judge": judge})
    report = await evaluate(dataset, registry_of())
    assert report.figures["passed"] == 1.0, "a verdict decides about no case"
    assert report.figures["judged"] == 0.5
    assert report.figures["agreement"] == 0.5, "two labels and two checked answers"
    [below] = report.check_thresholds(Thresholds(passed=1, judged=0.9))
    assert below.metric == "judged"
    assert report.as_data()["cases"][1]["verdict"] == {
        "accepted": False,
        "reason": "It names none.",
    }


async def test_a_judge_that_fails_gives_no_verdict() -> None:
    judge = {"model": ScriptedModel(responses=[TimeoutError("late")]), "rubric": "It is short."}
    dataset = dataset_of(TOTAL).model_copy(update={"judge": JudgeSettings.model_validate(judge)})
    report = await evaluate(dataset, registry_of())
    assert report.figures["judged"] is None
    assert report.figures["agreement"] == 0.0
    verdict = report.results[0].verdict
    assert verdict is not None
    assert verdict.accepted is None
    assert "late" in verdict.reason


async def test_without_a_judge_nothing_is_judged() -> None:
    report = await run(TOTAL)
    assert (report.figures["judged"], report.figures["agreement"]) == (None, None)
