"""Base class of teams: agents that delegate their work to members."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from langchain_core.messages import HumanMessage, SystemMessage
from langgraph.config import get_stream_writer
from langgraph.graph import StateGraph
from langgraph.runtime import Runtime
from pydantic import BaseModel

from capgraph.adapters.request import RUN_ENDING_ERRORS
from capgraph.adapters.task_graph import TaskGraph, target_name, task_graph
from capgraph.agents.base import STEP_KEY, BaseAgent, RunOutput, RunState
from capgraph.agents.model_with_tools import get_role_model
from capgraph.agents.overrides import run_through_graph
from capgraph.agents.result import AgentResult, AgentStep
from capgraph.base.errors import (
    CapgraphError,
    ConfigurationError,
    MalformedAnswerError,
    ModelError,
)
from capgraph.engine.step_tasks import gather_tasks, label_scope, run_as_task
from capgraph.engine.sync_graph import single_node_graph
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.models.calls import generate_structured
from capgraph.pipeline.step_execution import propagate_labels
from capgraph.selection import BaseRouter, RoutingRequest

AnswerT = TypeVar("AnswerT", bound=BaseModel)


@dataclass(slots=True)
class OrchestratorResult:
    """Result of a team run.

    Attributes:
        final_output: Final answer of the team.
        agent_outputs: Results by member name. Each kind of team defines the keys for members
            that ran more than once.
        subtask_outputs: Tuples of member name, subtask, and result, in the order of the
            subtasks.
        rounds: Number of delegation rounds.
        success: True if all subtasks succeeded. False after a partial failure or if a limit was
            reached.
        error: Reason for the failure, or None.
        metadata: ``execution_id`` and additional entries from the team.
    """

    final_output: Any = ""
    agent_outputs: dict[str, AgentResult] = field(default_factory=dict)
    subtask_outputs: list[tuple[str, str, AgentResult]] = field(default_factory=list)
    rounds: int = 0
    success: bool = True
    error: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


class BaseOrchestrator(BaseAgent):
    """Base class for teams, which are agents that delegate their work to members.

    A team runs, streams, and resumes like any other agent. Its ``behaviors`` and ``services``,
    including budgets, apply to all members. Work that a member finished is not repeated after
    an interruption.

    Args:
        model: Chat model that leads the team.
        members: Members by name: agents, capabilities, tools, graphs, workflows, teams, or
            functions of the task.
        router: Router that chooses a member for each subtask.
        **options: Options of :class:`~capgraph.agents.base.BaseAgent`.
    """

    @validate_arguments
    def __init__(
        self,
        model: Any = None,
        *,
        members: Mapping[str, Any] | None = None,
        router: BaseRouter | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, **options)
        self.members: Mapping[str, Any] = dict(members or {})
        self.router = router

    def _require_work(self) -> None:
        kind = type(self)
        names = ("_build", "compile", "execute", "run", "lead")
        if all(getattr(kind, name) is getattr(BaseOrchestrator, name) for name in names):
            raise ConfigurationError(
                f"{kind.__name__} cannot run: it does not override 'lead'.",
                fix="Add 'async def lead(self, task, context, team_run)', or override 'run'.",
            )

    @property
    def reads_context(self) -> bool:
        """True if a subclass overrides ``execute`` or ``run``, which may read their ``context``."""
        return super().reads_context or hasattr(type(self).run, "override")

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "run" in vars(cls):
            cls.run = run_through_graph(BaseOrchestrator._run_team_graph, vars(cls)["run"])  # type: ignore[method-assign]

    async def run(self, task: str, context: Any = None) -> OrchestratorResult:
        """Run a task with the team and return the results of all members.

        Args:
            task: Text of the task.
            context: Value of ``Runtime.context`` for the members' tools.
        """
        return self._to_team_result(await self.execute(task, context))

    async def _run_team_graph(self, task: str, context: Any = None) -> OrchestratorResult:
        return self._to_team_result(await self._execute_graph(task, context))

    def _to_team_result(self, result: AgentResult) -> OrchestratorResult:
        metadata = dict(result.metadata)
        completed = [
            (name, text, AgentResult.coerce(one))
            for name, text, one in metadata.pop("subtasks", ())
        ]
        outputs = metadata.pop("agent_outputs", None)
        return OrchestratorResult(
            "" if result.output is None else result.output,
            self._group_outputs(completed) if outputs is None else _to_results(outputs),
            completed,
            metadata.pop("rounds", 0),
            success=result.success,
            error=result.error,
            metadata=metadata,
        )

    def _group_outputs(
        self, completed: Sequence[tuple[str, str, AgentResult]]
    ) -> dict[str, AgentResult]:
        return dict(
            zip(
                number_duplicates(name for name, _, _ in completed),
                (one for *_, one in completed),
                strict=True,
            )
        )

    @abstractmethod
    async def lead(self, task: str, context: Any, team_run: TeamRun) -> Any:
        """Work on a task by delegating to the team's members, and return the final output.

        A custom team overrides this method and calls ``team_run.delegate``, ``team_run.ask_model``,
        and ``team_run.route``. A team without members overrides ``run`` instead.
        """

    def _build_work_graph(self) -> StateGraph[Any, Any, Any, Any]:
        is_overridden = hasattr(type(self).run, "override")
        return (
            self._build_override_graph("run", type(self)._execute_run_override)
            if is_overridden
            else super()._build_work_graph()
        )

    async def _execute_run_override(self, task: str, context: Any) -> AgentResult:
        """Call a subclass's ``run`` method and convert the team result to an ``AgentResult``."""
        with label_scope({}) as labels:
            result = await type(self).run.override(self, task, context)  # type: ignore[attr-defined]
        propagate_labels(labels)
        completed = [[name, text, _to_plain(one)] for name, text, one in result.subtask_outputs]
        outputs = {name: _to_plain(one) for name, one in result.agent_outputs.items()}
        metadata = {"subtasks": completed, "rounds": result.rounds, "agent_outputs": outputs}
        metadata |= {"labels": labels} if labels else {}
        return AgentResult(
            result.final_output,
            metadata={**result.metadata, **metadata},
            success=result.success,
            error=result.error,
        )

    def _build(self) -> StateGraph[Any, Any, Any, Any]:
        if not self.members:
            raise ConfigurationError(
                f"{self!r} has no members that could do its work.",
                fix="Pass at least one agent.",
            )
        graphs = {
            name: task_graph(member, services=self.services, name=name)
            for name, member in self.members.items()
        }

        async def run(state: RunState, runtime: Runtime[Any]) -> dict[str, Any]:
            work = TeamRun(self, graphs)
            try:
                output = await self.lead(state["task"], runtime.context, work)
            except RUN_ENDING_ERRORS:
                raise
            except CapgraphError as exc:
                work.errors.append(str(exc))
                output = ""
            return work.build_result(output).to_plain()

        return single_node_graph("team", run, RunState, output_schema=RunOutput)


