"""Tests what jobs hold and wait for, and the capacity of the cluster."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from builders.jobs import a_job
from builders.nodes import a_node
from builders.tenants import tenant
from stand_ins.scripted import slurm_reasons

from slicewise.cluster.language.gpus.mig_profiles import WholeBoard
from slicewise.cluster.language.jobs import SHAPES_NODE, JobState, JobView, NodeView
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.quota.demand import (
    Held,
    demand_of,
    for_recalls,
    guaranteed_instances,
    guaranteed_use,
    held,
    late_jobs,
    qos_use,
    waiting_instances,
    within_guarantees,
)
from slicewise.slurm_plugin.rules.quota.jobs import WaitingJob, jobs_by_holder
from slicewise.slurm_plugin.rules.quota.nodes import capacity, node_costs
from slicewise.slurm_plugin.rules.quota.types import Policy, Quota, Tenant
from slicewise.slurm_plugin.rules.quota.waits import waits_of

COSTS = {"1g.10gb": Millislices(1000), "3g.40gb": Millislices(3500)}
MANAGED = frozenset({"gpu", "big"})
PRICES = COSTS | {
    "7g.80gb": Millislices(7000),
    "4g.40gb": Millislices(4000),
    "2g.20gb": Millislices(2000),
    "1g.6gb": Millislices(875),
    "a100": Millislices(7000),
}
WHOLE = WholeBoard(7, Millislices(7000))
BOARDS = dict.fromkeys(("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"), WHOLE)
BOARDS["1g.6gb"] = WholeBoard(4, Millislices(3500))
ROOM = {name: tenant(name, 9000) for name in ("vision", "a", "b")}


def job(account: str = "vision", state: JobState = JobState.RUNNING, **changes: Any) -> JobView:
    """A job of two slices."""
    tres = {"cpu": "4", "billing": "2000", "gres/gpu": "2", "gres/gpu:1g.10gb": "2"}
    fields: dict[str, Any] = {"state": state, "reason": "None", "tres": tres, "submit_s": 100}
    return a_job(account=account, **(fields | changes))


def waiting(account: str = "vision", **changes: Any) -> JobView:
    return job(account, JobState.PENDING, **{"reason": "Priority", **changes})


def wanted(policy: Policy, jobs: Iterable[JobView]) -> Mapping[str, int]:
    """What accounts' jobs hold and wait for."""
    return demand_of(policy, jobs_by_holder(jobs, MANAGED, COSTS, {}))


def ids(jobs: Iterable[WaitingJob]) -> list[int]:
    return [job.job_id for job in jobs]


def recallable(jobs: Iterable[JobView]) -> Mapping[str, Sequence[WaitingJob]]:
    return for_recalls(jobs_by_holder(jobs, MANAGED, COSTS, {}))


def test_of_all_that_slurm_names_these_wait_for_quota():
    """Of jobs that are requeued Slurm says until its next look how they ended."""
    ended = {
        "InactiveLimit",
        "JobLaunchFailure",
        "NodeDown",
        "NonZeroExitCode",
        "OutOfMemory",
        "RaisedSignal",
        "SystemFailure",
        "TimeLimit",
    }
    of_blue_gene = {"BlockFreeAction", "BlockMaxError"}
    held = {"JobHeldAdmin", "JobHeldUser", "JobHoldMaxRequeue"}
    jobs = [waiting(reason=name, held=name in held) for name in slurm_reasons()]
    assert {job.reason for job in jobs if waits_of(job).for_quota} == {
        *("None", "SchedDefer", "Priority", "Resources", "QOSGrpBilling"),
        *("Prolog", "Cleaning", "QOSGrpGRES"),
        *ended,
        *of_blue_gene,
    }
    assert [job.reason for job in jobs if waits_of(job).for_gpus] == ["Priority", "Resources"]
    assert [job.reason for job in jobs if waits_of(job).for_nodes] == ["ReqNodeNotAvail"]


