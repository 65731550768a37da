"""Tests which changes of the tree of tenants are allowed, and what follows from its shape."""

from dataclasses import replace

import pytest
from builders.tenants import tenant

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.slurm_plugin.rules.quota import tenants
from slicewise.slurm_plugin.rules.quota.types import (
    MAX_BUDGET_MILLISLICE_S,
    MAX_NOMINAL_MILLISLICES,
    MAX_TYPE_LIMIT,
    MAX_WEIGHT,
    Budget,
    Policy,
    TenantUpdate,
)

MONTHLY = Budget(Period.MONTH, MillisliceSeconds(1000))


POLICY: Policy = {
    one.name: one
    for one in (
        tenant("physics", 10_000, "", MONTHLY),
        tenant("optics", 6000, "physics"),
        tenant("imaging", 0, "physics"),
        tenant("mri", 1000, "imaging", MONTHLY),
        tenant("ct", 2000, "imaging"),
        tenant("bio", 3000, ""),
    )
}
"""physics keeps 1 of its 10 slices for itself; imaging is a group of 3."""


def update(name: str, **changes: object) -> TenantUpdate:
    return TenantUpdate(name, **changes)  # type: ignore[arg-type]


def refusal(name: str, **changes: object) -> str:
    with pytest.raises(InvalidInputError) as caught:
        tenants.changed(POLICY, update(name, **changes))
    return str(caught.value)


def test_the_tree():
    assert tenants.children(POLICY, "") == ("bio", "physics")
    assert tenants.children(POLICY, "physics") == ("imaging", "optics")
    assert tenants.children(POLICY, "bio") == ()
    assert tenants.ancestors(POLICY, "mri") == ("imaging", "physics")
    assert tenants.subtree(POLICY, "imaging") == ("imaging", "ct", "mri")
    order = tenants.downward(POLICY)
    assert sorted(order) == sorted(POLICY)
    assert all(
        order.index(above) < order.index(name)
        for name in POLICY
        for above in tenants.ancestors(POLICY, name)
    )


def test_a_group_has_what_its_children_have():
    assert tenants.effective_nominal(POLICY) == {
        "physics": 10_000,
        "optics": 6000,
        "imaging": 3000,
        "mri": 1000,
        "ct": 2000,
        "bio": 3000,
    }


def test_a_tenant_s_own_part_is_what_its_children_do_not_have():
    assert tenants.guaranteed_quota(POLICY) == {
        "physics": 1000,
        "optics": 6000,
        "imaging": 0,
        "mri": 1000,
        "ct": 2000,
        "bio": 3000,
    }


def test_the_nearest_budget_pays():
    assert tenants.payers(POLICY) == {
        "physics": "physics",
        "optics": "physics",
        "imaging": "physics",
        "mri": "mri",
        "ct": "physics",
        "bio": "bio",
    }


def test_a_tenant_of_before_that_covers_its_children_no_more_has_their_sum():
    policy = {"lab": tenant("lab", 1000, ""), "a": tenant("a", 4000, "lab")}
    assert tenants.effective_nominal(policy) == {"lab": 4000, "a": 4000}
    assert tenants.guaranteed_quota(policy) == {"lab": 0, "a": 4000}


def test_an_unknown_tenant_is_added_with_what_is_given():
    added = tenants.changed(POLICY, update("chem", nominal_millislices=2000, weight=3))
    assert added == {**POLICY, "chem": tenant("chem", 2000, weight=3)}
    below = tenants.changed(POLICY, update("x-ray", parent="imaging"))
    assert below["x-ray"] == tenant("x-ray", 0, "imaging")


def test_only_what_is_given_changes():
    after = tenants.changed(POLICY, update("mri", lending_limit_millislices=500))
    limits = replace(POLICY["mri"].quota, lending_limit_millislices=500)
    assert after == {**POLICY, "mri": replace(POLICY["mri"], quota=limits)}


def test_limits_of_types_and_models_are_set_as_a_whole():
    once = tenants.changed(POLICY, update("bio", type_limits={"3g.40gb": 2}))
    after = tenants.changed(once, update("bio", type_limits={}, model_limits={"H200-141GB": 7000}))
    assert after["bio"].quota.type_limits == {}
    assert after["bio"].quota.model_limits == {"H200-141GB": 7000}


