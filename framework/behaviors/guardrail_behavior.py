"""Behavior that applies guardrails to steps, model calls, messages, and answers."""

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
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.helpers.plain_data import to_plain
from capgraph.langgraph_compat import suppress_message_stream
from capgraph.pipeline.effect_ledger import serialize_inputs
from capgraph.pipeline.run_config import current_caller
from capgraph.telemetry import AnswerToken, emit
from capgraph.telemetry.events import buffer_answer_events

_OBJECTIVE_KEY = "task_objective"
_PLAN_KEY = "planning_execution_plan"


class GuardrailBehavior(BaseBehavior):
    """Behavior that checks the data and the failure messages of steps with guardrails.

    It checks the parameters, inputs, and result of each step. On a graph, it also checks the user's
    messages and the caller's context data before planning, and the message that ends the turn,
    which is not streamed before it has passed. On the model of a role, it checks prompts and
    answers.

    All guardrails run, and the error lists each one that refuses. If a guardrail requests approval
    of a message or of context data, the turn's plan is shown before it runs. For an answer or a
    prompt, the text itself is shown. For the answer of a role's model, a request for approval
    counts as a refusal, because a repeated call would return another answer.

    Args:
        rules: Rules about texts.
        guardrails: Guardrails that run after the rules, in order.

    Raises:
        ConfigurationError: An item is not a guardrail.

    >>> GuardrailBehavior(rules=[GuardrailRule("polite", blocked_words=["damn"])])
    GuardrailBehavior(polite)
    """

    @validate_arguments
    def __init__(self, rules: Sequence[GuardrailRule] = (), guardrails: Sequence[Any] = ()) -> None:
        self._guardrails = [*rules, *guardrails]
        self.guards: Guards = Guards(self._guardrails)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self.guards.names)})"

    @cached_property
    def parts(self) -> tuple[Any, ...]:
        """Middleware for the stages ``validate`` and ``finalize``."""
        return _InputGuards(self.guards), _OutputGuards(self.guards)

    async def before_execute(self, context: BehaviorContext) -> None:
        """Check the task of a step with the guardrails. This hook is only for direct calls.

        Raises:
            GuardrailViolationError: A guardrail rejects the task.
        """
        await self.guards.check_input({"task": context.task}, tool=context.agent_id)

    async def after_execute(self, context: BehaviorContext, result: Any) -> Any:
        """Check the result of a step with the guardrails. This hook is only for direct calls.

        Returns:
            The rewritten result, or ``None`` if no guardrail rewrote it.

        Raises:
            GuardrailViolationError: A guardrail rejects the result.
        """
        value = to_plain(getattr(result, "output", result), lenient=True)
        guarded_value = await self.guards.check_output(value, tool=context.agent_id)
        return guarded_value.value if guarded_value.rewritten else None

    def merged_with(self, others: Sequence[Any]) -> GuardrailBehavior:
        """Return a behavior that combines the guardrails of this behavior and the given behaviors."""
        return GuardrailBehavior(
            guardrails=[g for item in (self, *others) for g in item._guardrails]
        )

    async def check_message(self, text: str) -> tuple[str, Sequence[str]]:
        """Check a user message with the guardrails before the turn is planned.

        Returns:
            The message, possibly rewritten, and the reasons why the turn's plan requires approval.

        Raises:
            GuardrailViolationError: A guardrail rejects the message.
        """
        guarded_value = await self.guards.check_input(
            {"message": text}, tool="", role=_get_current_role(), supported_actions=REWRITE_OR_ASK
        )
        return str(guarded_value.value.get("message", "")), guarded_value.approval_reasons

    async def check_context(
        self, contexts: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], Sequence[str]]:
        """Check context data from the caller with the guardrails, as in :meth:`check_message`."""
        guarded_value = await self.guards.check_input(
            contexts, tool="", role=_get_current_role(), supported_actions=REWRITE_OR_ASK
        )
        return guarded_value.value, guarded_value.approval_reasons

    async def check_answer(self, text: str, *, node: str) -> str:
        """Check the final message of a turn with the guardrails.

        Raises:
            GuardrailViolationError: A guardrail rejects the message, or a person does not approve
                the message.
        """
        guarded_value = await self.guards.check_output(
            text,
            tool=node,
            role=_get_current_role(),
            is_text=True,
            supported_actions=REWRITE_OR_ASK,
        )
        return str(await guarded_value.await_approval(node))


