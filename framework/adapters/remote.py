"""Capabilities backed by remote agents, over A2A or on a LangGraph Agent Server.

Remote work continues when this process ends, so its ID (the task of an A2A agent, or the thread of
an Agent Server) is stored first. A restarted step follows the existing work instead of sending the
task again.
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

from capgraph.adapters.credentials import Credentials
from capgraph.adapters.external_text import (
    capability_name,
    create_remote_failure,
    is_http_url,
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
    credentials: Credentials | None = None,
    origins: Collection[str] = (),
    **options: Any,
) -> type[BaseCapability]:
    """Create a capability that delegates its steps to a remote agent.

    The agent receives the step's task, followed by the values of the step's inputs. The
    parameters ``message`` and ``data`` (A2A) or ``input`` (graph) replace the task. The result
    is stored under ``output``, and files from an A2A agent under ``files``. If the agent asks a
    question, the step is interrupted. If the agent fails or rejects the task, the step fails.
    Status messages from the agent are reported as progress of the step.

    Args:
        agent: URL of an A2A agent, its card (see :func:`agent_card`), or a ``RemoteGraph``.
        name: Name of the capability. Defaults to the name of the card or graph, or the URL's
            host.
        description: Description for planners. Defaults to the description in the card.
        provides: Context type of the result. Defaults to a type named after the capability.
        effect: Effect of the remote work. ``idempotent`` is safe, because a restarted step
            follows the remote work that it already started.
        headers: HTTP headers for each request to an A2A agent, such as ``Authorization``.
        credentials: Provider of access tokens for the users on whose behalf an A2A agent acts.
        origins: Origins that URLs in an A2A agent's card may have in addition to the agent's
            own.
        **options: Keywords of
            :func:`~capgraph.adapters.schema_capability.capability_from_schema`, such as
            ``requires``, ``permission``, and ``timeout_seconds``.

    Raises:
        ConfigurationError: The argument is not a remote agent.
        MissingExtraError: The agent is an A2A agent, but ``a2a-sdk`` is not installed.

    >>> remote_capability("http://weather.example", "weather").capability_spec.labels
    ('untrusted',)
    """
    options = {"labels": ("untrusted",), "sends_externally": True, **options}
    if isinstance(agent, RemoteGraph):
        worker: Any = _RemoteGraphAgent(agent)
        default_name, default_text = (
            agent.name or agent.assistant_id,
            f"Has the graph {agent.name} do a task.",
        )
    else:
        require_extra("a2a.client", "a2a")
        if not is_http_url(agent) and not hasattr(agent, "supported_interfaces"):
            raise ConfigurationError(
                f"{agent!r} is not a remote agent.",
                fix="Pass the URL or the card of an A2A agent, or a RemoteGraph. For an agent in this"
                " process, use agent_capability or graph_capability.",
            )
        from capgraph.adapters.a2a import A2AAgent

        worker = A2AAgent(agent, dict(headers or {}), origins, credentials)
        default_name = urlsplit(agent).hostname or agent if isinstance(agent, str) else agent.name
        default_text = f"Has the A2A agent {default_name} do a task."
        if not isinstance(agent, str):
            skills = "; ".join(f"{skill.name}: {skill.description}" for skill in agent.skills)
            default_text = sanitize_text(f"{agent.description} {skills}") or default_text
    name = name or capability_name(default_name)
    check_names(f"remote_capability({name!r})", options, accepted_names("remote"))
    return capability_from_schema(
        name,
        description or default_text,
        worker.Parameters,
        worker.call,
        provides=provides,
        credentials=credentials,
        effect=effect,
        **options,
    )


class _Input(BaseModel):
    """Parameters of a step on a remote graph. By default, the graph receives the step's task."""

    input: dict[str, Any] | None = None


