"""Tests of routers and their fallbacks."""

import asyncio
from collections import Counter
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

from capgraph.base import ConfigurationError, ModelError
from capgraph.models import RoleModel
from capgraph.models.calls import generate_structured
from capgraph.selection import (
    BaseRouter,
    LLMRouter,
    LoadBalancingRouter,
    RoutingDecision,
    RoutingRequest,
    RuleBasedRouter,
    SemanticRouter,
)
from capgraph.testing import ScriptedModel

AGENTS = ["sales", "support", "accounts"]


def asked(text="Where is my bill?", agents=AGENTS):
    return RoutingRequest(text, agents)


def chat(*texts):
    """A model that knows neither tools nor forms and writes what it is told."""
    return GenericFakeChatModel(messages=iter([AIMessage(text) for text in texts]))


async def embed(text):
    return [float(word in text.lower()) for word in ("price", "repair", "bill")]


# --- rules ------------------------------------------------------------------------------------------


@pytest.mark.row("G30")
async def test_the_first_matching_rule_with_an_available_target_wins():
    async def about_bills(request):
        return "bill" in request.input

    router = RuleBasedRouter([(lambda _: True, "nobody"), (about_bills, "accounts")])
    router.add_rule(lambda _: True, "sales")
    found = await router.route(asked())
    assert (found.target, found.confidence) == ("accounts", 1.0)
    assert (await router.route(asked("Hello"))).target == "sales"


async def test_exceptions_of_conditions_propagate():
    router = RuleBasedRouter([(lambda request: request.context["tier"] == "gold", "sales")])
    with pytest.raises(KeyError):
        await router.route(asked())


@pytest.mark.row("G27")
@pytest.mark.parametrize("fallback", [None, "support", "gone"])
@pytest.mark.parametrize("agents", [AGENTS, ["accounts"], []])
async def test_an_unavailable_fallback_is_never_returned(fallback, agents):
    semantic = SemanticRouter(embed, fallback, similarity_threshold=0.9)
    await semantic.add_route("accounts", "prices and bills and repair")
    unread = LLMRouter(chat("I would not know."), fallback_target=fallback)
    invented = LLMRouter(
        ScriptedModel(responses=[{"target": "gone", "confidence": 1, "reasoning": ""}]),
        fallback_target=fallback,
    )
    expected = fallback if fallback in agents else (agents[0] if agents else "")
    for router in (RuleBasedRouter(fallback_target=fallback), semantic, unread, invented):
        found = await router.route(asked("Hello", agents))
        assert (found.target, found.confidence) == (expected, 0.0), type(router)
        if fallback == "gone" and agents:
            assert "'gone' is not available" in found.reasoning


# --- meaning ----------------------------------------------------------------------------------------


@pytest.mark.row("G29")
async def test_the_most_similar_description_wins_with_its_score():
    router = SemanticRouter(embed)
    for name, text in (("sales", "the price"), ("support", "repair"), ("accounts", "bill")):
        await router.add_route(name, text)
    found = await router.route(asked())
    assert (found.target, found.confidence) == ("accounts", 1.0)
    assert (await router.route(asked(agents=["sales", "new"]))).target == "sales"
    none = SemanticRouter(embed, similarity_threshold=0.5)
    await none.add_route("sales", "the price")
    found = await none.route(asked())
    assert found.target == "sales"
    assert found.confidence == 0.0
    assert "0.00, below 0.50" in found.reasoning


async def test_langchain_embeddings_are_accepted():
    router = SemanticRouter(DeterministicFakeEmbedding(size=16))
    await router.add_route("sales", "prices")
    await router.add_route("support", "repairs")
    assert (await router.route(asked("repairs", ["sales", "support"]))).target == "support"


@pytest.mark.row("G29")
async def test_vectors_of_different_dimensions_are_refused():
    sizes = iter([[1.0, 2.0], [1.0], [float("nan")]])
    router = SemanticRouter(lambda _: next(sizes))
    await router.add_route("sales", "prices")
    with pytest.raises(ModelError, match="has 1 dimensions, but earlier ones have 2"):
        await router.add_route("support", "repairs")
    with pytest.raises(ModelError, match="NaN"):
        await router.route(asked())


# --- load -------------------------------------------------------------------------------------------


