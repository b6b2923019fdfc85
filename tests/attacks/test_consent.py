"""Consent belongs to one thread, one request, and a person who may still give it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from starlette.datastructures import Headers

from capgraph import BaseCapability, capability_node
from capgraph.base.ports import Caller
from capgraph.base.ports.callers import normalize_user_id
from capgraph.behaviors import RateLimitBehavior
from capgraph.configs.errors import ConfigurationError
from capgraph.configs.settings import PermissionSettings, ProxySettings, RoleSettings
from capgraph.governance import ApprovalPolicy, Budget, clear_stop, stop
from capgraph.serve.identity import proxy_caller
from capgraph.serve.tokens import issue_token
from capgraph.stores import fork_thread, open_saver, thread_summary
from tests.support.doors import question, shown
from tests.support.one_door import Receipt, payer

TWO = ApprovalPolicy(approvers=2, not_requester=True)


class Desk:
    """A payment that several people approve, in one thread and its forks."""

    def __init__(self, graph: Any, saver: Any, paid: list[int]) -> None:
        self.graph, self.saver, self.paid = graph, saver, paid

    async def run(self, given: Any, user: str, thread: str = "1", **named: Any) -> dict[str, Any]:
        config = {"configurable": {"thread_id": thread, "user_id": user, **named}}
        return dict(await self.graph.ainvoke(given, config))

    async def ask(self, user: str = "ann", thread: str = "1") -> dict[str, Any]:
        return await self.run({"messages": [("user", "Pay")]}, user, thread)

    async def say(self, user: str, thread: str = "1", given: Any = "approve") -> dict[str, Any]:
        return await self.run(Command(resume=given), user, thread)

    async def fork(self, target: str, user: str = "ann", source: str = "1", **at: Any) -> None:
        await fork_thread(self.saver, source, target, caller=Caller(user), **at)


@pytest.fixture
async def desk(agent: Any, step: Any) -> Any:
    async with open_saver("sqlite://:memory:") as saver:

        def make(policy: Any, **declared: Any) -> Desk:
            paid: list[int] = []
            pay = payer(paid, requires_approval=policy, **declared)
            it = agent(Receipt, pay, plans=[[step("a", "pay")]], checkpointer=saver)
            return Desk(it.graph, saver, paid)

        yield make


async def test_a_vote_counts_in_one_thread(desk: Any) -> None:
    it = desk(TWO)
    await it.ask()
    await it.say("bob")
    for target in ("2", "3"):
        await it.fork(target)
        asked = await it.run(None, "ann", target)
        assert question(asked)["steps"][0]["approvals"]["agreed"] == []
        await it.say("carol", target)
    assert it.paid == []
    await it.say("carol")
    assert it.paid == [5]


async def test_a_fork_has_no_open_question_and_no_answer(desk: Any) -> None:
    it = desk(True, effect="none")
    await it.ask()
    await it.fork("before")
    summary = await thread_summary(it.saver, "before")
    assert summary is not None
    assert (summary.status, dict(summary.questions)) == ("unfinished", {})
    await it.say("bob")
    assert it.paid == [5]
    moments = [one.config async for one in it.graph.aget_state_history(it_config("1"))]
    for number, moment in enumerate(moments[1:]):
        at = moment["configurable"]["checkpoint_id"]
        await it.fork(f"f{number}", checkpoint_id=at)
        await it.run(None, "ann", f"f{number}")
    assert it.paid == [5]


def it_config(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}}


async def test_a_fork_of_a_fork_carries_no_vote(desk: Any) -> None:
    """A variant: the vote travels through a thread in which nobody looked at it."""
    it = desk(TWO)
    await it.ask()
    await it.say("bob")
    await it.fork("2")
    await it.fork("3", source="2")
    await it.saver.acopy_thread("1", "4")
    for target in ("3", "4"):
        await it.run(None, "ann", target)
        await it.say("carol", target)
    assert it.paid == []


@pytest.mark.parametrize("maker", ["bob", "ann"])
async def test_the_maker_of_a_fork_asks_and_cannot_approve(desk: Any, maker: str) -> None:
    """A variant: bob forks a thread of ann, so that he would approve a request of hers."""
    it = desk(ApprovalPolicy(not_requester=True))
    await it.ask("ann")
    await it.fork("2", maker)
    await it.run(None, maker, "2")
    assert "cannot approve" in shown(await it.say(maker, "2"))
    assert it.paid == []
    await it.say("carol", "2")
    assert it.paid == [5]


async def test_a_fork_acts_as_its_maker(agent: Any, step: Any) -> None:
    seen: list[str | None] = []

    @capability_node
    class Look(BaseCapability):
        name = "look"
        description = "Look."
        requires_approval = True

        async def execute(self) -> None:
            from capgraph.pipeline.run_config import current_caller

            seen.append(current_caller().user_id)

    async with open_saver("sqlite://:memory:") as saver:
        it = agent(Look, plans=[[step("a", "look")]], checkpointer=saver)
        asks = {"messages": [("user", "Look")]}
        await it.graph.ainvoke(asks, it.config(user_id="ann"))
        await fork_thread(saver, "1", "2", caller=Caller("bob"))
        await it.graph.ainvoke(None, it.config("2", user_id="bob"))
        await it.graph.ainvoke(Command(resume="approve"), it.config("2", user_id="carol"))
        await it.graph.ainvoke(Command(resume="approve"), it.config("1", user_id="carol"))
    assert seen == ["bob", "ann"]


async def test_a_stop_covers_forks_made_afterwards(desk: Any) -> None:
    it = desk(True)
    await it.ask()
    await stop(it.saver, thread="1", reason="wrong price")
    await it.fork("2")
    await it.fork("3", source="2")  # a variant: a fork of the fork
    for target in ("2", "3"):
        out = await it.ask("ann", target)
        assert out["execution_outcome"]["status"] == "stopped"
    assert it.paid == []


def test_invisible_characters_do_not_separate_a_letter_from_its_accent() -> None:
    """A variant: the name is composed after its invisible characters are removed."""
    for name in (
        "jos\u00e9",
        "jose\u0301",
        "jose\u200b\u0301",
        "JOSE\u034f\u0301",
        "jose\ufe0f\u0301",
    ):
        assert normalize_user_id(name) == "jos\u00e9"


@pytest.mark.parametrize("other", ["ANN", "Ann", "ａｎｎ", " ann ", "an\u200bn"])
async def test_another_spelling_of_the_requester_is_the_requester(desk: Any, other: str) -> None:
    it = desk(ApprovalPolicy(not_requester=True))
    await it.ask("ann")
    assert "cannot approve" in shown(await it.say(other))
    assert it.paid == []


@pytest.mark.parametrize(
    "again",
    ["BOB", "Bob", "ｂｏｂ", "bo\u00adb", "bob\u3164", "b\u034fob", "bob\ufe0f", "\u2800bob"],
)
async def test_two_spellings_of_a_person_are_one_vote(desk: Any, again: str) -> None:
    it = desk(TWO)
    await it.ask("ann")
    await it.say("bob")
    assert "already approved" in shown(await it.say(again))
    assert it.paid == []


@pytest.mark.parametrize("name", ["ANN", "ann"])
async def test_a_stop_of_a_user_covers_all_spellings(desk: Any, name: str) -> None:
    it = desk(True)
    await stop(it.saver, user=name)
    for user in ("ann", "ANN", "Ａnn"):
        out = await it.ask(user, f"of {user}")
        assert out["execution_outcome"]["status"] == "stopped"
    assert await clear_stop(it.saver, user="aNN")


@pytest.mark.parametrize("other", ["ANN", "ａｎｎ"])
async def test_another_spelling_opens_no_other_account(agent: Any, step: Any, other: str) -> None:
    paid: list[int] = []
    budget = Budget(steps=1, per="user")
    calls = RateLimitBehavior(0.001, burst=1, wait_on_limit=False, per="user")
    for limit in ({"budget": budget}, {"behaviors": [calls]}):
        paid.clear()
        plans = [[step("a", "pay")]]
        it = agent(Receipt, payer(paid), plans=plans, checkpointer=InMemorySaver(), **limit)
        desk = Desk(it.graph, None, paid)
        await desk.ask("ann", "1")
        await desk.ask(other, "2")
        assert paid == [5]
    assert await budget.remaining(other) == {"steps": 0}


async def test_a_proxys_users_are_folded() -> None:
    proxy = ProxySettings(trusted=["127.0.0.1"])

    def named(user: str, settings: ProxySettings) -> str | None:
        headers = Headers({"x-forwarded-user": user})
        found = proxy_caller({"client": ("127.0.0.1", 1)}, headers, settings)
        return None if found is None else found.user_id

    assert {named(user, proxy) for user in ("user1", "User1", "USER1 ")} == {"user1"}
    assert named("\u00ad", proxy) is None
    exact = proxy.model_copy(update={"fold_case": False})
    assert named("User1", exact) == "User1"


def test_no_second_token_is_issued_for_a_person(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    issue_token(path, "ada")
    issue_token(path, "ada")
    with pytest.raises(ConfigurationError):
        issue_token(path, "ADA")


@pytest.mark.parametrize(("editor", "approver"), [("bob", "bob"), ("bob", "BOB"), ("bob", "ann")])
async def test_who_edits_a_step_does_not_approve_it(desk: Any, editor: str, approver: str) -> None:
    it = desk(ApprovalPolicy(not_requester=True))
    await it.ask("ann")
    edit = {"decision": "edit", "parameters": {"amount": 9}}
    await it.say(editor, given={"a": edit})
    assert it.paid == []
    assert question(await it.say(approver))
    assert it.paid == []
    await it.say("carol")
    assert it.paid == [9]


async def test_an_editor_does_not_approve_in_a_fork(desk: Any) -> None:
    """A variant: a fork, in which no vote and no refusal of the original applies."""
    it = desk(ApprovalPolicy(not_requester=True))
    await it.ask("ann")
    await it.say("bob", given={"a": {"decision": "edit", "parameters": {"amount": 9}}})
    await it.fork("2", "ann")
    await it.run(None, "ann", "2")
    assert question(await it.say("bob", "2"))
    assert it.paid == []


async def test_two_edits_in_turn_are_no_agreement(desk: Any) -> None:
    """A variant: two people edit, each to the parameters that the other wrote."""
    it = desk(ApprovalPolicy(not_requester=True))
    await it.ask("ann")
    for user, amount in (("bob", 9), ("bob", 5), ("bob", 9)):
        edit = {"decision": "edit", "parameters": {"amount": amount}}
        await it.say(user, given={"a": edit})
    assert it.paid == []


@pytest.mark.parametrize("decision", ["rerun", "done", "skip"])
async def test_an_unknown_outcome_is_decided_under_the_steps_policy(
    agent: Any, step: Any, decision: str
) -> None:
    tried: list[int] = []

    @capability_node
    class Send(BaseCapability):
        name = "send"
        description = "Send."
        effect = "once"
        on_unknown = "ask"
        requires_approval = TWO

        async def execute(self) -> None:
            tried.append(1)
            if len(tried) == 1:
                raise TimeoutError("no answer")

    async with open_saver("sqlite://:memory:") as saver:
        it = agent(Send, plans=[[step("a", "send")]], checkpointer=saver)
        desk = Desk(it.graph, saver, tried)
        await desk.ask("ann")
        await desk.say("bob")
        out = await desk.say("carol")
        (entry,) = question(out)["steps"]
        assert entry["kind"] == "unknown_outcome"
        assert entry["approvals"]["needed"] == 2
        for user in ("ann", "bob", "bob"):  # the requester, one person, and the same one again
            assert question(await desk.say(user, given={"a": {"decision": decision}}))
        # A variant: two people who decide differently have decided nothing.
        others = {"rerun": "skip", "done": "rerun", "skip": "done"}
        assert question(await desk.say("dave", given={"a": {"decision": others[decision]}}))
        assert tried == [1]
        out = await desk.say("carol", given={"a": {"decision": decision}})
        assert "__interrupt__" not in out
        assert len(tried) == (2 if decision == "rerun" else 1)


@pytest.mark.parametrize("later", ["visitor", None])
async def test_the_vote_of_a_person_who_lost_the_role_does_not_count(
    agent: Any, step: Any, later: str | None
) -> None:
    paid: list[int] = []
    pay = payer(paid, requires_approval=TWO)
    director = RoleSettings(role="director", mode="full_access")
    visitor = RoleSettings(role="visitor", mode="full_access", denied_tools=["pay"])
    settings = {"permissions": PermissionSettings(roles=[director, visitor]).model_dump()}
    async with open_saver("sqlite://:memory:") as saver:
        it = agent(Receipt, pay, plans=[[step("a", "pay")]], checkpointer=saver, settings=settings)

        async def run(given: Any, user: str) -> Any:
            role = {"identity": user, "role": "director", "is_authenticated": True}
            named = {"thread_id": "1", "langgraph_auth_user": role}
            return await it.graph.ainvoke(given, {"configurable": named})

        await run({"messages": [("user", "Pay")]}, "ann")
        await run(Command(resume="approve"), "bob")
        await saver.persistence.roles.record(Caller("BOB", later, authenticated=True))
        await run(Command(resume="approve"), "carol")
        assert paid == []
        await run(Command(resume="approve"), "dave")
        assert paid == [5]
