"""Questions of a waiting run, answered in the terminal or by an option."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from capgraph.cli.terminal import one_line, to_printable
from capgraph.configs.errors import CapgraphError

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")
_PLAN_KIND = "plan"
# Accepted inputs and the hint of each decision.
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
_RULE_HINT = "approve [always] in this thread or [everywhere]"


def answer_all(questions: Mapping[str, Any], *, approve: bool) -> dict[str, Any] | None:
    """Build the same approval decision for every open question, for ``--yes`` and ``--no``.

    ``--yes`` never reruns a step whose side effect may already have happened.

    Args:
        questions: Open questions, by interrupt ID.
        approve: True to approve, False to reject.

    Returns:
        Answers to resume with, or ``None`` if a person must answer one of the questions.

    >>> steps = [{"context_key": "a", "decisions": ["approve", "reject"]}]
    >>> answer_all({"1": {"steps": steps}}, approve=True)
    {'1': {'a': {'decision': 'approve'}}}
    """
    word = "approve" if approve else "reject"
    answers: dict[str, Any] = {}
    for interrupt_id, question in questions.items():
        steps = question.get("steps") if isinstance(question, Mapping) else None
        # A question with problems has already rejected this answer.
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
    """Return a callback that answers approval requests as ``--yes`` or ``--no`` specifies.

    If several people must approve a step, the callback answers only the first request for the
    step.

    Args:
        approve: True to approve, False to reject.
    """
    answered_keys: set[str] = set()

    def answers(questions: Mapping[str, Any]) -> dict[str, Any] | None:
        approvals = [question for question in questions.values() if isinstance(question, Mapping)]
        steps = [step for question in approvals for step in question.get("steps") or ()]
        keys = {step["context_key"] for step in steps if step.get("approvals")}
        if keys & answered_keys:
            return None
        answered_keys.update(keys)
        return answer_all(questions, approve=approve)

    return answers


def ask_all(questions: Mapping[str, Any], console: Console) -> dict[str, Any]:
    """Ask the user all open approval questions and return the answers for resuming the turn.

    Args:
        questions: Open questions, by interrupt ID.
        console: Console of the terminal.

    Raises:
        KeyboardInterrupt: The user pressed Ctrl-C. The questions stay open.
        EOFError: Standard input is closed.
    """
    return {key: _ask_one(question, console) for key, question in questions.items()}


def is_decision(text: str, questions: Iterable[Any]) -> bool:
    """Return True if the text can answer the open questions, and False if it is a new message.

    An approval request takes a decision; any other question takes each text.

    >>> request = {"steps": [{"context_key": "a", "decisions": ["approve", "reject"]}]}
    >>> is_decision("approve", [request]), is_decision("What is missing?", [request])
    (True, False)
    """
    is_request = any(isinstance(one, Mapping) and one.get("steps") for one in questions)
    return not is_request or text.strip().lower() in _DECISIONS or text.lstrip().startswith("{")


def question_lines(question: Any) -> list[str]:
    """Format the details of an approval question as a list of lines."""
    if not isinstance(question, Mapping) or not isinstance(question.get("steps"), list):
        return [to_printable(question)]
    lines = [f"problem: {one_line(problem, None)}" for problem in question.get("problems") or []]
    return lines + [line for step in question["steps"] for line in _describe_step(step)]


def _describe_step(step: Mapping[str, Any]) -> list[str]:
    """Format the details of a step that needs approval, or of each step of a plan, as lines."""
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
    parameters = step.get("parameters") or {}
    lines += [f"  {one_line(name)} = {_value_text(value)}" for name, value in parameters.items()]
    shown = dict(step.get("input_summaries") or {})
    for name in (
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


def _value_text(value: Any) -> str:
    """Format a parameter value on one line. Strings stay as they are; other values become JSON."""
    if isinstance(value, str):
        return one_line(value, None)
    return to_printable(json.dumps(value, ensure_ascii=False, default=str))


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
    can_remember = "approve" in allowed and step.get("kind") == "step"
    inputs = {word: _DECISIONS.get(word, (set(), word)) for word in allowed}
    hints = [hint for _, hint in inputs.values()] + ([_RULE_HINT] if can_remember else [])
    console.print("  " + ", ".join(hints))
    while True:
        typed = _prompt("decision> ").strip().lower()
        if can_remember and typed in _RULE_SCOPES:
            return {"decision": "approve", "remember": {"scope": _RULE_SCOPES[typed]}}
        word = next((word for word in allowed if typed in {word, *inputs[word][0]}), None)
        if word is not None:
            return {"decision": word, **_ask_details(word, step, console)}
        console.print(f"Use one of: {', '.join(allowed)}.", style="red")


def _ask_details(word: str, step: Mapping[str, Any], console: Console) -> dict[str, Any]:
    """Prompt the user for the details that an approval decision such as ``edit`` requires."""
    if word == "edit" and step.get("kind") == _PLAN_KIND:
        from capgraph.base import load_execution_plan_from_file

        console.print("  Enter the file of the new plan. It is validated before it runs.")
        plan = _ask_until_valid(load_execution_plan_from_file, "plan file> ", console)
        return {"steps": list(plan["steps"])}
    if word == "edit":
        console.print("  Enter 'name = value', one per line, and an empty line at the end.")
        console.print("  Other parameters stay the same. The value null removes a parameter.")
        merged = {**(step.get("parameters") or {}), **_ask_parameters(step, console)}
        return {"parameters": {key: value for key, value in merged.items() if value is not None}}
    if word == "done":
        console.print("  Enter its outputs as JSON by context type, or press Enter for none.")
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


def _ask_parameters(step: Mapping[str, Any], console: Console) -> dict[str, Any]:
    """Prompt for changed parameters until the user enters an empty line.

    Each line is ``name = value``, or a JSON object that changes several parameters.
    """
    names = step.get("parameters") or {}
    changed: dict[str, Any] = {}
    while line := _prompt("parameter> ").strip():
        try:
            changed |= (
                _json_object(line) if line.startswith("{") else _parse_assignment(line, names)
            )
        except ValueError as exc:
            console.print(one_line(exc, 1000), style="red")
    return changed


def _parse_assignment(line: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parse a line of the form ``name = value``.

    The value is parsed as JSON if possible. If the current value of the parameter is a string,
    or if the new value is not valid JSON, the value is kept as a string.

    >>> _parse_assignment("copies = 2", {"copies": 1}), _parse_assignment("to = Ann", {"to": "all"})
    ({'copies': 2}, {'to': 'Ann'})
    """
    name, separator, text = (part.strip() for part in line.partition("="))
    if not separator or not name:
        raise ValueError("Expected 'name = value', such as: amount = 3")
    if text != "null" and isinstance(parameters.get(name), str):
        return {name: text}
    try:
        return {name: json.loads(text)}
    except (ValueError, RecursionError):
        return {name: text}


def _ask_until_valid(parse: Callable[[str], T], prompt: str, console: Console) -> T:
    """Repeat a prompt until the user's input can be parsed, and return the parsed value."""
    while True:
        try:
            return parse(_prompt(prompt).strip())
        except (CapgraphError, ValueError, RecursionError) as exc:
            console.print(one_line(exc, 1000), style="red")


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise ValueError(f"Invalid JSON: {exc}.") from exc
    if not isinstance(value, dict):
        raise ValueError('Expected parameters as a JSON object, such as {"amount": 3}.')
    return value


def _nonempty_text(text: str) -> str:
    if not text:
        raise ValueError("The text is empty.")
    return text


def _prompt(prompt: str) -> str:
    # Not Console.input(): line editing must know the length of the prompt.
    return input(prompt)
