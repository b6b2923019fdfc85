"""An open agent and one of its threads, in which turns follow each other."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.errors import CapgraphError, ConfigurationError

if TYPE_CHECKING:
    from langgraph.runtime import RunControl
    from langgraph.types import StateSnapshot

    from framework.cli.agent import Agent
    from framework.cli.show import View
    from framework.state import ContextTypes
    from framework.telemetry import Event

DRAIN_SECONDS = 20.0
"""How long running steps may go on after SIGTERM before they are cancelled."""

Answers = Callable[[dict[str, Any]], dict[str, Any] | None]
"""Given the open questions; returns what to resume with, ``None`` to leave them open."""


@dataclass(slots=True)
class TurnEnd:
    """How a turn ended.

    Attributes:
        thread_id: The thread.
        status: ``completed``, ``partial``, ``failed``, ``stopped``, ``waiting``, ``cancelled``
            or ``drained``.
        outcome: What the graph wrote about it.
        answer: The final message; empty when there is none.
        files: Paths of files that the turn made.
        questions: Open questions, by the id that an answer needs.
        error: What was raised.
        seconds: How long it took.
        resume_command: Command that goes on, when the turn is not over.
        model_calls: Calls of chat models.
        input_tokens: Tokens sent to them.
        output_tokens: Tokens received from them.
    """

    thread_id: str
    status: str = "failed"
    outcome: dict[str, Any] = field(default_factory=dict)
    answer: str = ""
    files: list[str] = field(default_factory=list)
    questions: dict[str, Any] = field(default_factory=dict)
    error: CapgraphError | None = None
    seconds: float = 0.0
    resume_command: str = ""
    model_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    def as_data(self) -> dict[str, Any]:
        """Return plain data: what programs read as the last line."""
        always = ("thread_id", "status", "outcome", "answer", "files")
        data = {name: getattr(self, name) for name in always}
        data["seconds"] = round(self.seconds, 3)
        if self.error is not None:
            told = {name: getattr(self.error, name) for name in ("code", "message", "fix")}
            data["error"] = told
        sometimes = {"questions": self.questions, "resume_command": self.resume_command}
        return data | {name: value for name, value in sometimes.items() if value}


@dataclass(slots=True)
class Session:
    """Runs the turns of a thread and shows them.

    Attributes:
        runner: Runs the turns; questions are asked between them, outside of the event loop.
        agent: The agent.
        thread_id: The thread.
        resume: The words of the command that goes on with the thread, without the thread.
        view: Shows the turns.
        watchers: Also receive each event.
    """

    runner: asyncio.Runner
    agent: Agent
    thread_id: str
    resume: Sequence[str]
    view: View
    watchers: list[Callable[[Event], None]] = field(default_factory=list)

    @property
    def config(self) -> Any:
        """What names the thread, and who asks, to the graph."""
        own = self.agent.settings
        named = {"thread_id": self.thread_id, "user_id": own.user}
        named |= {"role": own.role, "tenant": own.tenant}
        return {"configurable": {key: value for key, value in named.items() if value}}

    @property
    def gateway(self) -> Any:
        """The module that reads what a person types, of the first package that has one."""
        names = self.agent.settings.infrastructure
        for root in dict.fromkeys(name.split(".")[0] for name in names):
            with contextlib.suppress(ModuleNotFoundError):
                return importlib.import_module(f"{root}.gateway")
        raise ConfigurationError(
            f"None of the infrastructure modules {names} has a gateway.",
            fix="Keep 'infrastructure' in the list, or add a module called gateway to yours.",
        )

    def state(self) -> StateSnapshot:
        """Return the thread as it stands."""
        return self.runner.run(self.agent.graph.aget_state(self.config))

    def prepare(self, text: str) -> Any:
        """Read what a person typed."""
        return self.runner.run(self.gateway.prepare(self.agent.graph, text, self.config))

    def with_data(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the input of a turn with the files of ``--data``."""
        data = dict(self.agent.data)
        return {**given, "capability_context_data": data} if data else given

    def resume_command(self) -> str:
        """Return the command that goes on with the thread."""
        program, command, *options = self.resume
        return shlex.join([program, command, "--thread", self.thread_id, *options])

    def turn(self, given: Any, question: str | None, answers: Answers | None) -> TurnEnd:
        """Run a turn, and on through its questions as long as somebody answers them.

        Args:
            given: What the graph begins with; ``None`` goes on with an unfinished turn.
            question: What the person asked, for the view.
            answers: ``None`` when there is nobody.
        """
        from langgraph.types import Command

        while True:
            end = self.runner.run(self._run(given, question))
            self.view.close()
            answer = None
            if end.status == "waiting" and end.questions and answers is not None:
                try:
                    answer = answers(end.questions)
                except EOFError:
                    answer = None
                except KeyboardInterrupt:
                    end.status = "cancelled"
            if answer is None:
                if end.status in {"waiting", "cancelled", "drained"}:
                    end.resume_command = self.resume_command()
                self.view.end(end)
                return end
            given, question = Command(resume=answer), None

    async def _run(self, given: Any, question: str | None) -> TurnEnd:
        from langgraph.errors import GraphDrained
        from langgraph.runtime import RunControl
        from langgraph.types import Command

        from framework.cli.agent import thread_values
        from framework.cli.terminal import OutputClosedError

        goes_on = given is None or isinstance(given, Command)
        self.view.begin(
            question,
            self.thread_id,
            await thread_values(self.agent, self.thread_id) if goes_on else {},
        )
        began = time.monotonic()
        end = TurnEnd(self.thread_id)
        control = RunControl()
        task = asyncio.create_task(self._stream(given, control, end))
        stopped = ""
        with _signals(task, control) as seen:
            try:
                await task
            except GraphDrained:
                stopped = "drained"
            except asyncio.CancelledError:
                if not seen:
                    raise
                stopped = "cancelled" if signal.SIGINT in seen else "drained"
            except OutputClosedError:
                raise
            except Exception as exc:
                end.error = _told(exc)
        try:
            snapshot = await self.agent.graph.aget_state(self.config)
        except Exception as exc:
            # The database is what failed: say so, and do not hide what was raised first.
            end.error = end.error or _told(exc)
        else:
            self._read(snapshot, stopped, end)
        end.seconds = time.monotonic() - began
        return end

    async def _stream(self, given: Any, control: RunControl, end: TurnEnd) -> None:
        from pydantic import ValidationError

        from framework.telemetry import Usage, parse_event

        events: Any = self.agent.graph.astream(
            given,
            self.config,
            stream_mode=["custom"],
            version="v2",
            durability="sync",
            control=control,
        )
        # Closed at once when a view fails, so that the run ends before its database does.
        async with contextlib.aclosing(events):
            async for part in events:
                try:
                    event = parse_event(part["data"])
                except ValidationError:  # a capability may write events of its own
                    continue
                if isinstance(event, Usage):
                    end.model_calls += 1
                    end.input_tokens += event.input_tokens
                    end.output_tokens += event.output_tokens
                for watch in (self.view.event, *self.watchers):
                    watch(event)

    def _read(self, snapshot: StateSnapshot, stopped: str, end: TurnEnd) -> None:
        """Take what the thread says of its turn into the end of it."""
        from framework.planning.waits import is_wait

        values: Mapping[str, Any] = snapshot.values
        asked = [item for item in snapshot.interrupts if not is_wait(item.value)]
        end.questions = {item.id: item.value for item in asked}
        end.outcome = dict(values.get("execution_outcome") or {})
        end.files = files_made(self.agent.registry.context_types, values)
        if end.error is None:
            left = (stopped if snapshot.tasks else "") or ("waiting" if snapshot.interrupts else "")
            end.status = left or end.outcome.get("status", "failed")
            end.answer = "" if snapshot.tasks else last_answer(values)
        end.outcome["status"] = end.status


