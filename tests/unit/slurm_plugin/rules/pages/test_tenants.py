"""Tests which budget pays for a tenant of the tree."""

from stand_ins.web_answers import Answers

from slicewise.slurm_plugin.common.ledger_requests import TenantsRequest
from slicewise.slurm_plugin.rules.pages.tenants import budget_of, tenant_of

TREE = Answers(600).tenants(TenantsRequest())


def test_a_tenant_s_budget_is_the_one_that_pays():
    own = tenant_of(TREE.tenants, "nlp")
    budget = budget_of(TREE.budgets, own)
    assert budget is not None
    assert budget.tenant == "nlp"
    for other in ("climate", "unknown"):
        assert budget_of(TREE.budgets, tenant_of(TREE.tenants, other)) is None