@pytest.mark.parametrize(
    ("reason", "for_quota", "for_nodes"),
    [
        ("ReqNodeNotAvail,_UnavailableNodes:gpu[1-2]", False, True),
        ("ReqNodeNotAvail,_Reserved_for_maintenance", False, True),
        (f"ReqNodeNotAvail,_UnavailableNodes:{SHAPES_NODE}", True, False),
        ("Nodes_required_for_job_are_DOWN,_DRAINED,_REBOOTING_or_reserved_for_jobs", True, True),
        ("Reservation_night_was_deleted", False, False),
        ("Reservation_night_is_invalid", False, False),
        ("uid_5_not_in_group_permitted_to_use_this_partition_(gpu).", False, False),
    ],
)
def test_sentences_of_slurm_s_say_what_its_names_do(reason: str, for_quota: bool, for_nodes: bool):
    one = waiting(reason=reason)
    assert (waits_of(one).for_quota, waits_of(one).for_nodes) == (for_quota, for_nodes)


@pytest.mark.parametrize(
    ("one", "millislices"),
    [
        (job(), 2000),
        (job(state=JobState.COMPLETING), 2000),
        (job(state=JobState.SUSPENDED), 2000),
        (job(state=JobState.ENDED), 0),
        (waiting(), 2000),
        (waiting(reason="QOSGrpBilling"), 2000),
        (waiting(held=True), 0),
        (waiting(reason="Dependency"), 0),
        (waiting(reason="BeginTime"), 0),
        (job(state=JobState.SPECIAL_EXIT, held=True), 0),
        (waiting(untouched=frozenset({3, 4, 5})), 6000),
        (waiting(untouched=frozenset({3, 4, 5}), held=True), 0),
        (waiting(partition="cpu,big"), 2000),
        (job(partition="cpu"), 0),
        (job(tres={"cpu": "4"}), 0),
        (job(tres={"gres/gpu:3g.40gb": "1", "gres/gpu:unpriced": "5"}), 3500),
    ],
)
def test_what_one_job_holds_or_waits_for(one: JobView, millislices: int):
    assert wanted(ROOM, [one]).get("vision", 0) == millislices


def test_demand_is_by_account():
    jobs = [job("a"), waiting("a"), waiting("b")]
    assert wanted(ROOM, jobs) == {"a": 4000, "b": 2000}


def test_jobs_in_the_tenants_own_qos_want_no_loan():
    policy = {"vision": tenant("vision", 3000)}
    own = [job(qos="slicewise_vision"), *[waiting(qos="slicewise_vision")] * 4]
    assert wanted(policy, own) == {"vision": 2000}
    borrowed = waiting(qos="slicewise_vision_borrowed")
    assert wanted(policy, [*own, borrowed]) == {"vision": 4000}


def test_what_is_too_little_for_a_job_of_the_own_qos_is_wanted_by_none():
    """A whole GPU never starts on three slices; a smaller job behind it does."""
    policy = {"vision": tenant("vision", 3000)}
    large = waiting(qos="slicewise_vision", tres={"gres/gpu:7g.80gb": "1", "node": "1"})
    assert wanted(policy, [large]) == {}
    assert demand_of(
        policy, jobs_by_holder([large, waiting(qos="slicewise_vision")], MANAGED, COSTS, {})
    ) == {"vision": 2000}


@pytest.mark.parametrize("field", ["state", "tres", "start_s", "task_index", "uid"])
def test_of_a_tenant_whose_job_can_not_be_read_nothing_is_lent(field: str):
    policy = {name: tenant(name, 3000) for name in ("vision", "nlp")}
    state = JobState.OTHER if field == "state" else JobState.RUNNING
    odd = job(state=state, tres={}, unread=frozenset({field}))
    assert wanted(policy, [odd, job("nlp")]) == {
        "vision": 3000,
        "nlp": 2000,
    }
    elsewhere = replace(odd, partition="cpu")
    assert wanted(policy, [elsewhere]) == {}
    ended = replace(odd, state=JobState.ENDED)
    assert wanted(policy, [ended]) == {}
    known = replace(job(), end_s=None, unread=frozenset({"end_s"}))
    assert wanted(policy, [known]) == {"vision": 2000}


