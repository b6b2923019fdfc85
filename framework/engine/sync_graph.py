"""Compiled graph with asynchronous nodes and synchronous methods."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import os
import queue
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future, wait
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

    The synchronous methods use an event loop in a separate thread, which all graphs of the process
    share, so they also work where an event loop is already running, such as in a notebook.
    """

    if not TYPE_CHECKING:  # the signatures are those of LangGraph

        def invoke(self, *args: Any, **kwargs: Any) -> Any:
            """Run the graph synchronously and return its result.

            The arguments are those of ``ainvoke``.
            """
            return run_in_background_loop(lambda: self.ainvoke(*args, **kwargs))

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
        snapshot: StateSnapshot = run_in_background_loop(lambda: self.aget_state(config, **options))
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
        updated: RunnableConfig = run_in_background_loop(
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


def run_in_background_loop(make_coroutine: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a coroutine on the event loop of synchronous calls and return its result."""

    async def one() -> AsyncIterator[Any]:
        yield await make_coroutine()

    [result] = _iterate_in_thread(one)
    return result


def _iterate_in_thread(make: _Make) -> Iterator[Any]:
    run = _BackgroundRun(make)
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


class _LoopThread:
    """Event loop in a separate thread."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._loop: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._thread = threading.Thread(target=self._run, name="capgraph loop", daemon=True)
        self._thread.start()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The running event loop."""
        return self._loop.result()[0]

    @property
    def is_usable(self) -> bool:
        """True if the loop accepts calls. A forked process does not have the thread."""
        return self._process == os.getpid() and self._thread.is_alive()

    @property
    def is_current(self) -> bool:
        """True if the calling code runs in this thread."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """Cancel all tasks, close the loop, and wait for the end of the thread."""
        if self.is_usable:
            loop, stopped = self._loop.result()
            loop.call_soon_threadsafe(stopped.set)
            if not self.is_current:
                self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=_QuietLoop) as runner:
            runner.run(self._wait_for_close())

    async def _wait_for_close(self) -> None:
        stopped = asyncio.Event()
        self._loop.set_result((asyncio.get_running_loop(), stopped))
        await stopped.wait()


_shared_thread: list[_LoopThread] = []  # at most one
_shared_thread_lock = threading.Lock()


def _find_shared_thread() -> _LoopThread:
    """Return the thread of all synchronous calls in this process, and start it at the first call.

    The calls share an event loop because clients of models and databases keep connections, and a
    connection belongs to the event loop that opened it.
    """
    with _shared_thread_lock:
        if not (_shared_thread and _shared_thread[0].is_usable):
            _shared_thread[:] = [_LoopThread()]
            atexit.register(_shared_thread[0].close)
        return _shared_thread[0]


class _BackgroundRun:
    """Asynchronous iterator that runs on the event loop of synchronous calls."""

    def __init__(self, make: _Make) -> None:
        self._make = make
        self._items: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._started: Future[asyncio.Task[Any]] = Future()
        self._ended: Future[None] = Future()
        self._room = asyncio.Semaphore(_MAX_BUFFERED_PARTS)
        shared = _find_shared_thread()
        # A coroutine on the shared loop that calls a synchronous method blocks that loop.
        self._own_thread = _LoopThread() if shared.is_current else None
        self._thread = self._own_thread or shared
        self._thread.loop.call_soon_threadsafe(self._start, contextvars.copy_context())

    def parts(self) -> Iterator[Any]:
        """Yield the items of the run, then raise its exception if it failed."""
        while (part := self._items.get()) is not self._ended:
            yield part
            self._thread.loop.call_soon_threadsafe(self._room.release)
        self._ended.result()

    def stop(self) -> None:
        """Cancel the run if it is still active, and wait for its end."""
        task = self._started.result()
        self._thread.loop.call_soon_threadsafe(task.cancel)
        # The garbage collector may call this method in any thread.
        if not self._thread.is_current:
            wait([self._ended])
        if self._own_thread is not None:
            self._own_thread.close()

    def _start(self, context: contextvars.Context) -> None:
        task = self._thread.loop.create_task(self._pump_parts(), context=context)
        task.add_done_callback(self._end)
        self._started.set_result(task)

    async def _pump_parts(self) -> None:
        async with contextlib.aclosing(cast("Any", self._make())) as parts:
            async for part in parts:
                await self._room.acquire()
                self._items.put(part)

    def _end(self, task: asyncio.Task[None]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None:  # re-raised in the caller's thread
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)
        self._items.put(self._ended)
