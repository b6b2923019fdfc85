"""Selection by written rules: the first one that matches decides."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from framework.base import CapabilityError, CapgraphError, ValidationError
from framework.registry import Candidate
from framework.selection.protocols import NOTHING_EXCLUDED, Selection, Selector

Condition = Callable[[str], bool | Awaitable[bool]]


@dataclass(frozen=True)
class Rule:
    """One rule: for tasks that meet the condition, these capabilities.

    Attributes:
        condition: Called with the task; may be asynchronous.
        capabilities: What to choose; those that are not available are left out, and a
            rule none of whose capabilities is available does not match.
        label: What the rule is about, for the reason; the names when empty.
    """

    condition: Condition
    capabilities: Sequence[str]
    label: str = ""


class RuleSelector:
    """Chooses by ordered rules; a fallback answers what no rule matches.

    Args:
        rules: Tried in order.
        fallback: Capabilities for a task that no rule matches (those of them that are
            available), or another selector that is asked instead.

    Raises:
        ValidationError: A rule or the fallback names no capability.

    >>> import asyncio
    >>> from framework.selection import Candidate
    >>> rules = [Rule(lambda task: "weather" in task.lower(), ("forecast",))]
    >>> selector = RuleSelector(rules, fallback=("search",))
    >>> available = [Candidate("forecast", "Weather"), Candidate("search", "Web search")]
    >>> asyncio.run(selector.select("Weather in Rome?", available)).names
    ('forecast',)
    >>> asyncio.run(selector.select("Who is she?", available)).names
    ('search',)
    """

    def __init__(
        self, rules: Sequence[Rule] = (), *, fallback: Sequence[str] | Selector = ()
    ) -> None:
        self._rules = tuple(rules)
        self._fallback = fallback
        for number, rule in enumerate(self._rules, start=1):
            if isinstance(rule.capabilities, str) or not rule.capabilities:
                raise ValidationError(
                    f"Rule {number} chooses {rule.capabilities!r}.",
                    fix="Give a tuple with the name of at least one capability.",
                )
        if isinstance(fallback, str):
            raise ValidationError(
                f"The fallback is the text {fallback!r}.",
                fix="Give a sequence of capability names, or a selector.",
            )

    async def select(
        self,
        task: str,
        candidates: Sequence[Candidate],
        *,
        limit: int | None = None,
        excluded: Mapping[str, str] = NOTHING_EXCLUDED,
    ) -> Selection:
        """Choose by the first rule that matches; see :class:`Selector`.

        Raises:
            CapabilityError: A condition failed; the rule is named and the cause chained.
        """
        available = {candidate.name for candidate in candidates} - excluded.keys()
        for number, rule in enumerate(self._rules, start=1):
            names = _available(rule.capabilities, available)
            if names and await _matches(rule, number, task):
                label = rule.label or ", ".join(rule.capabilities)
                return _selection(names[:limit], f"Rule {number} ({label}) matches the task.")
        if isinstance(self._fallback, Selector):
            return await self._fallback.select(task, candidates, limit=limit, excluded=excluded)
        names = _available(self._fallback, available)
        if names:
            return _selection(names[:limit], "No rule matches; this is the fallback.")
        missing = f" and the fallback {', '.join(self._fallback)} is not available"
        return Selection((), reason=f"No rule matches{missing if self._fallback else ''}.")


def _available(names: Sequence[str], available: set[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in names if name in available))


def _selection(names: tuple[str, ...], reason: str) -> Selection:
    return Selection(names, dict.fromkeys(names, 1.0), 1.0, reason)


async def _matches(rule: Rule, number: int, task: str) -> bool:
    try:
        met = rule.condition(task)
        return bool(await met if inspect.isawaitable(met) else met)
    except CapgraphError:
        raise
    except Exception as exc:
        raise CapabilityError(
            f"The condition of rule {number} ({rule.label or ', '.join(rule.capabilities)}) "
            f"failed: {type(exc).__name__}: {exc}",
            fix="Let the condition return True or False for every text.",
        ) from exc
