"""Tests what quota decisions are made of."""

from builders.jobs import a_running_job
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
