"""The compiled graph with ``invoke`` and ``stream`` for callers without an event loop."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import aclosing
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.graph.state import CompiledStateGraph

from framework.engine.thread_lease import hold, run_alone
from framework.langgraph_compat import merged_config, saver_of
from framework.stores.leases import busy, leases_of

_END = object()


class AgentGraph(CompiledStateGraph[Any, Any, Any, Any]):
    """A compiled LangGraph graph whose nodes are coroutines, and that runs a thread once at a time.

    ``ainvoke`` and ``astream`` are LangGraph's own, held by the lease of the thread. ``invoke`` and
    ``stream`` run the same path on an event loop of their own, in a thread of their own, so that
    they also work where a loop is running already (a notebook).
    """

    async def astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Run the graph and yield what it streams; takes what LangGraph's ``astream`` takes.

        Raises:
            ThreadBusyError: Another run has the thread.
        """
        inputs = args[0] if args else kwargs.get("input")
        config = merged_config(self, args[1] if len(args) > 1 else kwargs.get("config"))
        saver = saver_of(self, config)

        def run() -> AsyncIterator[Any]:
            return super(AgentGraph, self).astream(*args, **kwargs)

        if saver is None or "thread_id" not in config.get("configurable", {}):
            stream = run()
        else:
            stream = run_alone(saver, config, inputs, run)
        async with aclosing(stream):  # type: ignore[type-var]
            async for chunk in stream:
                yield chunk

    def bulk_update_state(self, config: RunnableConfig, supersteps: Any) -> RunnableConfig:
        """Change the state of a thread by hand; told of runs of this process.

        Raises:
            ThreadBusyError: The thread is being run here.
        """
        merged = merged_config(self, config)
        saver, thread = saver_of(self, merged), merged.get("configurable", {}).get("thread_id")
        lease = leases_of(saver).held(str(thread)) if saver is not None else None
        if lease is not None:
            raise busy(lease.thread_id, lease.holder)
        return super().bulk_update_state(config, supersteps)

    async def abulk_update_state(self, config: RunnableConfig, supersteps: Any) -> RunnableConfig:
        """Change the state of a thread by hand, between its runs.

        Raises:
            ThreadBusyError: The thread is being run.
        """
        merged = merged_config(self, config)
        saver = saver_of(self, merged)
        if saver is None or "thread_id" not in merged.get("configurable", {}):
            return await super().abulk_update_state(config, supersteps)
        async with hold(saver, merged):
            return await super().abulk_update_state(config, supersteps)

    def invoke(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph and wait for the result; takes what ``ainvoke`` takes."""
        return _in_thread(lambda: self.ainvoke(*args, **kwargs))

    def stream(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """Run the graph and yield what it streams; takes what ``astream`` takes."""
        return _iterate(lambda: self.astream(*args, **kwargs))


def with_sync_calls(graph: CompiledStateGraph[Any, Any, Any, Any]) -> AgentGraph:
    """Give a compiled graph the synchronous calls and the lease."""
    # StateGraph.compile names its class itself; this is how a graph copies itself.
    return AgentGraph(**{k: v for k, v in vars(graph).items() if k != "__orig_class__"})


def _in_thread(make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    found: list[Any] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            found.append(asyncio.run(make()))
        except BaseException as exc:  # handed to the caller's thread, whatever it is
            failed.append(exc)

    thread = threading.Thread(
        target=contextvars.copy_context().run, args=(work,), name="capgraph invoke", daemon=True
    )
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


def _iterate(make: Callable[[], AsyncIterator[Any]]) -> Iterator[Any]:
    items: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue()
    started: queue.Queue[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = queue.Queue()

    async def pump() -> None:
        started.put((asyncio.get_running_loop(), asyncio.current_task()))  # type: ignore[arg-type]
        async for item in make():
            items.put((item, None))

    def work() -> None:
        try:
            asyncio.run(pump())
        except BaseException as exc:  # handed to the caller's thread, whatever it is
            items.put((_END, exc))
        else:
            items.put((_END, None))

    thread = threading.Thread(
        target=contextvars.copy_context().run, args=(work,), name="capgraph stream", daemon=True
    )
    thread.start()
    loop, task = started.get()
    try:
        while True:
            item, error = items.get()
            if error is not None:
                raise error
            if item is _END:
                return
            yield item
    finally:
        # A caller that stops reading stops the run; what is finished stays saved.
        if thread.is_alive() and not loop.is_closed():
            loop.call_soon_threadsafe(task.cancel)
        thread.join()
