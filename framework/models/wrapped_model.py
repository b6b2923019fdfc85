"""A chat model of which every call passes what stands around its role, whoever makes the call."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, ClassVar, cast

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk

from capgraph.base import ConfigurationError
from capgraph.models.calls import call_model
from capgraph.models.roles import RoleModel


def is_wrapped(model: Any) -> bool:
    """Tell whether :func:`surrounded` made a model, so that nothing need stand around it twice."""
    return getattr(type(model), "is_surrounded", False)


def wrap_model(role: RoleModel) -> BaseChatModel:
    """Return the model of a role for code that calls it by itself: a capability, an agent.

    It is of the model's own class, so that binding tools and structured answers work as they do
    there. A streamed answer comes in one piece: it is whole before what stands around lets it pass.

    Args:
        role: The model, with what stands around its calls.

    >>> import asyncio
    >>> from capgraph.behaviors import RetryBehavior
    >>> from capgraph.testing import ScriptedModel
    >>> role = RoleModel("capability", ScriptedModel(responses=["Hello."]), behaviors=[RetryBehavior()])
    >>> asyncio.run(wrap_model(role).ainvoke("Hi")).content
    'Hello.'
    """
    model = role.model
    if not (role.behaviors or role.fallbacks) or not isinstance(model, BaseChatModel):
        return model

    async def called(given: Any, config: Any, options: dict[str, Any]) -> AIMessage:
        async def send(attempt: Any) -> Any:
            return await attempt.inputs["model"].ainvoke(
                attempt.inputs["messages"], config, **options
            )

        def read(answer: Any) -> AIMessage:
            if not isinstance(answer, AIMessage):  # put in its place by what stands around
                return AIMessage(answer if isinstance(answer, str) else str(answer))
            return answer

        # What hooks put in its place comes from outside of what read it.
        return read(await call_model(role, model._convert_input(given).to_messages(), send, read))

    class Surrounded(type(model)):  # type: ignore[misc]  # the class is known when it runs
        is_surrounded: ClassVar[bool] = True

        async def ainvoke(
            self, asked: Any, config: Any = None, *, stop: Any = None, **options: Any
        ) -> AIMessage:
            return await called(asked, config, {"stop": stop, **options} if stop else options)

        async def astream(
            self, asked: Any, config: Any = None, **options: Any
        ) -> AsyncIterator[AIMessageChunk]:
            answer = await self.ainvoke(asked, config, **options)
            yield AIMessageChunk(**answer.model_dump(exclude={"type"}))

        def invoke(self, asked: Any, config: Any = None, **options: Any) -> AIMessage:
            raise ConfigurationError(
                f"Behaviours stand around the calls of the role {role.role!r}, and {role.name!r} was"
                " called synchronously.",
                fix="Use 'await model.ainvoke(…)'.",
            )

        def stream(self, asked: Any, config: Any = None, **options: Any) -> Any:
            return self.invoke(asked, config)

    Surrounded.__name__ = type(model).__name__
    made = Surrounded.model_construct()
    for part in ("__dict__", "__pydantic_fields_set__", "__pydantic_private__"):
        object.__setattr__(made, part, getattr(model, part))
    return cast("BaseChatModel", made)
