"""Permissions by role: an order that holds, names that are compared alike, and no open door."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capgraph import bind, build_graph, capability_node
from capgraph.base import CapgraphError, ConfigurationError, ErrorSeverity, PolicyError
from capgraph.base.approval_policy import ApprovalPolicy
from capgraph.governance import (
    CedarPermissions,
    PermissionDeniedError,
    PermissionEnforcer,
    PermissionMode,
    PermissionOutcome,
    PermissionPolicy,
    RolePermissionConfig,
)
from capgraph.graph.diagnostics import collect_findings

READ, WRITE, FULL = PermissionMode


def policy(
    mode: Any = WRITE,
    allowed: list[str] | None = None,
    denied: list[str] | None = None,
    requirements: dict[str, Any] | None = None,
) -> PermissionPolicy:
    config = RolePermissionConfig("clerk", mode, allowed, denied or [])
    return PermissionPolicy({"clerk": config}, requirements)


def test_modes_are_ordered_and_known_by_name() -> None:
    assert READ < WRITE < FULL
    assert [PermissionMode.of(given) for given in (FULL, "full_access", 3)] == [FULL] * 3
    for nonsense in (True, 0, "all", None, 2.0):
        with pytest.raises(ValueError, match="READ_ONLY"):
            PermissionMode.of(nonsense)


def test_the_deny_list_comes_first_then_the_mode_then_the_allow_list() -> None:
    asked = policy(READ, ["pay"], ["pay"], {"pay": FULL})
    assert "denied_tools" in str(asked.authorize("clerk", "pay").reason)
    asked = policy(READ, ["look"], [], {"pay": FULL})
    assert "requires FULL_ACCESS" in str(asked.authorize("clerk", "pay").reason)
    asked = policy(FULL, ["look"], [], {"pay": FULL})
    assert "allowed_tools" in str(asked.authorize("clerk", "pay").reason)
    found = policy(FULL, ["pay"], [], {"pay": WRITE}).authorize("clerk", "pay")
    assert found == PermissionOutcome(True, None, "FULL_ACCESS", "WORKSPACE_WRITE")


@pytest.mark.row("T16")
def test_an_unconfigured_role_may_use_nothing() -> None:
    for role in ("stranger", "", None, "Clerk"):
        assert not policy().authorize(role, "look").allowed
    assert not PermissionPolicy().authorize("clerk", "look").allowed
    unlocked = PermissionPolicy(default_allow_unknown_roles=True)
    assert unlocked.authorize("stranger", "look").allowed


@pytest.mark.row("T16")
def test_no_spelling_widens_what_a_role_may_do() -> None:
    asked = policy(READ, None, ["DROP"], {"Pay": FULL})
    assert [asked.authorize("clerk", name).allowed for name in ("drop", "Drop", "pay", "PAY")] == [
        False
    ] * 4
    assert policy(READ, ["Look"]).authorize("clerk", "Look").allowed
    assert not policy(READ, ["Look"]).authorize("clerk", "lOOk").allowed
    # Two spellings of one requirement: the stricter one holds, whatever their order.
    for requirements in ({"pay": FULL, "PAY": READ}, {"PAY": READ, "pay": FULL}):
        assert not policy(WRITE, requirements=requirements).authorize("clerk", "pay").allowed


def test_a_capability_may_ask_for_more_than_the_policy_and_never_for_less() -> None:
    asked = policy(WRITE, requirements={"pay": FULL})
    assert not asked.authorize("clerk", "pay", required=READ).allowed
    assert not asked.authorize("clerk", "look", required=FULL).allowed
    assert asked.authorize("clerk", "look", required=WRITE).allowed


def test_a_tenant_has_its_own_entry_in_place_of_the_common_one() -> None:
    asked = PermissionPolicy(
        [
            RolePermissionConfig("clerk", READ),
            RolePermissionConfig("clerk", FULL, tenant="acme"),
            RolePermissionConfig("auditor", READ, tenant="acme"),
        ],
        {"pay": FULL},
    )
    assert asked.authorize("clerk", "pay", tenant="acme").allowed
    assert not asked.authorize("clerk", "pay", tenant="other").allowed
    assert asked.authorize("clerk", "look", tenant="other").allowed
    for tenant in (None, "other"):
        assert not asked.authorize("auditor", "look", tenant=tenant).allowed


def test_a_policy_copies_its_configuration() -> None:
    denied, requirements = ["pay"], {"drop": FULL}
    config = RolePermissionConfig("clerk", READ, None, denied)
    made = PermissionPolicy([config], requirements)
    denied.clear()
    config.denied_tools.clear()
    config.mode = FULL
    requirements.clear()
    assert not made.authorize("clerk", "pay").allowed
    assert not made.authorize("clerk", "drop").allowed


def test_invalid_entries_are_rejected() -> None:
    with pytest.raises(ValueError, match="two entries"):
        PermissionPolicy([RolePermissionConfig("a", READ), RolePermissionConfig("a", FULL)])
    with pytest.raises(ValueError, match="key 'b'"):
        PermissionPolicy({"b": RolePermissionConfig("a", READ)})
    with pytest.raises(TypeError, match="RolePermissionConfig"):
        PermissionPolicy({"a": READ})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="list"):
        RolePermissionConfig("a", READ, "pay")  # type: ignore[arg-type]
    for role, mode, tools in ((" ", READ, []), ("a", True, []), ("a", READ, [""])):
        with pytest.raises(ValueError):
            RolePermissionConfig(role, mode, denied_tools=tools)


def test_the_enforcer_knows_names_functions_and_tools() -> None:
    def look() -> None: ...

    def drop() -> None: ...

    asked = PermissionEnforcer(policy(READ, None, ["drop", "pay"]))
    pay, read = SimpleNamespace(name="Pay"), SimpleNamespace(name="read")
    assert asked.filter_tools("clerk", [look, drop, pay, read, "DROP"]) == [look, read]
    assert asked.filter_tools("stranger", [look]) == []
    assert asked.is_allowed("clerk", "look")
    assert asked.check("clerk", "drop").active_mode == "READ_ONLY"


def test_the_error_carries_the_outcome_through_pickle() -> None:
    outcome = policy(READ, None, ["drop"]).authorize("clerk", "drop")
    error = pickle.loads(pickle.dumps(PermissionDeniedError(outcome)))
    assert isinstance(error, PolicyError)
    assert isinstance(error, CapgraphError)
    assert (error.outcome, error.severity) == (outcome, ErrorSeverity.CRITICAL)
    assert str(outcome.reason) in str(error)
    assert "Fix:" in str(error)
    assert outcome.to_dict()["allowed"] is False


_NAMES = st.sampled_from(["look", "pay", "drop", "mail"])
_SPELT = st.builds(lambda name, up: name.upper() if up else name, _NAMES, st.booleans())
_LISTS = st.lists(_SPELT, max_size=4)
_MODES = st.sampled_from(list(PermissionMode))


@pytest.mark.row("T16")
@given(
    mode=_MODES,
    allowed=st.none() | _LISTS,
    denied=_LISTS,
    requirements=st.dictionaries(_SPELT, _MODES, max_size=4),
    declared=_MODES,
    name=_SPELT,
)
def test_every_decision_is_that_of_the_written_model(
    mode: PermissionMode,
    allowed: list[str] | None,
    denied: list[str],
    requirements: dict[str, PermissionMode],
    declared: PermissionMode,
    name: str,
) -> None:
    found = policy(mode, allowed, denied, requirements).authorize("clerk", name, required=declared)
    lowered = name.lower()
    needed = max([declared, *(m for tool, m in requirements.items() if tool.lower() == lowered)])
    expected = (
        lowered not in [tool.lower() for tool in denied]
        and mode >= needed
        and (allowed is None or name in allowed)
    )
    assert found.allowed is expected
    assert (found.reason is None) is expected


CEDAR = """
permit (principal in Role::"clerk", action == Action::"use", resource) when { resource.level <= 2 };
permit (principal in Tenant::"acme", action, resource == Capability::"pay");
forbid (principal == User::"mallory", action, resource);
"""


@pytest.mark.row("T16")
def test_cedar_policies_decide_behind_the_same_protocol() -> None:
    pytest.importorskip("cedarpy")
    cedar = CedarPermissions(CEDAR)
    enforcer = PermissionEnforcer(cedar)
    assert enforcer.is_allowed("clerk", "look")
    assert not enforcer.is_allowed("guest", "look")
    assert not cedar.authorize("clerk", "pay", required=FULL).allowed
    assert cedar.authorize("clerk", "pay", tenant="acme", required=FULL).allowed
    assert not cedar.authorize("clerk", "look", user_id="mallory").allowed
    assert not cedar.authorize(None, "look").allowed
    injected = 'clerk" || true || "'
    assert not cedar.authorize(injected, "look").allowed


def test_a_cedar_policy_that_fails_denies() -> None:
    pytest.importorskip("cedarpy")
    cedar = CedarPermissions(
        "permit (principal, action, resource);"
        "forbid (principal, action, resource) when { principal.blocked };"
    )
    found = cedar.authorize("clerk", "look")
    assert not found.allowed
    assert "failed" in str(found.reason)
    with pytest.raises(ConfigurationError, match="Cedar"):
        CedarPermissions("permit (")
    with pytest.raises(ConfigurationError, match="schema"):
        CedarPermissions(CEDAR, schema="entity Nobody;")


def test_a_policy_that_names_no_registered_capability_is_reported_where_a_graph_is_built(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @capability_node
    def send_mail() -> str:
        """Send a mail."""
        return "sent"

    shared = PermissionPolicy(
        [RolePermissionConfig("clerk", PermissionMode.READ_ONLY, denied_tools=["send_mial"])],
        {" Send_Mail": PermissionMode.FULL_ACCESS},
    )
    build_graph([send_mail], permissions=shared)
    assert "'send_mial'" in caplog.text
    assert "Use 'send_mail'" in caplog.text
    assert "Send_Mail'," not in caplog.text
    services = bind([send_mail], permissions=shared)
    found = collect_findings(
        services.registry,
        services.settings,
        offline=True,
        has_saver=True,
        permissions=services.permissions,
    )
    [finding] = [one for one in found if "send_mial" in one.text]
    assert (finding.level, finding.fix) == ("warning", "Use 'send_mail'.")
    caplog.clear()
    build_graph(
        [send_mail], permissions=PermissionPolicy(None, {"SEND_MAIL": PermissionMode.FULL_ACCESS})
    )
    assert "permissions" not in caplog.text


@pytest.mark.parametrize(("mode", "expected"), [("read_only", ["error"]), ("full_access", [])])
def test_check_refuses_an_approval_that_no_role_may_give(mode: str, expected: list[str]) -> None:
    @capability_node(effect="once", requires_approval=ApprovalPolicy(approvers=2))
    def pay_bill() -> str:
        """Pay a bill."""
        return "paid"

    roles = [RolePermissionConfig("clerk", PermissionMode.of(mode))]
    services = bind([pay_bill], permissions=PermissionPolicy(roles))
    found = collect_findings(
        services.registry,
        services.settings,
        offline=True,
        has_saver=True,
        permissions=services.permissions,
    )
    levels = [one.level for one in found if "approvals by other users" in one.text]
    assert levels == expected
