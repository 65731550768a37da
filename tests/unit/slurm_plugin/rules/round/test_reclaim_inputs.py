"""Tests the inputs of reclaiming: Slurm's jobs and nodes, and the ledger's recalls."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from builders.jobs import a_job, a_running_job
from builders.ledger_parts import ledger_view_of
from builders.nodes import a_node
from builders.service_views import a_service
from builders.tenants import policy_of, tenant

from slicewise.cluster.language.jobs import JobState, JobView, NodeView
from slicewise.cluster.language.units import Millislices
from slicewise.cluster.rpc.messages import ServiceView, SlotView
from slicewise.slurm_plugin.rules.common.qos_names import borrowed_qos
from slicewise.slurm_plugin.rules.quota.calendar import Moment
from slicewise.slurm_plugin.rules.quota.types import Recall
from slicewise.slurm_plugin.rules.reclaim.victims import ReclaimInput
from slicewise.slurm_plugin.rules.round.reclaim_inputs import giving_back, reclaim_input
from slicewise.slurm_plugin.rules.round.world import QuotaRules, SlurmView, World, world

NOW_S = 100_000
COSTS = {"1g.10gb": Millislices(1000), "3g.40gb": Millislices(3500)}
POLICY = policy_of(tenant("vision", 4000), tenant("nlp", 2000, weight=3))
RECALL = Recall("vision", "nlp", Millislices(2000), NOW_S - 10)


def running(job_id: int, account: str = "nlp", **changes: Any) -> JobView:
    """A run of nlp's on borrowed quota."""
    fields = {"qos": borrowed_qos(account), "start_s": NOW_S - 500}
    return a_running_job(job_id, account, **(fields | changes))


def service(*slots: SlotView) -> ServiceView:
    return a_service(tenant="nlp", name="bert", slots=slots)


def seen(*jobs: JobView, nodes: Iterable[NodeView] = (a_node(),), **changes: Any) -> World:
    ledger_view = ledger_view_of(Moment(NOW_S, 0, 0), tenants=changes.get("policy", POLICY))
    services, told = changes.get("services", ()), changes.get("leaving", frozenset())
    rules = QuotaRules(frozenset({"gpu"}), COSTS, {}, {}, grace_s=0, term_s=60, turn_s=1800)
    return world(ledger_view, SlurmView(jobs, tuple(nodes), tuple(services), told), rules)


def look(*jobs: JobView, nodes: Iterable[NodeView] = (a_node(),), **changes: Any) -> ReclaimInput:
    world = seen(*jobs, nodes=nodes, **changes)
    recalls, excess = changes.get("recalls", [RECALL]), changes.get("excess", {})
    return giving_back(reclaim_input(world), world, recalls, excess)


def waiting(*jobs: JobView, **changes: Any) -> list[int]:
    return [one.job_id for one in look(*jobs, **changes).wanting]


def test_a_job_of_a_lender_that_waits_for_quota_or_for_others_wants_its_own() -> None:
    tres = {"gres/gpu:1g.10gb": "4", "gres/gpu:3g.40gb": "0", "node": "2"}
    policy = policy_of(tenant("vision", 9000), tenant("nlp", 2000))
    found = look(a_job(12, tres=tres), a_job(13, reason="Priority"), policy=policy).wanting
    assert [one.job_id for one in found] == [12, 13]
    assert (found[0].shape, found[0].nodes) == ((("1g.10gb", 2),), 2)
    assert (found[0].tenant, found[0].priority, found[0].cost_millislices) == ("vision", 100, 4000)


@pytest.mark.parametrize(
    "other",
    [
        {"held": True},
        {"reason": "Licenses"},
        {"reason": "Dependency"},
        {"qos": "slicewise_vision_borrowed"},
        {"account": "nlp"},
        {"partition": "cpu"},
        {"tres": {"cpu": "4"}},
        {"state": JobState.ENDED},
    ],
)
def test_no_other_job_does(other: Mapping[str, Any]) -> None:
    assert waiting(a_job(12, **other)) == []


def test_a_lender_wants_no_more_than_its_own_part_pays_for() -> None:
    own = running(7, "vision", qos="slicewise_vision", tres={"gres/gpu:1g.10gb": "2"})
    large = a_job(12, priority=300, tres={"gres/gpu:3g.40gb": "1"})
    assert waiting(own, large, a_job(13, priority=100), a_job(14, priority=200), a_job(15)) == [
        14,
        13,
    ]


def test_an_array_wants_as_many_tasks_as_wait() -> None:
    assert waiting(a_job(12, array_job_id=12, untouched=frozenset({1, 2, 3}))) == [12, 12, 12]
    assert waiting(a_job(12, array_job_id=12, untouched=frozenset(range(9)))) == [12] * 4


def test_what_runs_on_borrowed_quota_may_go_and_says_where_it_is() -> None:
    run = running(7, tres={"gres/gpu:1g.10gb": "3"}, nodes=("n1", "n2"), priority=5)
    own = running(8, qos="slicewise_nlp")
    (found,) = look(run, own, nodes=[a_node("n1"), a_node("n2")]).running
    assert (found.job_id, found.tenant, found.cost_millislices) == (7, "nlp", 3000)
    assert (found.start_s, found.priority) == (NOW_S - 500, 5)
    assert found.instances == {"n1": {"1g.10gb": 2}, "n2": {"1g.10gb": 1}}


