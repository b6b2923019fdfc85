"""The behaviour that puts guards around steps, model calls, messages and answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from langchain_core.messages import BaseMessage, convert_to_messages
from pydantic import BaseModel

from capgraph.base.errors import CapabilityError
from capgraph.base.ports import Attempt, BehaviorContext, CallNext, Failure, StepRecord
from capgraph.base.values import to_plain
from capgraph.behaviors.base import BaseBehavior
from capgraph.behaviors.guardrail_texts import GuardrailRule, texts_in
from capgraph.behaviors.guardrails import REWRITE_OR_ASK, GuardrailViolationError, Guards
from capgraph.langgraph_compat import held_back
from capgraph.pipeline.effect_ledger import plain_inputs
from capgraph.pipeline.run_config import current_caller
from capgraph.telemetry import AnswerToken, emit
from capgraph.telemetry.events import keeping

_OBJECTIVE = "task_objective"
_PLAN = "planning_execution_plan"


class GuardrailBehavior(BaseBehavior):
    """Guards around steps: their parameters and inputs, their results, what failures say.

    Given to the graph, they look besides at what a person writes, before anything is planned, at
    data that a caller brings, and at the message that ends the turn; no word of it is streamed
    before. Given to a role's model, they look at what it is told and what it answers. All of them
    are asked, and the error names everyone that objects. One that wants a person asked about a
    message or brought data has the turn's plan shown before anything of it runs; about an answer or
    what a model is told, those words are shown before they go on. About what a model says it
    refuses, for another time it would say something else.

    Args:
        rules: Rules about texts.
        guardrails: Guards, asked in this order after the rules.

    Raises:
        ConfigurationError: One of them cannot be asked.

    >>> GuardrailBehavior(rules=[GuardrailRule("polite", blocked_words=["damn"])])
    GuardrailBehavior(polite)
    """

    def __init__(self, rules: Sequence[GuardrailRule] = (), guardrails: Sequence[Any] = ()) -> None:
        self._all = [*rules, *guardrails]
        self.guards: Guards = Guards(self._all)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self.guards.names)})"

    @cached_property
    def parts(self) -> tuple[Any, ...]:
        """What stands at the stages ``validate`` and ``finalize`` for it."""
        return _Screen(self.guards), _Settle(self.guards)

    async def before_execute(self, context: BehaviorContext) -> None:
        """Look at what a step is for, where hooks are called by hand.

        Raises:
            GuardrailViolationError: The guards do not let it pass.
        """
        await self.guards.before({"task": context.task}, tool=context.agent_id)

    async def after_execute(self, context: BehaviorContext, result: Any) -> Any:
        """Look at a result, where hooks are called by hand.

        Returns:
            What a guard put in its place, else ``None``.

        Raises:
            GuardrailViolationError: The guards do not let it pass.
        """
        value = to_plain(getattr(result, "output", result), lenient=True)
        passed = await self.guards.after(value, tool=context.agent_id)
        return passed.value if passed.rewritten else None

    def merged_with(self, others: Sequence[Any]) -> GuardrailBehavior:
        """Return one behaviour with the guards of this one and of others."""
        return GuardrailBehavior(guardrails=[g for item in (self, *others) for g in item._all])

    async def message(self, text: str) -> tuple[str, Sequence[str]]:
        """Look at what a person wrote, before anything is planned.

        Returns:
            It, as far as guards rewrote it, and why a person has to agree to the turn's plan.

        Raises:
            GuardrailViolationError: The guards do not let it pass.
        """
        passed = await self.guards.before(
            {"message": text}, tool="", role=_role(), can=REWRITE_OR_ASK
        )
        return str(passed.value.get("message", "")), passed.approval_reasons

    async def check_context(
        self, contexts: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], Sequence[str]]:
        """Look at context data that a caller brings; see :meth:`message`."""
        passed = await self.guards.before(contexts, tool="", role=_role(), can=REWRITE_OR_ASK)
        return passed.value, passed.approval_reasons

    async def answer(self, text: str, *, node: str) -> str:
        """Look at the message that ends a turn.

        Raises:
            GuardrailViolationError: The guards, or a person whom they want asked, do not let it
                pass.
        """
        passed = await self.guards.after(
            text, tool=node, role=_role(), words=True, can=REWRITE_OR_ASK
        )
        return str(await passed.agreed(node))


class _Screen:
    """Looks at what goes into a step, or into a prompt."""

    stage = "validate"
    order = 2_000  # the last look: what leaves here is what is shown and run

    def __init__(self, guards: Guards) -> None:
        self._guards = guards

    def __repr__(self) -> str:
        return f"guards before ({', '.join(self._guards.names)})"

    async def wrap_step(self, attempt: Attempt, call_next: CallNext) -> Any:
        if attempt.kind == "model":
            return await call_next(await self._prompt(attempt))
        given = _arguments(attempt)
        passed = await self._guards.before(
            given, tool=attempt.capability, role=_role(), can=REWRITE_OR_ASK
        )
        if passed.rewritten:
            attempt = _with_arguments(attempt, given, passed.value)
        if passed.approval_reasons:
            attempt = replace(
                attempt, approval_reasons=(*attempt.approval_reasons, *passed.approval_reasons)
            )
        return await call_next(attempt)

    async def _prompt(self, attempt: Attempt) -> Attempt:
        messages = list(attempt.inputs.get("messages") or ())
        # What stands in a system message is the operator's own.
        told = {
            str(place): str(message.text)
            for place, message in enumerate(messages)
            if message.type != "system"
        }
        passed = await self._guards.before(
            told, tool=attempt.capability, role=_role(), can=REWRITE_OR_ASK
        )
        await passed.agreed(attempt.capability)
        if not passed.rewritten:
            return attempt
        for place, text in passed.value.items():
            if told.get(place) != text:
                messages[int(place)] = _reworded(messages[int(place)], str(text))
        return replace(attempt, inputs={**attempt.inputs, "messages": messages})


class _Settle:
    """Looks at what came out of a step, or of a model; nothing of it is streamed before."""

    stage = "finalize"
    order = 10  # the last look here too: what comes from inside passes it on the way out

    def __init__(self, guards: Guards) -> None:
        self._guards = guards

    def __repr__(self) -> str:
        return f"guards after ({', '.join(self._guards.names)})"

    async def wrap_step(self, attempt: Attempt, call_next: CallNext) -> Any:
        with held_back():
            if attempt.kind == "model":
                return await self._said(attempt, call_next)
            found = await call_next(attempt)
        if not isinstance(found, StepRecord):
            return found
        if found.error is not None:
            return replace(found, error=await self._told(attempt, found.error))
        if not found.success:
            return found
        passed = await self._guards.after(
            _given(found), tool=attempt.capability, role=_role(), can=REWRITE_OR_ASK
        )
        if passed.rewritten:
            found = _with_value(found, passed.value)
        return (
            replace(found, approval_reasons=(*found.approval_reasons, *passed.approval_reasons))
            if passed.approval_reasons
            else found
        )

    async def _told(self, attempt: Attempt, failure: Failure) -> Failure:
        """Return a failure whose words may be shown and enter a prompt."""
        if failure.metadata.get("code") == GuardrailViolationError.code:
            return failure
        details = texts_in([failure.original_error, to_plain(failure.metadata, lenient=True)])
        ask = partial(self._guards.after, tool=attempt.capability, role=_role(), words=True)
        try:
            if not (await ask("\n".join([failure.message, *details]))).rewritten:
                return failure
            message = str((await ask(failure.message)).value)
        except GuardrailViolationError as exc:
            names = ", ".join(dict.fromkeys(v.guardrail for v in exc.violations))
            message = f"{attempt.capability!r} failed, and guards withhold what it said ({names})."
        known = {k: v for k, v in failure.metadata.items() if k in {"category", "code"}}
        return replace(failure, message=message, original_error=message, metadata=known)

    async def _said(self, attempt: Attempt, call_next: CallNext) -> Any:
        """Look at what a model answered, before any word of it is sent on."""
        kept: list[Any] = []
        with keeping(kept):
            found = await call_next(attempt)
        told = str(found.text) if isinstance(found, BaseMessage) else to_plain(found, lenient=True)
        passed = await self._guards.after(told, tool=attempt.capability, role=_role())
        if passed.rewritten and isinstance(found, BaseMessage):
            found = found.model_copy(update={"content": str(passed.value)})
        elif passed.rewritten:
            found = _remade(found, passed.value, told)
        if kept and isinstance(found, BaseMessage):
            emit(AnswerToken(text=str(found.text)))
        return found


def _role() -> str:
    return current_caller().role or ""


def _arguments(attempt: Attempt) -> dict[str, Any]:
    """Return all that goes into a step: parameters and inputs by their names, and its objective."""
    found = {} if not attempt.objective else {_OBJECTIVE: attempt.objective}
    for name, value in plain_inputs(attempt.inputs).items():
        found[_free(name, attempt.values)] = value
    return {**found, **attempt.values}


def _free(name: str, taken: Mapping[str, Any]) -> str:
    return f"{name} (input)" if name in taken else name


def _with_arguments(
    attempt: Attempt, given: Mapping[str, Any], rewritten: Mapping[str, Any]
) -> Attempt:
    values = {n: rewritten[n] for n in rewritten if n in attempt.values or n not in given}
    inputs = {
        name: _remade(value, rewritten.get(free), given[free])
        for name, value in attempt.inputs.items()
        if (free := _free(name, attempt.values))
    }
    objective = str(rewritten.get(_OBJECTIVE, attempt.objective))
    step: Any = {**attempt.step, "parameters": values}
    if attempt.step.get(_OBJECTIVE):
        step[_OBJECTIVE] = objective
    return replace(
        attempt, step=step, objective=objective, inputs=inputs, parameters=values, values=values
    )


def _remade(value: Any, rewritten: Any, given: Any) -> Any:
    """Give a rewritten input its type back."""
    if rewritten == given:
        return value
    if isinstance(value, list) and isinstance(rewritten, list) and len(value) == len(rewritten):
        return [_remade(*trio) for trio in zip(value, rewritten, given, strict=True)]
    return type(value).model_validate(rewritten) if isinstance(value, BaseModel) else rewritten


def _given(record: StepRecord) -> Any:
    """Return what a step gave, as plain data: one result by itself, several by their names."""
    found: dict[str, Any] = {kind: entries[record.key] for kind, entries in record.contexts.items()}
    if len(found) == 1 and not record.updates and record.plan is None:
        return next(iter(found.values()))
    found |= {name: _plain(value) for name, value in record.updates.items()}
    return found if record.plan is None else {**found, _PLAN: _plain(record.plan)}


def _with_value(record: StepRecord, value: Any) -> StepRecord:
    kinds = list(record.contexts)
    if len(kinds) == 1 and not record.updates and record.plan is None:
        return replace(record, contexts={kinds[0]: {record.key: value}})
    if not isinstance(value, Mapping):
        raise CapabilityError(
            f"A guard put {type(value).__name__} in the place of all that {record.capability!r}"
            " gave.",
            fix="Give a dictionary with the same names.",
        )
    old = _given(record)
    updates = {
        name: kept if value.get(name) == old[name] else _update(name, value.get(name))
        for name, kept in record.updates.items()
    }
    contexts = {kind: {record.key: value[kind]} for kind in kinds if kind in value}
    return replace(record, contexts=contexts, updates=updates, plan=value.get(_PLAN))


def _update(name: str, value: Any) -> Any:
    return convert_to_messages(value) if name == "messages" else value


def _plain(value: Any) -> Any:
    if isinstance(value, BaseMessage):
        return {"type": value.type, "content": value.content, "id": value.id}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return to_plain(value, lenient=True)


def _reworded(message: BaseMessage, text: str) -> BaseMessage:
    return message.model_copy(update={"content": text})
