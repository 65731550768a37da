"""Property: a replica of several GPUs and nodes counts as all of them, and goes as a whole."""

from collections.abc import Mapping
from dataclasses import replace

from builders.ledger_world import COSTS, PARTITION, START_S, SimulatedRun, job_view, run_record
from hypothesis import given
from hypothesis import strategies as st
from stand_ins.scripted import job

from slicewise.cluster.language.jobs import JobState, JobView
from slicewise.cluster.language.replica_shape import ReplicaShape
from slicewise.slurm_plugin.rules.accounting.charging import Rates, charge
from slicewise.slurm_plugin.rules.accounting.types import TransferKind
from slicewise.slurm_plugin.rules.quota.jobs import WaitingJob, wanted_on_nodes
from slicewise.slurm_plugin.rules.quota.nodes import gpus_on_nodes
from slicewise.slurm_plugin.rules.reclaim.running import Running
from slicewise.slurm_plugin.rules.reclaim.victims import ReclaimInput, reclaim
from slicewise.slurm_plugin.rules.services.leases import Leased, Spare, Wall, plan_leases
from slicewise.slurm_plugin.rules.services.slot_actions import TenantCapacity, plan_desired
from slicewise.slurm_plugin.rules.services.state import Observation, services

KIND, NOW_S, LEASE_S = "1g.10gb", 10_000, 600
TAG = "slicewise:1 token=ab12 tenant=vision service=bert"
SHAPES = st.builds(ReplicaShape, st.just(KIND), st.integers(1, 4), st.integers(1, 3))


def tres(shape: ReplicaShape) -> Mapping[str, str]:
    """As Slurm shows it of a job of this shape: all of its nodes together."""
    count = str(shape.request.count)
    return {"node": str(shape.nodes), "gres/gpu": count, f"gres/gpu:{KIND}": count}


def nodes_of(shape: ReplicaShape, first: int = 0) -> tuple[str, ...]:
    return tuple(f"gpu{first + nth:02d}" for nth in range(shape.nodes))


def waiting(shape: ReplicaShape, slots: int) -> JobView:
    whole = job(0, task_index=None, untouched=frozenset(range(slots)), admin_comment=TAG)
    return replace(whole, tres=tres(shape), held=True, reason="JobHeldAdmin")


@given(SHAPES, st.integers(1, 6), st.integers(0, 60))
def test_as_many_replicas_start_as_the_quota_has_room_for(
    shape: ReplicaShape, slots: int, room: int
) -> None:
    said = {"tenant": "vision", "name": "bert", "max_replicas": str(slots)}
    seen = Observation(1.0, (waiting(shape, slots),), (), (), {814: said})
    (service,) = services(seen, COSTS)
    cost = shape.cost_millislices(COSTS)
    assert service.cost_millislices == cost
    amount = room * 500
    capacity = TenantCapacity(own=amount, own_held=0, most=amount, held=0)
    plan = plan_desired(service, frozenset(range(slots)), capacity)
    assert len(plan.release) == min(slots, amount // cost)
    assert plan.release | plan.kept_back == frozenset(range(slots))


@given(SHAPES)
def test_what_it_holds_on_each_node_is_its_part(shape: ReplicaShape) -> None:
    run = job(0, JobState.RUNNING, tres=tres(shape), nodes=nodes_of(shape))
    assert dict(gpus_on_nodes(run)) == {name: {KIND: shape.gpus} for name in run.nodes}
    assert wanted_on_nodes(waiting(shape, 1)) == ({KIND: shape.gpus}, shape.nodes)


@given(SHAPES, SHAPES, st.integers(1, 4))
def test_a_recall_takes_whole_replicas_and_no_more_than_it_needs(
    held: ReplicaShape, wanted: ReplicaShape, replicas: int
) -> None:
    """Replicas of one shape fill nodes of their own; a lender's job of another shape waits."""
    cost = held.cost_millislices(COSTS)
    running = tuple(
        Running(
            job_id=900 + nth,
            tenant="nlp",
            cost_millislices=cost,
            start_s=1_000 + nth,
            is_replica=True,
            instances={name: {KIND: held.gpus} for name in nodes_of(held, nth * held.nodes)},
        )
        for nth in range(replicas)
    )
    job_cost = wanted.cost_millislices(COSTS)
    needs = WaitingJob(12, "vision", job_cost, ((KIND, wanted.gpus),), wanted.nodes)
    asked = ReclaimInput(
        wanting=(needs,),
        running=running,
        free={name: {} for run in running for name in run.instances},
        above_nominal_millislices={"nlp": cost * replicas},
        shrink={},
        leaving=frozenset(),
        weights={},
        now_s=NOW_S,
        term_s=60,
    )
    found = reclaim(asked)
    # A node has what one replica held there, and the replica leaves all of its nodes.
    fits = wanted.gpus <= held.gpus
    least = -(-wanted.nodes // held.nodes)
    count = least if fits and least <= replicas else 0
    assert len(found.victims) == count
    assert (12 in found.missing) is (count == 0)


@given(SHAPES, st.integers(1, 30), st.integers(0, 2))
def test_a_lease_costs_all_of_it_and_ends_before_a_wall_on_any_node(
    shape: ReplicaShape, paid_min: int, nth: int
) -> None:
    run = job(0, JobState.RUNNING, tres=tres(shape), nodes=nodes_of(shape))
    slot = Leased((814, 0), run, NOW_S + 60, 10, LEASE_S, is_wanted=True)
    budget = Spare({"vision": paid_min * shape.cost_millislices(COSTS)}, {"vision": ("vision",)})
    plan = plan_leases((slot,), {}, budget, NOW_S, COSTS, extends=True)
    assert plan.limits_min == {slot.run_key: 10 + min(9, paid_min)}
    wall = Wall(NOW_S + 180, "a reservation begins")
    walls = {run.nodes[nth % shape.nodes]: (wall,)}
    plan = plan_leases((slot,), walls, Spare(), NOW_S, COSTS, extends=True)
    assert plan.limits_min == {slot.run_key: 12}


@given(SHAPES, st.integers(1, 7200))
def test_a_run_is_charged_for_all_of_it(shape: ReplicaShape, seconds: int) -> None:
    run = SimulatedRun(7, START_S, {KIND: shape.request.count}, PARTITION, 7200)
    rates = Rates("testing", frozenset({PARTITION}), COSTS, {}, "tenant")
    run.end_s = run.visible_s = START_S + seconds
    (charged,) = charge(rates, [], [run_record(run, run.end_s)], (), {}).charges
    posted = [t.amount for t in charged.transfers if t.kind is TransferKind.POST]
    assert sum(posted) == shape.cost_millislices(COSTS) * seconds
    assert job_view(run).gpus == {KIND: shape.request.count}
