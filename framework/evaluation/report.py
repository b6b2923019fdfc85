"""Evaluation reports: results of cases, metrics, and thresholds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import reduce
from operator import add
from typing import Any, NamedTuple

from capgraph.evaluation.dataset import Case, Thresholds
from capgraph.evaluation.judge import JudgeVerdict, agreement_rate
from capgraph.evaluation.metrics import Counts, count_edges, count_items


@dataclass(frozen=True, slots=True)
class CaseResult:
    """Result of one evaluation case.

    Attributes:
        case: Evaluation case.
        chosen: Capabilities that the selector selected.
        nodes: Capabilities of the plan's steps.
        edges: Data flow of the plan.
        answer: Final message.
        outcome: Status at the end of the turn.
        reason: Reason that the agent reports for an unsuccessful outcome.
        model_calls: Number of model calls.
        input_tokens: Number of prompt tokens, as the models report them.
        output_tokens: Number of tokens in the models' answers.
        cost_usd: Cost of the model calls in US dollars. ``None`` if a price is unknown.
        seconds: Duration of the evaluated turn.
        ungrounded: Number of parameters of effects that the planning model invented.
        results: Results of a replay's steps, as text.
        recorded: Recorded results of the steps, as text.
        verdict: Verdict of the judging model on the answer. ``None`` without a judge.
    """

    case: Case
    chosen: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    edges: tuple[tuple[str, str], ...] = ()
    answer: str = ""
    outcome: str = "failed"
    reason: str = ""
    model_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    seconds: float = 0.0
    ungrounded: int = 0
    results: tuple[str, ...] = ()
    recorded: tuple[str, ...] = ()
    verdict: JudgeVerdict | None = None

    @property
    def label(self) -> tuple[bool, JudgeVerdict] | None:
        """Verdict of the answer checks, paired with the verdict of the judging model.

        ``None`` if the case has no answer checks or was not judged.
        """
        if self.verdict is None or not self.case.answer:
            return None
        return not any(check.find_problem(self.answer) for check in self.case.answer), self.verdict

    @property
    def choice_counts(self) -> Counts | None:
        """Counts from comparing the selected capabilities with the expected capabilities.

        ``None`` if the case does not specify expected capabilities.
        """
        if self.case.capabilities is None:
            return None
        return count_items(set(self.case.capabilities), set(self.chosen), self.case.optional)

    @property
    def node_counts(self) -> Counts | None:
        """Counts from comparing the planned steps with the expected steps.

        ``None`` if the case does not specify expected capabilities.
        """
        if self.case.capabilities is None:
            return None
        return count_items(self.case.capabilities, self.nodes, self.case.optional)

    @property
    def edge_counts(self) -> Counts | None:
        """Counts from comparing the data flow of the plan with the expected edges.

        ``None`` if the case does not specify expected edges.
        """
        if self.case.edges is None:
            return None
        return count_edges(self.case.edges, self.edges, self.case.optional)

    @property
    def problems(self) -> list[str]:
        """Differences from the expected results as diff lines.

        Lines that begin with ``-`` are missing items, and lines that begin with ``+`` are extra
        items.
        """
        optional = set(self.case.optional)
        lines = []
        if self.case.capabilities is not None:
            pair = (self.case.capabilities, self.nodes)
            lines += _format_diff(
                "step", *([name for name in x if name not in optional] for x in pair)
            )
        if self.case.edges is not None:
            edges = (self.case.edges, self.edges)
            strict = ([edge for edge in x if not optional & set(edge)] for x in edges)
            lines += _format_diff("edge", *([" -> ".join(edge) for edge in x] for x in strict))
        lines += _format_diff("result", self.recorded, self.results)
        if self.outcome != self.case.outcome:
            lines += [f"- outcome {self.case.outcome}", f"+ outcome {self.outcome}"]
        for check in self.case.answer:
            problem = check.find_problem(self.answer)
            if problem:
                lines.append(f"- the answer {problem}")
        return lines

    @property
    def passed(self) -> bool:
        """True if all results are as expected."""
        return not self.problems

    def as_data(self) -> dict[str, Any]:
        """Return the case's result as plain data."""
        values = {item.name: getattr(self, item.name) for item in fields(self)[1:]}
        return {
            "name": self.case.name,
            "request": self.case.request,
            "passed": self.passed,
            "problems": self.problems,
            **values,
            "edges": [" -> ".join(edge) for edge in self.edges],
            "seconds": round(self.seconds, 4),
            "verdict": asdict(self.verdict) if self.verdict is not None else None,
        }