@contextlib.contextmanager
def open_session(
    view: View,
    resume: Sequence[str],
    *,
    config: Path | None,
    model: str | None,
    db: str | None,
    data: Sequence[str] | None,
    thread: str | None,
    user: str | None = None,
) -> Iterator[Session]:
    """Open the agent and the thread that the options of a command name.

    Args:
        view: Shows the turns.
        resume: The words of the command that goes on with a thread.
        config: What ``--config`` says.
        model: What ``--model`` says.
        db: What ``--db`` says.
        data: What ``--data`` says.
        thread: What ``--thread`` says; a new thread without it.
        user: What ``--as`` says; the settings' user without it.
    """
    from framework.cli.agent import check_thread_id, new_thread_id, open_agent, read_settings

    thread_id = check_thread_id(thread) if thread else new_thread_id()
    words = list(resume)
    for option, value in (("--db", db), ("--config", config), ("--model", model)):
        words += [option, str(value)] if value else []
    settings = read_settings(config)
    settings.user = user or settings.user
    with asyncio.Runner() as runner, contextlib.closing(view):
        opening = open_agent(settings, model=model, db=db, data=data or ())
        agent = runner.run(opening.__aenter__())
        try:
            yield Session(runner, agent, thread_id, words, view)
        finally:
            runner.run(opening.__aexit__(None, None, None))


