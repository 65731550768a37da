"""Tests what quota decisions are made of."""

from builders.jobs import a_job, a_running_job
from builders.tenants import policy_of, tenant
from stand_ins.reclaim_world import Cluster


def test_nominals_fitted_before_a_tenant_was_added_are_not_kept() -> None:
    """Quotas of 14 slices on 7, then of 21."""
    both = tenant("lab", 7000), tenant("lone", 7000)
    cluster = Cluster(policy_of(*both), {"n0": {"1g.10gb": 7}}, {})
    cluster.jobs = {1: a_running_job(1, "lab", nodes=("n0",))}
    before = cluster.world()
    cluster.jobs = {1: a_running_job(1, "lone", nodes=("n0",))}
    assert cluster.world().fitted != before.fitted
    assert cluster.world().fitted_as(before).fitted == before.fitted
    cluster.policy = policy_of(*both, tenant("crew", 7000))
    limits = cluster.world().fitted_as(before).allowed().standings
    assert limits.keys() == {"lab", "lone", "crew"}
    assert sum(one.own_qos_limit_millislices for one in limits.values()) == 7000


def test_who_waits_since_no_known_moment_comes_after_those_who_wait() -> None:
    """A slot that is released soon came before jobs that had waited for hours."""
    both = tenant("lab", 7000), tenant("lone", 7000)
    cluster = Cluster(policy_of(*both), {"n0": {"1g.10gb": 7}}, {})
    whole = {"gres/gpu:1g.10gb": "7"}
    soon = a_job(1, account="lab", qos="slicewise_lab", tres=whole, submit_s=None, eligible_s=None)
    waits = a_job(2, account="lone", qos="slicewise_lone", tres=whole, submit_s=9, eligible_s=9)
    cluster.jobs = {1: soon, 2: waits}
    nominals = {name: of.quota.nominal_millislices for name, of in cluster.world().fitted.items()}
    assert nominals == {"lab": 0, "lone": 7000}
