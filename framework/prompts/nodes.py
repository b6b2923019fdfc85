"""Prompt builders of the infrastructure nodes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from capgraph.base import ErrorClassification
from capgraph.planning import TERMINAL_STEPS
from capgraph.prompts.builder import PromptBuilder
from capgraph.prompts.data import DATA_RULE, as_data, as_request, sanitize_text
from capgraph.prompts.results import ResultPreviews, format_finished_steps
from capgraph.state import ContextTypes

_MAX_ABILITIES = 8_000
_MAX_PROBLEMS = 30
_MAX_REFUSED = 20_000
_DONE_TITLE = (
    "Steps that are done. Keep one exactly as it was (key, capability, inputs, parameters) when its"
    " result is still needed; it will not run again:"
)
_LAST_REVIEW_TITLE = (
    "These steps are done, and you are not asked again. Write the steps that are left; or no steps,"
    " and your reply in answer, with what stays undone:"
)
_MISSING_TITLE = "This was not done. Say so, and why:"
NO_FUNCTION = "No function can do this."
"""Answer of a planner that finds no matching function. The agent replaces it with its own reply."""

_PLAN_FORMAT = (
    'Answer with JSON: {"steps": [{"capability": NAME, "parameters": {…}}, …]} or'
    ' {"steps": [], "answer": TEXT}.'
)
_PLAN_EXAMPLES = """\
EXAMPLES of an agent with find_book(title), reserve() and tell_time(city):
Request: Reserve Moby Dick for me.
{"steps": [{"capability": "find_book", "parameters": {"title": "Moby Dick"}}, {"capability": "reserve"}]}
Request: What time is it in Cairo and in Lima?
{"steps": [{"capability": "tell_time", "parameters": {"city": "Cairo"}}, {"capability": "tell_time", "parameters": {"city": "Lima"}}]}
Request: Good morning!
{"steps": [], "answer": "Good morning! How can I help?"}
Request: Bake me a cake.
{"steps": [], "answer": "No function can do this."}"""


class TaskExtractionPrompt(PromptBuilder):
    """Prompt that reduces a conversation to a single task.

    Context: ``history`` and ``message``.
    """

    role = "You read a conversation and state the one task that its last message asks for."
    instructions = (
        "Rules:\n"
        "- State the task so that it can be understood without the conversation: put in the"
        " places, times, names and numbers that earlier messages give.\n"
        "- Keep every detail of the last message, in the person's words. Add nothing that was not"
        " said, and do not answer it.\n"
        "- A last message that changes the subject is a new task; carry nothing over.\n"
        "- depends_on_chat_history is true when earlier messages were needed.\n"
        "- depends_on_user_memory is true when stored facts about the person matter, such as"
        " 'my usual station'.\n"
        "- For example: after 'How warm was Oslo in May?' the message 'And in June?' means 'How warm"
        " was Oslo in June?', which depends on the history; 'Plot the sales of 2020' means just that.\n"
        f"- {DATA_RULE}"
    )

    def get_dynamic_context(self, *, history: str = "", message: str = "", **_: Any) -> str:
        """Return the prompt section with the conversation history and the last message."""
        return (
            f"{as_data('earlier messages', history)}\n\n{as_data('last message', message, 200_000)}"
        )


class ClassificationPrompt(PromptBuilder):
    """Prompt that selects capabilities for a task.

    Context: ``capabilities``, ``task``, and ``excluded``.
    """

    role = "You decide which capabilities of an agent a request needs."
    instructions = (
        "Rules:\n"
        "- Choose what the request itself asks for. What a chosen capability needs in turn is"
        " added without you.\n"
        "- A request may need several capabilities. Choose none when none can serve it, as for"
        " small talk or a subject that none covers.\n"
        "- Use the names exactly as listed; there are no others.\n"
        f"- {DATA_RULE}"
    )

    def get_reference(self, *, capabilities: str = "", **_: Any) -> str:
        """Return the prompt section that lists the available capabilities."""
        return f"CAPABILITIES:\n{capabilities}" if capabilities else ""

    def get_dynamic_context(
        self, *, task: str = "", excluded: Mapping[str, str] | None = None, **_: Any
    ) -> str:
        """Return the prompt section with the request and the capabilities that failed for it."""
        text = as_request(task)
        if excluded:
            text += f"\n\n{_format_excluded(excluded)}"
        return text


def _format_excluded(excluded: Mapping[str, str]) -> str:
    tried = "\n".join(f"{name}: {reason}" for name, reason in excluded.items())
    title = "These were tried for this request and did not fit; do not choose them:\n"
    return title + as_data("tried", tried)


class OrchestratorPrompt(PromptBuilder):
    """Prompt that generates execution plans.

    Context: ``capabilities`` and ``guides`` (strings), and ``shows_examples`` (false if the
    model returns the plan through a function call). From the planning request: ``task``,
    ``available``, ``notes``, ``finished``, ``previous``, ``failure``, ``failed_capability``,
    ``problems``, ``refused``, ``excluded``, ``unavailable_capabilities``, ``budget_left``, and
    ``look_again``. Display of results: ``max_result_tokens``, ``max_stored_results``, and
    ``types``.
    """

    has_tables: ClassVar[bool] = False
    """True to show lists of flat objects as tables."""
    review_title: ClassVar[str] = (
        "These steps are done. Write only the steps that come next; if nothing is left to do, no"
        " steps, and your reply in answer:"
    )
    """Line above the finished steps of a plan that is reviewed."""
    role = "You plan how an agent answers a request. Choose from the functions below."
    instructions = (
        'Answer with JSON: {"steps": [{"capability": NAME, "parameters": {…}}, …]}.\n'
        "- One step for each thing asked for; two cities are two steps.\n"
        "- Copy values for parameters from the request.\n"
        "- A function that needs a result comes after the step that gives it.\n"
        '- If the request is only a greeting or thanks: {"steps": [], "answer": "your reply"}.\n'
        f'- If no function can do it: {{"steps": [], "answer": "{NO_FUNCTION}"}}.\n'
        "- To ask back: one step clarify, the question in task_objective."
    )

    def get_reference(
        self, *, capabilities: str = "", guides: str = "", shows_examples: bool = True, **_: Any
    ) -> str:
        """Return the prompt section with the selected capabilities and their planning guides.

        Examples of plans are included if ``shows_examples`` is true.
        """
        parts = [f"FUNCTIONS:\n{capabilities}"] if capabilities else []
        parts += [_PLAN_EXAMPLES] if shows_examples else []
        return "\n\n".join([*parts, guides] if guides else parts)

    def get_dynamic_context(
        self,
        *,
        task: str = "",
        available: Mapping[str, Mapping[str, Any]] | None = None,
        notes: Mapping[str, str] | None = None,
        finished: Mapping[str, Mapping[str, Any]] | None = None,
        previous: Mapping[str, Any] | None = None,
        failure: Mapping[str, Any] | None = None,
        failed_capability: str | None = None,
        problems: Sequence[Any] = (),
        refused: Any = None,
        excluded: Mapping[str, str] | None = None,
        unavailable_capabilities: Mapping[str, str] | None = None,
        budget_left: Mapping[str, float] | None = None,
        look_again: Sequence[str] = (),
        looks_left: int = 1,
        max_result_tokens: int = 2000,
        max_stored_results: int = 1,
        recent: Sequence[tuple[str, str]] = (),
        types: ContextTypes | None = None,
        **_: Any,
    ) -> str:
        """Return the prompt section with the request, the existing results, and past failures."""
        results = ResultPreviews(
            available or {}, max_result_tokens, types, has_tables=self.has_tables
        )
        texts = results.full_texts(_list_outputs_latest_first(finished or {}, look_again))
        before = results.full_texts(pair for pair in recent if pair not in texts)
        parts = [as_request(task)]
        if budget_left:
            left = ", ".join(f"{name} {value:g}" for name, value in budget_left.items())
            parts.append(f"Left of the budget: {left}. A plan that needs more is refused.")
        if excluded:
            parts.append(_format_excluded(excluded))
        if unavailable_capabilities:
            unavailable = "\n".join(
                f"{name}: {reason}" for name, reason in unavailable_capabilities.items()
            )
            parts.append(
                "These cannot be called now. Plan without them; if nothing else will do, say so in"
                f" answer, with the moment:\n{as_data('out of reach', unavailable)}"
            )
        if stored := results.stored_lines(max_stored_results, before, excluded=texts):
            parts.append(f"Stored results, usable as inputs:\n{as_data('stored results', stored)}")
        for name, text in (notes or {}).items():
            parts.append(f"What {name} has at hand:\n{as_data(name, text)}")
        # The reason of an excluded capability is listed already.
        if failure and failed_capability not in (excluded or {}):
            description = ErrorClassification.from_dict(dict(failure)).format_for_llm()
            where = f" in {failed_capability!r}" if failed_capability else ""
            parts.append(
                f"The last plan failed{where}. Plan another way, or the same way if the failure"
                f" says how to mend it:\n{as_data('failure', description)}"
            )
        if failure and previous:
            steps = json.dumps(previous.get("steps"), ensure_ascii=False, default=str)
            parts.append(f"The plan that failed:\n{as_data('failed plan', steps)}")
        planned = (previous or {}).get("steps") or []
        if finished:
            title = (
                _DONE_TITLE
                if not look_again
                else self.review_title
                if looks_left > 0
                else _LAST_REVIEW_TITLE
            )
            steps_text = format_finished_steps(
                finished, planned, texts, task, has_tables=self.has_tables
            )
            parts.append(f"{title}\n{steps_text}")
        if look_again and (
            following := _find_unfinished_steps(planned, finished or {}, look_again)
        ):
            steps = json.dumps(following, ensure_ascii=False, default=str)
            parts.append(
                "The plan is half done. These steps come next; your steps take their place, and no"
                f" steps with no answer keep them:\n{as_data('plan', steps)}"
            )
        if problems:
            shown = "\n".join(f"- {problem}" for problem in problems[:_MAX_PROBLEMS])
            rest = len(problems) - _MAX_PROBLEMS
            more = f"\n- and {rest} more" if rest > 0 else ""
            parts.append(
                "The plan that you proposed just now was refused. Write it again without these"
                f" problems:\n{as_data('problems', shown + more)}"
            )
            text = refused if isinstance(refused, str) else json.dumps(refused, default=str)
            parts.append(f"It was:\n{as_data('refused plan', text[:_MAX_REFUSED])}")
        if len(parts) > 1:
            parts.insert(0, DATA_RULE)
        return "\n\n".join(parts)


class IterativePlanningPrompt(OrchestratorPrompt):
    """Prompt for iterative planning, where each round plans further steps or answers.

    The context is the same as for :class:`OrchestratorPrompt`, and ``likely``: descriptions of
    the capabilities that resemble the request, if ``capabilities`` omits descriptions.
    """

    has_tables = True
    review_title = "These steps are done. Write the steps that come next, or your answer:"
    role = "You answer requests, with the functions below where they help."
    instructions = (
        "- steps: all that can be done now, with values from the request, the conversation, or"
        " results. You are asked again with their results.\n"
        "- answer: your reply when nothing is left to do, a question to the person, or that no"
        " function can do it."
    )

    def get_reference(self, *, shows_examples: bool = True, **context: Any) -> str:
        """Return the prompt section with the capabilities, and the format of an answer.

        A model that returns the plan through a function call reads the format from its schema.
        """
        reference = super().get_reference(shows_examples=shows_examples, **context)
        return "\n\n".join(filter(None, [_PLAN_FORMAT if shows_examples else "", reference]))

    def get_dynamic_context(self, *, likely: str = "", **context: Any) -> str:
        """Return the prompt section with the likely capabilities, the request, and the results."""
        request = super().get_dynamic_context(**context)
        return f"Functions that may fit the request:\n{likely}\n\n{request}" if likely else request


def _list_outputs_latest_first(
    finished: Mapping[str, Mapping[str, Any]], reviewed_keys: Sequence[str]
) -> list[tuple[str, str]]:
    """Return the context type and key of each output of the finished steps.

    Outputs of reviewed steps come first, followed by the others, latest first.
    """
    keys = [*reviewed_keys, *(key for key in reversed([*finished]) if key not in reviewed_keys)]
    records = [finished[key] for key in keys if key in finished]
    return [pair for record in records for pair in (record.get("outputs") or {}).items()]


def _find_unfinished_steps(
    planned_steps: Sequence[Mapping[str, Any]],
    finished: Mapping[str, Any],
    reviewed_keys: Sequence[str],
) -> list[Mapping[str, Any]]:
    """Return the steps of a plan that have not finished, without terminal steps."""
    ended = {*finished, *reviewed_keys}
    open_steps = [step for step in planned_steps if step.get("context_key") not in ended]
    return [step for step in open_steps if step.get("capability") not in TERMINAL_STEPS]


class ResponseGenerationPrompt(PromptBuilder):
    """Prompt that generates the final answer to the user.

    Context: ``task``, ``purpose`` (``results`` or ``conversation``), ``results`` (pairs of a
    title and a text), ``missing``, ``abilities``, and ``problem`` (reason why the previous
    answer was rejected).
    """

    # Keep this short. With a list of rules, small models contradict the results.
    role = "You answer a person for an agent that did the work."
    instructions = (
        f"{DATA_RULE}\n"
        "The results are true. Answer the request from them in short plain sentences, in the language"
        " of the request. Never refuse, never add anything, and keep figures, units, dates, and"
        " names."
    )

    def get_dynamic_context(
        self,
        *,
        task: str = "",
        purpose: str = "results",
        results: Sequence[tuple[str, str]] = (),
        missing: Sequence[str] = (),
        abilities: str = "",
        problem: str = "",
        **_: Any,
    ) -> str:
        """Return the prompt section with the request and the results of its steps.

        In a conversation without results, the agent's abilities are listed instead.
        """
        again = (
            f"\n\nYour last answer was refused:\n{as_data('problem', problem)}" if problem else ""
        )
        if purpose == "conversation":
            able = f"What the agent can do:\n{sanitize_text(abilities, _MAX_ABILITIES)}"
            rule = (
                "There are no results. If the conversation answers the request, answer from it;"
                " else say kindly that the agent cannot do this, and what it can do instead."
            )
            return f"{_join_sections(task, rule, (), missing, _MISSING_TITLE)}\n\n{able}{again}"
        rule = "" if results else "There are no results."
        return _join_sections(task, rule, results, missing, _MISSING_TITLE) + again


def _join_sections(
    task: str,
    introduction: str = "",
    results: Sequence[tuple[str, str]] = (),
    missing: Sequence[str] = (),
    missing_title: str = "Not done:",
) -> str:
    parts = [as_request(task), introduction, *(as_data(title, text) for title, text in results)]
    if missing:
        parts.append(f"{missing_title}\n" + as_data("not done", "\n".join(missing)))
    return "\n\n".join(part for part in parts if part)


class ClarificationPrompt(PromptBuilder):
    """Prompt that generates a clarifying question for the user.

    Context: ``task``, ``question``, ``results``, ``missing``, and ``abilities``.
    """

    role = "You ask a person for what an agent needs to know to do a task."
    instructions = (
        "Rules:\n"
        "- Ask one short, concrete question in the language of the request; offer choices where"
        " there are few.\n"
        "- Do not answer the request and do not apologise.\n"
        f"- {DATA_RULE}"
    )

    def get_dynamic_context(
        self,
        *,
        task: str = "",
        question: str = "",
        results: Sequence[tuple[str, str]] = (),
        missing: Sequence[str] = (),
        **_: Any,
    ) -> str:
        """Return the prompt section with the request and what is unclear about it."""
        unclear = f"What is unclear:\n{as_data('unclear', question)}" if question else ""
        return _join_sections(task, unclear, results, missing)


class ErrorAnalysisPrompt(PromptBuilder):
    """Prompt that explains a failure to the user.

    Context: ``task``, ``failure``, and ``finished``.
    """

    role = "You explain to a person why an agent could not do what they asked."
    instructions = (
        "Rules:\n"
        "- Two or three sentences: what failed, why, and what the person can do about it.\n"
        "- Say what was finished before the failure. Do not guess at causes.\n"
        f"- {DATA_RULE}"
    )

    def get_dynamic_context(
        self,
        *,
        task: str = "",
        failure: Mapping[str, Any] | None = None,
        finished: Sequence[tuple[str, str]] = (),
        **_: Any,
    ) -> str:
        """Return the prompt section with the request, the failure, and the finished steps."""
        text = ErrorClassification.from_dict(dict(failure)).format_for_llm() if failure else ""
        return _join_sections(task, as_data("failure", text) if text else "", finished)
