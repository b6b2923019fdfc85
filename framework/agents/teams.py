"""What every team is: an agent whose work is done by others."""

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
from capgraph.adapters.task_graph import TaskGraph, task_graph
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
    """What came of a team's work.

    Attributes:
        final_output: The answer.
        agent_outputs: What each member gave, by its name; how a further run of it is called is
            said by the kind of team.
        subtask_outputs: Member, subtask and result, in the order of the subtasks.
        rounds: How often work was given out.
        success: Whether all of it was done; partial failure and reaching a limit are no success.
        error: Why it was not.
        metadata: ``execution_id``, and what the team tells besides.
    """

    final_output: Any = ""
    agent_outputs: dict[str, AgentResult] = field(default_factory=dict)
    subtask_outputs: list[tuple[str, str, AgentResult]] = field(default_factory=list)
    rounds: int = 0
    success: bool = True
    error: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


class BaseOrchestrator(BaseAgent):
    """A team: an agent whose work is done by its members.

    It runs, streams and resumes as every agent does; what stands around it (``behaviors``,
    ``services`` and with them budgets) holds over all its members. What a member has done is not
    done again after an interruption.

    Args:
        model: The chat model that leads.
        members: Who belongs to it, by name: agents, capabilities, tools, graphs, workflows, teams
            or functions of the task.
        router: Who says which member takes a subtask.
        **options: As for :class:`~capgraph.agents.base.BaseAgent`.
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

    @property
    def reads_context(self) -> bool:
        """True if a subclass wrote ``execute`` or ``run``, which read ``context``."""
        return super().reads_context or hasattr(type(self).run, "own")

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "run" in vars(cls):
            cls.run = run_through_graph(BaseOrchestrator._run_team_graph, vars(cls)["run"])  # type: ignore[method-assign]

    async def run(self, task: str, context: Any = None) -> OrchestratorResult:
        """Have the team work on a task.

        Args:
            task: What is to be done.
            context: What the members' tools find as ``Runtime.context``.
        """
        return self._to_team_result(await self.execute(task, context))

    async def _run_team_graph(self, task: str, context: Any = None) -> OrchestratorResult:
        return self._to_team_result(await self._execute_graph(task, context))

    def _to_team_result(self, result: AgentResult) -> OrchestratorResult:
        known = dict(result.metadata)
        done = [
            (name, text, AgentResult.coerce(one)) for name, text, one in known.pop("subtasks", ())
        ]
        outputs = known.pop("agent_outputs", None)
        return OrchestratorResult(
            "" if result.output is None else result.output,
            self._group_outputs(done) if outputs is None else _to_results(outputs),
            done,
            known.pop("rounds", 0),
            success=result.success,
            error=result.error,
            metadata=known,
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
        """Do the work of a team of one's own by ``team_run.ask_model``, ``team_run.delegate`` and ``team_run.route``; return the final output.

        A team that does all of it by itself writes ``run`` instead.
        """

    def _build_work_graph(self) -> StateGraph[Any, Any, Any, Any]:
        own = hasattr(type(self).run, "own")
        return (
            self._build_override_graph("run", type(self)._execute_run_override)
            if own
            else super()._build_work_graph()
        )

    async def _execute_run_override(self, task: str, context: Any) -> AgentResult:
        """Run what a subclass wrote as ``run``, and make an agent's result of it."""
        with label_scope({}) as labels:
            found = await type(self).run.own(self, task, context)  # type: ignore[attr-defined]
        propagate_labels(labels)
        done = [[name, text, _to_plain(one)] for name, text, one in found.subtask_outputs]
        outputs = {name: _to_plain(one) for name, one in found.agent_outputs.items()}
        known = {"subtasks": done, "rounds": found.rounds, "agent_outputs": outputs}
        known |= {"labels": labels} if labels else {}
        return AgentResult(
            found.final_output,
            metadata={**found.metadata, **known},
            success=found.success,
            error=found.error,
        )

    def _build(self) -> StateGraph[Any, Any, Any, Any]:
        if not self.members:
            raise ConfigurationError(f"{self!r} has no members.", fix="Give it agents.")
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
    """One run of a team. Each thing it does is a LangGraph task, so that none is done twice."""

    def __init__(self, team: BaseOrchestrator, graphs: Mapping[str, TaskGraph]) -> None:
        self._team = team
        self._graphs = graphs
        self._completed: list[_CompletedSubtask] = []
        self._labels: dict[str, str] = {}  # of what members have read
        self.rounds: int = 0
        self.errors: list[str] = []

    async def ask_model(
        self, system_prompt: str, prompt: str, answer_type: type[AnswerT]
    ) -> AnswerT:
        """Ask the leading model for an answer of a form.

        Raises:
            ModelError: The call failed.
            MalformedAnswerError: The model gave no such answer.
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
                # Kept as well: asked again, the model may say something else.
                return {"text": exc.text, "told": exc.message, "fix": exc.fix}

        kept = await run_as_task("ask", ask)
        if "found" in kept:
            return answer_type.model_validate(kept["found"])
        raise MalformedAnswerError(kept["told"], fix=kept["fix"], text=kept["text"])

    async def write_answer(self, system_prompt: str, prompt: str) -> str:
        """Have the leading model write the answer, in whatever form.

        Raises:
            ModelError: The call failed.
        """
        try:
            return (await self.ask_model(system_prompt, prompt, Answer)).answer
        except ModelError as exc:
            return get_raw_answer(exc).strip()

    async def route(self, subtask: str, available: Iterable[str] | None = None) -> str:
        """Have the router choose a member; empty where it knows none."""
        names = list(self._graphs if available is None else available)

        async def route() -> str:
            assert self._team.router is not None
            return (await self._team.router.route(RoutingRequest(subtask, names))).target

        found: str = await run_as_task("route", route)
        return found

    async def delegate(
        self, subtasks: Sequence[tuple[str, str]], context: Any
    ) -> list[AgentResult]:
        """Give subtasks to members, who work on them side by side.

        Args:
            subtasks: Members with what each is to do.
            context: What their tools find as ``Runtime.context``.
        """
        self.rounds += 1
        with label_scope(self._labels) as labels:
            begun = [
                run_as_task(name, partial(self._run_member, name, text, context))
                for name, text in subtasks
            ]
            results = [AgentResult.coerce(item) for item in await gather_tasks(begun)]
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
            told = f"there is no member {name!r}; the members are {', '.join(self._graphs)}"
            return AgentResult(None, success=False, error=told).to_plain()
        try:
            found = await self._graphs[name].ainvoke({"task": text}, context=context)
            propagate_labels(
                (found.get("metadata") or {}).get("labels", {})
            )  # also of a run that was kept
            return AgentResult.coerce({"output": None, **found}).to_plain()
        except RUN_ENDING_ERRORS:
            raise
        except Exception as exc:
            told = str(exc) or type(exc).__name__
            return AgentResult(None, success=False, error=told).to_plain()

    def list_results(self) -> list[dict[str, Any]]:
        """Return what was done so far, for a model to read."""
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
        """Return what came of it all."""
        plain = [[item.member, item.subtask, item.result.to_plain()] for item in self._completed]
        known: dict[str, Any] = {"subtasks": plain, "rounds": self.rounds}
        return AgentResult(
            output,
            [_to_step(item) for item in self._completed],
            {**known, "labels": self._labels} if self._labels else known,
            success=not self.errors,
            error="; ".join(self.errors) or None,
        )


def _to_plain(output: Any) -> dict[str, Any]:
    """Return the plain form of what a member gave."""
    return AgentResult.coerce(output).to_plain()


def _to_results(outputs: Mapping[str, Any]) -> dict[str, AgentResult]:
    return {name: AgentResult.coerce(one) for name, one in outputs.items()}


def _to_step(subtask: _CompletedSubtask) -> AgentStep:
    result = subtask.result
    seen = str(result.output) if result.success else f"Failed: {result.error}"
    return AgentStep("", subtask.member, {"task": subtask.subtask}, seen)


def name_members(agents: Iterable[Any]) -> dict[str, Any]:
    """Return agents by their names; of a name that several have, the further ones as ``name#2``."""
    found, names = list(agents), []
    for agent in found:
        known = (getattr(agent, attribute, None) for attribute in ("agent_id", "name", "__name__"))
        names.append(next((str(one) for one in known if one), type(agent).__name__))
    return dict(zip(number_duplicates(names), found, strict=True))


def number_duplicates(names: Iterable[str]) -> Iterator[str]:
    """Yield names; of one that comes again, the further ones as ``name#2``.

    >>> list(number_duplicates(["a", "b", "a"]))
    ['a', 'b', 'a#2']
    """
    seen: Counter[str] = Counter()
    for name in names:
        seen[name] += 1
        yield name if seen[name] == 1 else f"{name}#{seen[name]}"


def get_raw_answer(error: ModelError) -> str:
    """Return what a model wrote that was not of the form asked for; raises any other error.

    Raises:
        ModelError: The call itself failed.
    """
    text = getattr(error, "text", "")
    if not text:
        raise error
    return str(text)