def test_a_job_of_an_unknown_state_holds_what_it_has():
    assert held([job(state=JobState.OTHER)], MANAGED)["vision"].instances == {"1g.10gb": 2}


def test_capacity_is_what_the_managed_nodes_are_configured_with():
    def node(gpus: Mapping[str, int], *partitions: str, name: str = "n") -> NodeView:
        states = frozenset({"DOWN"})
        return a_node(name, states=states, gpus=gpus, partitions=frozenset(partitions))

    nodes = [
        node({"1g.10gb": 7}, "gpu", "big"),
        node({"3g.40gb": 2, "unpriced": 4}, "big", "cpu"),
        node({"1g.10gb": 7}, "cpu"),
        node({"1g.10gb": 7}),
        node({"1g.10gb": 56}, "gpu", name=SHAPES_NODE),
    ]
    assert capacity(nodes, MANAGED, COSTS, BOARDS) == 14_000
    assert node_costs(nodes, MANAGED, COSTS) == {7000}


@pytest.mark.parametrize(
    ("gpus", "millislices"),
    [
        ({"7g.80gb": 3, "1g.10gb": 1, "pad4": 24}, 28_000),
        ({"7g.80gb": 4, "pad4": 24}, 28_000),
        ({"pad0": 7}, 3_500),
        ({"1g.10gb": 1, "pad1": 6, "old": 0}, 7_000),
        # A 4g beside a 3g costs more than the GPU.
        ({"4g.40gb": 1, "3g.40gb": 1, "pad2": 5}, 7_500),
        # No pads: nothing else can be made of them beside jobs.
        ({"2g.20gb": 3}, 6_000),
        ({"3g.40gb": 1}, 3_500),
        # GPUs that are not cut, with and without a price.
        ({"a100": 2, "1g.10gb": 1, "pad3": 6}, 21_000),
        ({"unpriced": 8, "1g.10gb": 1, "pad3": 6}, 7_000),
        # Of two models the least that the boards could be.
        ({"1g.10gb": 1, "1g.6gb": 1, "pad2": 9}, 3_500),
    ],
)
def test_capacity_does_not_shrink_because_gpus_are_cut_otherwise(
    gpus: Mapping[str, int], millislices: int
):
    node = a_node("n", gpus=gpus)
    assert capacity([node], MANAGED, PRICES, BOARDS) == millislices


def test_what_pads_are_of_models_that_cost_the_same_is_all_one():
    node = a_node("n", gpus={"pad0": 14})
    same = dict.fromkeys(BOARDS, WHOLE)
    assert capacity([node], MANAGED, PRICES, same) == 14_000
    assert capacity([node], MANAGED, PRICES, {}) == 0


def test_what_is_held_in_all_and_in_the_tenant_s_own_qos():
    jobs = [
        job("a"),
        job("a", qos="long", tres={"gres/gpu:3g.40gb": "1"}),
        job("b", qos="normal"),
        job("b", qos="slicewise_b_borrowed"),
        waiting("c"),
        job("d", partition="cpu"),
        job("below", qos="slicewise_a"),
    ]
    assert held(jobs, MANAGED) == {
        "a": Held({"1g.10gb": 4, "3g.40gb": 1}, {"1g.10gb": 4}, {"3g.40gb": 1}),
        "b": Held({"1g.10gb": 4}, {}, {"1g.10gb": 2}),
    }


