"""Tests that services, slots, tenants and GPU types are derived from what Slurm shows."""

from dataclasses import replace
from typing import Any

import pytest
from builders.jobs import a_job
from builders.nodes import a_node

from slicewise.cluster.language.jobs import SHAPES_NODE, JobState, JobView, NodeView, StepView
from slicewise.cluster.language.units import Millislices
from slicewise.cluster.rpc.messages import WHEN_REPLACED_S, BudgetView, SlotView
from slicewise.slurm_plugin.rules.services import state as decide
from slicewise.slurm_plugin.rules.services.state import (
    Observation,
    gpu_types,
    tenant_views,
    used_by_tenant,
    with_tasks,
)

COSTS = {"1g.10gb": Millislices(1000), "3g.40gb": Millislices(3500)}
SAID = {"name": "bert", "tenant": "vision", "max_replicas": "4"}
NODE = a_node(
    "gpu01", address="10.0.0.11", gpus={"1g.10gb": 7, "9g.99gb": 1}, gpus_allotted={"1g.10gb": 2}
)
ARRAY = a_job(
    814,
    array_job_id=814,
    name="bert",
    reason="JobHeldAdmin",
    held=True,
    priority=0,
    admin_comment="slicewise:1 token=ab12 tenant=vision service=bert",
    tres={"billing": "1000", "gres/gpu": "1", "gres/gpu:1g.10gb": "1"},
    submit_s=100,
)


def untouched(*indices: int, **changes: Any) -> JobView:
    return replace(ARRAY, untouched=frozenset(indices), **changes)


def task(index: int, state: JobState, **changes: Any) -> JobView:
    held = changes.pop("held", False)
    job = replace(ARRAY, job_id=900 + index, task_index=index, state=state, held=held)
    return replace(job, **changes)


def running(index: int) -> JobView:
    return task(index, JobState.RUNNING, nodes=("gpu01",), start_s=1000, reason="None")


def step(index: int, *ports: int) -> StepView:
    return StepView(900 + index, "0", ("gpu01",), ports)


def look(*jobs: JobView, steps: tuple[StepView, ...] = (), **said: str) -> Observation:
    return Observation(1600.0, jobs, (NODE,), steps, {814: {**SAID, **said}})


def slots_of(observation: Observation) -> list[SlotView]:
    (service,) = decide.services(observation, COSTS)
    return list(service.slots)


def test_a_service_says_how_much_memory_a_gpu_of_its_replicas_has_where_that_is_told() -> None:
    seen = look(untouched(0))
    gres_type = next(iter(ARRAY.gpus))
    (service,) = decide.services(seen, COSTS, {gres_type: 9984, "other": 1})
    (unknown,) = decide.services(seen, COSTS, {gres_type: None})
    (untold,) = decide.services(seen, COSTS)
    assert [view.memory_mib for view in (service, unknown, untold)] == [9984, None, None]


BATCH = a_job(7)


def test_tasks_that_were_read_alone_stand_where_they_stood() -> None:
    before = (untouched(1, 2), BATCH, running(0))
    now = (task(0, JobState.ENDED), task(1, JobState.PENDING), untouched(2))
    held, begun, ended = untouched(2), now[1], now[0]
    assert with_tasks(before, {814}, now) == (held, BATCH, ended, begun)


@pytest.mark.parametrize(
    "now",
    [
        (running(0), untouched(1)),
        (untouched(1, 2),),
        (running(0), untouched(1, 2, tres={"gres/gpu": "1"})),
    ],
)
def test_tasks_that_may_be_wrong_alone_are_left_to_a_look_at_all_jobs(
    now: tuple[JobView, ...],
) -> None:
    """Squeue 22.05 leaves out the last of some tasks, and a slot that is missing counts as lost."""
    assert with_tasks((running(0), untouched(1, 2)), {814}, now) is None


def test_a_task_that_had_ended_may_be_forgotten() -> None:
    before = (task(0, JobState.ENDED), untouched(1, 2))
    assert with_tasks(before, {814}, (untouched(1, 2),)) == (untouched(1, 2),)


def test_a_service_as_submitted() -> None:
    (service,) = decide.services(look(untouched(0, 1, 2, 3)), COSTS)
    assert (service.array_job_id, service.tenant, service.name) == (814, "vision", "bert")
    assert (service.user, service.submit_s) == ("alice", 100)
    assert (service.profile, service.cost_millislices) == ("1g.10gb", 1000)
    assert service.directives == SAID
    held = [SlotView(index=i, state="held", reason="JobHeldAdmin") for i in range(4)]
    assert list(service.slots) == held


