"""Tests which tenants and loans one reader sees, and what of others' stays a sum."""

from dataclasses import replace
from typing import Any

import pytest
from builders.overview_world import ALICE, MODEL, POLICY, ROOT, facts
from builders.why_world import SMALL, job, running

from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.rules.overview.tenant_tree import loan_flows, tenant_tree
from slicewise.slurm_plugin.rules.quota.loan_lines import LoanLine
from slicewise.slurm_plugin.rules.quota.types import MAX_NOMINAL_MILLISLICES, Policy

HEAD = Principal(61002, "head", frozenset({"lab", "vision"}))


def line(lender: str, borrower: str, amount: int = 1000, **changes: object) -> LoanLine:
    plain = LoanLine(lender, borrower, amount, is_recalled=False, since_s=500, until_s=900)
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_an_operator_sees_the_whole_tree():
    found = tenant_tree(facts(running(1), running(2, account="nlp"), job(8, "Resources")), ROOT)
    assert [(one.name, one.parent, one.depth) for one in found] == [
        ("bio", "", 0),
        ("lab", "", 0),
        ("nlp", "lab", 1),
        ("vision", "lab", 1),
    ]
    bio, lab, nlp, vision = found
    assert lab.children == ("nlp", "vision")
    assert (lab.quota.nominal_millislices, lab.nominal_millislices) == (0, 7000)
    assert (lab.in_use_millislices, lab.own_in_use_millislices) == (2000, 0)
    limits = (nlp.quota.borrowing_limit_millislices, bio.quota.lending_limit_millislices)
    assert limits == (9000, 7000)
    assert (vision.own_in_use_millislices, vision.waiting_millislices) == (1000, 1000)


def test_a_user_sees_own_tenants_alone_with_the_nearest_one_above():
    (mine,) = tenant_tree(facts(running(1), running(2, account="nlp")), ALICE)
    assert (mine.name, mine.parent, mine.depth, mine.children) == ("vision", "", 0, ())
    lab, vision = tenant_tree(facts(), HEAD)
    assert (lab.children, vision.parent) == (("vision",), "lab")


def test_its_own_quota_is_as_it_was_set():
    vision = POLICY["vision"]
    quota = replace(vision.quota, borrowing_limit_millislices=MAX_NOMINAL_MILLISLICES)
    policy = {**POLICY, "vision": replace(vision, quota=quota)}
    (mine,) = tenant_tree(facts(policy=policy), ALICE)
    assert mine.quota == quota


def with_types(**by_tenant: dict[str, Any]) -> Policy:
    """The policy with these values of tenants' quotas."""
    return {
        name: replace(one, quota=replace(one.quota, **by_tenant.get(name, {})))
        for name, one in POLICY.items()
    }


def test_without_limits_or_guarantees_by_type_there_is_no_type():
    assert {one.types for one in tenant_tree(facts(running(1)), ROOT)} == {()}


def test_limits_and_guarantees_of_types_have_what_is_used_of_them():
    policy = with_types(
        lab={"type_limits": {SMALL: 5}, "type_nominals": {SMALL: 4}},
        vision={"type_nominals": {SMALL: 3}},
    )
    jobs = (
        running(1, qos="slicewise_vision"),
        running(2, qos="slicewise_vision_borrowed"),
        running(3, account="nlp", qos="slicewise_nlp_borrowed"),
        running(4, account="bio", qos="slicewise_bio"),
    )
    bio, lab, nlp, vision = tenant_tree(facts(*jobs, policy=policy), ROOT)
    assert bio.types == ()
    (of_lab,), (of_nlp,), (of_vision,) = lab.types, nlp.types, vision.types
    assert (of_lab.gres_type, of_lab.limit, of_lab.in_use) == (SMALL, 5, 3)
    assert (of_lab.guaranteed, of_lab.guaranteed_in_use) == (4, 1)
    assert (of_nlp.limit, of_nlp.guaranteed, of_nlp.guaranteed_in_use) == (None, 0, 0)
    assert (of_vision.limit, of_vision.guaranteed) == (None, 3)
    assert (of_vision.in_use, of_vision.guaranteed_in_use) == (2, 1)


def test_an_account_without_a_quota_counts_for_the_tenant_whose_qos_it_inherits():
    """Slurm counts its jobs there, too. In no tenant's QOS they are nobody's."""
    policy = with_types(lab={"type_limits": {SMALL: 5}}, vision={"type_nominals": {SMALL: 3}})
    jobs = (
        running(1, account="student", qos="slicewise_vision"),
        running(2, account="student", qos="slicewise_vision_borrowed"),
        running(3, account="student", qos="normal"),
        job(4, account="student", qos="slicewise_vision"),
    )
    _, lab, _, vision = tenant_tree(facts(*jobs, policy=policy), ROOT)
    assert [(one.in_use, one.guaranteed_in_use) for one in vision.types] == [(2, 1)]
    assert [one.in_use for one in lab.types] == [2]
    assert (vision.own_in_use_millislices, vision.in_use_millislices) == (2000, 2000)
    assert (vision.waiting_jobs, lab.waiting_jobs) == (1, 1)


def test_a_limit_bounds_the_guarantee_that_is_shown():
    policy = with_types(vision={"type_limits": {SMALL: 2}, "type_nominals": {SMALL: 3}})
    (vision,) = tenant_tree(facts(policy=policy), ALICE)
    assert [(one.limit, one.guaranteed) for one in vision.types] == [(2, 2)]


def test_a_limit_on_a_model_is_one_on_the_types_that_nodes_have():
    policy = with_types(vision={"model_limits": {MODEL: 3000}})
    (vision,) = tenant_tree(facts(policy=policy), ALICE)
    assert [(one.gres_type, one.limit) for one in vision.types] == [(SMALL, 3)]
    policy = with_types(vision={"model_limits": {MODEL: 1500}, "type_nominals": {SMALL: 3}})
    (vision,) = tenant_tree(facts(policy=policy), ALICE)
    assert [(one.limit, one.guaranteed) for one in vision.types] == [(1, 1)]


def test_of_loans_with_others_a_user_sees_sums():
    lines = (
        line("bio", "nlp"),
        line("bio", "vision", since_s=400, until_s=950),
        line("nlp", "vision", 500),
        line("vision", "bio", 100, is_recalled=True),
        line("vision", "nlp", 200, is_recalled=True, since_s=600, until_s=980),
    )
    into, back = sorted(loan_flows(lines, ALICE, {"vision"}), key=lambda one: one.is_recalled)
    assert (into.lender, into.borrower, into.amount_millislices) == ("", "vision", 1500)
    assert (into.since_s, into.until_s) == (400, 900)
    assert (back.lender, back.borrower, back.amount_millislices) == ("vision", "", 300)
    assert (back.since_s, back.until_s) == (500, 980)


def test_a_sum_is_promised_only_if_each_loan_is():
    lines = (line("bio", "vision"), line("nlp", "vision", until_s=None))
    (flow,) = loan_flows(lines, ALICE, {"vision"})
    assert (flow.amount_millislices, flow.until_s) == (2000, None)


@pytest.mark.parametrize("name", ["bio", "lab", "nlp", "vision"])
def test_an_operator_sees_each_loan_once_with_its_borrower(name: str):
    lines = (line("bio", "nlp"), line("bio", "vision"), line("vision", "nlp", 500))
    expected = {"nlp": [("bio", "nlp"), ("vision", "nlp")], "vision": [("bio", "vision")]}
    found = loan_flows(lines, ROOT, {name})
    assert [(one.lender, one.borrower) for one in found] == expected.get(name, [])