@pytest.mark.parametrize(
    ("reason", "own_millislices"),
    [
        ("AssocGrpGRES", 0),
        ("JobArrayTaskLimit", 0),
        ("QOSGrpBillingRunMinutes", 2000),
    ],
)
def test_jobs_that_wait_for_something_else_want_no_loan_and_keep_nothing_from_others(
    reason: str, own_millislices: int
) -> None:
    """But for a budget, of which others give back something at any moment."""
    waiting = job(state=JobState.PENDING, qos="slicewise_vision_borrowed", reason=reason)
    assert wanted(ROOM, [waiting]) == {}
    own = job(state=JobState.PENDING, reason=reason)
    assert wanted(ROOM, [own]).get("vision", 0) == own_millislices
    runs = job(qos="slicewise_vision_borrowed", reason=reason)
    assert wanted(ROOM, [runs]) == {"vision": 2000}


def test_of_an_array_that_throttles_itself_only_counts_what_runs_until_the_next_may_start() -> None:
    """Its tenant lent nothing for as long as the array had tasks."""
    tasks = waiting(reason="JobArrayTaskLimit", untouched=frozenset(range(1, 200)))
    assert wanted(ROOM, [job(), tasks]) == {"vision": 2000}
    assert guaranteed_use([job(), tasks], MANAGED, COSTS) == {"vision": 2000}
    assert recallable([tasks]) == {}
    may_start = replace(tasks, reason="QOSGrpBilling")
    assert wanted(ROOM, [may_start]) == {"vision": 8000}
    assert recallable([may_start]).keys() == {"vision"}


def test_the_guarantee_is_used_by_what_holds_it_and_what_waits_for_it() -> None:
    jobs = [
        job(),
        job(state=JobState.PENDING, untouched=frozenset({1, 2, 3}), reason="Priority"),
        job(state=JobState.PENDING, held=True),
        job(state=JobState.PENDING, reason="Dependency"),
        job(state=JobState.PENDING, reason="JobArrayTaskLimit"),
        job(qos="slicewise_vision_borrowed"),
        job("a", partition="cpu"),
        job("a", JobState.ENDED),
    ]
    assert guaranteed_use(jobs, MANAGED, COSTS) == {"vision": 8000}


def test_accounts_without_a_quota_count_for_the_tenant_in_whose_qos_they_are() -> None:
    """Slurm's limits count them there, too: what they hold is not idle, and is not lent."""
    runs, waits = job("below", qos="slicewise_vision"), waiting("below", qos="slicewise_vision")
    assert wanted(ROOM, [runs]) == {"vision": 2000}
    assert wanted(ROOM, [runs, waits]) == {"vision": 4000}
    assert guaranteed_use([runs, waits], MANAGED, COSTS) == {"vision": 4000}
    assert guaranteed_instances([runs], MANAGED) == {"vision": {"1g.10gb": 2}}
    assert recallable([waits]).keys() == {"vision"}
    on_loan = job("below", qos="slicewise_vision_borrowed")
    assert wanted(ROOM, [on_loan]) == {"vision": 2000}


def test_what_whole_nodes_cost() -> None:
    def node(partition: str, gpus: Mapping[str, int]) -> NodeView:
        return a_node("n", gpus=gpus, partitions=frozenset({partition}))

    full = {"1g.10gb": 7}
    nodes = [node("gpu", full), node("gpu", full), node("gpu", {}), node("cpu", {"3g.40gb": 1})]
    assert node_costs(nodes, MANAGED, COSTS) == {7000, 0}


def test_instances_are_waited_for_where_only_others_are_in_the_way() -> None:
    jobs = (
        waiting(),
        waiting(reason="Resources", untouched=frozenset({3, 5, 6}), partition="cpu,big"),
        waiting(reason="QOSGrpBilling"),
        waiting(held=True),
        waiting(partition="cpu"),
        job(reason="Priority"),
    )
    assert waiting_instances(jobs, MANAGED) == {"1g.10gb": 2 + 6}


