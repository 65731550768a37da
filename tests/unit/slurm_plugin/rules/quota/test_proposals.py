"""Tests which quotas are proposed for accounts that another tool limits."""

from collections.abc import Mapping

import pytest
from builders.tenants import tenant

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.slurm.account_dump import DumpedAccount
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.slurm_plugin.rules.quota.proposals import QuotaProposal, absent, proposals
from slicewise.slurm_plugin.rules.quota.tenants import changed_together
from slicewise.slurm_plugin.rules.quota.types import Budget, Policy, TenantUpdate

COSTS = {"1g.10gb": 1000, "3g.40gb": 3000, "7g.80gb": 7000}
MONTHLY = Budget(Period.MONTH, MillisliceSeconds(3_600_000))


def limited(name: str, parent: str = "root", **tres: int) -> DumpedAccount:
    return DumpedAccount(name, parent, {_tres(key): count for key, count in tres.items()})


def _tres(key: str) -> str:
    return {"gpu": "gres/gpu", "one": "gres/gpu:1g.10gb", "three": "gres/gpu:3g.40gb"}.get(key, key)


def proposed(*accounts: DumpedAccount, policy: Policy | None = None) -> Mapping[str, QuotaProposal]:
    found = proposals(accounts, policy or {}, COSTS, gpu_millislices=7000)
    return {one.tenant: one for one in found}


def words(*accounts: DumpedAccount, policy: Policy | None = None) -> Mapping[str, object]:
    return {name: one.words for name, one in proposed(*accounts, policy=policy).items()}


def test_a_limit_on_gpus_is_a_nominal_and_types_stay_limited():
    assert words(limited("a", gpu=2), limited("b", one=3, three=1), limited("c")) == {
        "a": {"nominal": "14"},
        "b": {"nominal": "6", "limits": {"1g.10gb": 3, "3g.40gb": 1}},
        "c": {"nominal": "0"},
    }
    assert words(limited("d", gpu=1, one=20))["d"] == {"nominal": "7", "limits": {"1g.10gb": 20}}


def test_accounts_that_may_hold_more_than_the_one_above_share_it_and_may_borrow_the_rest():
    found = words(limited("p", gpu=4), limited("x", "p", gpu=3), limited("y", "p", gpu=3))
    assert found["p"] == {"nominal": "28"}
    assert found["x"] == found["y"] == {"nominal": "14", "borrowing_limit": "7"}


def test_a_group_without_a_limit_hands_on_what_the_one_above_it_has():
    found = words(limited("p", gpu=1), limited("g", "p"), limited("x", "g", gpu=2))
    assert found == {
        "p": {"nominal": "7"},
        "g": {"nominal": "0"},
        "x": {"nominal": "7", "borrowing_limit": "7"},
    }


def test_what_is_proposed_makes_a_tree_that_holds():
    accounts = (
        limited("p", gpu=3),
        *(limited(f"x{number}", "p", gpu=number) for number in range(8)),
        *(limited(f"y{number}", "x5", three=number) for number in range(4)),
        limited("none", "p", gpu=0),
        limited("below", "none", gpu=2),
    )
    updates = [
        TenantUpdate(
            name,
            parent="" if one.parent == "root" else one.parent,
            nominal_millislices=Millislices(round(float(str(found["nominal"])) * 1000)),
        )
        for name, found in words(*accounts).items()
        for one in accounts
        if one.account == name and isinstance(found, dict)
    ]
    assert len(updates) == len(accounts)
    assert changed_together({}, updates)[1] == {}


def test_minutes_are_a_budget_unless_the_tenant_has_one_in_periods():
    minutes = DumpedAccount("a", "root", {}, {"gres/gpu": 100, "billing": 5})
    given = {"period": "none", "amount": "11.66"}
    assert words(minutes)["a"] == {"nominal": "0", "budget": given}
    assert proposed(minutes)["a"].notes == ("its minutes of billing are not taken over",)
    known = {"a": tenant("a", budget=MONTHLY)}
    assert words(minutes, policy=known)["a"] == {}


def test_what_is_not_taken_over_is_said():
    odd = DumpedAccount("a", "root", {"billing": 9, "gres/gpu:p100": 2, "gres/gpu": 1})
    assert proposed(odd)["a"].words == {"nominal": "7"}
    assert proposed(odd)["a"].notes == (
        "its limit on billing is not taken over",
        "its limit on gres/gpu:p100 is not taken over",
    )
    torn = DumpedAccount("a", "root", unread=("1g.10gb=3'",))
    assert proposed(torn)["a"].words == {}
    assert proposed(torn)["a"].notes == ("""its limits can't be read: "1g.10gb=3'\"""",)


def test_tenants_keep_what_the_file_does_not_say():
    known = {
        "a": tenant("a", 5),
        "b": tenant("b", 5),
    }
    assert words(limited("a"), policy=known) == {"a": {}}
    assert absent((limited("a"),), known) == ("b",)


def test_an_account_above_itself_is_refused():
    with pytest.raises(InvalidInputError, match="SW-INPUT-FILE"):
        proposed(limited("a", "b"), limited("b", "a"))
