"""Compiled graph with asynchronous nodes and synchronous methods."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import queue
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, TypeVar, TypeVarTuple, cast

if sys.platform == "win32":
    from asyncio import ProactorEventLoop as _Loop
else:
    from asyncio import SelectorEventLoop as _Loop

from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphInterrupt
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import StateSnapshot
from langgraph.typing import ContextT

from capgraph.engine.step_tasks import merge_interrupts
from capgraph.stores.async_checks import require_async_saver, require_async_store

Ts = TypeVarTuple("Ts")

_MAX_BUFFERED_PARTS = 64
"""Maximum number of unread parts of a stream."""

_Make = Callable[[], AsyncIterator[Any]]


class SyncGraph(CompiledStateGraph[Any, ContextT, Any, Any], Generic[ContextT]):
    """Compiled graph whose synchronous methods run their asynchronous counterparts.

    The synchronous methods use an event loop in a separate thread, so they also work where an
    event loop is already running, such as in a notebook.
    """

    if not TYPE_CHECKING:  # the signatures are those of LangGraph

        def invoke(self, *args: Any, **kwargs: Any) -> Any:
            """Run the graph synchronously and return its result.

            The arguments are those of ``ainvoke``.
            """
            return run_in_new_loop(lambda: self.ainvoke(*args, **kwargs))

        def stream(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
            """Run the graph synchronously and yield its stream.

            The arguments are those of ``astream``.
            """
            return _iterate_in_thread(lambda: self.astream(*args, **kwargs))

        async def astream(self, *args: Any, **kwargs: Any) -> AsyncGenerator[Any]:
            """Run the graph and yield its stream. The arguments are those of LangGraph's ``astream``.

            Inside another graph, LangGraph would collect an interrupt from the node and again from each
            task of the node. This method therefore raises each interrupt only once.
            """
            try:
                async with contextlib.aclosing(super().astream(*args, **kwargs)) as parts:
                    async for part in parts:
                        yield part
            except GraphInterrupt as signal:
                raise merge_interrupts([signal]) from None

    def get_state(self, config: RunnableConfig, **options: Any) -> StateSnapshot:
        """Return the current state of a thread.

        The arguments are those of ``aget_state``.
        """
        snapshot: StateSnapshot = run_in_new_loop(lambda: self.aget_state(config, **options))
        return snapshot

    def get_state_history(self, config: RunnableConfig, **options: Any) -> Iterator[StateSnapshot]:
        """Yield the saved states of a thread, newest first.

        The arguments are those of ``aget_state_history``.
        """
        states = self.aget_state_history(config, **options)
        return _iterate_in_thread(lambda: states)

    def bulk_update_state(self, config: RunnableConfig, supersteps: Any) -> RunnableConfig:
        """Apply several updates to a thread's state.

        The arguments are those of ``abulk_update_state``.
        """
        updated: RunnableConfig = run_in_new_loop(
            lambda: self.abulk_update_state(config, supersteps)
        )
        return updated


GraphT = TypeVar("GraphT", bound=SyncGraph[Any])


def compile_graph(builder: StateGraph[Any, Any, Any, Any], **options: Any) -> SyncGraph[Any]:
    """Compile a graph whose nodes are asynchronous.

    The options are those of LangGraph's ``compile``.

    Raises:
        ConfigurationError: The saver or the store is synchronous.
    """
    require_async_saver(options.get("checkpointer"))
    require_async_store(options.get("store"))
    return copy_graph_as(SyncGraph, builder.compile(**options))


def single_node_graph(
    name: str, run: Any, state: Any, *, input_schema: Any = None, output_schema: Any
) -> StateGraph[Any, Any, Any, Any]:
    """Create a state graph that consists of a single node.

    Args:
        name: Name of the node.
        run: Function of the node.
        state: State schema.
        input_schema: Input schema. Defaults to the state schema.
        output_schema: Output schema.
    """
    builder = StateGraph(state, input_schema=input_schema, output_schema=output_schema)
    builder.add_node(name, run, input_schema=input_schema)
    return builder.add_edge(START, name).add_edge(name, END)


def copy_graph_as(
    graph_class: type[GraphT], graph: CompiledStateGraph[Any, Any, Any, Any], **arguments: Any
) -> GraphT:
    """Copy a compiled graph, creating an instance of the given graph class."""
    # StateGraph.compile fixes the class. LangGraph copies graphs the same way.
    attributes = {k: v for k, v in vars(graph).items() if k != "__orig_class__"}
    return graph_class(**arguments, **attributes)


def run_in_new_loop(make_coroutine: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a coroutine on a new event loop in a separate thread and return its result."""

    async def one() -> AsyncIterator[Any]:
        yield await make_coroutine()

    [result] = _iterate_in_thread(one)
    return result


def _iterate_in_thread(make: _Make) -> Iterator[Any]:
    run = _ThreadedRun(make)
    try:
        yield from run.parts()
    finally:
        # Also runs if the caller stops reading or presses Ctrl-C.
        run.stop()


class _QuietLoop(_Loop):
    """Event loop that ignores calls from other threads after the loop is closed.

    A SQLite thread may report a query result after the event loop is closed. An error would end
    that thread and make its database connection unusable for later queries.
    """

    def call_soon_threadsafe(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """Schedule a callback from another thread. Calls after the loop is closed are ignored."""
        try:
            return super().call_soon_threadsafe(callback, *args, context=context)
        except RuntimeError:
            if not self.is_closed():
                raise
            return asyncio.Handle(callback, args, self, context)


class _ThreadedRun:
    """Asynchronous iterator that runs on its own event loop in a separate thread."""

    def __init__(self, make: _Make) -> None:
        self._make = make
        self._items: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = Future()
        self._ended: Future[None] = Future()
        self._room = asyncio.Semaphore(_MAX_BUFFERED_PARTS)
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._run_loop,), name="capgraph run", daemon=True
        )
        self._thread.start()

    def parts(self) -> Iterator[Any]:
        """Yield the items of the threaded run, then raise its exception if it failed."""
        loop, _ = self._started.result()
        while (part := self._items.get()) is not self._ended:
            yield part
            loop.call_soon_threadsafe(self._room.release)
        self._ended.result()

    def stop(self) -> None:
        """Cancel the threaded run if it is still active, and wait for the thread to finish."""
        loop, task = self._started.result()
        loop.call_soon_threadsafe(task.cancel)
        self._thread.join()

    def _run_loop(self) -> None:
        try:
            with asyncio.Runner(loop_factory=_QuietLoop) as runner:
                runner.run(self._pump_parts())
        except BaseException as exc:  # re-raised in the caller's thread
            self._ended.set_exception(exc)
        else:
            self._ended.set_result(None)
        self._items.put(self._ended)

    async def _pump_parts(self) -> None:
        task: Any = asyncio.current_task()
        self._started.set_result((asyncio.get_running_loop(), task))
        async with contextlib.aclosing(cast("Any", self._make())) as parts:
            async for part in parts:
                await self._room.acquire()
                self._items.put(part)