def test_a_replica_is_what_a_living_service_has_in_a_slot() -> None:
    slots = (
        SlotView(index=0, state="running", job_id=7),
        SlotView(index=1, state="ending", job_id=8),
    )
    found = look(running(7), running(8), running(9), services=[service(*slots)]).running
    assert [one.is_replica for one in found] == [True, False, False]


def test_before_somebody_takes_back_only_what_may_end_for_a_turn_counts() -> None:
    """A batch job on borrowed quota runs on, and a replica in its tenant's own QOS."""
    own = {"qos": "slicewise_nlp"}
    slots = (
        SlotView(index=0, state="running", job_id=7),
        SlotView(index=1, state="ending", job_id=8),
        SlotView(index=2, state="running", job_id=9),
    )
    ends = running(11, state=JobState.COMPLETING, **own)
    world = seen(
        running(7), running(8), running(9, **own), running(10), ends, services=[service(*slots)]
    )
    found = reclaim_input(world).running
    assert [(one.job_id, one.is_replica) for one in found] == [(7, True), (8, False), (11, False)]


def test_a_run_without_a_start_has_begun_just_now() -> None:
    (found,) = look(running(7, state=JobState.CONFIGURING, start_s=None)).running
    assert found.age_s(NOW_S) == 0.0


def test_what_is_completing_leaves_in_any_qos() -> None:
    found = look(
        running(7),
        running(8, "vision", qos="slicewise_vision", state=JobState.COMPLETING),
        leaving=frozenset({(7, NOW_S - 500)}),
    )
    assert {job_id for job_id, _ in found.leaving} == {7, 8}
    assert [one.job_id for one in found.running] == [7, 8]


def test_only_nodes_that_slurm_can_use_have_something_free() -> None:
    nodes = [
        a_node("n1", held=5),
        a_node("n2", states=frozenset({"IDLE", "DRAIN"})),
        a_node("n3", partitions=frozenset({"cpu"})),
    ]
    found = look(running(7, nodes=("n2",)), nodes=nodes)
    assert found.free == {"n1": {"1g.10gb": 2}}
    assert found.running[0].instances == {}


def test_above_its_own_part_is_what_a_tenant_holds_in_any_qos_beyond_it() -> None:
    own = running(8, qos="slicewise_nlp", tres={"gres/gpu:1g.10gb": "2"})
    guaranteed = running(9, "vision", qos="slicewise_vision")
    found = look(own, running(7), guaranteed)
    assert found.above_nominal_millislices == {"nlp": 1000}
    assert found.weights == {"vision": 1, "nlp": 3}
    assert (found.now_s, found.term_s) == (NOW_S, 60)


def test_a_recall_for_which_no_jobs_wait_is_given_up_whatever_its_shape() -> None:
    runs = [running(i) for i in range(1, 6)]
    assert look(*runs).shrink == {"nlp": 2000}
    assert look(*runs, a_job(12)).shrink == {"nlp": 1000}
    assert look(*runs, a_job(12), a_job(13)).shrink == {}
    assert look(*runs[:3]).shrink == {"nlp": 1000}


def test_what_is_recalled_of_a_borrower_is_counted_together() -> None:
    more = Recall("hpc", "nlp", Millislices(500), NOW_S - 5)
    assert look(recalls=[RECALL, more]).recalled == {"nlp": 2500}


@pytest.mark.parametrize(
    ("reason", "shrink"), [("QOSGrpBillingRunMinutes", {}), ("Licenses", {"nlp": 1000})]
)
def test_a_job_that_waits_for_something_else_accounts_for_a_recall_as_it_does_for_a_loan(
    reason: str, shrink: Mapping[str, int]
) -> None:
    """While it waits for its budget its tenant lends none of it, for what else it lends all."""
    runs = [running(i) for i in range(1, 6)]
    found = look(*runs, a_job(12, reason=reason), a_job(13))
    assert found.shrink == shrink
    assert len(found.wanting) == 1


def test_who_holds_beyond_a_cap_gives_it_up_in_any_qos() -> None:
    own = [running(i, qos="slicewise_nlp") for i in range(1, 6)]
    found = look(*own, recalls=[], excess={"nlp": 2000})
    assert found.shrink == {"nlp": 2000}
    assert len(found.running) == 5


def test_what_is_completing_is_not_free_yet() -> None:
    ending = running(7, state=JobState.COMPLETING)
    assert look(ending, nodes=[a_node(held=4)]).free == {"n1": {"1g.10gb": 2}}


def test_without_recalls_nobody_wants_anything() -> None:
    found = look(a_job(12), running(7), recalls=[])
    assert (found.wanting, found.shrink) == ((), {})


def test_who_holds_beyond_a_cap_must_shrink_and_its_replicas_may_go_in_any_qos() -> None:
    own = running(2, qos="slicewise_nlp")
    jobs = (own, running(3, qos="slicewise_nlp"), running(4, qos="slicewise_nlp"))
    assert look(*jobs, recalls=[]).running == ()
    found = look(*jobs, recalls=[], excess={"nlp": 1000})
    assert [one.job_id for one in found.running] == [2, 3, 4]
    assert found.shrink == {"nlp": 1000}
