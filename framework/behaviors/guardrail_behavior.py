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
from capgraph.behaviors.base import BaseBehavior
from capgraph.behaviors.guardrails import REWRITE_OR_ASK, GuardrailViolationError, Guards
from capgraph.behaviors.text_guardrails import GuardrailRule, iter_texts
from capgraph.helpers.plain_data import to_plain
from capgraph.langgraph_compat import suppress_message_stream
from capgraph.pipeline.effect_ledger import serialize_inputs
from capgraph.pipeline.run_config import current_caller
from capgraph.telemetry import AnswerToken, emit
from capgraph.telemetry.events import buffer_answer_events

_OBJECTIVE_KEY = "task_objective"
_PLAN_KEY = "planning_execution_plan"


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
        self._guardrails = [*rules, *guardrails]
        self.guards: Guards = Guards(self._guardrails)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self.guards.names)})"

    @cached_property
    def parts(self) -> tuple[Any, ...]:
        """What stands at the stages ``validate`` and ``finalize`` for it."""
        return _InputGuards(self.guards), _OutputGuards(self.guards)

    async def before_execute(self, context: BehaviorContext) -> None:
        """Look at what a step is for, where hooks are called by hand.

        Raises:
            GuardrailViolationError: The guards do not let it pass.
        """
        await self.guards.check_input({"task": context.task}, tool=context.agent_id)

    async def after_execute(self, context: BehaviorContext, result: Any) -> Any:
        """Look at a result, where hooks are called by hand.

        Returns:
            What a guard put in its place, else ``None``.

        Raises:
            GuardrailViolationError: The guards do not let it pass.
        """
        value = to_plain(getattr(result, "output", result), lenient=True)
        passed = await self.guards.check_output(value, tool=context.agent_id)
        return passed.value if passed.rewritten else None

    def merged_with(self, others: Sequence[Any]) -> GuardrailBehavior:
        """Return one behaviour with the guards of this one and of others."""
        return GuardrailBehavior(
            guardrails=[g for item in (self, *others) for g in item._guardrails]
        )

    async def check_message(self, text: str) -> tuple[str, Sequence[str]]:
        """Look at what a person wrote, before anything is planned.

        Returns:
            It, as far as guards rewrote it, and why a person has to agree to the turn's plan.

        Raises:
            GuardrailViolationError: The guards do not let it pass.
        """
        passed = await self.guards.check_input(
            {"message": text}, tool="", role=_current_role(), supported_actions=REWRITE_OR_ASK
        )
        return str(passed.value.get("message", "")), passed.approval_reasons

    async def check_context(
        self, contexts: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], Sequence[str]]:
        """Look at context data that a caller brings; see :meth:`message`."""
        passed = await self.guards.check_input(
            contexts, tool="", role=_current_role(), supported_actions=REWRITE_OR_ASK
        )
        return passed.value, passed.approval_reasons

    async def check_answer(self, text: str, *, node: str) -> str:
        """Look at the message that ends a turn.

        Raises:
            GuardrailViolationError: The guards, or a person whom they want asked, do not let it
                pass.
        """
        passed = await self.guards.check_output(
            text, tool=node, role=_current_role(), is_text=True, supported_actions=REWRITE_OR_ASK
        )
        return str(await passed.await_approval(node))


class _InputGuards:
    """Looks at what goes into a step, or into a prompt."""

    stage = "validate"
    order = 2_000  # the last look: what leaves here is what is shown and run

    def __init__(self, guards: Guards) -> None:
        self._guards = guards

    def __repr__(self) -> str:
        return f"guards before ({', '.join(self._guards.names)})"

    async def wrap_step(self, attempt: Attempt, call_next: CallNext) -> Any:
        given = _step_arguments(attempt)
        passed = await self._guards.check_input(
            given, tool=attempt.capability, role=_current_role(), supported_actions=REWRITE_OR_ASK
        )
        if passed.rewritten:
            attempt = _replace_arguments(attempt, given, passed.value)
        if passed.approval_reasons:
            attempt = replace(
                attempt, approval_reasons=(*attempt.approval_reasons, *passed.approval_reasons)
            )
        return await call_next(attempt)

    async def wrap_model_call(self, attempt: Attempt, call_next: CallNext) -> Any:
        return await call_next(await self._check_prompt(attempt))

    async def _check_prompt(self, attempt: Attempt) -> Attempt:
        messages = list(attempt.inputs.get("messages") or ())
        # What stands in a system message is the operator's own.
        told = {
            str(place): str(message.text)
            for place, message in enumerate(messages)
            if message.type != "system"
        }
        passed = await self._guards.check_input(
            told, tool=attempt.capability, role=_current_role(), supported_actions=REWRITE_OR_ASK
        )
        await passed.await_approval(attempt.capability)
        if not passed.rewritten:
            return attempt
        for place, text in passed.value.items():
            if told.get(place) != text:
                messages[int(place)] = _replace_text(messages[int(place)], str(text))
        return replace(attempt, inputs={**attempt.inputs, "messages": messages})


