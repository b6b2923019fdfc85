"""Messages about failures for end users.

Operators and developers find the complete failure, with its code, the model, and the fix, in the
outcome's ``reason``, in events, and in the logs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_INTERNAL = re.compile(
    r"[{}]|\[\s*[\"'\[]|CG-[A-Z0-9]|</?\w+[^>]*>|```|Traceback|\bobject at 0x|\b\w+Error\b"
)
_FIX = re.compile(r"(?<!\s)\s*+\bFix: .*\Z", re.DOTALL)
_PROBLEM_CODE = re.compile(r"\[CG-P\d+\]\s*")
_OBJECT = re.compile(r"\{[^{}]*\}")
_PREFIX = re.compile(r"\A(?:Unhandled error|Infrastructure error) in [^:]*:\s*")

PLAN_FAILED = "I could not work out a plan for this."
MALFORMED_REPLY = "The model's reply did not have the expected form."
_LATER = "Please try again later."
_BY_CATEGORY = {
    "network": f"The model or a service that is needed cannot be reached. {_LATER}",
    "timeout": f"The model or a service that is needed did not answer in time. {_LATER}",
    "rate_limit": f"The model or a service that is needed gets too many requests. {_LATER}",
    "overloaded": f"The model or a service that is needed is not available. {_LATER}",
    "authentication": "The model or a service that is needed does not accept the agent's access.",
    "context_too_long": "The request or the conversation is too long for the model.",
}
_BY_CODE = {
    "CG-PLAN": PLAN_FAILED,
    "CG-MODEL": "The model could not do its part.",
    "CG-EXTRA": "A part of the agent is not installed.",
    "CG-CONFIGURATION": "The agent is not set up correctly.",
    "CG-REGISTRY": "The agent is not set up correctly.",
    "CG-PERSISTENCE": "The agent's storage cannot be used.",
}
_BY_NODE = {
    "task_extraction": "I could not work out what you asked for.",
    "classifier": "I could not work out what can do this.",
    "orchestrator": PLAN_FAILED,
    "respond": "I could not write the answer.",
    "clarify": "I could not write my question.",
}
GENERIC_FAILURE = "Something went wrong, and I could not finish this."


def describe_failure(info: Mapping[str, Any], objective: str = "") -> str:
    """Describe a failure to an end user in one or two sentences.

    Readable messages from capabilities, limits, and policies are returned unchanged. Plans,
    model replies, and internal errors are replaced with a generic sentence.

    Args:
        info: Failure information, as stored in the graph state.
        objective: Objective of the failed step.

    >>> describe_failure({"capability_name": "read", "user_message": "The valve is stuck."})
    'The valve is stuck.'
    >>> describe_failure({
    ...     "node_name": "orchestrator",
    ...     "user_message": "The plan has 1 problem(s): [CG-P01] the plan is a str.",
    ...     "classification": {"metadata": {"code": "CG-PLAN"}},
    ... })
    'I could not work out a plan for this.'
    """
    metadata = (info.get("classification") or {}).get("metadata") or {}
    if isinstance(message := metadata.get("person_message"), str) and message:
        return message
    code, category = metadata.get("code"), metadata.get("category")
    text = str(info.get("user_message") or "")
    if info.get("capability_name"):
        if _PREFIX.match(text) is None and is_readable(text):
            return text
        detail = "" if category == "programming_error" else readable_text(text)
        return f"{_step_failed(objective)} ({detail})" if detail else _step_failed(objective)
    known = _BY_CODE.get(str(code)) or _BY_CATEGORY.get(str(category))
    if code == "CG-PLAN":
        return PLAN_FAILED
    if known and category != "declared":
        return known
    if known is not None:
        node = _BY_NODE.get(str(info.get("node_name")))
        return f"{node} {known}" if node and node != known else known
    if category in ("programming_error", "unknown", "bad_input"):
        return _BY_NODE.get(str(info.get("node_name")), GENERIC_FAILURE)
    return readable_text(text) or _BY_NODE.get(str(info.get("node_name")), GENERIC_FAILURE)


def readable_text(text: str) -> str:
    r"""Extract the part of an error message that is suitable for end users.

    The prefix and the fix are removed. Returns ``""`` if the message contains code or data.

    >>> readable_text("The turn reached its budget. Fix: Raise limits.max_cost.")
    'The turn reached its budget.'
    >>> readable_text("The model answered '{\"steps\": []}'.")
    ''
    """
    message = _PREFIX.sub("", _FIX.sub("", text)).strip()
    return message if message and is_readable(message) else ""


def describe_plan_problems(problems: Sequence[Any]) -> str:
    """Summarize the problems with a plan in one message for the plan's author.

    >>> describe_plan_problems(["[CG-P04] step 1 'a': no capability with this name is registered."])
    "The plan cannot be run: step 1 'a': no capability with this name is registered."
    """
    found = [_OBJECT.sub("…", _PROBLEM_CODE.sub("", str(problem))) for problem in problems]
    causes = "; ".join(text for text in found if is_readable(text))
    return f"The plan cannot be run: {causes}" if causes else "The plan cannot be run."


def is_readable(text: str) -> bool:
    """Return True if a string is readable for end users and has no code, data, or markup."""
    return bool(text) and _INTERNAL.search(text) is None


def _step_failed(objective: str) -> str:
    return f"This could not be done: {objective}" if is_readable(objective) else GENERIC_FAILURE
