"""Public testing tools: fault injection, single capabilities, and the pytest plugin."""

from __future__ import annotations

from typing import Any

import pytest

from capgraph import BaseCapability, CapabilityContext
from capgraph.base import CapabilityError, ValidationError, capability_node
from capgraph.testing import run_capability, with_faults

pytest_plugins = ["pytester"]


class Reading(CapabilityContext):
    value: float


class Static(BaseCapability):
    name = "static"
    description = "Static form"
    provides = ["READING"]

    @staticmethod
    async def execute(state: Any, step: Any) -> Any:
        return {"value": step["parameters"].get("n", 1), "ui_agent_context": {"seen": True}}


class Instance(BaseCapability):
    name = "instance"
    description = "Instance form"
    provides = ["READING"]

    async def execute(self) -> Any:
        return Reading(value=self.parameters.get("n", 1))


@capability_node
async def function(n: float = 1) -> Reading:
    """Function form."""
    return Reading(value=n)


FORMS = [capability_node(Static), capability_node(Instance), function]


@pytest.mark.parametrize("form", FORMS, ids=["static", "instance", "function"])
async def test_each_form_runs_and_can_be_made_to_fail(form: Any) -> None:
    run = await run_capability(form, parameters={"n": 3})
    value = run.output if isinstance(run.output, dict) else run.output.model_dump()
    assert value == {"value": 3}
    flaky = with_faults(form, ConnectionError("gone"))
    assert flaky.capability_spec.name == form.capability_spec.name
    assert flaky.capability_spec.provides == form.capability_spec.provides
    with pytest.raises(ConnectionError, match="gone"):
        await run_capability(flaky)
    assert (await run_capability(flaky, parameters={"n": 3})).contexts.keys() == {"READING"}
    assert flaky.faults.calls == 2
    assert not hasattr(form, "faults")


async def test_updates_are_separate_from_contexts() -> None:
    run = await run_capability(FORMS[0])
    assert run.updates == {"ui_agent_context": {"seen": True}}
    assert run.contexts == {"READING": {"value": 1}}


async def test_unknown_state_key_is_an_error_as_in_a_graph() -> None:
    class Loses(BaseCapability):
        name = "loses"
        description = "Loses"

        async def execute(self) -> Any:
            return {"lost": 1}

    with pytest.raises(CapabilityError, match="lost"):
        await run_capability(capability_node(Loses))


async def test_output_requires_exactly_one_output() -> None:
    @capability_node
    async def nothing() -> None:
        """Give nothing."""

    with pytest.raises(ValidationError, match="0 outputs"):
        (await run_capability(nothing)).output  # noqa: B018


async def test_faults_are_applied_in_order() -> None:
    script = with_faults(function, None, ValueError("two"), 0.001, KeyError)
    outcomes = []
    for _ in range(5):
        try:
            outcomes.append((await run_capability(script)).output.value)
        except (ValueError, KeyError) as exc:
            outcomes.append(type(exc).__name__)
    assert outcomes == [1, "ValueError", 1, "KeyError", 1]
    always = with_faults(function, forever=OSError)
    for _ in range(3):
        with pytest.raises(OSError):
            await run_capability(always)


def test_plugin_provides_fixtures_to_other_projects(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("pytest_plugins = ['capgraph_pytest']")
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function")
    pytester.makepyfile(
        """
        def test_fixtures(registry, fake_clock):
            assert "router" in registry.infrastructure
            assert fake_clock.sleeps == []
        """
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:capgraph")
    result.assert_outcomes(passed=1)
