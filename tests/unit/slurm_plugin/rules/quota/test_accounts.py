"""Tests Slurm's account tree beside the tenants' tree."""

from collections.abc import Mapping

from builders.tenants import tenant

from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.quota.accounts import (
    AccountDifference,
    differences,
    take_over,
    tenant_parent,
)
from slicewise.slurm_plugin.rules.quota.tenants import changed
from slicewise.slurm_plugin.rules.quota.types import Policy, Quota, Tenant, TenantUpdate

ACCOUNTS = {"root": "", "physics": "root", "optics": "physics", "laser": "optics", "bio": "root"}


def policy(parents: Mapping[str, str], nominal: int = 0) -> Policy:
    quota = Quota(Millislices(nominal))
    return {name: Tenant(name, parent, quota) for name, parent in parents.items()}


def taken_over(before: Policy, accounts: Mapping[str, str]) -> Policy:
    after = before
    for one in take_over(before, accounts):
        if one.refusal is None:
            place = one.difference
            after = changed(after, TenantUpdate(place.account, parent=place.slurm_parent))
    return after


def test_a_tenants_parent_is_the_nearest_account_above_that_is_one():
    assert tenant_parent("laser", ACCOUNTS, {"physics", "laser"}) == "physics"
    assert tenant_parent("laser", ACCOUNTS, {"laser", "bio"}) == ""
    assert tenant_parent("unknown", ACCOUNTS, {"bio"}) == ""


def test_what_lies_elsewhere_and_what_slurm_lacks_differs():
    tenants = policy({"physics": "", "laser": "", "gone": "physics", "bio": ""})
    assert differences(tenants, ACCOUNTS) == (
        AccountDifference("gone", "absent", parent="physics"),
        AccountDifference("laser", "moved", parent="", slurm_parent="physics"),
    )


def test_accounts_that_are_no_tenants_do_not_differ():
    assert differences(policy({"laser": ""}), ACCOUNTS) == ()


def test_taking_over_makes_a_tenant_of_every_account_but_root_in_its_place():
    after = taken_over({}, ACCOUNTS)
    assert {name: tenant.parent for name, tenant in after.items()} == {
        "physics": "",
        "optics": "physics",
        "laser": "optics",
        "bio": "",
    }
    assert take_over(after, ACCOUNTS) == ()


def test_taking_over_turns_a_tree_upside_down_without_a_cycle_and_keeps_quotas():
    before = policy({"laser": "", "optics": "laser", "physics": "optics", "bio": ""})
    before = changed(before, TenantUpdate("physics", nominal_millislices=Millislices(3000)))
    after = taken_over(before, ACCOUNTS)
    assert after["laser"].parent == "optics"
    assert after["physics"] == tenant("physics", 3000)


def test_taking_over_removes_nobody():
    assert "gone" in taken_over(policy({"gone": ""}), ACCOUNTS)


def test_one_account_that_can_not_be_taken_over_does_not_stop_the_others():
    accounts = {**ACCOUNTS, "a b": "root"}
    refusals = {one.difference.account: one.refusal for one in take_over({}, accounts)}
    assert refusals.pop("a b").code == "SW-VALUE"  # type: ignore[union-attr]
    assert refusals == dict.fromkeys(("physics", "optics", "laser", "bio"))


def test_a_move_that_its_new_parents_quota_has_no_room_for_is_refused():
    before = policy({"physics": ""}, nominal=2000) | policy({"optics": ""}, nominal=3000)
    (refused,) = (one for one in take_over(before, ACCOUNTS) if one.refusal is not None)
    assert refused.difference.account == "optics"
    assert refused.refusal is not None
    assert refused.refusal.code == "SW-QUOTA-TREE"