@dataclass(slots=True)
class _CompletedSubtask:
    member: str
    subtask: str
    result: AgentResult


class Answer(BaseModel):
    """The answer to the task."""

    answer: str


class TeamRun:
    """Single run of a team, with operations such as delegating subtasks.

    Each operation is a LangGraph task, so it is not repeated when the run is resumed.
    """

    def __init__(self, team: BaseOrchestrator, graphs: Mapping[str, TaskGraph]) -> None:
        self._team = team
        self._graphs = graphs
        self._completed: list[_CompletedSubtask] = []
        self._labels: dict[str, str] = {}  # labels of the data that the members read
        self.rounds: int = 0
        self.errors: list[str] = []

    async def ask_model(
        self, system_prompt: str, prompt: str, answer_type: type[AnswerT]
    ) -> AnswerT:
        """Ask the team's leading model for an answer of the given type.

        Args:
            system_prompt: Text of the system message.
            prompt: Text of the user message.
            answer_type: Pydantic type of the answer.

        Raises:
            ModelError: The model call failed.
            MalformedAnswerError: The answer cannot be parsed as ``answer_type``.
        """
        messages = [SystemMessage(system_prompt), HumanMessage(prompt)]

        async def ask() -> Any:
            role = get_role_model(self._team)
            try:
                return {
                    "found": (await generate_structured(role, answer_type, messages)).model_dump(
                        mode="json"
                    )
                }
            except MalformedAnswerError as exc:
                # The result is stored as well, because a repeated call could return a different
                # answer.
                return {"text": exc.text, "told": exc.message, "fix": exc.fix}

        kept = await run_as_task("ask", ask)
        if "found" in kept:
            return answer_type.model_validate(kept["found"])
        raise MalformedAnswerError(kept["told"], fix=kept["fix"], text=kept["text"])

    async def write_answer(self, system_prompt: str, prompt: str) -> str:
        """Ask the team's leading model for the final answer as text.

        A structured reply is preferred. If it is malformed, the raw text is the answer.

        Raises:
            ModelError: The model call failed.
        """
        try:
            return (await self.ask_model(system_prompt, prompt, Answer)).answer
        except ModelError as exc:
            return get_raw_answer(exc).strip()

    async def route(self, subtask: str, available: Iterable[str] | None = None) -> str:
        """Ask the router to choose the member for a subtask.

        Return the member's name, or an empty string if the router finds no suitable member.
        """
        names = list(self._graphs if available is None else available)

        async def route() -> str:
            assert self._team.router is not None
            return (await self._team.router.route(RoutingRequest(subtask, names))).target

        member: str = await run_as_task("route", route)
        return member

    async def delegate(
        self, subtasks: Sequence[tuple[str, str]], context: Any
    ) -> list[AgentResult]:
        """Run subtasks on team members in parallel and return the results in the given order.

        Args:
            subtasks: Pairs of member name and subtask.
            context: Value of ``Runtime.context`` for the members' tools.
        """
        self.rounds += 1
        with label_scope(self._labels) as labels:
            calls = [
                run_as_task(name, partial(self._run_member, name, text, context))
                for name, text in subtasks
            ]
            results = [AgentResult.coerce(item) for item in await gather_tasks(calls)]
        self._labels |= labels
        write = get_stream_writer()
        for (name, text), result in zip(subtasks, results, strict=True):
            self._completed.append(_CompletedSubtask(name, text, result))
            if not result.success:
                self.errors.append(f"{name}: {result.error}")
            write({STEP_KEY: _to_step(self._completed[-1]).to_plain()})
        propagate_labels(self._labels)
        return results

    async def _run_member(self, name: str, text: str, context: Any) -> dict[str, Any]:
        if name not in self._graphs:
            error = f"unknown member {name!r}; the members are {', '.join(self._graphs)}"
            return AgentResult(None, success=False, error=error).to_plain()
        try:
            found = await self._graphs[name].ainvoke({"task": text}, context=context)
            propagate_labels(
                (found.get("metadata") or {}).get("labels", {})
            )  # include the labels of a stored run
            return AgentResult.coerce({"output": None, **found}).to_plain()
        except RUN_ENDING_ERRORS:
            raise
        except Exception as exc:
            error = str(exc) or type(exc).__name__
            return AgentResult(None, success=False, error=error).to_plain()

    def list_results(self) -> list[dict[str, Any]]:
        """Return the completed subtasks as plain data for a model's prompt."""
        return [
            {
                "member": one.member,
                "subtask": one.subtask,
                "result": one.result.output
                if one.result.success
                else f"failed: {one.result.error}",
            }
            for one in self._completed
        ]

    def build_result(self, output: Any) -> AgentResult:
        """Build the result of the team's run from its final output and the completed subtasks."""
        subtasks = [[item.member, item.subtask, item.result.to_plain()] for item in self._completed]
        metadata: dict[str, Any] = {"subtasks": subtasks, "rounds": self.rounds}
        return AgentResult(
            output,
            [_to_step(item) for item in self._completed],
            {**metadata, "labels": self._labels} if self._labels else metadata,
            success=not self.errors,
            error="; ".join(self.errors) or None,
        )


