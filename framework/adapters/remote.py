"""Agents that work elsewhere as capabilities: over A2A, or on a LangGraph Agent Server.

Work elsewhere goes on when this process dies. So its name there is kept before anything else
happens (the task of an A2A agent, the thread of an Agent Server), and a step that begins again
attaches to it and sends nothing twice.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
from langgraph.pregel.remote import RemoteGraph
from langgraph.types import interrupt
from pydantic import BaseModel

from capgraph.adapters.external_text import (
    capability_name,
    is_http_url,
    remote_failure,
    sanitize_text,
    task_with_inputs,
    unreachable_error,
)
from capgraph.adapters.schema_capability import capability_from_schema
from capgraph.base.capability import BaseCapability, ContextType
from capgraph.base.declarations import accepted_names, check_names
from capgraph.base.errors import ConfigurationError, require_extra
from capgraph.base.spec import Effect
from capgraph.base.step_context import StepContext
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.langgraph_compat import count_consumed_answers

if TYPE_CHECKING:
    from a2a.types import AgentCard


@validate_arguments
def remote_capability(
    agent: str | AgentCard | RemoteGraph,
    name: str | None = None,
    *,
    description: str | None = None,
    provides: ContextType | None = None,
    effect: Effect = "idempotent",
    headers: Mapping[str, str] | None = None,
    origins: Collection[str] = (),
    **options: Any,
) -> type[BaseCapability]:
    """Make a capability of an agent that works elsewhere.

    It is given the step's task, with the values of its inputs behind it; an A2A agent in place of
    that the parameters ``message`` and ``data``, a graph the parameter ``input``. What it gives is the
    data of the context type: ``output``, and ``files`` of an A2A agent. What it asks is this step's
    question; that it failed or refused fails the step; what it says of its work is the step's progress.

    Args:
        agent: The URL of an A2A agent, its card (see :func:`agent_card`), or a ``RemoteGraph``.
        name: Name of the capability; that of the card, the graph or the URL's host when not given.
        description: What it does, for whoever plans; what the card says when not given.
        provides: Context type of its result; one named after the capability when not given.
        effect: What it does there. A step that begins again attaches to the work that it began,
            so ``idempotent`` holds for any.
        headers: What an A2A agent is sent with each request, such as ``Authorization``.
        origins: Origins besides its URL's own that the card of an A2A agent may name.
        **options: What :func:`~capgraph.adapters.schema_capability.declare` takes, such as ``requires``,
            ``permission`` and ``timeout_seconds``.

    Raises:
        ConfigurationError: It is none of these.
        MissingExtraError: It is an A2A agent, and ``a2a-sdk`` is not installed.

    >>> remote_capability("http://weather.example", "weather").capability_spec.labels
    ('untrusted',)
    """
    options = {"labels": ("untrusted",), "sends_externally": True, **options}
    if isinstance(agent, RemoteGraph):
        worker: Any = _RemoteGraphAgent(agent)
        own, said = agent.name or agent.assistant_id, f"Has the graph {agent.name} do a task."
    else:
        require_extra("a2a.client", "a2a")
        if not is_http_url(agent) and not hasattr(agent, "supported_interfaces"):
            raise ConfigurationError(
                f"{agent!r} is no agent that works elsewhere.",
                fix="Give the URL or the card of an A2A agent, or a RemoteGraph; for one in this"
                " process use agent_capability or graph_capability.",
            )
        from capgraph.adapters.a2a import A2AAgent

        worker = A2AAgent(agent, dict(headers or {}), origins)
        own = urlsplit(agent).hostname or agent if isinstance(agent, str) else agent.name
        said = f"Has the A2A agent {own} do a task."
        if not isinstance(agent, str):
            skills = "; ".join(f"{skill.name}: {skill.description}" for skill in agent.skills)
            said = sanitize_text(f"{agent.description} {skills}") or said
    name = name or capability_name(own)
    check_names(f"remote_capability({name!r})", options, accepted_names("remote"))
    return capability_from_schema(
        name,
        description or said,
        worker.Parameters,
        worker.call,
        provides=provides,
        effect=effect,
        **options,
    )


class _Input(BaseModel):
    """What a graph begins with; the step's task when it is left out."""

    input: dict[str, Any] | None = None