def test_a_budget_is_given_and_taken_away():
    daily = Budget(Period.DAY, MillisliceSeconds(5))
    assert tenants.changed(POLICY, update("bio", budget=daily))["bio"].budget == daily
    assert tenants.changed(POLICY, update("mri", budget="off"))["mri"].budget is None
    assert tenants.changed(POLICY, update("mri", weight=2))["mri"].budget == MONTHLY


def test_a_tenant_moves_with_what_is_below_it():
    after = tenants.changed(POLICY, update("imaging", parent=""))
    assert tenants.children(after, "") == ("bio", "imaging", "physics")
    assert tenants.guaranteed_quota(after)["physics"] == 4000


def test_removed_is_gone():
    after = tenants.changed(POLICY, update("mri", removed=True))
    assert sorted(after) == ["bio", "ct", "imaging", "optics", "physics"]


@pytest.mark.parametrize(
    "name", ["", "root", "a b", "-a", ".a", "a" * 64, "a\n", "é", "a;drop", "\udcff", "a\x00"]
)
def test_names_that_no_tenant_can_have(name: str):
    assert refusal(name).endswith("[SW-VALUE]")
    assert refusal(name, removed=True).endswith("[SW-TENANT-UNKNOWN]")


def test_a_tenant_named_as_the_gateways_address_can_only_go():
    assert refusal("v1").endswith("[SW-VALUE]")
    there = {**POLICY, "v1": tenants.Tenant("v1", "", tenants.Quota(Millislices(0)))}
    assert "v1" not in tenants.changed(there, update("v1", removed=True))


@pytest.mark.parametrize("name", ["gate", "a_borrowed"])
def test_names_whose_qos_would_be_another_of_ours(name: str):
    assert refusal(name).endswith("[SW-VALUE]")
    # One of before must be able to go.
    there = {**POLICY, name: tenants.Tenant(name, "", tenants.Quota(Millislices(0)))}
    assert name not in tenants.changed(there, update(name, removed=True))
    assert tenants.changed(there, update(name, weight=2))[name].quota.weight == 2


@pytest.mark.parametrize("name", ["a", "_a", "A.b-c_d", "0", "a" * 63])
def test_names_that_a_tenant_can_have(name: str):
    assert name in tenants.changed({}, update(name))


def test_who_is_not_there_can_not_be_removed():
    assert refusal("chem", removed=True) == (
        "There is no tenant 'chem'. slicewise tenant list shows all. [SW-TENANT-UNKNOWN]"
    )


def test_who_has_children_can_not_be_removed():
    assert refusal("imaging", removed=True) == (
        "Tenant 'imaging' has tenants below it: ct, mri. "
        "Delete or move them first: slicewise tenant delete NAME. [SW-TENANT-CHILDREN]"
    )


@pytest.mark.parametrize("parent", ["chem", "root", "' OR 1=1"])
def test_a_parent_must_be_a_tenant(parent: str):
    assert refusal("bio", parent=parent).endswith("[SW-TENANT-UNKNOWN]")


@pytest.mark.parametrize(
    ("name", "parent"), [("physics", "physics"), ("physics", "mri"), ("new", "new")]
)
def test_nobody_is_below_itself(name: str, parent: str):
    assert refusal(name, parent=parent).endswith("[SW-TENANT-CHILDREN]")


QUOTA_FIELDS = ["nominal_millislices", "borrowing_limit_millislices", "lending_limit_millislices"]


@pytest.mark.parametrize("field", QUOTA_FIELDS)
@pytest.mark.parametrize("amount", [-1, MAX_NOMINAL_MILLISLICES + 1, 2**63])
def test_quotas_out_of_range(field: str, amount: int):
    assert refusal("chem", **{field: amount}).endswith("[SW-VALUE]")


def test_quotas_at_the_ends_of_their_range():
    for amount in (0, MAX_NOMINAL_MILLISLICES):
        tenants.changed({}, update("chem", **dict.fromkeys(QUOTA_FIELDS, amount)))
    for weight in (1, MAX_WEIGHT):
        tenants.changed({}, update("chem", weight=weight))


