"""Property: quotas that together exceed the cluster keep no job waiting while GPUs for it are free.

Slurm starts what limits let; runs end only where a test ends them.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from builders.tenants import policy_of, tenant
from effort import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from stand_ins.reclaim_world import COSTS, GRACE_S, MUCH, ROUND_S, Cluster, one

from slicewise.cluster.language.jobs import JobState, JobView
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.common.costs import run_cost
from slicewise.slurm_plugin.rules.common.qos_names import qos_name
from slicewise.slurm_plugin.rules.quota.tenants import guaranteed_quota, overcommitted_millislices
from slicewise.slurm_plugin.rules.quota.types import Policy

ONE, THREE, SEVEN = COSTS
TENANTS = ("lab", "team", "lone", "crew")
LAYOUTS = ({ONE: 7}, {THREE: 2}, {THREE: 1, ONE: 3}, {SEVEN: 1}, {SEVEN: 2})
KINDS = st.sampled_from(((ONE, 1), (ONE, 2), (THREE, 1), (SEVEN, 1), (SEVEN, 2)))
WIDE = st.sampled_from(((ONE, 4), (ONE, 7), (THREE, 2), (SEVEN, 1), (SEVEN, 2)))
ROUNDS = 4


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Nominals of 101 to 400 % of the capacity, in a tree or not, lent or not."""
    nodes = {
        f"n{i}": dict(cut)
        for i, cut in enumerate(draw(st.lists(st.sampled_from(LAYOUTS), min_size=1, max_size=4)))
    }
    whole = sum(run_cost(there, COSTS) for there in nodes.values())
    percent = draw(st.integers(101, 400))
    parts = draw(st.lists(st.integers(1, 9), min_size=2, max_size=len(TENANTS)))
    nominal = [max(1, whole * percent * part // sum(parts) // 100) for part in parts]
    limits = st.sampled_from([Millislices(0), MUCH])
    above = "lab" if draw(st.booleans()) else ""
    policy = policy_of(
        *(
            tenant(
                name,
                amount + (nominal[1] if above and name == above else 0),
                above if name == "team" else "",
                borrowing_limit_millislices=draw(limits),
                lending_limit_millislices=draw(limits),
            )
            for name, amount in zip(TENANTS, nominal, strict=False)
        )
    )
    return Cluster(policy, nodes, {})


def submit(cluster: Cluster, account: str, shape: tuple[str, int], count: int = 1) -> list[int]:
    found = []
    for _ in range(count):
        job_id = len(cluster.jobs) + 1
        job = replace(
            one(job_id, account, *shape), submit_s=cluster.now_s, eligible_s=cluster.now_s
        )
        cluster.jobs[job_id] = job
        found.append(job_id)
    return found


def end(cluster: Cluster, job_id: int) -> None:
    del cluster.jobs[job_id]
    cluster.jobs[10_000 + job_id] = replace(one(job_id, "gone", ONE), state=JobState.ENDED)


def waiting(cluster: Cluster) -> list[JobView]:
    return [job for job in cluster.jobs.values() if job.state is JobState.PENDING]


def held(cluster: Cluster) -> Counter[str]:
    found = Counter[str]()
    for job in cluster.jobs.values():
        if job.state is JobState.RUNNING:
            found[job.account] += run_cost(job.gpus, COSTS)
    return found


def has_free(cluster: Cluster, gpus: Mapping[str, int]) -> bool:
    return any(
        all(free[kind] >= count for kind, count in gpus.items())
        for free in cluster._free().values()
    )


def check_nobody_waits_for_a_free_gpu(cluster: Cluster) -> None:
    """Except for what jobs need that have quota and wait for GPUs of a node."""
    own, holds, limits = guaranteed_quota(cluster.policy), held(cluster), cluster.limits()
    plans = {
        job.account
        for job in waiting(cluster)
        if not has_free(cluster, job.gpus)
        and holds[job.account] + run_cost(job.gpus, COSTS) <= limits[job.qos]
    }
    kept = sum(limits[qos_name(name)] - holds[name] for name in plans)
    free = sum(run_cost(there, COSTS) for there in cluster._free().values())
    for job in waiting(cluster):
        cost = run_cost(job.gpus, COSTS)
        is_within = holds[job.account] + cost <= own[job.account]
        is_for_a_plan = free - cost < kept
        assert not (is_within and has_free(cluster, job.gpus) and not is_for_a_plan), job


def check_limits(cluster: Cluster) -> None:
    whole = cluster.world().capacity_millislices
    assert whole is not None
    assert overcommitted_millislices(cluster.policy, whole)
    assert sum(cluster.limits().values()) <= whole


@given(clusters(), st.data())
@settings(max_examples=examples(30, nightly=6000))
def test_no_job_within_its_guarantee_waits_while_a_gpu_for_it_is_free(
    cluster: Cluster, data: st.DataObject
) -> None:
    accounts = st.sampled_from(sorted(cluster.policy))
    for _ in range(data.draw(st.integers(1, 3))):
        for account, shape in data.draw(st.lists(st.tuples(accounts, KINDS), max_size=5)):
            submit(cluster, account, shape)
        running = [key for key, job in cluster.jobs.items() if job.state is JobState.RUNNING]
        for job_id in data.draw(st.sets(st.sampled_from(running), max_size=4)) if running else ():
            end(cluster, job_id)
        for _ in range(ROUNDS):
            check_limits(cluster)
            cluster.round()
        check_nobody_waits_for_a_free_gpu(cluster)


@given(clusters(), st.data())
@settings(max_examples=examples(30, nightly=3000))
def test_limits_stay_as_they_are_while_jobs_do(cluster: Cluster, data: st.DataObject) -> None:
    accounts = st.sampled_from(sorted(cluster.policy))
    for account, shape in data.draw(st.lists(st.tuples(accounts, KINDS), max_size=8)):
        submit(cluster, account, shape)
    for _ in range(ROUNDS):
        cluster.round()
    before = cluster.limits()
    for _ in range(ROUNDS):
        cluster.round()
        assert cluster.limits() == before


LONGEST = 6
"""Rounds that a run takes at most."""


@given(clusters(), st.data())
@settings(max_examples=examples(30, nightly=6000))
def test_a_job_within_its_part_starts_within_the_longest_run(
    cluster: Cluster, data: st.DataObject
) -> None:
    """Whatever others have waiting, and whatever GPUs it needs: their queues never end."""
    cluster.plans = True
    lone, *others = data.draw(st.permutations(sorted(cluster.policy)))
    queued = {name: data.draw(st.lists(KINDS, min_size=1, max_size=2)) for name in others}
    lasts = data.draw(st.lists(st.integers(1, LONGEST), min_size=1, max_size=9))
    kind, count = data.draw(WIDE)
    whole = cluster.world().capacity_millislices or 0
    first = sum(max((COSTS[one] * n for one, n in of), default=0) for of in queued.values())
    cost = COSTS[kind] * count
    assume(any(there.get(kind, 0) >= count for there in cluster.nodes.values()))
    assume(cost <= guaranteed_quota(cluster.policy)[lone] and cost + first <= whole)
    began: dict[int, int] = {}
    for number in range(3 * LONGEST):
        for job_id, at in list(began.items()):
            if number - at >= lasts[job_id % len(lasts)]:
                end(cluster, job_id)
                del began[job_id]
        for name, of in queued.items():
            for shape in of:
                ahead = [job for job in waiting(cluster) if job.account == name]
                submit(cluster, name, shape, max(0, 8 - len(ahead)))
        if number == LONGEST:
            (watched,) = submit(cluster, lone, (kind, count))
            cluster.jobs[watched] = replace(cluster.jobs[watched], priority=10_000)
        check_limits(cluster)
        cluster.round()
        for job_id, job in cluster.jobs.items():
            if job.state is JobState.RUNNING:
                began.setdefault(job_id, number)
        if number >= 2 * LONGEST + GRACE_S // ROUND_S:
            break
    assert watched not in [job.job_id for job in waiting(cluster)]


def both(nominal: int) -> Policy:
    return policy_of(tenant("lab", nominal), tenant("lone", nominal))


def test_whole_nodes_are_guaranteed_one_after_the_other() -> None:
    """Half of a GPU each would start nobody."""
    cluster = Cluster(both(7000), {"n0": {SEVEN: 1}}, {})
    submit(cluster, "lab", (SEVEN, 1))
    submit(cluster, "lone", (SEVEN, 1))
    cluster.round()
    assert held(cluster).total() == 7000


def turns(cluster: Cluster, count: int) -> list[str]:
    """Who has the only GPU, one after the other; each that gets it has a next job then."""
    found = []
    for name in cluster.policy:
        submit(cluster, name, (SEVEN, 1))
    cluster.round()
    for _ in range(count):
        (run,) = [job for job in cluster.jobs.values() if job.state is JobState.RUNNING]
        found.append(run.account)
        submit(cluster, run.account, (SEVEN, 1))
        cluster.round()
        end(cluster, run.job_id)
        cluster.round()
    return found


def test_tenants_take_turns_where_one_job_takes_all() -> None:
    """Whatever their names are."""
    policy = policy_of(*(tenant(name, 7000) for name in ("crew", "lab", "lone")))
    found = turns(Cluster(policy, {"n0": {SEVEN: 1}}, {}), 6)
    assert Counter(found) == {"crew": 2, "lab": 2, "lone": 2}


def test_who_waits_is_next_whatever_who_runs_has_queued_before() -> None:
    cluster = Cluster(both(7000), {"n0": {SEVEN: 1}}, {})
    submit(cluster, "lab", (SEVEN, 1), 9)
    cluster.round()
    submit(cluster, "lone", (SEVEN, 1))
    cluster.round()
    assert held(cluster) == {"lab": 7000}
    assert cluster.limits()[qos_name("lone")] == 7000


def test_a_node_less_stops_nobody_who_is_alone() -> None:
    """The cluster had three nodes of two whole GPUs: 14 slices for each of three tenants."""
    policy = policy_of(*(tenant(name, 14_000) for name in ("lab", "lone", "crew")))
    cluster = Cluster(policy, {"n0": {SEVEN: 2}, "n1": {SEVEN: 2}}, {})
    submit(cluster, "lone", (SEVEN, 2))
    submit(cluster, "crew", (SEVEN, 2))
    cluster.round()
    assert held(cluster) == {"lone": 14_000, "crew": 14_000}
    assert cluster.limits()[qos_name("lab")] == 0


def test_what_others_hold_beyond_their_part_comes_as_it_ends() -> None:
    cluster = Cluster(both(7000), {"n0": {ONE: 7}}, {})
    first = submit(cluster, "lab", (ONE, 1), 14)
    cluster.round()
    assert held(cluster) == {"lab": 7000}
    submit(cluster, "lone", (ONE, 1), 7)
    cluster.round()
    for number, job_id in enumerate(first[:3], 1):
        end(cluster, job_id)
        cluster.round()
        assert held(cluster) == {"lab": 7000 - 1000 * number, "lone": 1000 * number}
    for job_id in [key for key, job in cluster.jobs.items() if job.state is JobState.RUNNING]:
        end(cluster, job_id)
    cluster.round()
    assert sorted(held(cluster).values()) == [3000, 4000]


def test_a_whole_node_comes_free_while_others_queue_beyond_their_part() -> None:
    """One of lab's 14 runs ends in each round, on one node and the other, and more of them wait."""
    cluster = Cluster(both(14_000), {"n0": {ONE: 7}, "n1": {ONE: 7}}, {}, plans=True)
    runs = submit(cluster, "lab", (ONE, 1), 14)
    cluster.round()
    submit(cluster, "lone", (ONE, 7))
    for job_id in (run for pair in zip(runs[:7], runs[7:], strict=True) for run in pair):
        end(cluster, job_id)
        submit(cluster, "lab", (ONE, 1))
        cluster.round()
    assert held(cluster) == {"lab": 7000, "lone": 7000}


def test_gpus_that_a_waiting_job_can_not_use_are_no_part_of_what_it_keeps() -> None:
    """crew's whole GPU comes free for lab, and team starts on what lab needs nothing of."""
    policy = policy_of(*(tenant(name, 14_000) for name in ("crew", "lab", "team")))
    cluster = Cluster(policy, {"n0": {SEVEN: 1}, "n1": {ONE: 7}}, {}, plans=True)
    (first,) = submit(cluster, "crew", (SEVEN, 1))
    cluster.round()
    submit(cluster, "lab", (SEVEN, 1))
    submit(cluster, "crew", (SEVEN, 1), 3)
    submit(cluster, "team", (ONE, 1), 9)
    for _ in range(ROUNDS):
        cluster.round()
        check_limits(cluster)
    assert held(cluster) == {"crew": 7000, "team": 7000}
    end(cluster, first)
    cluster._start()
    assert held(cluster) == {"lab": 7000, "team": 7000}


def test_who_holds_more_than_its_part_keeps_no_gpu_for_what_it_may_not_start() -> None:
    policy = policy_of(*(tenant(name, 10_000) for name in ("crew", "lab", "team")))
    cluster = Cluster(policy, {"n0": {SEVEN: 1}, "n1": {ONE: 3}}, {}, plans=True)
    submit(cluster, "lab", (SEVEN, 1))
    cluster.round()
    submit(cluster, "crew", (SEVEN, 1))
    submit(cluster, "lab", (ONE, 1), 3)
    submit(cluster, "team", (ONE, 1), 3)
    cluster.round()
    assert held(cluster) == {"lab": 7000, "team": 3000}


def test_what_is_idle_stays_where_it_may_be_lent() -> None:
    """17 slices on 7, of which lone is guaranteed three; lab may lend three."""
    policy = policy_of(
        tenant("crew", 7000, lending_limit_millislices=MUCH),
        tenant("lab", 7000, lending_limit_millislices=Millislices(3000)),
        tenant("lone", 3000, borrowing_limit_millislices=MUCH),
    )
    cluster = Cluster(policy, {"n0": {ONE: 7}}, {})
    for job_id in range(1, 8):
        cluster.jobs[job_id] = one(job_id, "lone", ONE, borrowed=True)
    for _ in range(2):
        cluster.round()
    assert held(cluster) == {"lone": 7000}


def test_what_is_idle_is_lent_and_what_is_lent_goes_back() -> None:
    """To lone, beyond its nominal, of what lab leaves; both nominals are 10 slices on 7."""
    limits = {"borrowing_limit_millislices": MUCH, "lending_limit_millislices": MUCH}
    policy = policy_of(tenant("lab", 7000, **limits), tenant("lone", 3000, **limits))
    cluster = Cluster(policy, {"n0": {ONE: 7}}, {}, drains=False)
    for _ in range(7):
        job_id = len(cluster.jobs) + 1
        cluster.jobs[job_id] = one(job_id, "lone", ONE, borrowed=True)
    for _ in range(2):
        cluster.round()
    assert held(cluster) == {"lone": 7000}
    submit(cluster, "lab", (ONE, 1), 7)
    for _ in range(GRACE_S // ROUND_S + 2):
        cluster.round()
    assert held(cluster) == {"lab": 5000, "lone": 2000}