def _to_plain(output: Any) -> dict[str, Any]:
    """Convert a team member's output to plain data."""
    return AgentResult.coerce(output).to_plain()


def _to_results(outputs: Mapping[str, Any]) -> dict[str, AgentResult]:
    return {name: AgentResult.coerce(one) for name, one in outputs.items()}


def _to_step(subtask: _CompletedSubtask) -> AgentStep:
    result = subtask.result
    seen = str(result.output) if result.success else f"Failed: {result.error}"
    return AgentStep("", subtask.member, {"task": subtask.subtask}, seen)


def name_members(agents: Iterable[Any]) -> dict[str, Any]:
    """Map agents to their names. Repeated names receive a suffix, such as ``name#2``."""
    members = list(agents)
    names = map(target_name, members)
    return dict(zip(number_duplicates(names), members, strict=True))


def number_duplicates(names: Iterable[str]) -> Iterator[str]:
    """Yield names with a numeric suffix for duplicates, such as ``name#2``.

    >>> list(number_duplicates(["a", "b", "a"]))
    ['a', 'b', 'a#2']
    """
    seen: Counter[str] = Counter()
    for name in names:
        seen[name] += 1
        yield name if seen[name] == 1 else f"{name}#{seen[name]}"


def get_raw_answer(error: ModelError) -> str:
    """Return the raw text of a malformed model answer.

    Raises:
        ModelError: The model call itself failed, so there is no answer text. The original error
            is raised again.
    """
    text = getattr(error, "text", "")
    if not text:
        raise error
    return str(text)
