from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from pydantic import BaseModel

from capgraph import capability_node
from capgraph.base import ErrorSeverity, ModelError, PlannedStep
from capgraph.base.error_classification import classify_exception
from capgraph.configs.settings import load_settings
from capgraph.models import model_strategies
from capgraph.models.plan_schema import PLAN_FEATURES, open_schema
from capgraph.models.signatures import describe_capability
from capgraph.planning.strategies import AnswerRequest, PlanRequest, StepSummary
from capgraph.registry import Registry
from capgraph.selection import Candidate, LexicalSelector, Selection
from capgraph.testing import ModelCall, ScriptedModel
from tests.support.readings import sensor_registry

CANDIDATES = [
    Candidate(name, f"Does {name}.", positives=(f"please {name}",))
    for name in ("paint", "bake", "weld")
]


class FirstOnes(LexicalSelector):
    """An offline selector that ranks by position."""

    async def score(self, task: str, candidates: Sequence[Candidate]) -> dict[str, float]:
        return {c.name: 1.0 - n / 1000 for n, c in enumerate(candidates)}

    async def select(
        self, task: str, candidates: Sequence[Candidate], **_: Any
    ) -> Selection:  # pragma: no cover - never asked
        raise AssertionError("the model chooses")


def strategies(model: Any, registry: Registry | None = None, **settings: Any) -> dict[str, Any]:
    settings.setdefault("selection", {"strategy": "model"})
    return model_strategies(
        model, registry or sensor_registry(), load_settings(**settings), FirstOnes()
    )


def choice(*names: str) -> dict[str, Any]:
    return {"reason": "so", "capabilities": list(names)}


async def test_first_message_is_the_task_without_a_call() -> None:
    model = ScriptedModel(responses=[])
    found = await strategies(model)["extractor"].extract(
        [SystemMessage("Be kind"), HumanMessage("  Read it ")]
    )
    assert found.task == "Read it"
    assert model.calls == []


async def test_extraction_prompt_contains_bounded_text_only() -> None:
    answer = {"task": "t", "depends_on_chat_history": True, "depends_on_user_memory": True}
    model = ScriptedModel(responses=[answer])
    said = [HumanMessage(f"question {n}") for n in range(30)]
    said.append(HumanMessage("x" * 9_000))
    said.append(HumanMessage("And now?"))
    found = await strategies(model)["extractor"].extract(said)
    assert (found.task, found.depends_on_user_memory) == ("t", True)
    (call,) = model.calls
    assert call.schema == "Task"
    assert "question 29" in call.prompt
    assert "person: question 5\n" not in call.prompt
    assert "(5,000 more characters)" in call.prompt
    assert "And now?" in call.prompt


async def test_selector_chooses_in_one_call() -> None:
    model = ScriptedModel(responses=[choice("weld", "bake", "weld")])
    found = await strategies(model)["selector"].select("weld it", CANDIDATES)
    assert found.names == ("weld", "bake")
    assert found.reason == "so"
    assert [call.schema for call in model.calls] == ["Choice"]
    listing = model.calls[0].messages[0].text
    assert listing.index("- bake") < listing.index("- paint") < listing.index("- weld")
    assert 'needed for: "please bake"' in listing


async def test_excluded_capabilities_are_not_chosen() -> None:
    model = ScriptedModel(responses=[choice("paint", "bake"), choice("paint")])
    selector = strategies(model)["selector"]
    assert (await selector.select("x", CANDIDATES)).names == ("paint", "bake")
    with pytest.raises(ModelError, match="'paint'"):
        await selector.select("x", CANDIDATES, excluded={"paint": "it peeled"})
    assert "it peeled" in model.calls[1].messages[1].text
    assert "- paint" not in model.calls[1].messages[0].text


async def test_no_call_without_candidates() -> None:
    model = ScriptedModel(responses=[])
    selector = strategies(model)["selector"]
    assert not await selector.select("x", [])
    excluded = {c.name: "no" for c in CANDIDATES}
    assert not await selector.select("x", CANDIDATES, excluded=excluded)
    assert model.calls == []


async def test_prompt_lists_a_shortlist_of_many_capabilities() -> None:
    many = [Candidate(f"tool_{n}", "Does something.") for n in range(1000)]
    few = ScriptedModel(responses=[choice("tool_3")])
    lots = ScriptedModel(responses=[choice("tool_3")])
    await strategies(few)["selector"].select("x", many[:20])
    found = await strategies(lots)["selector"].select("x", many)
    assert found.names == ("tool_3",)
    assert len(lots.calls[0].prompt) <= 1.5 * len(few.calls[0].prompt)