def test_who_waits_for_its_tenant_s_own_quota_and_since_when() -> None:
    own, reason = "slicewise_vision", "QOSGrpBilling"
    jobs = (
        waiting(qos=own, reason=reason, submit_s=40, eligible_s=90),
        waiting(qos=own, reason=reason, submit_s=80, eligible_s=None),
        waiting(qos=own, reason="Dependency", eligible_s=10),
        waiting(qos=own, reason=reason, held=True, eligible_s=10),
        waiting(qos=own, reason=reason, partition="cpu", eligible_s=10),
        waiting(qos="slicewise_vision_borrowed", reason=reason, eligible_s=10),
        waiting("nlp", qos="slicewise_nlp", reason=reason, submit_s=None, eligible_s=None),
        waiting(qos=own, reason=reason, eligible_s=10, tres={"cpu": "4"}),
        job(qos=own, eligible_s=10),
    )
    (found,) = recallable(jobs).items()
    assert found[0] == "vision"
    assert [(one.since_s, one.cost_millislices) for one in found[1]] == [(90, 2000), (80, 2000)]


@pytest.mark.parametrize(
    ("eligible_s", "since_s"), [(None, 100), (100, 100), (101, 100), (105, 100), (106, 106), (9, 9)]
)
def test_a_job_waits_from_its_submit_though_slurm_looks_at_it_a_second_later(
    eligible_s: int | None, since_s: int
) -> None:
    """Else a lender's slices would be recalled again by then, and come a second later."""
    one = waiting(qos="slicewise_vision", reason="QOSGrpBilling", eligible_s=eligible_s)
    (found,) = recallable([one])["vision"]
    assert found.since_s == since_s


def test_tasks_that_wait_for_their_tenant_s_own_quota_do_so_each_for_itself() -> None:
    tasks = waiting(qos="slicewise_vision", eligible_s=7, untouched=frozenset({3, 5}))
    (found,) = recallable((tasks,))["vision"]
    assert (found.since_s, found.total_millislices, found.tasks) == (7, 4000, 2)


def test_a_completing_job_holds_nothing_of_a_limit() -> None:
    """Slurm starts others in its place. If it counted, no quota would be moved to the borrowed QOS
    for what runs there, and its tenant could hold more than both limits together.
    """
    ending = job(job_id=8, state=JobState.COMPLETING)
    doubtful = replace(ending, job_id=9, qos="slicewise_b", unread=frozenset({"tres"}))
    used = qos_use(ROOM, jobs_by_holder([job(), ending, doubtful], MANAGED, COSTS, {}))
    assert used.held == {"slicewise_vision": 2000, "slicewise_b": 0}


LARGE = {"gres/gpu:3g.40gb": "1"}


def test_in_the_place_of_a_completing_job_the_own_qos_comes_first() -> None:
    """The borrowed one got the slices, and a job that Slurm would have started waited on. What the
    job waits for are GPUs, so it calls back nothing and is not late.
    """
    jobs = [
        job(tres=LARGE),
        job(job_id=8, state=JobState.COMPLETING, tres=LARGE),
        job(job_id=9, state=JobState.COMPLETING, qos="slicewise_vision_borrowed"),
        waiting(job_id=10, tres=LARGE),
    ]
    there = jobs_by_holder(jobs, MANAGED, COSTS, {})
    assert qos_use(ROOM, there).waiting == {"slicewise_vision": 3500}
    assert list(within_guarantees(there, ROOM)) == list(late_jobs(there, ROOM, 10**9)) == []
    quota = replace(ROOM["vision"].quota, type_nominals={"3g.40gb": 2})
    by_type = {"vision": replace(ROOM["vision"], quota=quota)}
    assert qos_use(by_type, there).waiting == {"slicewise_vision": 3500}


BY_TYPE = {"vision": tenant("vision", 9000, type_nominals={"1g.10gb": 3})}