@pytest.mark.row("G31")
@given(
    weights=st.dictionaries(st.sampled_from(AGENTS), st.integers(0, 5)).filter(
        lambda chosen: any(chosen.get(name, 1) for name in AGENTS)
    ),
    rounds=st.integers(1, 4),
)
def test_requests_follow_the_weights_exactly(weights, rounds):
    router = LoadBalancingRouter(weights)
    whole = sum(weights.get(name, 1) for name in AGENTS)

    async def turns():
        return [(await router.route(asked())).target for _ in range(whole * rounds)]

    counted = Counter(asyncio.run(turns()))
    assert counted == {n: w * rounds for n in AGENTS if (w := weights.get(n, 1))}


@pytest.mark.row("G31")
async def test_concurrent_requests_follow_the_weights():
    router = LoadBalancingRouter({"sales": 2})
    found = await asyncio.gather(*(router.route(asked()) for _ in range(400)))
    assert Counter(item.target for item in found) == {"sales": 200, "support": 100, "accounts": 100}


async def test_the_target_is_empty_without_weight_or_capacity():
    nothing = await LoadBalancingRouter(dict.fromkeys(AGENTS, 0)).route(asked())
    assert (nothing.target, nothing.confidence) == ("", 0.0)
    assert (await LoadBalancingRouter().route(asked(agents=[]))).target == ""
    full = await LoadBalancingRouter(load=lambda _: float("inf")).route(asked())
    assert (full.target, full.reasoning) == ("", "Every available agent has an infinite load.")
    for weight in (-1, float("nan"), True):
        with pytest.raises(ConfigurationError, match="'sales'"):
            LoadBalancingRouter({"sales": weight})


@pytest.mark.row("G31")
async def test_the_lowest_load_is_chosen_and_an_open_circuit_never():
    from capgraph.behaviors import CircuitBreaker

    breakers = {name: CircuitBreaker(name, failure_threshold=1) for name in AGENTS}
    busy = {"sales": 0, "support": 3, "accounts": 1}

    async def load(name):
        return float("inf") if breakers[name].is_open() else busy[name]

    router = LoadBalancingRouter(load=load)
    assert (await router.route(asked())).target == "sales"
    breakers["sales"].record_failure()
    assert (await router.route(asked())).target == "accounts"


# --- a model ----------------------------------------------------------------------------------------


@pytest.mark.row("G28")
@pytest.mark.parametrize(
    "written",
    [
        '{"target": "accounts", "confidence": 0.8, "reasoning": "A bill."}',
        'Of course:\n```json\n{"target": "accounts", "confidence": null}\n```',
        '{"target": "accounts"}',
        '{"target": "accounts", "confidence": 7}',
    ],
)
@pytest.mark.parametrize("model", [chat, lambda text: ScriptedModel(responses=[text])])
async def test_a_model_can_choose_in_every_supported_form(model, written):
    found = await LLMRouter(model(written)).route(asked())
    assert found.target == "accounts"
    assert 0.0 < found.confidence <= 1.0


async def test_the_prompt_lists_only_available_agents():
    model = ScriptedModel(responses=[{"target": "sales", "confidence": 1, "reasoning": ""}])
    router = LLMRouter(model, {"sales": "Prices {and} orders", "support": "Repairs"})
    await router.route(asked(agents=["sales"]))
    prompt = model.calls[0].prompt
    assert "Prices {and} orders" in prompt
    assert "Repairs" not in prompt


@pytest.mark.row("G28")
async def test_a_model_caller_is_accepted():
    model = ScriptedModel(
        responses=[{"target": "sales", "confidence": 1, "reasoning": ""}, "Hm."],
    )
    router = LLMRouter(
        partial(generate_structured, RoleModel("router", model)), fallback_target="support"
    )
    assert (await router.route(asked())).target == "sales"
    assert (await router.route(asked())).target == "support"


@pytest.mark.row("G28")
async def test_a_model_error_propagates():
    def away(_):
        raise ConnectionError("away")

    with pytest.raises(ConnectionError):
        await LLMRouter(ScriptedModel(responses=away)).route(asked())


@pytest.mark.row("G27")
async def test_a_custom_router_needs_one_method():
    class Last(BaseRouter):
        async def route(self, request):
            return RoutingDecision(request.available_agents[-1], 1.0, "")

    assert (await Last().route(asked())).target == "accounts"