def test_a_running_slot_has_address_ports_and_time_left() -> None:
    found = slots_of(look(untouched(0, 2, 3), running(1), steps=(step(1, 7001, 7002, 7003),)))
    assert found[1] == SlotView(
        index=1,
        state="running",
        job_id=901,
        reason="None",
        node="gpu01",
        address="10.0.0.11",
        ports=(7001, 7002, 7003),
        start_s=1000,
        time_left_s=3000,
        node_held_millislices=2000,
    )


@pytest.mark.parametrize(
    ("rest", "restarts", "files"),
    [("", 0, ""), (f" files={'a' * 16}", 0, "a" * 16), (f" files={'a' * 16}", 1, "")],
)
def test_a_running_slot_tells_with_which_files_it_began(rest: str, restarts: int, files: str):
    comment = f"slicewise:certificate=0 {'M' * 64}{rest}"
    job = replace(running(1), comment=comment, restarts=restarts)
    slot = slots_of(look(untouched(0), job, steps=(step(1, 7001),)))[1]
    assert (slot.certificate, slot.files_digest) == ("" if restarts else "M" * 64, files)


STATES = [
    # the task, its slot's state
    (task(1, JobState.PENDING, held=True, reason="JobHeldUser"), "held"),
    (task(1, JobState.PENDING, held=True, reason="job requeued in held state"), "held"),
    (task(1, JobState.SPECIAL_EXIT, held=True), "held"),
    (task(1, JobState.PENDING, reason="Priority"), "released"),
    (task(1, JobState.CONFIGURING), "starting"),
    (running(1), "starting"),
    (task(1, JobState.COMPLETING), "ending"),
    (task(1, JobState.OTHER), "ending"),
    (task(1, JobState.ENDED), "gone"),
    (untouched(), "gone"),
]


@pytest.mark.parametrize(("job", "state"), STATES)
def test_slot_states(job: JobView, state: str) -> None:
    assert slots_of(look(untouched(0), job))[1].state == state


def test_a_slot_whose_node_boots_says_so() -> None:
    boots = task(1, JobState.CONFIGURING, nodes=("gpu01",), start_s=1000)
    assert slots_of(look(untouched(0), boots))[1].is_configuring
    assert not slots_of(look(untouched(0), running(1)))[1].is_configuring


AWAKE, FULL = NODE, replace(NODE, gpus_allotted={"1g.10gb": 7})
ASLEEP = a_node("gpu02", "IDLE", "POWERED_DOWN")
BOOTS = a_node("gpu03", "MIXED", "POWERING_UP", held=1)


@pytest.mark.parametrize(
    ("nodes", "wakes"),
    [
        ((AWAKE,), False),
        ((AWAKE, ASLEEP), False),
        ((FULL, ASLEEP), True),
        ((FULL, BOOTS, ASLEEP), True),
        # None is free: how long that takes is no question of boots.
        ((FULL,), False),
        ((FULL, replace(ASLEEP, partitions=frozenset({"cpu"}))), False),
        ((FULL, replace(ASLEEP, states=frozenset({"DOWN", "POWERED_DOWN"}))), False),
    ],
)
def test_a_service_says_whether_its_next_replica_wakes_a_node(
    nodes: tuple[NodeView, ...], wakes: bool
) -> None:
    (service,) = decide.services(replace(look(untouched(0)), nodes=nodes), COSTS)
    assert service.wakes_node is wakes


ENDING = task(1, JobState.COMPLETING, start_s=1500, end_s=1520, nodes=("gpu01",))


@pytest.mark.parametrize(
    ("change", "is_requeued"),
    [
        # It ended by itself, or somebody cancelled it: its own start and end.
        ({}, False),
        # The clock of this host may be behind; it may have ended at its time limit.
        ({"end_s": 1610}, False),
        ({"start_s": 1599 - 3600, "end_s": 1599}, False),
        # As Slurm 22.05 shows a requeued one: what is planned for the next run, or nothing.
        ({"start_s": 1660, "end_s": 1660 + 3600}, True),
        ({"start_s": None, "end_s": None}, True),
        ({"start_s": None, "end_s": None, "reason": "launch failed requeued held"}, False),
        ({"start_s": None, "unread": frozenset({"start_s"})}, False),
        ({"state": JobState.RUNNING, "end_s": 1500 + 3600}, False),
    ],
)
def test_an_ending_slot_tells_whether_slurm_requeues_it(change: dict[str, Any], is_requeued: bool):
    assert slots_of(look(untouched(0), replace(ENDING, **change)))[1].is_requeued is is_requeued