class _InputGuards:
    """Middleware that applies guardrails to a step's arguments or a model call's prompt."""

    stage = "validate"
    order = 2_000  # runs last: its output is what is shown, approved and run

    def __init__(self, guards: Guards) -> None:
        self._guards = guards

    def __repr__(self) -> str:
        return f"guards before ({', '.join(self._guards.names)})"

    async def wrap_step(self, attempt: Attempt, call_next: CallNext) -> Any:
        arguments = _collect_arguments(attempt)
        guarded_value = await self._guards.check_input(
            arguments,
            tool=attempt.capability,
            role=_get_current_role(),
            supported_actions=REWRITE_OR_ASK,
        )
        if guarded_value.rewritten:
            attempt = _replace_arguments(attempt, arguments, guarded_value.value)
        if guarded_value.approval_reasons:
            attempt = replace(
                attempt,
                approval_reasons=(*attempt.approval_reasons, *guarded_value.approval_reasons),
            )
        return await call_next(attempt)

    async def wrap_model_call(self, attempt: Attempt, call_next: CallNext) -> Any:
        return await call_next(await self._check_prompt(attempt))

    async def _check_prompt(self, attempt: Attempt) -> Attempt:
        messages = list(attempt.inputs.get("messages") or ())
        # System messages come from the operator and are not checked.
        texts = {
            str(index): str(message.text)
            for index, message in enumerate(messages)
            if message.type != "system"
        }
        guarded_value = await self._guards.check_input(
            texts,
            tool=attempt.capability,
            role=_get_current_role(),
            supported_actions=REWRITE_OR_ASK,
        )
        await guarded_value.await_approval(attempt.capability)
        if not guarded_value.rewritten:
            return attempt
        for index, text in guarded_value.value.items():
            if texts.get(index) != text:
                messages[int(index)] = _replace_text(messages[int(index)], str(text))
        return replace(attempt, inputs={**attempt.inputs, "messages": messages})


class _OutputGuards:
    """Middleware that applies guardrails to a result before the result is streamed."""

    stage = "finalize"
    order = 10  # outermost here, so that it checks the result of all inner middleware

    def __init__(self, guards: Guards) -> None:
        self._guards = guards

    def __repr__(self) -> str:
        return f"guards after ({', '.join(self._guards.names)})"

    async def wrap_step(self, attempt: Attempt, call_next: CallNext) -> Any:
        with suppress_message_stream():
            record = await call_next(attempt)
        if not isinstance(record, StepRecord):
            return record
        if record.error is not None:
            return replace(record, error=await self._check_failure(attempt, record.error))
        if not record.success:
            return record
        guarded_value = await self._guards.check_output(
            _get_plain_result(record),
            tool=attempt.capability,
            role=_get_current_role(),
            supported_actions=REWRITE_OR_ASK,
        )
        if guarded_value.rewritten:
            record = _replace_result(record, guarded_value.value)
        return (
            replace(
                record, approval_reasons=(*record.approval_reasons, *guarded_value.approval_reasons)
            )
            if guarded_value.approval_reasons
            else record
        )

    async def wrap_model_call(self, attempt: Attempt, call_next: CallNext) -> Any:
        with suppress_message_stream():
            return await self._check_model_answer(attempt, call_next)

    async def _check_failure(self, attempt: Attempt, failure: Failure) -> Failure:
        """Check the texts of a failure with the guardrails.

        Return a failure whose texts may be shown to users and used in prompts.
        """
        if failure.metadata.get("code") == GuardrailViolationError.code:
            return failure
        details = iter_texts([failure.original_error, to_plain(failure.metadata, lenient=True)])
        check = partial(
            self._guards.check_output,
            tool=attempt.capability,
            role=_get_current_role(),
            is_text=True,
        )
        try:
            if not (await check("\n".join([failure.message, *details]))).rewritten:
                return failure
            message = str((await check(failure.message)).value)
        except GuardrailViolationError as exc:
            names = ", ".join(dict.fromkeys(v.guardrail for v in exc.violations))
            message = f"{attempt.capability!r} failed. Guardrails withhold its message ({names})."
        metadata = {k: v for k, v in failure.metadata.items() if k in {"category", "code"}}
        return replace(failure, message=message, original_error=message, metadata=metadata)

    async def _check_model_answer(self, attempt: Attempt, call_next: CallNext) -> Any:
        """Check a model's answer with the guardrails before any part of the answer is streamed."""
        buffered: list[Any] = []
        with buffer_answer_events(buffered):
            answer = await call_next(attempt)
        value = (
            str(answer.text) if isinstance(answer, BaseMessage) else to_plain(answer, lenient=True)
        )
        guarded_value = await self._guards.check_output(
            value, tool=attempt.capability, role=_get_current_role()
        )
        if guarded_value.rewritten and isinstance(answer, BaseMessage):
            answer = answer.model_copy(update={"content": str(guarded_value.value)})
        elif guarded_value.rewritten:
            answer = _restore_type(answer, guarded_value.value, value)
        if buffered and isinstance(answer, BaseMessage):
            emit(AnswerToken(text=str(answer.text)))
        return answer


