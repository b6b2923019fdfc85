"""The provider of an application's prompt builders."""

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
    """Provider of an application's prompt builders, each of which can be replaced.

    Args:
        **builders: Prompt builders by name, which replace or extend the defaults. Each builder
            is returned by ``get_<name>_prompt_builder()``. The built-in names are
            ``orchestrator``, ``task_extraction``, ``classification``, ``response_generation``,
            ``clarification``, and ``error_analysis``. A subclass can define the method instead.

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
                    f"The prompt builder {name!r} is a {type(builder).__name__}, not a"
                    " PromptBuilder.",
                    fix="Pass an instance of a PromptBuilder subclass.",
                )
        self._builders = dict(builders)

    def __getattr__(self, attribute: str) -> Callable[[], PromptBuilder]:
        """Return the getter for a prompt builder, such as ``get_orchestrator_prompt_builder``.

        The names of the built-in builders come from the default settings.
        """
        if attribute in dir(type(self)):
            # The attribute exists but raised AttributeError: raise the original error.
            return cast("Callable[[], PromptBuilder]", object.__getattribute__(self, attribute))
        from capgraph.configs.settings import load_packaged_defaults  # not at import: reads a file

        name = attribute.removeprefix("get_").removesuffix("_prompt_builder")
        builders: dict[str, PromptBuilder] = self.__dict__.get("_builders", {})
        defaults: dict[str, str] = load_packaged_defaults()["prompt_builders"]
        if attribute == f"get_{name}_prompt_builder":
            if name not in builders and name in defaults:
                builders[name] = import_object(defaults[name])()
            if name in builders:
                return lambda: builders[name]
        raise AttributeError(
            f"{type(self).__name__} has no attribute {attribute!r}. Fix: use one of the builders"
            f" {', '.join(sorted({*builders, *defaults}))}, or pass a builder with that name."
        )


@contextmanager
def use_prompts(provider: PromptProvider) -> Iterator[PromptProvider]:
    """Set the default prompt provider for the duration of a ``with`` block.

    Inside the block, ``get_framework_prompts`` returns this provider.

    >>> with use_prompts(PromptProvider()) as mine:
    ...     get_framework_prompts() is mine
    True
    """
    with override_run_context(prompts=provider):
        yield provider


def get_framework_prompts(application: str | None = None) -> PromptProvider:
    """Return the prompt provider of an application.

    Args:
        application: Name of an entry point in the group ``capgraph.prompts``, or an import
            reference ``"package.module:provider"``. Defaults to the provider set by
            :func:`use_prompts`, then to the only installed entry point, then to the built-in
            prompts.

    Raises:
        ConfigurationError: The application is unknown, or ``application`` is omitted although
            several installed applications provide prompts.

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
        raise ConfigurationError(f"Prompts cannot be loaded: {exc.message}", fix=exc.fix) from exc
    if application is None:
        if not installed:
            return PromptProvider()
        if len(installed) > 1:
            raise ConfigurationError(
                f"Several installed applications provide prompts: {', '.join(installed)}.",
                fix="Choose one with get_framework_prompts('name').",
            )
        application = next(iter(installed))
    if application not in installed:
        raise ConfigurationError(
            f"No installed application named {application!r} provides prompts; installed: {', '.join(installed) or 'none'}.",
            fix="Use the name of an installed application, or 'package.module:provider'.",
        )
    return _as_provider(installed[application], application)


def _as_provider(value: Any, origin: str) -> PromptProvider:
    provider = value() if callable(value) and not isinstance(value, PromptProvider) else value
    if isinstance(provider, PromptProvider):
        return provider
    raise ConfigurationError(
        f"{origin!r} is a {type(provider).__name__}, not a PromptProvider.",
        fix="Reference a PromptProvider, a subclass, or a function that returns one.",
    )