def test_the_youngest_start_whose_ports_or_certificate_is_not_known_counts() -> None:
    def slot(state: str, **times: int) -> SlotView:
        return SlotView.model_validate({"index": 0, "state": state, **times})

    (service,) = decide.services(look(untouched(0, 1, 2, 3)), COSTS)

    def age_s(*slots: SlotView) -> float | None:
        return decide.start_age_s([service.model_copy(update={"slots": slots})], 100.0)

    assert age_s(slot("released", released_s=90), slot("starting", start_s=97)) == 3
    proven = slot("running", start_s=99).model_copy(update={"certificate": "CCCC"})
    assert age_s(slot("released", released_s=130), proven) is None
    assert age_s(slot("released", released_s=130), slot("running", start_s=99)) == 1
    assert age_s(slot("held"), slot("released")) is None


def test_a_start_is_marked_by_its_comment_and_by_its_end_alone() -> None:
    waiting = decide.start_marks((untouched(0, 1), replace(running(2), comment="slicewise:old")))
    for job in (task(1, JobState.PENDING), running(1)):
        started = (untouched(0), job, replace(running(2), comment="slicewise:old"))
        assert decide.start_marks(started) == waiting
    for job in (replace(running(1), comment="slicewise:new"), task(1, JobState.COMPLETING)):
        complete = (untouched(0), job, replace(running(2), comment="slicewise:old"))
        assert decide.start_marks(complete) != waiting


def test_a_step_of_another_task_gives_no_ports() -> None:
    assert slots_of(look(untouched(0), running(1), steps=(step(2, 7001),)))[1].state == "starting"
    assert slots_of(look(untouched(0), running(1), steps=(step(1),)))[1].state == "starting"


def test_a_run_without_limit_has_no_time_left() -> None:
    job = replace(running(1), time_limit_s=None)
    assert slots_of(look(untouched(0), job))[1].time_left_s is None


def test_a_run_beyond_its_limit_has_none_left() -> None:
    job = replace(running(1), time_limit_s=10)
    assert slots_of(look(untouched(0), job))[1].time_left_s == 0


NO_SERVICE = [
    look(untouched(0, admin_comment="")),
    look(untouched(0, admin_comment="slicewise:1 token=ab12 tenant=vision")),
    look(untouched(0), name="other"),
    look(untouched(0), tenant="nlp"),
    look(task(0, JobState.ENDED), task(1, JobState.ENDED)),
    look(replace(ARRAY, array_job_id=None)),
    replace(look(untouched(0)), directives={}),
    replace(look(untouched(0)), directives={814: {}}),
]


@pytest.mark.parametrize("observation", NO_SERVICE)
def test_what_is_no_service(observation: Observation) -> None:
    assert decide.services(observation, COSTS) == ()


@pytest.mark.parametrize(("said", "count"), [("2", 2), ("99999", 256), ("x", 1)])
def test_the_number_of_slots_is_bounded(said: str, count: int) -> None:
    assert len(slots_of(look(untouched(0), max_replicas=said))) == count


def test_a_profile_without_price_costs_nothing() -> None:
    (service,) = decide.services(look(untouched(0, tres={"gres/gpu:9g.99gb": "1"})), COSTS)
    assert (service.profile, service.cost_millislices) == ("9g.99gb", 0)


def test_used_counts_what_is_allotted_on_managed_partitions() -> None:
    jobs = (
        running(0),
        task(1, JobState.COMPLETING),
        task(2, JobState.PENDING),
        task(3, JobState.ENDED),
        replace(running(4), partition="cpu"),
        replace(running(5), account="nlp", qos="slicewise_nlp", tres={"gres/gpu:3g.40gb": "2"}),
        replace(running(6), account="students", qos="slicewise_nlp_borrowed"),
        replace(running(7), account="guests", qos="normal"),
    )
    assert used_by_tenant(jobs, frozenset({"gpu"}), COSTS) == {
        "vision": 2000,
        "nlp": 8000,
        "guests": 1000,
    }


