"""Questions of a waiting run, asked in the terminal or answered by an option."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from capgraph.cli.terminal import one_line, to_printable
from capgraph.configs.errors import CapgraphError

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")
_PLAN_KIND = "plan"
# What may be typed for each decision, and how it is offered.
_DECISIONS = {
    "approve": ({"a", "y", "yes"}, "[a]pprove"),
    "edit": ({"e"}, "[e]dit parameters"),
    "reject": ({"r", "n", "no"}, "[r]eject"),
    "respond": ({"s"}, "re[s]pond instead"),
    "rerun": ({"again"}, "run it [again]"),
    "skip": ({"k"}, "s[k]ip it"),
    "done": ({"d"}, "[d]one: its effect happened"),
}
_RULE_SCOPES = {"always": "thread", "everywhere": "everywhere"}
_RULE_HINT = "[always] in this thread, [everywhere]"


def answer_all(questions: Mapping[str, Any], *, approve: bool) -> dict[str, Any] | None:
    """Answer every open question alike, for ``--yes`` and ``--no``.

    A step whose effect may have happened is never run again by ``--yes``.

    Args:
        questions: Open questions, by interrupt id.
        approve: Whether to agree.

    Returns:
        What to resume with, or ``None`` when a question needs a person.

    >>> steps = [{"context_key": "a", "decisions": ["approve", "reject"]}]
    >>> answer_all({"1": {"steps": steps}}, approve=True)
    {'1': {'a': {'decision': 'approve'}}}
    """
    word = "approve" if approve else "reject"
    answers: dict[str, Any] = {}
    for interrupt_id, question in questions.items():
        steps = question.get("steps") if isinstance(question, Mapping) else None
        # With a problem, the same answer was refused already.
        if not steps or question.get("problems"):
            return None
        if any(word not in step.get("decisions", ()) for step in steps):
            return None
        reason = {} if approve else {"reason": "rejected with --no"}
        answers[interrupt_id] = {
            step["context_key"]: {"decision": word, **reason} for step in steps
        }
    return answers


def answer_by_option(*, approve: bool) -> Callable[[Mapping[str, Any]], dict[str, Any] | None]:
    """Return who answers for ``--yes`` and ``--no``: once, where somebody else has to agree, too.

    Args:
        approve: Whether to agree.
    """
    signed: set[str] = set()

    def answers(questions: Mapping[str, Any]) -> dict[str, Any] | None:
        shown = [question for question in questions.values() if isinstance(question, Mapping)]
        steps = [step for question in shown for step in question.get("steps") or ()]
        keys = {step["context_key"] for step in steps if step.get("approvals")}
        if keys & signed:
            return None
        signed.update(keys)
        return answer_all(questions, approve=approve)

    return answers


def ask_all(questions: Mapping[str, Any], console: Console) -> dict[str, Any]:
    """Ask a person; returns what to resume with.

    Args:
        questions: Open questions, by interrupt id.
        console: A terminal.

    Raises:
        KeyboardInterrupt: The person pressed Ctrl-C; the question stays open.
        EOFError: There is nobody to answer.
    """
    return {key: _ask_one(question, console) for key, question in questions.items()}


def question_lines(question: Any) -> list[str]:
    """Say in lines what a person is asked; nothing of it is left out."""
    if not isinstance(question, Mapping) or not isinstance(question.get("steps"), list):
        return [to_printable(question)]
    lines = [f"problem: {one_line(problem, None)}" for problem in question.get("problems") or []]
    return lines + [line for step in question["steps"] for line in _describe_step(step)]


def _describe_step(step: Mapping[str, Any]) -> list[str]:
    """Say in lines what one step, or each step of a plan, would do."""
    about = step.get("description") or ""
    name = f"{step.get('context_key')} ({step.get('capability')})"
    if step.get("kind") == _PLAN_KIND:
        lines = [one_line(f"May this plan run? {about}", None)]
        steps = (step.get("parameters") or {}).get("steps") or []
        for number, planned in enumerate(steps, start=1):
            text = f"{number}. {planned.get('context_key')} = {planned.get('capability')}"
            invented = (step.get("ungrounded") or {}).get(planned.get("context_key"))
            details = _detail_lines({**planned, "ungrounded": invented})
            lines += [f"  {one_line(text, None)}", *(f"  {line}" for line in details)]
        return lines
    if step.get("kind") in {None, "step"}:
        head = f"May step {name} run? {about}"
    else:
        head = f"Step {name}: {step.get('reason') or 'it needs a decision.'}"
    return [one_line(head, None), *_detail_lines(step)]


def _detail_lines(step: Mapping[str, Any]) -> list[str]:
    lines = []
    sources = [
        f"{kind} from {key}" for entry in step.get("inputs") or [] for kind, key in entry.items()
    ]
    effect = step.get("effect")
    for name, text in (
        ("objective", step.get("task_objective")),
        ("effect", effect if effect != "none" else ""),
        ("inputs", ", ".join(sources)),
    ):
        lines += ["  " + one_line(f"{name}: {text}", None)] if text else []
    shown = dict(step.get("input_summaries") or {})
    for name in (
        "parameters",
        "ungrounded",
        "result",
        "when",
        "for_each",
        "look_again",
        "wait_until",
        "wait_for",
    ):
        if step.get(name):
            shown[name] = json.dumps(step[name], indent=2, ensure_ascii=False, default=str)
    for name, text in shown.items():
        lines += [
            f"  {one_line(name)}:",
            *(f"    {to_printable(line)}" for line in text.split("\n")),
        ]
    return lines


def _ask_one(question: Any, console: Console) -> Any:
    if not isinstance(question, Mapping) or not isinstance(question.get("steps"), list):
        console.print(to_printable(question))
        return _prompt("answer> ")
    for line in question_lines({**question, "steps": []}):
        console.print(line, style="red")
    return {step["context_key"]: _ask_step(step, console) for step in question["steps"]}


def _ask_step(step: Mapping[str, Any], console: Console) -> dict[str, Any]:
    head, *rest = _describe_step(step)
    console.print(f"\n{head}", style="bold magenta")
    for line in rest:
        console.print(line)
    allowed = list(step.get("decisions") or ["approve", "reject"])
    rules = "approve" in allowed and step.get("kind") == "step"
    typed_for = {word: _DECISIONS.get(word, (set(), word)) for word in allowed}
    hints = [hint for _, hint in typed_for.values()] + ([_RULE_HINT] if rules else [])
    console.print("  " + ", ".join(hints))
    while True:
        typed = _prompt("decision> ").strip().lower()
        if rules and typed in _RULE_SCOPES:
            return {"decision": "approve", "remember": {"scope": _RULE_SCOPES[typed]}}
        word = next((word for word in allowed if typed in {word, *typed_for[word][0]}), None)
        if word is not None:
            return {"decision": word, **_ask_details(word, step, console)}
        console.print(f"Use one of: {', '.join(allowed)}.", style="red")


def _ask_details(word: str, step: Mapping[str, Any], console: Console) -> dict[str, Any]:
    """Ask for what belongs to a decision."""
    if word == "edit" and step.get("kind") == _PLAN_KIND:
        from capgraph.base import load_execution_plan_from_file

        console.print("  The new plan is read from a file; it is checked before anything runs.")
        plan = _ask_until_valid(load_execution_plan_from_file, "plan file> ", console)
        return {"steps": list(plan["steps"])}
    if word == "edit":
        console.print(
            "  New values as JSON; what you leave out stays as it is, null takes a value away."
        )
        merged = {
            **(step.get("parameters") or {}),
            **_ask_until_valid(_json_object, "parameters> ", console),
        }
        return {"parameters": {key: value for key, value in merged.items() if value is not None}}
    if word == "done":
        console.print("  What it gave, as JSON by context type; Enter for nothing.")
        return {
            "outputs": _ask_until_valid(lambda t: _json_object(t or "{}"), "outputs> ", console)
        }
    if word == "reject":
        return {"reason": _prompt("reason> ").strip()}
    return (
        {"message": _ask_until_valid(_nonempty_text, "message> ", console)}
        if word == "respond"
        else {}
    )


def _ask_until_valid(parse: Callable[[str], T], prompt: str, console: Console) -> T:
    """Ask until what is typed can be read."""
    while True:
        try:
            return parse(_prompt(prompt).strip())
        except (CapgraphError, ValueError, RecursionError) as exc:
            console.print(one_line(exc, 1000), style="red")


def _json_object(text: str) -> dict[str, Any]:
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise ValueError(f"This is not JSON: {exc}.") from exc
    if not isinstance(given, dict):
        raise ValueError('Write an object, such as {"amount": 3}.')
    return given


def _nonempty_text(text: str) -> str:
    if not text:
        raise ValueError("Write at least one word.")
    return text


def _prompt(prompt: str) -> str:
    # Not the console's own input: line editing has to know how long the prompt is.
    return input(prompt)