@pytest.mark.parametrize("weight", [-1, 0, MAX_WEIGHT + 1])
def test_weights_out_of_range(weight: int):
    assert refusal("bio", weight=weight).endswith("[SW-VALUE]")


@pytest.mark.parametrize(
    "limits",
    [{"3g.40gb": -1}, {"3g.40gb": MAX_TYPE_LIMIT + 1}, {"": 1}, {"40": 1}, {"a=1,b": 1}, {"é": 1}],
)
def test_limits_of_types_that_can_not_be(limits: dict[str, int]):
    assert refusal("bio", type_limits=limits).endswith("[SW-VALUE]")


def test_limits_of_models_that_can_not_be():
    assert refusal("bio", model_limits={"H200 141GB": 1}).endswith("[SW-VALUE]")
    assert refusal("bio", model_limits={"H200-141GB": -1}).endswith("[SW-VALUE]")


@pytest.mark.parametrize("field", ["amount", "carry_over", "overdraft"])
@pytest.mark.parametrize("amount", [-1, MAX_BUDGET_MILLISLICE_S + 1])
def test_budgets_out_of_range(field: str, amount: int):
    budget = replace(MONTHLY, **{field: amount})  # type: ignore[arg-type]
    assert refusal("bio", budget=budget).endswith("[SW-VALUE]")


def test_a_period_that_does_not_exist():
    assert refusal("bio", budget=replace(MONTHLY, period="year")) == (  # type: ignore[arg-type]
        f"There is no period 'year'. Give one of {', '.join(Period)}. [SW-VALUE]"
    )


def test_a_child_gets_no_more_than_is_left():
    assert refusal("optics", nominal_millislices=8000) == (
        "optics needs 8 slices; physics has 7 of its 10 left. "
        "First: slicewise tenant-quota set physics --nominal 11 [SW-QUOTA-TREE]"
    )
    tenants.changed(POLICY, update("optics", nominal_millislices=7000))


def test_a_grandchild_in_a_group_counts_too():
    assert refusal("ct", nominal_millislices=4000) == (
        "imaging needs 5 slices; physics has 4 of its 10 left. "
        "First: slicewise tenant-quota set physics --nominal 11 [SW-QUOTA-TREE]"
    )


def test_who_moves_must_fit():
    assert refusal("bio", parent="physics").endswith("[SW-QUOTA-TREE]")
    assert refusal("chem", parent="bio", nominal_millislices=3001).endswith("[SW-QUOTA-TREE]")


def test_a_parent_keeps_what_its_children_have_or_has_their_sum():
    assert refusal("physics", nominal_millislices=8000) == (
        "physics can't have 8 slices: the tenants below it have 9 (imaging, optics). "
        "Give it 9 or more, or 0: then it has exactly what they have. [SW-QUOTA-TREE]"
    )
    group = tenants.changed(POLICY, update("physics", nominal_millislices=0))
    assert tenants.effective_nominal(group)["physics"] == 9000


def test_of_several_together_only_the_tree_that_they_lead_to_has_to_hold():
    larger = (
        update("optics", nominal_millislices=Millislices(9000)),
        update("physics", nominal_millislices=Millislices(12_000)),
        update("new", parent="physics"),
    )
    for updates in (larger, larger[::-1]):
        after, refused = tenants.changed_together(POLICY, updates)
        assert refused == {}
        assert after["physics"].quota.nominal_millislices == 12_000
        assert after["new"].parent == "physics"


def test_of_several_together_everything_that_is_refused_is_said():
    updates = (
        update("optics", nominal_millislices=Millislices(9000)),
        update("bio", weight=0),
        update("new", parent="nobody"),
        update("ct", nominal_millislices=Millislices(1000)),
    )
    _, refused = tenants.changed_together(POLICY, updates)
    assert {name: error.refusal.code for name, error in refused.items()} == {
        "optics": "SW-QUOTA-TREE",
        "bio": "SW-VALUE",
        "new": "SW-TENANT-UNKNOWN",
    }