def _get_current_role() -> str:
    return current_caller().role or ""


def _collect_arguments(attempt: Attempt) -> dict[str, Any]:
    """Return a step's objective, inputs, and parameters by name."""
    # A step without a plan has a default objective, which is no argument of the caller.
    objective = attempt.step.get(_OBJECTIVE_KEY)
    arguments: dict[str, Any] = {} if not objective else {_OBJECTIVE_KEY: objective}
    for name, value in serialize_inputs(attempt.inputs).items():
        arguments[_choose_input_name(name, attempt.values)] = value
    return {**arguments, **attempt.values}


def _choose_input_name(name: str, parameters: Mapping[str, Any]) -> str:
    return f"{name} (input)" if name in parameters else name


def _replace_arguments(
    attempt: Attempt, original: Mapping[str, Any], rewritten: Mapping[str, Any]
) -> Attempt:
    values = {n: rewritten[n] for n in rewritten if n in attempt.values or n not in original}
    inputs = {
        name: _restore_type(value, rewritten.get(free), original[free])
        for name, value in attempt.inputs.items()
        if (free := _choose_input_name(name, attempt.values))
    }
    objective = str(rewritten.get(_OBJECTIVE_KEY, attempt.objective))
    step: Any = {**attempt.step, "parameters": values}
    if attempt.step.get(_OBJECTIVE_KEY):
        step[_OBJECTIVE_KEY] = objective
    return replace(
        attempt, step=step, objective=objective, inputs=inputs, parameters=values, values=values
    )


def _restore_type(value: Any, rewritten: Any, original: Any) -> Any:
    """Convert a rewritten input back to its original type."""
    if rewritten == original:
        return value
    if isinstance(value, list) and isinstance(rewritten, list) and len(value) == len(rewritten):
        return [_restore_type(*trio) for trio in zip(value, rewritten, original, strict=True)]
    return type(value).model_validate(rewritten) if isinstance(value, BaseModel) else rewritten


def _get_plain_result(record: StepRecord) -> Any:
    """Return a step's result as plain data for guardrails.

    If the step has several outputs, they are returned as a dictionary by name.
    """
    outputs: dict[str, Any] = {
        kind: entries[record.key] for kind, entries in record.contexts.items()
    }
    if len(outputs) == 1 and not record.updates and record.plan is None:
        return next(iter(outputs.values()))
    outputs |= {name: _to_plain(value) for name, value in record.updates.items()}
    return outputs if record.plan is None else {**outputs, _PLAN_KEY: _to_plain(record.plan)}


def _replace_result(record: StepRecord, value: Any) -> StepRecord:
    types = list(record.contexts)
    if len(types) == 1 and not record.updates and record.plan is None:
        return replace(record, contexts={types[0]: {record.key: value}})
    if not isinstance(value, Mapping):
        raise CapabilityError(
            f"The result of {record.capability!r} that a guardrail rewrote is of type"
            f" {type(value).__name__}: it must be a dictionary of all outputs.",
            fix="Return a dictionary with the same names from the guardrail.",
        )
    original = _get_plain_result(record)
    updates = {
        name: update
        if value.get(name) == original[name]
        else _restore_update(name, value.get(name))
        for name, update in record.updates.items()
    }
    contexts = {
        context_type: {record.key: value[context_type]}
        for context_type in types
        if context_type in value
    }
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
