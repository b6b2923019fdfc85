"""Questions of a waiting run, asked in the terminal or answered by an option."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from configs.errors import CapgraphError
from framework.cli.terminal import one_line, safe

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")
_PLAN = "plan"
_RULES = ("when", "for_each", "look_again")
_WORDS = {
    "a": "approve",
    "y": "approve",
    "yes": "approve",
    "e": "edit",
    "r": "reject",
    "n": "reject",
    "no": "reject",
    "s": "respond",
    "k": "skip",
    "d": "done",
    "again": "rerun",
}
_HINTS = {
    "approve": "[a]pprove",
    "edit": "[e]dit parameters",
    "reject": "[r]eject",
    "respond": "re[s]pond instead",
    "rerun": "run it [again]",
    "skip": "s[k]ip it",
    "done": "[d]one: its effect happened",
}
_STANDING = {"always": "thread", "everywhere": "everywhere"}
_STANDING_HINT = "[always] in this thread, [everywhere]"


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
        if not steps or any(word not in step.get("decisions", ()) for step in steps):
            return None
        reason = {} if approve else {"reason": "rejected with --no"}
        answers[interrupt_id] = {
            step["context_key"]: {"decision": word, **reason} for step in steps
        }
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
    """Say in lines what a person is asked."""
    if not isinstance(question, Mapping) or not isinstance(question.get("steps"), list):
        return [safe(question)]
    lines = [f"problem: {one_line(problem, None)}" for problem in question.get("problems") or []]
    for step in question["steps"]:
        lines += step_lines(step)
    return lines


def step_lines(step: Mapping[str, Any]) -> list[str]:
    """Say in lines what one step, or each step of a plan, would do; nothing is left out."""
    about = step.get("description") or ""
    name = f"{step.get('context_key')} ({step.get('capability')})"
    if step.get("kind") == _PLAN:
        steps = (step.get("parameters") or {}).get("steps") or []
        lines = [one_line(f"May this plan run? {about}", None), *_details(step, shown=())]
        for number, planned in enumerate(steps, start=1):
            keys = [key for entry in planned.get("inputs") or [] for key in entry.values()]
            source = f" from {', '.join(keys)}" if keys else ""
            text = f"{number}. {planned.get('context_key')} = {planned.get('capability')}{source}"
            lines.append("  " + one_line(text, None))
            lines += [f"  {line}" for line in _details(planned, shown=("parameters", *_RULES))]
        return lines
    if step.get("kind") in {None, "step"}:
        head = f"May step {name} run? {about}"
    else:
        head = f"Step {name}: {step.get('reason') or 'it needs a decision.'}"
    return [one_line(head, None), *_details(step, shown=("inputs", "parameters"))]


def _details(step: Mapping[str, Any], shown: tuple[str, ...]) -> list[str]:
    lines = []
    if step.get("task_objective"):
        lines.append("  " + one_line(f"objective: {step['task_objective']}", None))
    if step.get("effect") not in {None, "none"}:
        lines.append("  " + one_line(f"effect: {step['effect']}"))
    if "inputs" in shown and step.get("inputs"):
        sources = [f"{kind} from {key}" for entry in step["inputs"] for kind, key in entry.items()]
        lines.append("  " + one_line(f"inputs: {', '.join(sources)}", None))
    for name, summary in (step.get("input_summaries") or {}).items():
        lines += [f"  {one_line(name)}:", *(f"    {safe(line)}" for line in summary.split("\n"))]
    for name in shown:
        if name != "inputs" and step.get(name):
            text = json.dumps(step[name], indent=2, ensure_ascii=False, default=str)
            lines += [f"  {name}:", *(f"    {safe(line)}" for line in text.split("\n"))]
    return lines


def _ask_one(question: Any, console: Console) -> Any:
    if not isinstance(question, Mapping) or not isinstance(question.get("steps"), list):
        console.print(safe(question))
        return _read("answer> ")
    for problem in question.get("problems") or []:
        console.print(f"problem: {one_line(problem, None)}", style="red")
    return {step["context_key"]: _ask_step(step, console) for step in question["steps"]}


def _ask_step(step: Mapping[str, Any], console: Console) -> dict[str, Any]:
    console.print()
    head, *rest = step_lines(step)
    console.print(head, style="bold magenta")
    for line in rest:
        console.print(line)
    allowed = list(step.get("decisions") or ["approve", "reject"])
    rules = "approve" in allowed and step.get("kind") == "step"
    hints = [_HINTS.get(word, word) for word in allowed] + ([_STANDING_HINT] if rules else [])
    console.print("  " + ", ".join(hints))
    while True:
        typed = _read("decision> ").strip().lower()
        word = _WORDS.get(typed, typed)
        if rules and word in _STANDING:
            return {"decision": "approve", "remember": {"scope": _STANDING[word]}}
        if word not in allowed:
            console.print(f"Use one of: {', '.join(allowed)}.", style="red")
            continue
        if word == "edit" and step.get("kind") == _PLAN:
            return {"decision": word, "steps": _ask_plan(console)}
        if word == "edit":
            return {"decision": word, "parameters": _ask_parameters(step, console)}
        if word == "done":
            return {"decision": word, "outputs": _ask_outputs(console)}
        if word == "reject":
            return {"decision": word, "reason": _read("reason> ").strip()}
        if word == "respond":
            return {"decision": word, "message": _until(_some_text, "message> ", console)}
        return {"decision": word}


def _until(read: Callable[[str], T], prompt: str, console: Console) -> T:
    """Ask until what is typed can be read."""
    while True:
        try:
            return read(_read(prompt).strip())
        except (CapgraphError, ValueError, RecursionError) as exc:
            console.print(one_line(exc, 1000), style="red")


def _ask_plan(console: Console) -> list[Any]:
    from framework.base import load_execution_plan_from_file

    console.print("  The new plan is read from a file; it is checked before anything runs.")
    return list(_until(load_execution_plan_from_file, "plan file> ", console)["steps"])


def _ask_outputs(console: Console) -> dict[str, Any]:
    console.print("  What it gave, as JSON by context type; Enter for nothing.")
    return _until(lambda text: _json_object(text) if text else {}, "outputs> ", console)


def _ask_parameters(step: Mapping[str, Any], console: Console) -> dict[str, Any]:
    console.print(
        "  New values as JSON; what you leave out stays as it is, null takes a value away."
    )
    merged = {**(step.get("parameters") or {}), **_until(_json_object, "parameters> ", console)}
    return {key: value for key, value in merged.items() if value is not None}


def _json_object(text: str) -> dict[str, Any]:
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise ValueError(f"This is not JSON: {exc}.") from exc
    if not isinstance(given, dict):
        raise ValueError('Write an object, such as {"amount": 3}.')
    return given


def _some_text(text: str) -> str:
    if not text:
        raise ValueError("Write at least one word.")
    return text


def _read(prompt: str) -> str:
    # Not the console's own input: line editing has to know how long the prompt is.
    return input(prompt)
