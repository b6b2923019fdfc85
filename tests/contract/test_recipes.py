"""A plan that worked is a capability: found, planned, written out, approved and counted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from pydantic import BaseModel, Field

from capgraph import (
    BaseCapability,
    CapabilityContext,
    Recipe,
    Registry,
    build_graph,
    capability_node,
)
from capgraph.base import ConfigurationError, PlanError, RegistryError
from capgraph.configs.settings import Settings
from capgraph.governance import PermissionMode, PermissionPolicy, RolePermissionConfig
from capgraph.registry import load_recipe
from capgraph.testing import ScriptedModel
from tests.support.commands import project, together

REQUEST = "Write a weather report on Oslo"
LOG: list[str] = []


class Weather(CapabilityContext):
    CONTEXT_TYPE: ClassVar[str] = "WEATHER"
    place: str
    wind: float = 3.0

    def get_summary(self) -> str:
        return f"{self.place}: {self.wind}"


class Report(CapabilityContext):
    CONTEXT_TYPE: ClassVar[str] = "REPORT"
    text: str

    def get_summary(self) -> str:
        return self.text


@capability_node
class Look(BaseCapability):
    name = "look"
    description = "Looks what the weather of a place is."
    provides = [Weather]

    class Parameters(BaseModel):
        place: str = Field(min_length=2)
        days: int = 1

    async def execute(self) -> Weather:
        LOG.append(f"look {self.parameters.place} {self.parameters.days}")
        return Weather(place=self.parameters.place)


@capability_node
class Write(BaseCapability):
    name = "write"
    description = "Writes a text about it."
    requires = [Weather]
    provides = [Report]

    class Parameters(BaseModel):
        title: str = "Weather"

    async def execute(self) -> Report:
        LOG.append(f"write: {self.task}")
        return Report(text=f"{self.parameters.title}: {self.inputs['WEATHER'].wind}")


@capability_node
class Send(BaseCapability):
    name = "send"
    description = "Sends a letter."
    requires = [Report]
    effect = "once"
    requires_approval = True

    class Parameters(BaseModel):
        to: str

    async def execute(self) -> dict[str, Any]:
        LOG.append(f"send {self.parameters.to}: {self.inputs['REPORT'].text}")
        return {}


STEPS = [
    {"context_key": "w", "capability": "look", "parameters": {"place": "Oslo", "days": 3}},
    {
        "context_key": "r",
        "capability": "write",
        "parameters": {"title": "Weather of Oslo"},
        "inputs": [{"WEATHER": "w"}],
        "task_objective": "Write about Oslo",
    },
]


@pytest.fixture(autouse=True)
def log() -> Iterator[list[str]]:
    LOG.clear()
    return LOG


def registry(*more: Any) -> Registry:
    found = Registry()
    for item in (Look, Write, Send, *more):
        found.register(item)
    return found


async def turn(steps: list[Any] = STEPS, request: str = REQUEST) -> dict[str, Any]:
    graph = build_graph(registry(), model=ScriptedModel(responses=[{"steps": steps}, "Done."]))
    out: dict[str, Any] = await graph.ainvoke({"messages": [("user", request)]})
    return out


async def report() -> Recipe:
    found = Recipe.from_turn(await turn(), "weather_report", registry())
    LOG.clear()
    return found


async def ask(graph: Any, request: str, **config: Any) -> dict[str, Any]:
    given = {"messages": [("user", request)]}
    out: dict[str, Any] = await graph.ainvoke(given, {"configurable": {"thread_id": "1", **config}})
    return out


async def test_what_the_request_says_becomes_a_parameter() -> None:
    recipe = await report()
    assert recipe.to_dict()["parameters"] == {"place": {"type": "string"}}
    look, write = recipe.steps
    assert look["parameters"] == {"place": {"$from": "parameters.place"}, "days": 3}
    assert write["parameters"] == {"title": "Weather of {place}"}
    assert write["task_objective"] == "Write about {place}"
    assert "task_objective" not in look  # it was the request itself
    assert recipe.uses["look"]["provides"] == ["WEATHER"]


async def test_a_plan_that_was_brought_answers_the_message_beside_it() -> None:
    given: Any = {
        "messages": [("user", REQUEST)],
        "planning_execution_plan": {"steps": [{**step, "task_objective": ""} for step in STEPS]},
    }
    out = await build_graph(registry()).ainvoke(given)
    recipe = Recipe.from_turn(out, "weather_report", registry())
    assert list(recipe.parameters) == ["place"]
    assert [example.request for example in recipe.examples] == [REQUEST]


async def test_chosen_values_become_parameters() -> None:
    chosen = ["w.place", "w.days=ahead"]
    recipe = Recipe.from_turn(await turn(), "two", registry(), parameters=chosen)
    assert {n: p.type for n, p in recipe.parameters.items()} == {
        "place": "string",
        "ahead": "integer",
    }
    model = registry(recipe).capabilities["two"].parameters
    assert model is not None
    schema = model.model_json_schema()["properties"]
    assert (schema["place"]["minLength"], schema["ahead"]["type"]) == (2, "integer")
    with pytest.raises(PlanError, match=r"'w\.nothing'.*w\.place"):
        Recipe.from_turn(await turn(), "x", registry(), parameters=["w.nothing"])
    with pytest.raises(PlanError, match="'Oslo' and 3"):
        Recipe.from_turn(await turn(), "x", registry(), parameters=["w.place=a", "w.days=a"])


async def test_only_a_completed_turn_makes_a_recipe() -> None:
    out = await turn([{"context_key": "w", "capability": "look", "parameters": {"place": "Oslo"}}])
    failed = {**out, "execution_outcome": {"status": "failed"}}
    with pytest.raises(PlanError, match="The turn is failed and has 1 step"):
        Recipe.from_turn(failed, "x", registry())


async def test_a_request_in_known_words_costs_no_model_call(log: list[str]) -> None:
    model = ScriptedModel(responses=[])
    graph = build_graph(registry(await report()), model=model, checkpointer=InMemorySaver())
    for place in ("Rome", "New York"):  # the second has a conversation before it
        out = await ask(graph, f"write a weather report on {place}!")
        assert out["execution_outcome"] == {
            "status": "completed",
            "done": ["report.w", "report.r"],
            "missing": [],
        }
        assert out["messages"][-1].content == f"Weather of {place}: 3.0"
    assert model.calls == []
    assert log == [
        "look Rome 3",
        "write: Write about Rome",
        "look New York 3",
        "write: Write about New York",
    ]


async def test_what_is_always_there_costs_no_call_either(log: list[str]) -> None:
    @capability_node(always_active=True)
    async def remember(fact: str) -> str:
        """Remembers a fact."""
        log.append("remember")
        return fact

    model = ScriptedModel(responses=[])
    out = await ask(
        build_graph(registry(await report(), remember), model=model),
        "Write a weather report on Rome",
    )
    assert out["execution_outcome"]["done"] == ["report.w", "report.r"]
    assert (model.calls, log) == ([], ["look Rome 3", "write: Write about Rome"])


async def test_a_request_in_other_words_costs_one_call_for_the_parameters(log: list[str]) -> None:
    plan = {"steps": [{"capability": "weather_report", "parameters": {"place": "Lima"}}]}
    model = ScriptedModel(responses=[plan])
    graph = build_graph(registry(await report()), model=model)
    out = await ask(graph, "I need the usual report on the weather in Lima, written tonight")
    assert out["execution_outcome"]["status"] == "completed"
    [call] = model.calls
    assert "weather_report(" in call.prompt
    assert "look(" not in call.prompt  # only what the recipe wants to know
    assert log == ["look Lima 3", "write: Write about Lima"]


async def test_who_wants_a_model_to_answer_says_so() -> None:
    recipe = (await report()).model_copy(update={"answer": "model"})
    model = ScriptedModel(responses=["Windy."])
    out = await ask(build_graph(registry(recipe), model=model), "Write a weather report on Rome")
    assert (out["messages"][-1].content, len(model.calls)) == ("Windy.", 1)


async def test_other_requests_are_planned_as_ever() -> None:
    plan = {"steps": [{"capability": "look", "parameters": {"place": "Rome"}}]}
    model = ScriptedModel(responses=[plan, "Windy."])
    out = await ask(build_graph(registry(await report()), model=model), "Look at Rome")
    assert out["planning_execution_plan"]["steps"][0]["capability"] == "look"
    assert len(model.calls) == 2


async def test_offline_the_same_request_runs_without_a_model(log: list[str]) -> None:
    graph = build_graph(registry(await report()))
    out = await ask(graph, "Write a weather report on Rome")
    assert out["messages"][-1].content == "Weather of Rome: 3.0"
    # More than a place: nothing here can tell what is meant, so nothing is guessed.
    out = await ask(graph, "Write a weather report on Rome, Bari and every other town there is")
    assert out["execution_outcome"]["status"] == "failed"
    assert log == ["look Rome 3", "write: Write about Rome"]


def letter(**more: Any) -> Recipe:
    return Recipe(
        name="letter",
        description="Sends the weather to somebody.",
        parameters={"place": {"type": "string"}, "to": {"default": "me"}},
        steps=[
            {
                "context_key": "report",
                "capability": "weather_report",
                "parameters": {"place": {"$from": "parameters.place"}},
            },
            {
                "context_key": "mail",
                "capability": "send",
                "parameters": {"to": {"$from": "parameters.to"}},
                "inputs": [{"REPORT": "report"}],
            },
        ],
        **more,
    )


async def test_review_approval_and_ledger_see_the_steps_of_nested_recipes(log: list[str]) -> None:
    known = registry(await report(), letter())
    assert known.capabilities["letter"].effect == "once"
    graph = build_graph(known, checkpointer=InMemorySaver())
    plan = {
        "steps": [{"context_key": "l", "capability": "letter", "parameters": {"place": "Rome"}}]
    }
    config: Any = {"configurable": {"thread_id": "1"}}
    given = {"messages": [("user", "Go")], "planning_execution_plan": plan}
    out = await graph.ainvoke(given, config)
    [asked] = out["__interrupt__"]
    assert [one["context_key"] for one in asked.value["steps"]] == ["l.mail"]
    assert log == ["look Rome 3", "write: Write about Rome"]
    out = await graph.ainvoke(Command(resume={"l.mail": "approve"}), config)
    assert out["execution_outcome"]["done"] == ["l.report.w", "l.report.r", "l.mail"]
    assert log[-1] == "send me: Weather of Rome: 3.0"


async def test_what_reads_a_recipe_reads_its_last_steps() -> None:
    plain = {**STEPS[1], "parameters": {"title": "Wind"}}
    recipe = Recipe.from_turn(await turn([STEPS[0], plain]), "weather_report", registry())
    place = {"context_key": "first", "capability": "look", "parameters": {"place": "Oslo"}}
    whole = {
        "context_key": "it",
        "capability": "weather_report",
        "parameters": {"place": {"$from": "first.place"}},
    }
    retold = {
        "context_key": "again",
        "capability": "write",
        "parameters": {"title": {"$from": "it.text"}},
        "inputs": [{"WEATHER": "first"}],
    }
    given = {
        "messages": [("user", "Go")],
        "planning_execution_plan": {"steps": [place, whole, retold]},
    }
    out = await build_graph(registry(recipe)).ainvoke(given)
    assert out["execution_outcome"]["status"] == "completed", out["execution_outcome"]
    data = out["capability_context_data"]
    assert data["WEATHER"]["it.w"]["place"] == "Oslo"
    assert data["REPORT"]["again"]["text"] == "Wind: 3.0: 3.0"
    assert out["execution_outcome"]["status"] == "completed"
    # In this one the place stands inside a title, where only a plain value can stand.
    out = await build_graph(registry(await report())).ainvoke(given)
    assert "'place' is used inside" in out["execution_outcome"]["reason"]


async def test_a_condition_and_optional_hold_for_all_steps(log: list[str]) -> None:
    graph = build_graph(registry(await report()))
    first = {"context_key": "first", "capability": "look", "parameters": {"place": "Oslo"}}
    whole = {
        "context_key": "it",
        "capability": "weather_report",
        "parameters": {"place": "Rome"},
        "when": {"of": "first.wind", "is": ">", "than": 10},
        "optional": True,
    }
    given = {
        "messages": [("user", "Go")],
        "planning_execution_plan": {"steps": [first, whole], "deadline": 60},
    }
    out = await graph.ainvoke(given)
    assert out["execution_outcome"]["status"] == "completed"
    assert out["planning_execution_plan"]["deadline"] == 60
    assert log == ["look Oslo 1"]
    assert [step.get("optional") for step in out["planning_execution_plan"]["steps"]] == [
        None,
        True,
        True,
        None,
    ]
    given["planning_execution_plan"]["steps"][1] = {  # type: ignore[index]
        **whole,
        "when": None,
        "for_each": {"of": "first.place"},
    }
    out = await graph.ainvoke(given)
    assert out["execution_outcome"]["status"] == "failed"


async def test_where_a_recipe_waits_its_first_steps_wait() -> None:
    graph = build_graph(registry(await report()), checkpointer=InMemorySaver())
    whole = {
        "context_key": "it",
        "capability": "weather_report",
        "parameters": {"place": {"$from": "signal.place"}},
        "wait_for": "asked",
    }
    plain = {**whole, "parameters": {"place": "Rome"}}
    given = {"messages": [("user", "Go")], "planning_execution_plan": {"steps": [plain]}}
    config: Any = {"configurable": {"thread_id": "1"}}
    out = await graph.ainvoke(given, config)
    assert list(out["execution_outcome"]["waiting"]) == ["it.w"]
    given["planning_execution_plan"] = {"steps": [whole]}
    out = await graph.ainvoke({**given, "messages": [("user", "Go on")]}, config)
    assert "'place' is used inside" in out["execution_outcome"]["reason"]


async def test_what_a_step_waits_for_may_be_a_parameter() -> None:
    @capability_node
    async def ship() -> str:
        """Ships."""
        return "shipped"

    waits = {"context_key": "s", "capability": "ship", "wait_for": {"$from": "parameters.event"}}
    known = Registry()
    known.register(ship)
    known.register(
        Recipe(
            name="ship_on",
            description="Ships when it is paid.",
            parameters={"event": {"type": "string"}},
            steps=[waits],
        )
    )
    step = {"context_key": "it", "capability": "ship_on", "parameters": {"event": "paid/7"}}
    out = await build_graph(known, checkpointer=InMemorySaver()).ainvoke(
        {"messages": [("user", "Go")], "planning_execution_plan": {"steps": [step]}},
        {"configurable": {"thread_id": "1"}},
    )
    assert out["execution_outcome"]["waiting"]["it.s"]["for"] == "paid/7"


async def test_what_was_stored_before_is_an_input_of_the_recipe() -> None:
    graph = build_graph(registry(), checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    for steps in (STEPS[:1], [{**STEPS[1], "context_key": "r2"}]):
        given = {"messages": [("user", "Go on")], "planning_execution_plan": {"steps": steps}}
        out = await graph.ainvoke(given, config)
    recipe = Recipe.from_turn(out, "retell", registry())
    assert recipe.inputs == {"w": "WEATHER"}
    known = registry(recipe)
    assert [str(need) for need in known.capabilities["retell"].requires] == ["WEATHER"]
    plan = {
        "steps": [
            {"context_key": "x", "capability": "look", "parameters": {"place": "Bari"}},
            {"context_key": "y", "capability": "retell", "inputs": [{"WEATHER": "x"}]},
        ]
    }
    given = {"messages": [("user", "Go")], "planning_execution_plan": plan}
    out = await build_graph(known).ainvoke(given)
    assert out["execution_outcome"]["done"] == ["x", "y.r2"]


async def test_limits_and_permissions_hold_for_the_steps(log: list[str]) -> None:
    known = registry(await report())
    small = build_graph(known, settings=Settings(limits={"max_steps": 2}))
    out = await ask(small, "Write a weather report on Rome")  # with the answer it has three
    assert "3 steps and the limit is 2" in out["execution_outcome"]["reason"]
    reader = RolePermissionConfig("reader", PermissionMode.FULL_ACCESS, denied_tools=["write"])
    policy = PermissionPolicy([reader])
    graph = build_graph(known, permissions=policy, checkpointer=InMemorySaver())
    out = await ask(graph, "Write a weather report on Rome", role="reader", user_id="ann")
    assert out["execution_outcome"]["status"] == "failed"
    assert log == []


async def test_a_recipe_is_checked_when_it_is_registered() -> None:
    recipe = await report()
    bare = Registry()
    bare.register(Look)
    with pytest.raises(RegistryError, match="the capability 'write' is unknown"):
        bare.register(recipe)

    @capability_node
    class Other(BaseCapability):
        name = "look"
        description = "Looks"
        provides = [Weather]
        permission = "FULL_ACCESS"

        class Parameters(BaseModel):
            place: str

        async def execute(self) -> Any:
            return None

    changed = registry().with_(Other)
    with pytest.raises(RegistryError, match=r"'look' has changed since.*: parameters, permission"):
        changed.register(recipe)
    with pytest.raises(RegistryError, match="'look' has changed"):
        build_graph(registry(recipe).with_(Other))

    unsound = recipe.model_copy(update={"steps": recipe.steps[1:]})
    with pytest.raises(RegistryError, match="'w'"):
        registry().register(unsound)
    example = recipe.examples[0].model_copy(update={"parameters": {"place": "O"}})
    with pytest.raises(RegistryError, match="at least 2 characters"):
        registry().register(recipe.model_copy(update={"examples": [example]}))
    idle = recipe.model_copy(
        update={"parameters": {**recipe.parameters, "more": recipe.parameters["place"]}}
    )
    with pytest.raises(RegistryError, match="no step uses the parameter 'more'"):
        registry().register(idle)
    step = {**recipe.steps[0], "parameters": {"place": {"$from": "parameters.town"}}}
    with pytest.raises(RegistryError, match="the parameter 'town'"):
        registry().register(recipe.model_copy(update={"steps": [step, *recipe.steps[1:]]}))


async def test_recipes_in_a_circle_are_refused() -> None:
    known = registry(await report(), letter())
    step = {"context_key": "l", "capability": "letter", "parameters": {"place": "Oslo"}}
    turned = Recipe(name="weather_report", description="Turned round", steps=[step])
    told = "cycle: .*weather_report → letter"
    with pytest.raises(RegistryError, match=told):
        known.register(turned, override=True)
    with pytest.raises(RegistryError, match="cycle: me → me"):
        registry().register(
            Recipe(name="me", description="x", steps=[{"context_key": "a", "capability": "me"}])
        )


MODULE = '''
from typing import ClassVar
from pydantic import BaseModel
from capgraph import CapabilityContext, Recipe, capability_node

class Hello(CapabilityContext):
    CONTEXT_TYPE: ClassVar[str] = "HELLO"
    text: str
    def get_summary(self):
        return self.text

RECIPE = Recipe(name="a_double", description="Greets twice.",
    steps=[{"context_key": k, "capability": "greet", "parameters": {"who": k}} for k in ("Jo", "Al")])

@capability_node(examples=["greet somebody", "say hello to Al"],
                 parameters_from=lambda task: {"who": task.split()[1]})
async def greet(who: str) -> Hello:
    """Greets a person."""
    return Hello(text=f"Hello {who}")
'''

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def capgraph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Run]:
    files = {"greeters.py": MODULE, "capgraph.yml": "modules: [greeters]\n"}
    with project(tmp_path, monkeypatch, files):
        yield together(capsys)


def test_modules_and_settings_bring_recipes(capgraph: Run, tmp_path: Path) -> None:
    assert "a_double" in capgraph("capabilities")[1]
    two = {"recipe": 1, "name": "two", "description": "Twice", "steps": [
        {"context_key": "t", "capability": "one"}]}  # fmt: skip
    one = {"recipe": 1, "name": "one", "description": "Once", "steps": [
        {"context_key": "g", "capability": "greet", "parameters": {"who": "${HOME}"}}]}  # fmt: skip
    (tmp_path / "kept").mkdir()
    for number, data in enumerate((two, one)):  # the one that needs the other comes first
        (tmp_path / "kept" / f"{number}.yml").write_text(yaml.safe_dump(data))
    (tmp_path / "capgraph.yml").write_text("modules: [greeters]\nrecipes: [kept]\n")
    code, out = capgraph("capabilities", "--json")
    known = [one["name"] for one in json.loads(out)]
    assert (code, known) == (0, ["greet", "a_double", "one", "two"])
    assert load_recipe(tmp_path / "kept" / "1.yml").steps[0]["parameters"] == {"who": "${HOME}"}
    assert capgraph("check")[0] == 0
    (tmp_path / "kept" / "1.yml").write_text(yaml.safe_dump({**one, "steps": two["steps"][:1] and [
        {"context_key": "g", "capability": "two"}]}))  # fmt: skip
    code, out = capgraph("check")
    assert code == 2
    assert "cycle" in out
    (tmp_path / "kept" / "1.yml").write_text("recipe: 1\nname: x\nsteps: []\nexample: []\n")
    code, out = capgraph("check")
    assert code == 2
    for told in ("description: Field required", "steps: ", "example: unknown key", "'examples'"):
        assert told in out


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("descripton: x\n", "description"),
        ("parameters: {place: {typ: string}}\n", "type"),
        ("examples: [{requst: Hi}]\n", "request"),
    ],
)
def test_an_unknown_key_of_a_recipe_is_refused_with_the_nearest(
    text: str, meant: str, tmp_path: Path
) -> None:
    file = tmp_path / "one.yml"
    file.write_text(f"recipe: 1\nname: x\nsteps: [{{context_key: a, capability: b}}]\n{text}")
    with pytest.raises(ConfigurationError, match=f"unknown key, write '{meant}'"):
        load_recipe(file)


def test_save_show_use_and_measure(capgraph: Run, tmp_path: Path) -> None:
    assert capgraph("ask", "greet Bo warmly", "--thread", "t1")[0] == 0
    code, out = capgraph("recipe", "save", "t1", "warm", "--description", "Greets warmly.")
    assert code == 0, out
    assert "recipes/warm.yml: version 1, 1 step(s), parameters: who" in out
    assert "name 'recipes' under 'recipes'" in out
    (tmp_path / "capgraph.yml").write_text("modules: [greeters]\nrecipes: [recipes]\n")
    assert "Greets warmly." in capgraph("capabilities")[1]
    code, out = capgraph("ask", "greet Cy warmly", "--thread", "t2")
    assert "Hello Cy" in out
    assert "capabilities: warm" in out
    code, out = capgraph("recipe", "save", "t2", "warm")
    assert "version 2" in out
    saved = yaml.safe_load((tmp_path / "recipes" / "warm.yml").read_text())
    assert [example["request"] for example in saved["examples"]] == [
        "greet Bo warmly",
        "greet Cy warmly",
    ]
    code, out = capgraph("eval", "recipes/warm.yml")
    assert code == 0, out
    assert "2 of 2" in out
    assert capgraph("recipe", "save", "t1", "greet")[0] == 2
    assert capgraph("recipe", "save", "nowhere", "x")[0] == 2
    broken = {**saved, "uses": {"greet": {"effect": "once"}}}
    broken_file = tmp_path / "recipes" / "broken.yml"
    broken_file.write_text(yaml.safe_dump({**broken, "name": "broken"}))
    code, out = capgraph("check")
    assert code == 2
    assert "'broken'" in out
    assert "'greet' has changed since it was saved" in out