class _RemoteGraphAgent:
    """A graph on an Agent Server."""

    Parameters = _Input

    def __init__(self, graph: RemoteGraph) -> None:
        if graph.client is None:
            raise ConfigurationError(
                f"The RemoteGraph {graph.name!r} has no asynchronous client.",
                fix="Make it with url=… or client=….",
            )
        self._client, self._assistant = graph.client, graph.assistant_id
        self._config: Any = graph.config
        self._what = f"The graph {graph.name!r} on its server"

    async def call(self, values: dict[str, Any], step: StepContext) -> dict[str, Any]:
        """Have the graph do a step's task, in a thread of the step.

        Raises:
            CapabilityError: It failed, or cannot be reached.
        """
        try:
            return await self._run_task(values["input"], step)
        except httpx.TransportError as exc:
            raise unreachable_error(self._what, exc) from exc
        except httpx.HTTPStatusError as exc:
            raise remote_failure(f"{self._what} refused", f"{exc} {exc.response.text}") from exc

    async def _run_task(
        self, graph_input: dict[str, Any] | None, step: StepContext
    ) -> dict[str, Any]:
        runs, threads = self._client.runs, self._client.threads
        thread = str(uuid.uuid5(uuid.NAMESPACE_OID, step.idempotency_key))
        await threads.create(thread_id=thread, if_exists="do_nothing")
        turns: list[dict[str, Any]] = [{"input": graph_input or await self._default_input(step)}]
        turns += [{"command": {"resume": interrupt(None)}} for _ in range(count_consumed_answers())]
        while True:
            # The server knows what it was told before: each turn of the thread is one run.
            begun = await runs.list(thread, limit=len(turns))
            run: Any = begun[0] if begun else None
            for turn in turns[len(begun) :]:
                run = await runs.create(
                    thread,
                    self._assistant,
                    config=self._config,
                    stream_mode=["updates", "custom"],
                    **turn,
                )
            async for part in runs.join_stream(thread, run["run_id"]):
                self._report_progress(part, step)
            state: Any = await threads.get_state(thread)
            ended = (await runs.get(thread, run["run_id"]))["status"]
            if ended not in ("success", "interrupted"):
                why = [str(one["error"]) for one in state["tasks"] if one.get("error")]
                raise remote_failure(f"{self._what} ended as {ended}", " ".join(why))
            asked = {
                one["id"]: one["value"] for task in state["tasks"] for one in task["interrupts"]
            }
            if not asked:
                return _read_output(state["values"], self._what)
            shown = next(iter(asked.values())) if len(asked) == 1 else {"questions": asked}
            turns.append({"command": {"resume": interrupt(shown)}})

    async def _default_input(self, step: StepContext) -> dict[str, Any]:
        assistants: Any = self._client.assistants
        named = await assistants.search(graph_id=self._assistant, limit=1)  # or it is an id itself
        about = named[0]["assistant_id"] if named else self._assistant
        schemas = await assistants.get_schemas(about)
        if "messages" in ((schemas.get("input_schema") or {}).get("properties") or {}):
            return {"messages": [{"role": "user", "content": task_with_inputs(step)}]}
        return {"task": task_with_inputs(step)}

    def _report_progress(self, part: Any, step: StepContext) -> None:
        if part.event == "custom" and isinstance(part.data, Mapping) and "message" in part.data:
            step.notify(sanitize_text(str(part.data["message"])), part.data.get("progress"))
        elif part.event == "updates" and isinstance(part.data, Mapping):
            step.notify(sanitize_text(", ".join(part.data)), None)


def _read_output(values: Any, subject: str) -> dict[str, Any]:
    """Read what a graph left: ``output``, else its last message, else all of it."""
    if not isinstance(values, Mapping):
        return {"output": values}
    if values.get("success") is False:
        raise remote_failure(f"{subject} did not do its task", str(values.get("error") or ""))
    ended = values.get("execution_outcome") or {}
    said = (values.get("messages") or [{}])[-1].get("content")
    if ended.get("status", "completed") != "completed":
        raise remote_failure(f"{subject} did not do its task", str(ended.get("reason") or said))
    for output in (values.get("output"), values.get("structured_response"), said):
        if output is not None:
            return {"output": output}
    return {"output": dict(values)}