@pytest.mark.row("B49")
async def test_per_capability_questions_are_limited_in_concurrency() -> None:
    under_way, most = 0, 0

    class Counting(ScriptedModel):
        async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0.01)
            under_way -= 1
            return await super()._agenerate(*args, **kwargs)

    model = Counting(responses=lambda call: {"is_match": "tool_7." in call.prompt})
    many = [Candidate(f"tool_{n}", f"Does tool_{n}.") for n in range(15)]
    selection = {"strategy": "per_capability", "max_concurrency": 4}
    found = await strategies(model, selection=selection)["selector"].select("x", many)
    assert found.names == ("tool_7",)
    assert [call.schema for call in model.calls] == ["CapabilityMatch"] * 15
    assert most == 4


@pytest.mark.row("B49")
async def test_a_capability_whose_question_fails_is_not_selected() -> None:
    def answer(call: ModelCall) -> Any:
        if "tool_2" in call.prompt:
            return ConnectionError("gone")
        return {"is_match": "tool_3" in call.prompt}

    model = ScriptedModel(responses=answer)
    many = [Candidate(f"tool_{n}", f"Does tool_{n}.") for n in range(5)]
    selector = strategies(model, selection={"strategy": "per_capability"})["selector"]
    found = await selector.select("x", many)
    assert found.names == ("tool_3",)
    assert "1 questions failed" in found.reason


@pytest.mark.row("B49")
async def test_a_selection_whose_questions_all_fail_is_an_error() -> None:
    model = ScriptedModel(responses=lambda call: ConnectionError("gone"))
    many = [Candidate(f"tool_{n}", f"Does tool_{n}.") for n in range(5)]
    selector = strategies(model, selection={"strategy": "per_capability"})["selector"]
    with pytest.raises(ModelError) as caught:
        await selector.select("x", many)
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert classify_exception(caught.value, "x").severity is ErrorSeverity.RETRIABLE


@pytest.mark.parametrize("answer", [{"is_match": "yes"}, {"is_match": 1}, {}, "no idea"])
async def test_per_capability_answers_are_booleans(answer: Any) -> None:
    selector = strategies(
        ScriptedModel(responses=[answer]), selection={"strategy": "per_capability"}
    )["selector"]
    with pytest.raises(ModelError, match="does not match the expected format"):
        await selector.select("x", CANDIDATES[:1])


def request(**fields: Any) -> PlanRequest:
    given = {"task": "t", "active": ("read_sensor",), "catalog": sensor_registry(), "available": {}}
    return PlanRequest(**{**given, **fields})


async def test_planning_prompts_share_a_prefix() -> None:
    model = ScriptedModel(responses=[{"steps": []}] * 3)
    planner = strategies(model)["planner"]
    await planner.plan(request(active=("wipe", "add_up"), guides="# GUIDE"))
    await planner.plan(
        request(
            active=("add_up", "wipe"), guides="# GUIDE", task="other", available={"A": {"b": 1}}
        )
    )
    first, second = model.calls
    assert first.messages[0] == second.messages[0]
    assert first.messages[1] != second.messages[1]
    assert first.messages[0].text.endswith("# GUIDE")
    shown = first.messages[0].text
    assert "- wipe(): Erases all readings. Only if asked for." in shown
    assert "- add_up() -> TOTAL: Adds up readings. Needs READING (many)." in shown


def test_plan_schema_contains_only_plan_fields() -> None:
    item = open_schema([], PLAN_FEATURES)["properties"]["steps"]["items"]
    assert set(item["properties"]) < set(PlannedStep.__annotations__)
    assert item["required"] == ["capability"]


def test_planning_prompt_lists_parameters() -> None:
    class Parameters(BaseModel):
        """Says nothing new."""

        days: int
        title: str = "none"
        unit: Literal["K", "F"] | None = None
        limits: dict[str, int] | list[int] | None = None

    from capgraph.base import CapabilitySpec

    text = describe_capability(CapabilitySpec("look", "Looks.", parameters=Parameters))
    assert 'look(days: integer, title: string = "none", unit?: "K" | "F",' in text
    assert "limits?: {name: integer} | integer[])" in text
    assert "Says nothing new" not in text