def _format_diff(kind: str, expected: Sequence[str], actual: Sequence[str]) -> list[str]:
    missing, superfluous = Counter(expected) - Counter(actual), Counter(actual) - Counter(expected)
    return [
        *(f"- {kind} {name}" for name in missing.elements()),
        *(f"+ {kind} {name}" for name in superfluous.elements()),
    ]


@dataclass(frozen=True, slots=True)
class ThresholdFailure:
    """Metric of an evaluation report that is below its required minimum.

    Attributes:
        metric: Name of the metric.
        value: Value of the metric.
        minimum: Threshold.
    """

    metric: str
    value: float
    minimum: float

    def __str__(self) -> str:
        return f"{self.metric} is {self.value:.3f}, below {self.minimum:g}"


class Metric(NamedTuple):
    """Label and number format of a metric."""

    label: str
    format_spec: str = ",.0f"


METRICS: Mapping[str, Metric] = {
    "passed": Metric("cases without a problem", ".3f"),
    "precision": Metric("precision of the choice", ".3f"),
    "recall": Metric("recall of the choice", ".3f"),
    "node_f1": Metric("node F1 of the plans", ".3f"),
    "edge_f1": Metric("edge F1 of the plans", ".3f"),
    "judged": Metric("answers that the judge accepts", ".3f"),
    "agreement": Metric("agreement of the judge with labels", ".3f"),
    "model_calls": Metric("model calls"),
    "input_tokens": Metric("prompt tokens"),
    "output_tokens": Metric("answer tokens"),
    "cost_usd": Metric("cost in US dollars", ",.4f"),
    "seconds": Metric("seconds", ".2f"),
    "ungrounded": Metric("invented parameters of effects"),
}
"""Metrics of a report in display order. The first seven are ratios."""
_SUMMED_METRICS = ("model_calls", "input_tokens", "output_tokens", "seconds", "ungrounded")


@dataclass(frozen=True, slots=True)
class Report:
    """Results and metrics of running one agent configuration on an evaluation set.

    Attributes:
        results: Results of the cases, in the order of the set.
        label: Name of the configuration.
        labels: Human labels of the set, each with the judge's verdict.
    """

    results: tuple[CaseResult, ...] = ()
    label: str = field(default="")
    labels: tuple[tuple[bool, JudgeVerdict], ...] = ()

    @property
    def figures(self) -> dict[str, float | None]:
        """Value of each metric in :data:`METRICS`, by metric name.

        The value is ``None`` if no case has the data for the metric.
        """
        choice = _sum_counts([result.choice_counts for result in self.results])
        nodes = _sum_counts([result.node_counts for result in self.results])
        edges = _sum_counts([result.edge_counts for result in self.results])
        passed = sum(result.passed for result in self.results)
        verdicts = [result.verdict for result in self.results if result.verdict is not None]
        accepted = [item.accepted for item in verdicts if item.accepted is not None]
        checked = [result.label for result in self.results if result.label is not None]
        costs = [result.cost_usd if result.model_calls else 0.0 for result in self.results]
        values: dict[str, float | None] = {
            "passed": passed / len(self.results) if self.results else None,
            "precision": choice.precision if choice else None,
            "recall": choice.recall if choice else None,
            "node_f1": nodes.f1 if nodes else None,
            "edge_f1": edges.f1 if edges else None,
            "judged": sum(accepted) / len(accepted) if accepted else None,
            "agreement": agreement_rate([*self.labels, *checked]),
            "cost_usd": None if None in costs else sum(cost or 0.0 for cost in costs),
            **{
                name: sum(getattr(result, name) for result in self.results)
                for name in _SUMMED_METRICS
            },
        }
        return {name: values[name] for name in METRICS}

    @property
    def failures(self) -> list[CaseResult]:
        """Results of all cases that have at least one problem."""
        return [result for result in self.results if not result.passed]

    def check_thresholds(self, thresholds: Thresholds) -> list[ThresholdFailure]:
        """Return the metrics that are below their required minimum.

        A metric without data is treated as 0.
        """
        figures = self.figures
        minimums: dict[str, float | None] = thresholds.model_dump()
        return [
            ThresholdFailure(name, figures[name] or 0.0, minimum)
            for name, minimum in minimums.items()
            if minimum is not None and (figures[name] or 0.0) < minimum
        ]

    def as_data(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "label": self.label,
            "figures": self.figures,
            "cases": [result.as_data() for result in self.results],
        }


def _sum_counts(counts: list[Counts | None]) -> Counts | None:
    judged = [item for item in counts if item is not None]
    return reduce(add, judged) if judged else None
