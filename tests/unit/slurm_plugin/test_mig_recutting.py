"""When GPUs are cut anew, and what stays as it is."""

from dataclasses import replace

from cluster.mig.layouts import Placement
from cluster.mig_profiles import board
from slurm_plugin.decide.mig.recutting import Move, Step, Terms, plan
from slurm_plugin.decide.mig.recutting_changes import Gpu, Instance, Job, Replica
from slurm_plugin.decide.mig.recutting_worth import Demand, Waiting

A100 = board("A100-80GB")
TERMS = Terms(recut_s=60, horizon_s=3_600, nodes_at_once=2)
SIZES = {"1g.10gb": 1, "2g.20gb": 2, "3g.40gb": 4, "4g.40gb": 4, "7g.80gb": 8}


def placed(profile: str, start: int) -> Placement:
    return Placement(profile, start, SIZES[profile])


def ones(*starts: int, holder: Job | Replica | None = None) -> tuple[Instance, ...]:
    return tuple(Instance(placed("1g.10gb", start), holder) for start in starts)


def waiting(*profiles: str, waited_s: int = 60) -> Demand:
    return Demand(tuple(Waiting(profile, waited_s) for profile in profiles))


def only(steps: tuple[Step, ...]) -> Step:
    assert len(steps) == 1
    return steps[0]


def test_a_3g_that_waits_gets_the_half_where_nobody_runs_and_the_other_half_stays():
    gpu = Gpu("g", "n", ones(0, 1, 2, 3, holder=Job("7")) + ones(4, 5, 6))
    step = only(plan(A100, [gpu], waiting("3g.40gb"), TERMS))
    assert step.destroy == tuple(placed("1g.10gb", start) for start in (4, 5, 6))
    assert step.create == (placed("3g.40gb", 4),)
    assert step.reason == ("1 3g.40gb more: 1 wait, 0 free, 0 held, 0.0 expected; less: 3 1g.10gb")


def test_nothing_is_done_where_a_job_is_in_the_way():
    gpu = Gpu("g", "n", ones(0, 4, holder=Job("7")))
    assert plan(A100, [gpu], waiting("3g.40gb"), TERMS) == ()


def test_a_replica_moves_to_a_free_instance_of_its_profile_on_a_gpu_that_stays():
    here = Gpu("a", "n", ones(0, holder=Replica("r", 20)) + ones(1))
    there = Gpu("b", "m", ones(3) + ones(0, 4, holder=Job("7")))
    step = only(plan(A100, [here, there], waiting("7g.80gb"), TERMS))
    assert step.moves == (Move("r", placed("1g.10gb", 0), "b", placed("1g.10gb", 3)),)
    assert step.create == (placed("7g.80gb", 0),)


def test_a_replica_that_finds_no_place_stays():
    gpu = Gpu("a", "n", ones(0, holder=Replica("r", 20)))
    assert plan(A100, [gpu], waiting("7g.80gb"), TERMS) == ()


def test_a_replica_moves_only_where_the_gain_is_worth_it():
    here = Gpu("a", "n", ones(0, holder=Replica("r", 20 * 3_600)))
    there = Gpu("b", "m", ones(3) + ones(0, 4, holder=Job("7")))
    assert plan(A100, [here, there], waiting("7g.80gb"), TERMS) == ()


def test_a_recut_that_takes_half_the_horizon_does_not_pay():
    gpu = Gpu("g", "n", ones(4, 5, 6))
    patient = replace(TERMS, recut_s=1_800)
    assert plan(A100, [gpu], waiting("3g.40gb", waited_s=0), patient) == ()
    assert plan(A100, [gpu], waiting("3g.40gb", waited_s=3_600), patient) != ()


def test_who_is_expected_keeps_what_is_free_from_who_is_expected_less():
    gpu = Gpu("g", "n", ones(4, 5, 6))
    seldom = Demand(expected={"1g.10gb": 6.0, "3g.40gb": 0.1})
    often = Demand(expected={"1g.10gb": 0.1, "3g.40gb": 6.0})
    assert not any(step.destroy for step in plan(A100, [gpu], seldom, TERMS))
    assert only(plan(A100, [gpu], often, TERMS)).create == (
        placed("3g.40gb", 0),
        placed("3g.40gb", 4),
    )


def test_whoever_waits_longer_or_weighs_more_comes_first():
    gpu = Gpu("g", "n", ones(0, 1, 2, holder=Job("7")))
    demand = Demand((Waiting("3g.40gb", 0), Waiting("2g.20gb", 0, weight=4.0)))
    assert only(plan(A100, [gpu], demand, TERMS)).create == (placed("2g.20gb", 4),)


def test_an_instance_that_is_free_before_a_recut_would_be_is_waited_for():
    soon = Gpu("a", "n", (Instance(placed("3g.40gb", 0), Job("7", ends_in_s=30)),))
    late = Gpu("a", "n", (Instance(placed("3g.40gb", 0), Job("7", ends_in_s=600)),))
    uncut = Gpu("b", "m")
    assert plan(A100, [soon, uncut], waiting("3g.40gb"), TERMS) == ()
    assert only(plan(A100, [late, uncut], waiting("3g.40gb"), TERMS)).create != ()


def test_gpus_in_work_are_left_alone_and_count_as_nodes():
    work = Gpu("w", "x", (Instance(placed("7g.80gb", 0)),), in_work=True)
    gpus = [work, Gpu("a", "n"), Gpu("b", "n"), Gpu("c", "m")]
    steps = plan(A100, gpus, waiting(*["7g.80gb"] * 4), TERMS)
    assert [(step.gpu, step.node) for step in steps] == [("a", "n"), ("b", "n")]


def test_a_gpu_that_was_just_cut_changes_only_for_who_came_since():
    gpu = Gpu("g", "n", ones(4, 5, 6), cut_ago_s=100)
    assert plan(A100, [gpu], waiting("3g.40gb", waited_s=200), TERMS) == ()
    assert plan(A100, [gpu], waiting("3g.40gb", waited_s=50), TERMS) != ()
    rested = replace(gpu, cut_ago_s=3_600)
    assert plan(A100, [rested], waiting("3g.40gb", waited_s=200), TERMS) != ()


def test_instances_that_no_table_knows_are_left_alone():
    strange = Instance(Placement("1c.3g.40gb", 0, 4))
    assert plan(A100, [Gpu("g", "n", (strange,))], waiting("1g.10gb"), TERMS) == ()


def test_who_runs_is_among_the_expected():
    uncut = Gpu("a", "n")
    runs = tuple(Instance(placed("3g.40gb", start), Job("7")) for start in (0, 4))
    gpus = [Gpu(name, "m", runs) for name in "bcd"]
    expected = Demand(expected={"3g.40gb": 1.0})
    assert only(plan(A100, [uncut], expected, TERMS)).create == (
        placed("3g.40gb", 0),
        placed("3g.40gb", 4),
    )
    assert plan(A100, [uncut, *gpus], expected, TERMS) == ()