def test_tenants_are_those_with_a_quota() -> None:
    quotas = {"vision": Millislices(6000), "nlp": Millislices(1000)}
    own, together = {"vision": 1500, "guest": 9}, {"vision": 2500}
    budget = BudgetView(payer="science", run_millislice_min=5)
    found = tenant_views(quotas, own, together, {"vision": 7000}, {"vision": budget})
    assert [tuple(t.model_dump().values()) for t in found] == [
        ("nlp", 1000, 0, 0, None, None),
        ("vision", 6000, 2500, 1500, 7000, budget.model_dump()),
    ]


def test_a_replica_on_several_nodes_costs_all_and_answers_on_the_first() -> None:
    tres = {"node": "2", "gres/gpu": "4", "gres/gpu:1g.10gb": "4"}
    run = replace(running(1), nodes=("gpu01", "gpu02"), tres=tres)
    other = replace(NODE, name="gpu02", address="10.0.0.12")
    seen = replace(look(run, steps=(step(1, 7001),)), nodes=(NODE, other))
    (service,) = decide.services(seen, COSTS)
    assert service.cost_millislices == 4000
    slot = service.slots[1]
    assert (slot.node, slot.address, slot.ends_in_s) == ("gpu01", "10.0.0.11", None)
    # It is replaced when any of its nodes is drained.
    drained = replace(other, states=frozenset({"MIXED", "DRAIN"}))
    slot = slots_of(replace(seen, nodes=(NODE, drained)))[1]
    assert (slot.ends_in_s, slot.ends_why) == (WHEN_REPLACED_S, "node gpu02 is drained")


def test_of_several_ranks_the_first_answers_on_all_ports_but_its_last() -> None:
    """Slurm gives ports to the others, too, which nothing listens on."""
    ranks = (StepView(901, "0", ("gpu01",), (7001, 7002, 7003)), StepView(901, "12", (), (9,)))
    for steps in (ranks, ranks[::-1]):
        found = slots_of(look(running(1), steps=steps, nodes="2"))
        assert found[1].ports == (7001, 7002)
    for nodes in ("1", "01"):
        (_, one, *_) = slots_of(look(running(1), steps=ranks[:1], nodes=nodes))
        assert one.ports == (7001, 7002, 7003)


def test_gpu_types_are_those_with_a_price() -> None:
    other = replace(NODE, name="gpu02", gpus={"1g.10gb": 3}, gpus_allotted={})
    (kind,) = gpu_types((NODE, other), COSTS, {"1g.10gb": 9728}, {"1g.10gb": 4}).values()
    assert kind.on_nodes == (7, 3)
    assert (kind.name, kind.cost_millislices, kind.memory_mib) == ("1g.10gb", 1000, 9728)
    assert (kind.total, kind.free, kind.waiting) == (10, 8, 4)


def test_what_is_free_on_a_drained_node_is_not_free() -> None:
    drained = replace(NODE, states=frozenset({"IDLE", "DRAIN"}), gpus={"1g.10gb": 3})
    (kind,) = gpu_types((drained,), COSTS, {}, {}).values()
    assert (kind.total, kind.free, kind.waiting) == (3, 0, 0)


def test_what_gpus_could_be_cut_into_is_known_but_is_not_there() -> None:
    types = {"1g.10gb": 56, "3g.40gb": 8}
    shapes = replace(NODE, name=SHAPES_NODE, states=frozenset({"DOWN"}), gpus=types)
    real = replace(NODE, gpus={"1g.10gb": 7}, gpus_allotted={})
    kinds = gpu_types((real, shapes), COSTS, {}, {})
    there = {name: (kind.total, kind.free, kind.beside) for name, kind in kinds.items()}
    assert there == {"1g.10gb": (7, 7, set()), "3g.40gb": (0, 0, set())}


def test_gpu_types_say_where_they_are_and_beside_what() -> None:
    first = replace(NODE, gpus={"1g.10gb": 3, "3g.40gb": 1}, partitions=frozenset({"gpu"}))
    second = replace(NODE, gpus={"1g.10gb": 7, "3g.40gb": 0}, partitions=frozenset({"mig"}))
    kinds = gpu_types((first, second), COSTS, {}, {})
    where = {name: (kind.partitions, kind.beside) for name, kind in kinds.items()}
    assert where == {
        "1g.10gb": ({"gpu", "mig"}, {"3g.40gb"}),
        "3g.40gb": ({"gpu"}, {"1g.10gb"}),
    }