class _RemoteGraphAgent:
    """Client for a remote graph on a LangGraph Agent Server."""

    Parameters = _Input

    def __init__(self, graph: RemoteGraph) -> None:
        if graph.client is None:
            raise ConfigurationError(
                f"The RemoteGraph {graph.name!r} must have an asynchronous client.",
                fix="Create it with url=… or client=….",
            )
        self._client, self._assistant = graph.client, graph.assistant_id
        self._config: Any = graph.config
        self._subject = f"The graph {graph.name!r} on its Agent Server"

    async def call(self, values: dict[str, Any], step: StepContext) -> dict[str, Any]:
        """Run the remote graph on a step's task, in a thread of the step.

        Raises:
            CapabilityError: The graph failed or cannot be reached.
        """
        try:
            return await self._run_task(values["input"], step)
        except httpx.TransportError as exc:
            raise unreachable_error(self._subject, exc) from exc
        except httpx.HTTPStatusError as exc:
            raise create_remote_failure(
                f"{self._subject} rejected the request", f"{exc} {exc.response.text}"
            ) from exc

    async def _run_task(
        self, graph_input: dict[str, Any] | None, step: StepContext
    ) -> dict[str, Any]:
        runs, threads = self._client.runs, self._client.threads
        thread = str(uuid.uuid5(uuid.NAMESPACE_OID, step.idempotency_key))
        await threads.create(thread_id=thread, if_exists="do_nothing")
        turns: list[dict[str, Any]] = [
            {"input": graph_input or await self._build_default_input(step)}
        ]
        turns += [{"command": {"resume": interrupt(None)}} for _ in range(count_consumed_answers())]
        while True:
            # Each turn is one run of the thread, so skip the turns that were already sent.
            runs_so_far = await runs.list(thread, limit=len(turns))
            run: Any = runs_so_far[0] if runs_so_far else None
            for turn in turns[len(runs_so_far) :]:
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
            status = (await runs.get(thread, run["run_id"]))["status"]
            if status not in ("success", "interrupted"):
                errors = [str(item["error"]) for item in state["tasks"] if item.get("error")]
                raise create_remote_failure(
                    f"{self._subject} ended with status {status}", " ".join(errors)
                )
            questions = {
                item["id"]: item["value"] for task in state["tasks"] for item in task["interrupts"]
            }
            if not questions:
                return _read_output(state["values"], self._subject)
            payload = (
                next(iter(questions.values())) if len(questions) == 1 else {"questions": questions}
            )
            turns.append({"command": {"resume": interrupt(payload)}})

    async def _build_default_input(self, step: StepContext) -> dict[str, Any]:
        assistants: Any = self._client.assistants
        matches = await assistants.search(
            graph_id=self._assistant, limit=1
        )  # or the value is an ID
        assistant_id = matches[0]["assistant_id"] if matches else self._assistant
        schemas = await assistants.get_schemas(assistant_id)
        if "messages" in ((schemas.get("input_schema") or {}).get("properties") or {}):
            return {"messages": [{"role": "user", "content": task_with_inputs(step)}]}
        return {"task": task_with_inputs(step)}

    def _report_progress(self, part: Any, step: StepContext) -> None:
        if part.event == "custom" and isinstance(part.data, Mapping) and "message" in part.data:
            step.notify(sanitize_text(str(part.data["message"])), part.data.get("progress"))
        elif part.event == "updates" and isinstance(part.data, Mapping):
            step.notify(sanitize_text(", ".join(part.data)), None)


def _read_output(values: Any, subject: str) -> dict[str, Any]:
    """Extract the output from the final state of a remote graph.

    The output is the value of the key ``output``, or else the structured response, the last
    message, or the whole state.
    """
    if not isinstance(values, Mapping):
        return {"output": values}
    if values.get("success") is False:
        raise create_remote_failure(f"{subject} failed", str(values.get("error") or ""))
    outcome = values.get("execution_outcome") or {}
    last_text = (values.get("messages") or [{}])[-1].get("content")
    if outcome.get("status", "completed") != "completed":
        raise create_remote_failure(f"{subject} failed", str(outcome.get("reason") or last_text))
    for output in (values.get("output"), values.get("structured_response"), last_text):
        if output is not None:
            return {"output": output}
    return {"output": dict(values)}
