"""Tests how pages of the tree of tenants are put together."""

from stand_ins.web_answers import Answers

from slicewise.cluster.rpc.tenant_messages import TenantsRequest
from slicewise.slurm_plugin.rules.pages.tenants import budget_of, joined, tenant_of

FIRST, SECOND = (Answers(600).tenants(TenantsRequest(after=after)) for after in (0, 500))


def test_two_pages_are_one_tree_with_each_budget_once():
    both = joined(FIRST, SECOND.model_copy(update={"budgets": FIRST.budgets[:1]}))
    assert len(both.tenants) == 600
    assert len(both.loans) == len(FIRST.loans) + len(SECOND.loans)
    assert both.budgets == FIRST.budgets
    assert both.more is None


def test_a_tenant_s_budget_is_the_one_that_pays():
    own = tenant_of(FIRST, "nlp")
    budget = budget_of(FIRST, own)
    assert budget is not None
    assert budget.payer == "nlp"
    assert budget_of(FIRST, tenant_of(FIRST, "climate")) is None
    assert budget_of(FIRST, tenant_of(FIRST, "unknown")) is None
