"""Chat model whose direct calls run through the middleware of its role."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, ClassVar, cast

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk

from capgraph.base import ConfigurationError
from capgraph.models.calls import call_model
from capgraph.models.roles import RoleModel


def is_wrapped(model: Any) -> bool:
    """Return True if :func:`wrap_model` has already added a role's middleware to a model."""
    return getattr(type(model), "is_wrapped", False)


def wrap_model(role: RoleModel) -> BaseChatModel:
    """Wrap a role's chat model so that the role's middleware also runs on direct calls.

    The class of the wrapper inherits from the model's class, so ``bind_tools`` and
    ``with_structured_output`` work as before. A streamed answer arrives in one piece, because
    middleware receives the whole answer.

    Args:
        role: Role whose model, middleware, and fallback models are used.

    >>> import asyncio
    >>> from capgraph.behaviors import RetryBehavior
    >>> from capgraph.testing import ScriptedModel
    >>> model = ScriptedModel(responses=["Hello."])
    >>> role = RoleModel("capability", model, behaviors=[RetryBehavior()])
    >>> asyncio.run(wrap_model(role).ainvoke("Hi")).content
    'Hello.'
    """
    model = role.model
    if not (role.behaviors or role.fallbacks) or not isinstance(model, BaseChatModel):
        return model

    async def call(messages: Any, config: Any, options: dict[str, Any]) -> AIMessage:
        async def send(attempt: Any) -> Any:
            return await attempt.inputs["model"].ainvoke(
                attempt.inputs["messages"], config, **options
            )

        def parse(answer: Any) -> AIMessage:
            if not isinstance(answer, AIMessage):  # replaced by middleware
                return AIMessage(answer if isinstance(answer, str) else str(answer))
            return answer

        # Hooks run outside of parsing and may replace the answer too.
        return parse(
            await call_model(role, model._convert_input(messages).to_messages(), send, parse)
        )

    class WrappedModel(type(model)):  # type: ignore[misc]  # the class is known when it runs
        is_wrapped: ClassVar[bool] = True

        async def ainvoke(
            self, messages: Any, config: Any = None, *, stop: Any = None, **options: Any
        ) -> AIMessage:
            return await call(messages, config, {"stop": stop, **options} if stop else options)

        async def astream(
            self, messages: Any, config: Any = None, **options: Any
        ) -> AsyncIterator[AIMessageChunk]:
            answer = await self.ainvoke(messages, config, **options)
            yield AIMessageChunk(**answer.model_dump(exclude={"type"}))

        def invoke(self, messages: Any, config: Any = None, **options: Any) -> AIMessage:
            raise ConfigurationError(
                f"The model {role.name!r} ({role.role}) has asynchronous middleware, but it was"
                " called synchronously.",
                fix="Use 'await model.ainvoke(…)'.",
            )

        def stream(self, messages: Any, config: Any = None, **options: Any) -> Any:
            return self.invoke(messages, config)

    WrappedModel.__name__ = type(model).__name__
    wrapped = WrappedModel.model_construct()
    for part in ("__dict__", "__pydantic_fields_set__", "__pydantic_private__"):
        object.__setattr__(wrapped, part, getattr(model, part))
    return cast("BaseChatModel", wrapped)
