"""Which builders an application uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from capgraph.base import ConfigurationError
from capgraph.base.errors import RegistryError
from capgraph.configs.run_context import override_run_context, run_context
from capgraph.prompts.builder import PromptBuilder
from capgraph.registry.discovery import import_object, load_entry_points

ENTRY_POINT_GROUP = "capgraph.prompts"


class PromptProvider:
    """Hands out prompt builders; an application replaces single ones.

    Args:
        **builders: Name to builder, for those that replace a default or come on top. Each is
            returned by ``get_<name>_prompt_builder()``; the framework's are ``orchestrator``,
            ``task_extraction``, ``classification``, ``response_generation``,
            ``clarification`` and ``error_analysis``. Defining that method in a subclass does
            the same.

    >>> from capgraph.prompts import ResponseGenerationPrompt
    >>> class Terse(ResponseGenerationPrompt):
    ...     role = "You answer in five words."
    >>> prompts = PromptProvider(response_generation=Terse())
    >>> prompts.get_response_generation_prompt_builder().get_role()
    'You answer in five words.'
    """

    def __init__(self, **builders: PromptBuilder) -> None:
        for name, builder in builders.items():
            if not isinstance(builder, PromptBuilder):
                raise ConfigurationError(
                    f"The prompt builder {name!r} is {type(builder).__name__}.",
                    fix="Give an instance of a PromptBuilder subclass.",
                )
        self._builders = dict(builders)

    def __getattr__(self, attribute: str) -> Callable[[], PromptBuilder]:
        """Return ``get_<name>_prompt_builder``; those of the framework come by configuration."""
        if attribute in dir(type(self)):
            # It is there and failed in its own way: let it say so.
            return cast("Callable[[], PromptBuilder]", object.__getattribute__(self, attribute))
        from capgraph.configs.settings import (
            load_packaged_defaults,
        )  # reads a file; nothing of it at import

        name = attribute.removeprefix("get_").removesuffix("_prompt_builder")
        builders: dict[str, PromptBuilder] = self.__dict__.get("_builders", {})
        brought: dict[str, str] = load_packaged_defaults()["prompt_builders"]
        if attribute == f"get_{name}_prompt_builder":
            if name not in builders and name in brought:
                builders[name] = import_object(brought[name])()
            if name in builders:
                return lambda: builders[name]
        raise AttributeError(
            f"{type(self).__name__} has no {attribute!r}. Fix: use a builder it has"
            f" ({', '.join(sorted({*builders, *brought}))}), or pass one to it."
        )


@contextmanager
def use_prompts(provider: PromptProvider) -> Iterator[PromptProvider]:
    """Make a provider the default of ``get_framework_prompts`` inside a ``with`` block.

    >>> with use_prompts(PromptProvider()) as mine:
    ...     get_framework_prompts() is mine
    True
    """
    with override_run_context(prompts=provider):
        yield provider


def get_framework_prompts(application: str | None = None) -> PromptProvider:
    """Return the prompts of an application.

    Args:
        application: Name of an entry point in the group ``capgraph.prompts``, or
            ``"package.module:provider"``. Without it: the provider of :func:`use_prompts`, else
            the one that is installed as an entry point, else the built-in prompts.

    Raises:
        ConfigurationError: The application is unknown, or several are installed and none is
            named. It is a ``ValueError``.

    >>> builder = get_framework_prompts().get_orchestrator_prompt_builder()
    >>> builder.get_role().startswith("You plan")
    True
    """
    try:
        if application is not None and ":" in application:
            return _as_provider(import_object(application), application)
        provider: PromptProvider | None = run_context().prompts
        if application is None and provider is not None:
            return provider
        installed = dict(load_entry_points(ENTRY_POINT_GROUP))
    except RegistryError as exc:
        raise ConfigurationError(f"No prompts: {exc.message}", fix=exc.fix) from exc
    if application is None:
        if not installed:
            return PromptProvider()
        if len(installed) > 1:
            raise ConfigurationError(
                f"Several applications bring prompts: {', '.join(installed)}.",
                fix="Name one: get_framework_prompts('name').",
            )
        application = next(iter(installed))
    if application not in installed:
        raise ConfigurationError(
            f"No application called {application!r} brings prompts;"
            f" installed: {', '.join(installed) or 'none'}.",
            fix="Use one of them, or 'package.module:provider'.",
        )
    return _as_provider(installed[application], application)


def _as_provider(value: Any, origin: str) -> PromptProvider:
    made = value() if callable(value) and not isinstance(value, PromptProvider) else value
    if isinstance(made, PromptProvider):
        return made
    raise ConfigurationError(
        f"{origin!r} is {type(made).__name__}, not a PromptProvider.",
        fix="Point it at a PromptProvider, a subclass, or a function that returns one.",
    )