def test_what_an_older_version_left_short_may_get_better_but_not_worse():
    short = {"lab": tenant("lab", 4000, ""), "a": tenant("a", 6000, "lab")}
    tenants.changed(short, update("a", nominal_millislices=5000))
    tenants.changed(short, update("lab", nominal_millislices=5000))
    tenants.changed(short, update("lab", weight=2))
    for worse in (update("a", nominal_millislices=6001), update("lab", nominal_millislices=3999)):
        with pytest.raises(InvalidInputError, match="SW-QUOTA-TREE"):
            tenants.changed(short, worse)


@pytest.mark.parametrize("words", ["a\nb", "a\x00", "\udcff", "\x1b[2J"])
def test_words_that_can_not_be_shown(words: str):
    for author, reason in ((words, "why"), ("alice", words)):
        with pytest.raises(InvalidInputError, match="SW-VALUE"):
            tenants.check_words(author, reason)


def test_words():
    tenants.check_words("alice", "für das Projekt; more until June")


def test_what_follows_from_a_policy_is_not_taken_from_what_it_was_before() -> None:
    policy = {"org": tenant("org", 9, ""), "lab": tenant("lab", 3, "org")}
    assert tenants.guaranteed_quota(policy) == {"org": 6, "lab": 3}
    policy["lab"] = tenant("lab", 4, "org")
    assert tenants.guaranteed_quota(policy) == {"org": 5, "lab": 4}
    policy["new"] = policy.pop("lab")
    assert tenants.downward(policy) == ("org", "new")


def test_guarantees_by_type_are_set_as_a_whole_and_what_those_below_are_due_is_taken_off():
    lab = tenants.changed(POLICY, update("imaging", type_nominals={"1g.10gb": 5, "a100": 0}))
    assert tenants.guaranteed_types(POLICY) == {}
    both = {"1g.10gb": 5, "a100": 0}
    none = dict.fromkeys(both, 0)
    assert tenants.guaranteed_types(lab) == {"imaging": both, "mri": none, "ct": none}
    after = tenants.changed(lab, update("mri", type_nominals={"1g.10gb": 2, "3g.40gb": 1}))
    assert tenants.guaranteed_types(after) == {
        "imaging": {"1g.10gb": 3, "a100": 0},
        "mri": {"1g.10gb": 2, "3g.40gb": 1, "a100": 0},
        "ct": none,
    }
    assert tenants.nominal_types(after)["physics"] == {"1g.10gb": 5, "3g.40gb": 1}
    again = tenants.changed(after, update("imaging", type_nominals={}))
    assert tenants.guaranteed_types(again) == {"mri": {"1g.10gb": 2, "3g.40gb": 1}}


def test_no_more_of_a_type_is_guaranteed_than_limits_of_the_tenant_and_above_it_allow():
    lab = tenants.changed(POLICY, update("imaging", type_limits={"1g.10gb": 2, "3g.40gb": 1}))
    both = {"1g.10gb": 3, "3g.40gb": 1}
    mri = update("mri", type_nominals=both, type_limits={"1g.10gb": 9, "3g.40gb": 0})
    after = tenants.changed(lab, mri)
    assert tenants.guaranteed_types(after) == {"mri": {"1g.10gb": 2, "3g.40gb": 0}}
    assert tenants.nominal_types(after)["mri"] == both


def test_those_below_are_guaranteed_no_more_of_a_type_than_there_is_above():
    lab = tenants.changed(POLICY, update("imaging", type_nominals={"1g.10gb": 2}))
    words = "imaging is guaranteed 2 instances of 1g.10gb; with these changes the tenants below"
    change = update("mri", type_nominals={"1g.10gb": 3})
    with pytest.raises(InvalidInputError, match=words) as caught:
        tenants.changed(lab, change)
    assert str(caught.value).endswith("[SW-QUOTA-TREE]")
    tenants.changed(lab, replace(change, type_nominals={"1g.10gb": 2}))
    # What falls short already may stay as it is.
    mri = replace(lab["mri"].quota, type_nominals={"1g.10gb": 3})
    short = {**lab, "mri": replace(lab["mri"], quota=mri)}
    tenants.changed(short, update("mri", weight=2))
    assert refusal("bio", type_nominals={"3g.40gb": -1}).endswith("[SW-VALUE]")
    assert refusal("bio", type_nominals={"": 1}).endswith("[SW-VALUE]")