async def test_invalid_plan_is_returned_for_the_plan_check() -> None:
    model = ScriptedModel(responses=["I would read it.", {"plan": []}, "[]"])
    planner = strategies(model)["planner"]
    assert await planner.plan(request()) == "I would read it."
    assert await planner.plan(request()) == '{"plan": []}'
    assert await planner.plan(request()) == []
    assert planner.can_correct is True


async def test_a_failing_call_is_not_a_plan() -> None:
    planner = strategies(ScriptedModel(responses=[TimeoutError("slow")]))["planner"]
    with pytest.raises(ModelError, match="slow") as caught:
        await planner.plan(request())
    assert classify_exception(caught.value, "x").severity is ErrorSeverity.RETRIABLE


async def test_answer_is_one_message_with_its_usage() -> None:
    model = ScriptedModel(responses=["It is 3.5."])
    result = StepSummary("value", "read", "READING", "3.5 degrees")
    whole = StepSummary("trend", "How warm?", "TREND", "falling")
    message = await strategies(model)["answerer"].answer(
        AnswerRequest(
            task="How warm?",
            purpose="results",
            results=(result, whole),
            missing=("plot: no disk",),
            messages=[HumanMessage("Hi"), AIMessage("Hello"), HumanMessage("How warm?")],
        )
    )
    assert message.content == "It is 3.5."
    assert message.id
    assert message.usage_metadata["output_tokens"] == 3
    (call,) = model.calls
    assert [m.type for m in call.messages] == ["system", "human", "ai", "human"]
    assert '"READING value: read">\n3.5 degrees' in call.prompt
    assert '"TREND trend">\nfalling' in call.prompt  # it is for all that was asked
    assert "plot: no disk" in call.prompt


