"""Property: no limit flaps for jobs that quota alone does not start, whatever else keeps them."""

from dataclasses import replace

from builders.tenants import policy_of, tenant
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from stand_ins.reclaim_world import COSTS, MUCH, ROUND_S, Cluster, one

from slicewise.cluster.language.jobs import JobState
from slicewise.cluster.language.units import Millislices

ONE, THREE, SEVEN = COSTS
TENANTS = ("lab", "team", "lone")
REASONS = (
    *("AssocGrpBillingMinutes", "AssocGrpGRES", "AssocMaxJobsLimit", "QOSMaxCpuPerUserLimit"),
    *("MaxGRESPerAccount", "JobArrayTaskLimit", "Licenses", "Reservation", "ReqNodeNotAvail"),
    *("PartitionTimeLimit", "AssocGrpCPURunMinutesLimit", "Resources"),
)
"""As Slurm gives them once the job has quota; the last says that none of its GPUs is free."""
HOUR_ROUNDS = 3600 // ROUND_S
MOST_CHANGES = 120
"""Of limits in an hour without a job that starts, ends or is submitted."""


@st.composite
def worlds(draw: st.DrawFn) -> Cluster:
    limits = st.sampled_from([Millislices(0), Millislices(3000), MUCH])
    quotas = st.sampled_from([0, 1000, 3500, 7000, 12_000])
    policy = policy_of(
        *(
            tenant(
                name,
                draw(quotas),
                borrowing_limit_millislices=draw(limits),
                lending_limit_millislices=draw(limits),
            )
            for name in TENANTS
        )
    )
    cluster = Cluster(policy, {"n0": {ONE: 7}, "n1": {THREE: 2}, "n2": {SEVEN: 1}}, {}, turn_s=1800)
    shapes = st.sampled_from(((ONE, 1), (ONE, 3), (THREE, 1), (SEVEN, 1)))
    asked = st.tuples(
        *(st.sampled_from(TENANTS), shapes, st.booleans(), st.booleans()),
        st.sampled_from([None, *REASONS]),
        st.sampled_from([600, 1200]),
    )
    for account, shape, borrowed, batch, reason, limit_s in draw(
        st.lists(asked, min_size=1, max_size=9)
    ):
        job_id = len(cluster.jobs) + 1
        job = one(job_id, account, *shape, borrowed=borrowed)
        times = {"submit_s": cluster.now_s, "eligible_s": cluster.now_s, "time_limit_s": limit_s}
        cluster.jobs[job_id] = replace(job, array_job_id=job_id, **times)
        if reason is not None:
            cluster.others[job_id] = reason
        if batch:
            cluster.batch |= {job_id}
    return cluster


def runs(cluster: Cluster) -> set[int]:
    return {key for key, job in cluster.jobs.items() if job.state is JobState.RUNNING}


@given(worlds())
@settings(max_examples=examples(6, nightly=1000))
def test_limits_stay_where_no_job_starts_or_ends(cluster: Cluster) -> None:
    changes, limits, before = 0, cluster.limits(), runs(cluster)
    # The first minutes, in which jobs start, are part of the first hour without a change.
    for _ in range(HOUR_ROUNDS + 20):
        cluster.round()
        now, there = cluster.limits(), runs(cluster)
        changes = 0 if there != before else changes + sum(now[name] != limits[name] for name in now)
        limits, before = now, there
        assert changes <= MOST_CHANGES
