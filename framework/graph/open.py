"""``open_graph``, which builds a graph together with its database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from langgraph.typing import ContextT

from capgraph.engine.bind import as_settings
from capgraph.engine.services import OperatorOptions
from capgraph.engine.strategies import resolve_models
from capgraph.graph.agent_graph import AgentGraph, AnswerT
from capgraph.graph.build import build_graph
from capgraph.helpers.argument_validation import check_options
from capgraph.registry import Registry

if TYPE_CHECKING:
    from capgraph.configs.settings import Settings


_OPTIONS = (
    *("registry", "url", "model", "settings", "context_schema", "answer_type"),
    *OperatorOptions.__annotations__,
)


@asynccontextmanager
async def open_graph(
    registry: Registry | Iterable[Any] | None = None,
    url: str | None = None,
    *,
    settings: Settings | None = None,
    context_schema: type[ContextT] | None = None,
    answer_type: type[AnswerT] | None = None,
    **options: Any,
) -> AsyncIterator[AgentGraph[ContextT, AnswerT]]:
    """Open a database and build an agent graph that stores its data in the database.

    The database stores threads, standing rules, and memories. Unlike ``build_graph``, this
    context manager opens the saver and the store, and closes both at the end of the ``async
    with`` block.

    Args:
        registry: Capabilities, or a registry. By default, the settings declare the capabilities.
            Their MCP connections are closed at the end of the block.
        url: Database URL, such as ``sqlite:///file.db`` or ``postgresql://…``. Defaults to the
            setting ``persistence.url``. Without a URL, nothing is stored.
        settings: Settings of the agent. Defaults to ``Settings()``.
        context_schema: See ``build_graph``.
        answer_type: See ``build_graph``.
        **options: Further arguments of ``build_graph``.

    Raises:
        UnknownOptionError: A keyword argument is unknown.
        ConfigurationError: The URL or the encryption key is invalid.
        MissingExtraError: The extra of the database is not installed.
        PersistenceError: The database is unavailable.

    >>> import asyncio
    >>> async def main():
    ...     async with open_graph(Registry(), "sqlite://:memory:") as graph:
    ...         out = await graph.ainvoke(
    ...             {"messages": [("user", "Sing")]}, {"configurable": {"thread_id": "1"}}
    ...         )
    ...         return out["messages"][-1].content.splitlines()[0]
    >>> asyncio.run(main())
    'Nothing here can do that: Sing'
    """
    from capgraph.adapters import open_registry
    from capgraph.stores import open_saver, open_store

    check_options("open_graph", options, _OPTIONS)
    settings = as_settings(settings)
    chosen = url if url is not None else settings.persistence.url
    key = settings.persistence.encryption_key
    secret = key.get_secret_value() if key is not None else None
    async with AsyncExitStack() as stack:
        known = registry
        if known is None:
            known = await stack.enter_async_context(open_registry(settings))
        saver = await stack.enter_async_context(open_saver(chosen, encryption_key=secret))
        store = await stack.enter_async_context(open_store(chosen))
        if (models := resolve_models(options.get("model"), settings)) is not None:
            from capgraph.models.probing import probe_models

            await probe_models(models)
        # Creating a chat model reads certificates, which must not block the event loop.
        yield await asyncio.to_thread(
            lambda: build_graph(
                known,
                checkpointer=saver,
                store=store,
                settings=settings,
                context_schema=context_schema,
                answer_type=answer_type,
                **options,
            )
        )