class _OutputGuards:
    """Looks at what came out of a step, or of a model; nothing of it is streamed before."""

    stage = "finalize"
    order = 10  # the last look here too: what comes from inside passes it on the way out

    def __init__(self, guards: Guards) -> None:
        self._guards = guards

    def __repr__(self) -> str:
        return f"guards after ({', '.join(self._guards.names)})"

    async def wrap_step(self, attempt: Attempt, call_next: CallNext) -> Any:
        with suppress_message_stream():
            found = await call_next(attempt)
        if not isinstance(found, StepRecord):
            return found
        if found.error is not None:
            return replace(found, error=await self._check_failure(attempt, found.error))
        if not found.success:
            return found
        passed = await self._guards.check_output(
            _plain_result(found),
            tool=attempt.capability,
            role=_current_role(),
            supported_actions=REWRITE_OR_ASK,
        )
        if passed.rewritten:
            found = _replace_result(found, passed.value)
        return (
            replace(found, approval_reasons=(*found.approval_reasons, *passed.approval_reasons))
            if passed.approval_reasons
            else found
        )

    async def wrap_model_call(self, attempt: Attempt, call_next: CallNext) -> Any:
        with suppress_message_stream():
            return await self._check_model_answer(attempt, call_next)

    async def _check_failure(self, attempt: Attempt, failure: Failure) -> Failure:
        """Return a failure whose words may be shown and enter a prompt."""
        if failure.metadata.get("code") == GuardrailViolationError.code:
            return failure
        details = iter_texts([failure.original_error, to_plain(failure.metadata, lenient=True)])
        ask = partial(
            self._guards.check_output, tool=attempt.capability, role=_current_role(), is_text=True
        )
        try:
            if not (await ask("\n".join([failure.message, *details]))).rewritten:
                return failure
            message = str((await ask(failure.message)).value)
        except GuardrailViolationError as exc:
            names = ", ".join(dict.fromkeys(v.guardrail for v in exc.violations))
            message = f"{attempt.capability!r} failed, and guards withhold what it said ({names})."
        known = {k: v for k, v in failure.metadata.items() if k in {"category", "code"}}
        return replace(failure, message=message, original_error=message, metadata=known)

    async def _check_model_answer(self, attempt: Attempt, call_next: CallNext) -> Any:
        """Look at what a model answered, before any word of it is sent on."""
        kept: list[Any] = []
        with buffer_answer_events(kept):
            found = await call_next(attempt)
        told = str(found.text) if isinstance(found, BaseMessage) else to_plain(found, lenient=True)
        passed = await self._guards.check_output(
            told, tool=attempt.capability, role=_current_role()
        )
        if passed.rewritten and isinstance(found, BaseMessage):
            found = found.model_copy(update={"content": str(passed.value)})
        elif passed.rewritten:
            found = _restore_type(found, passed.value, told)
        if kept and isinstance(found, BaseMessage):
            emit(AnswerToken(text=str(found.text)))
        return found


def _current_role() -> str:
    return current_caller().role or ""


def _step_arguments(attempt: Attempt) -> dict[str, Any]:
    """Return all that goes into a step: parameters and inputs by their names, and its objective."""
    found = {} if not attempt.objective else {_OBJECTIVE_KEY: attempt.objective}
    for name, value in serialize_inputs(attempt.inputs).items():
        found[_input_name(name, attempt.values)] = value
    return {**found, **attempt.values}


def _input_name(name: str, parameters: Mapping[str, Any]) -> str:
    return f"{name} (input)" if name in parameters else name


def _replace_arguments(
    attempt: Attempt, original: Mapping[str, Any], rewritten: Mapping[str, Any]
) -> Attempt:
    values = {n: rewritten[n] for n in rewritten if n in attempt.values or n not in original}
    inputs = {
        name: _restore_type(value, rewritten.get(free), original[free])
        for name, value in attempt.inputs.items()
        if (free := _input_name(name, attempt.values))
    }
    objective = str(rewritten.get(_OBJECTIVE_KEY, attempt.objective))
    step: Any = {**attempt.step, "parameters": values}
    if attempt.step.get(_OBJECTIVE_KEY):
        step[_OBJECTIVE_KEY] = objective
    return replace(
        attempt, step=step, objective=objective, inputs=inputs, parameters=values, values=values
    )


def _restore_type(value: Any, rewritten: Any, original: Any) -> Any:
    """Give a rewritten input its type back."""
    if rewritten == original:
        return value
    if isinstance(value, list) and isinstance(rewritten, list) and len(value) == len(rewritten):
        return [_restore_type(*trio) for trio in zip(value, rewritten, original, strict=True)]
    return type(value).model_validate(rewritten) if isinstance(value, BaseModel) else rewritten


def _plain_result(record: StepRecord) -> Any:
    """Return what a step gave, as plain data: one result by itself, several by their names."""
    found: dict[str, Any] = {kind: entries[record.key] for kind, entries in record.contexts.items()}
    if len(found) == 1 and not record.updates and record.plan is None:
        return next(iter(found.values()))
    found |= {name: _to_plain(value) for name, value in record.updates.items()}
    return found if record.plan is None else {**found, _PLAN_KEY: _to_plain(record.plan)}


def _replace_result(record: StepRecord, value: Any) -> StepRecord:
    kinds = list(record.contexts)
    if len(kinds) == 1 and not record.updates and record.plan is None:
        return replace(record, contexts={kinds[0]: {record.key: value}})
    if not isinstance(value, Mapping):
        raise CapabilityError(
            f"A guard put {type(value).__name__} in the place of all that {record.capability!r}"
            " gave.",
            fix="Give a dictionary with the same names.",
        )
    old = _plain_result(record)
    updates = {
        name: kept if value.get(name) == old[name] else _restore_update(name, value.get(name))
        for name, kept in record.updates.items()
    }
    contexts = {kind: {record.key: value[kind]} for kind in kinds if kind in value}
    return replace(record, contexts=contexts, updates=updates, plan=value.get(_PLAN_KEY))


def _restore_update(name: str, value: Any) -> Any:
    return convert_to_messages(value) if name == "messages" else value


def _to_plain(value: Any) -> Any:
    if isinstance(value, BaseMessage):
        return {"type": value.type, "content": value.content, "id": value.id}
    if isinstance(value, (list, tuple)):
        return [_to_plain(item) for item in value]
    return to_plain(value, lenient=True)


def _replace_text(message: BaseMessage, text: str) -> BaseMessage:
    return message.model_copy(update={"content": text})