async def test_model_call_times_out() -> None:
    class Hanging(ScriptedModel):
        async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(30)

        async def _astream(self, *args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(30)
            yield

    chosen = strategies(Hanging(responses=[]), limits={"step_timeout_seconds": 0.05})
    for waiting in (
        chosen["selector"].select("x", CANDIDATES),
        chosen["answerer"].answer(AnswerRequest(task="x", purpose="results")),
    ):
        with pytest.raises(ModelError, match=r"did not answer within 0\.05 s") as caught:
            await waiting
        classified = classify_exception(caught.value, "x")
        assert classified.severity is ErrorSeverity.RETRIABLE
        assert (classified.metadata or {})["category"] == "timeout"


async def test_a_broken_model_class_is_a_programming_error() -> None:
    selector = strategies(ScriptedModel(responses=[KeyError("oops")]))["selector"]
    with pytest.raises(ModelError) as caught:
        await selector.select("x", CANDIDATES)
    classified = classify_exception(caught.value, "x")
    assert classified.severity is ErrorSeverity.CRITICAL
    assert (classified.metadata or {})["category"] == "programming_error"


async def test_cancelling_a_call_is_not_an_error_of_the_model() -> None:
    class Hanging(ScriptedModel):
        async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(30)

    running = asyncio.create_task(
        strategies(Hanging(responses=[]))["selector"].select("x", CANDIDATES)
    )
    await asyncio.sleep(0.02)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def test_prompts_of_an_application_are_used() -> None:
    from capgraph.prompts import PromptBuilder, PromptProvider, use_prompts

    class Mine(PromptBuilder):
        role = "I choose."

    model = ScriptedModel(responses=[choice("bake")])
    with use_prompts(PromptProvider(classification=Mine())):
        selector = strategies(model)["selector"]
    asyncio.run(selector.select("x", CANDIDATES))
    assert model.calls[0].messages[0].text == "I choose."


async def planning_call(registry: Registry, *texts: str, **request: Any) -> ModelCall:
    """Return the planner's call in the mode ``look`` for a conversation."""
    model = ScriptedModel(responses=[{"steps": [], "answer": "Done."}])
    planner = strategies(model, registry, planning={"mode": "look"}, selection={})["planner"]
    specs = registry.capabilities
    await planner.plan(
        PlanRequest(
            texts[-1],
            tuple(specs),
            registry,
            {},
            chosen=False,
            messages=[HumanMessage(text) for text in texts],
            **request,
        )
    )
    return model.calls[0]


def shop_registry(count: int) -> Registry:
    """Return a registry with a capability of an opaque name and several telling ones."""
    registry = Registry()
    for number in range(count):
        thing = "abcdefghijklmnop"[number] * 5
        registry.register(
            capability_node(name=f"find_{thing}", description=f"Finds each {thing} on the shelf.")(
                make_search()
            )
        )
    registry.register(capability_node(name="erp7", description="Tracks a parcel.")(make_search()))
    return registry


def make_search() -> Any:
    def search(shelf: Literal["upper shelf", "lower shelf"], number: str) -> dict[str, str]:
        raise AssertionError

    return search


async def test_looking_describes_only_likely_capabilities_of_a_long_catalog() -> None:
    registry = shop_registry(14)
    call = await planning_call(registry, "Is there a ccccc left?")
    system, request = str(call.messages[0].text), str(call.messages[-1].text)
    assert all(f"- {name}(shelf: Shelf" in system for name in registry.capabilities)
    assert "Finds each" not in system
    assert "Tracks a parcel." in system, "its name does not say what it does"
    assert "Finds each ccccc" in request
    assert "Finds each ddddd" not in request
    follow_up = await planning_call(registry, "Is there a ccccc left?", "And now?")
    assert "Finds each ccccc" in str(follow_up.messages[-1].text)
    again = await planning_call(registry, "Zzz?", refused={"steps": [{"capability": "find_ddddd"}]})
    assert "Finds each ddddd" in str(again.messages[-1].text)


async def test_looking_describes_every_capability_of_a_short_catalog() -> None:
    call = await planning_call(shop_registry(5), "Is there a ccccc left?")
    assert str(call.messages[0].text).count("Finds each") == 5


async def test_looking_offers_references_only_for_lists_and_objects() -> None:
    @capability_node
    def search(place: str) -> dict[str, Any]:
        """Search a place."""
        raise AssertionError

    @capability_node
    def book(number: str) -> str:
        """Book a number."""
        raise AssertionError

    @capability_node
    def plot(rows: list[dict[str, Any]]) -> str:
        """Plot rows."""
        raise AssertionError

    scalar, bulk = Registry(), Registry()
    for registry, capabilities in ((scalar, (search, book)), (bulk, (search, book, plot))):
        for capability in capabilities:
            registry.register(capability)
    assert "$from" not in (await planning_call(scalar, "Book it.")).prompt
    assert "$from" in (await planning_call(bulk, "Plot it.")).prompt


TALK = [HumanMessage("How warm was Oslo in May 2020?"), AIMessage("It was 12 degrees.")]


@pytest.mark.parametrize(
    "text",
    [
        "How warm was Lima in June 2021?",
        "Book the cheapest sailing from Haven to Sund on 2026-06-12.",
        "Please compare the sales of Basel and Bern in 2021.",
    ],
)
async def test_message_without_context_is_the_task_without_a_call(text: str) -> None:
    model = ScriptedModel(responses=[])
    found = await strategies(model)["extractor"].extract([*TALK, HumanMessage(text)])
    assert found.task == text
    assert not found.depends_on_chat_history
    assert model.calls == []


@pytest.mark.parametrize(
    "text",
    [
        "And tomorrow?",
        "What about Lima in June 2021?",
        "How warm was June 2021?",
        "How warm was it in Lima in June 2021?",
        "In June 2021 with Lima and Quito?",
        "Which is the warmest in Norway in June 2021?",
        "Compare the two from Norway in May 2021.",
        "How warm was the other city from Norway in May 2021?",
        "Book the hotel with breakfast.",
        "Wie warm war Lima im Juni 2021?",
        "How warm was my city Lima in June 2021?",
        "Yes, with Lima in June 2021.",
    ],
)
async def test_message_that_may_need_context_is_extracted_with_a_call(text: str) -> None:
    task = {"task": "t", "depends_on_chat_history": True, "depends_on_user_memory": False}
    model = ScriptedModel(responses=[task])
    found = await strategies(model)["extractor"].extract([*TALK, HumanMessage(text)])
    assert found.task == "t"
    assert len(model.calls) == 1


async def test_reply_to_a_question_is_extracted_with_a_call() -> None:
    task = {"task": "t", "depends_on_chat_history": True, "depends_on_user_memory": False}
    model = ScriptedModel(responses=[task])
    talk = [HumanMessage("Book a room."), AIMessage("From which day?")]
    last = HumanMessage("From 2026-06-12 with breakfast please")
    assert (await strategies(model)["extractor"].extract([*talk, last])).task == "t"