@contextlib.contextmanager
def _signals(task: asyncio.Task[None], control: RunControl) -> Iterator[set[signal.Signals]]:
    """Cancel on SIGINT, drain on SIGTERM; a second SIGINT ends the process at once.

    Either way the thread can be resumed: what had finished is saved.
    """
    loop = asyncio.get_running_loop()
    seen: set[signal.Signals] = set()
    timers: list[asyncio.TimerHandle] = []

    def interrupt() -> None:
        if signal.SIGINT in seen:
            # All that is finished is on disk already; only a step that cannot be cancelled waits.
            sys.stdout.flush()
            os._exit(130)
        seen.add(signal.SIGINT)
        task.cancel()

    def drain() -> None:
        seen.add(signal.SIGTERM)
        control.request_drain("SIGTERM")
        timers.append(loop.call_later(DRAIN_SECONDS, task.cancel))

    handled: list[signal.Signals] = []
    try:
        for number, action in ((signal.SIGINT, interrupt), (signal.SIGTERM, drain)):
            # Without signals in the loop (Windows, threads) Ctrl-C cancels the main task instead.
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, action)
                handled.append(number)
        yield seen
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
        for timer in timers:
            timer.cancel()


def _told(exc: Exception) -> CapgraphError:
    """Return an error that can be shown for whatever was raised."""
    from configs.logger import get_logger, mask_secrets
    from framework.base import InfrastructureError

    if isinstance(exc, CapgraphError):
        return exc
    get_logger("cli", "turn").debug("The run raised", exc_info=exc)
    error = InfrastructureError(
        mask_secrets(f"The run raised {type(exc).__name__}: {exc}"),
        fix="Run it again with --debug before the command to see where it comes from.",
    )
    error.__cause__ = exc
    return error


def last_answer(values: Mapping[str, Any]) -> str:
    """Return the text of the message that ended the last turn."""
    from langchain_core.messages import AIMessage

    messages = values.get("messages") or []
    last = messages[-1] if messages else None
    return str(last.text) if isinstance(last, AIMessage) else ""


def files_made(types: ContextTypes, values: Mapping[str, Any]) -> list[str]:
    """Return the paths that the plan's finished steps name in contexts of category ARTIFACT."""
    data = values.get("capability_context_data") or {}
    found: list[str] = []
    for record in (values.get("execution_step_results") or {}).values():
        for kind, key in (record.get("outputs") or {}).items():
            cls = types.get(kind)
            if cls is None or cls.CONTEXT_CATEGORY != "ARTIFACT":
                continue
            entry = (data.get(kind) or {}).get(key) or {}
            paths = [entry.get("path"), *(entry.get("paths") or [])]
            found += [path for path in paths if isinstance(path, str) and path]
    return list(dict.fromkeys(found))