def test_what_waits_beyond_a_guarantee_of_a_type_is_not_paid_by_it() -> None:
    """Running jobs hold two of three; a job of two is beyond, one of another type is not."""
    small, large = waiting(job_id=8, priority=9), waiting(job_id=9, tres=LARGE)
    jobs = [job(), small, large, waiting(job_id=10, reason="QOSGrpGRES")]
    assert ids(within_guarantees(jobs_by_holder(jobs, MANAGED, COSTS, {}), BY_TYPE)) == [9]
    assert ids(late_jobs(jobs_by_holder(jobs, MANAGED, COSTS, {}), BY_TYPE, 10**9)) == [9]
    assert wanted(BY_TYPE, jobs) == {"vision": 5500}
    used = qos_use(BY_TYPE, jobs_by_holder(jobs, MANAGED, COSTS, {}))
    assert used.waiting == {"slicewise_vision": 3500}
    assert used.own_first == {"slicewise_vision"}
    assert qos_use(ROOM, jobs_by_holder(jobs, MANAGED, COSTS, {})).own_first == frozenset()
    one = waiting(tres={"gres/gpu:1g.10gb": "1"}, untouched=frozenset({4, 5}))
    there = jobs_by_holder([job(), one], MANAGED, COSTS, {})
    assert ids(within_guarantees(there, BY_TYPE)) == [one.job_id], "the first task"


def test_a_guarantee_of_a_type_pays_for_no_more_than_the_limit_on_its_model() -> None:
    """Slurm has the smaller number. What counted beyond it would call back loans for nothing."""
    quota = replace(BY_TYPE["vision"].quota, model_limits={"A100-80GB": Millislices(2000)})
    policy = {"vision": replace(BY_TYPE["vision"], quota=quota)}
    jobs = [job(), waiting(tres={"gres/gpu:1g.10gb": "1"})]
    models = dict.fromkeys(COSTS, "A100-80GB")
    assert ids(within_guarantees(jobs_by_holder(jobs, MANAGED, COSTS, {}), policy)) == [
        jobs[1].job_id
    ]
    there = jobs_by_holder(jobs, MANAGED, COSTS, models)
    for known in (there, there.with_others(there.others)):
        assert list(within_guarantees(known, policy)) == []


def test_a_tenants_guarantee_pays_for_accounts_without_a_quota_too() -> None:
    """Slurm counts them in the tenant's QOS, so what waits behind them is not late."""
    behind = waiting()
    of_one_more = replace(job(job_id=8), account="below")
    policy = {"vision": tenant("vision", 4000)}
    there = jobs_by_holder([of_one_more, behind], MANAGED, COSTS, {})
    assert ids(within_guarantees(there, policy)) == [behind.job_id]
    there = jobs_by_holder([job(), of_one_more, behind], MANAGED, COSTS, {})
    assert list(within_guarantees(there, policy)) == list(late_jobs(there, policy, 10**9)) == []
    named = Quota(Millislices(9000), type_nominals={"1g.10gb": 4})
    assert list(within_guarantees(there, {"vision": Tenant("vision", "", named)})) == []
    three = replace(named, type_nominals={"1g.10gb": 6})
    assert ids(within_guarantees(there, {"vision": Tenant("vision", "", three)})) == [behind.job_id]
    ending = replace(of_one_more, state=JobState.COMPLETING)
    there = jobs_by_holder([job(), ending, behind], MANAGED, COSTS, {})
    assert qos_use(policy, there).waiting == {"slicewise_vision": 2000}


def test_a_job_in_the_own_qos_that_waits_for_its_type_may_move_and_calls_nothing_back() -> None:
    own = waiting(reason="QOSGrpGRES")
    assert waits_of(own).for_quota
    assert recallable([own]) == {}
    assert not waits_of(waiting(reason="QOSGrpGRES", qos="slicewise_vision_borrowed")).for_quota
    assert not waits_of(waiting(reason="QOSGrpGRES", qos="normal")).for_quota


def test_instances_of_the_guarantee_are_counted_by_type() -> None:
    jobs = [
        job(),
        waiting(tres=LARGE, untouched=frozenset({1, 2})),
        job(qos="slicewise_vision_borrowed"),
        waiting("a", reason="Dependency"),
    ]
    assert guaranteed_instances(jobs, MANAGED) == {"vision": {"1g.10gb": 2, "3g.40gb": 2}}
