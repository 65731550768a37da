"""Tests when GPUs are repartitioned, and what stays as it is."""

from collections import Counter
from dataclasses import replace

from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.cluster.language.gpus.mig_profiles import board
from slicewise.slurm_plugin.rules.mig.candidates import (
    GpuState,
    InstanceState,
    JobHolder,
    ReplicaHolder,
)
from slicewise.slurm_plugin.rules.mig.instance_value import InstanceDemand, InstanceRequest
from slicewise.slurm_plugin.rules.mig.planner import GpuPlan, RepartitionTerms, plan

A100 = board("A100-80GB")
TERMS = RepartitionTerms(repartition_s=60, horizon_s=3_600, nodes_at_once=2)
SIZES = {"1g.10gb": 1, "2g.20gb": 2, "3g.40gb": 4, "4g.40gb": 4, "7g.80gb": 8}


def placed(profile: str, start: int) -> Placement:
    return Placement(profile, start, SIZES[profile])


def ones(
    *starts: int, holder: JobHolder | ReplicaHolder | None = None
) -> tuple[InstanceState, ...]:
    return tuple(InstanceState(placed("1g.10gb", start), holder) for start in starts)


def waiting(*profiles: str, waited_s: int = 60) -> InstanceDemand:
    return InstanceDemand(tuple(InstanceRequest(profile, waited_s) for profile in profiles))


def only(steps: tuple[GpuPlan, ...]) -> GpuPlan:
    assert len(steps) == 1
    return steps[0]


def test_a_3g_that_waits_gets_the_half_where_nobody_runs_and_the_other_half_stays():
    gpu = GpuState("g", "n", ones(0, 1, 2, 3, holder=JobHolder("7")) + ones(4, 5, 6))
    step = only(plan(A100, [gpu], waiting("3g.40gb"), TERMS))
    assert step.destroy == tuple(placed("1g.10gb", start) for start in (4, 5, 6))
    assert step.create == (placed("3g.40gb", 4),)
    assert step.reason == ("1 3g.40gb more: 1 wait, 0 free, 0 held, 0.0 expected; less: 3 1g.10gb")


def test_nothing_is_done_where_a_job_is_in_the_way():
    gpu = GpuState("g", "n", ones(0, 4, holder=JobHolder("7")))
    assert plan(A100, [gpu], waiting("3g.40gb"), TERMS) == ()


def test_a_replica_moves_to_a_free_instance_of_its_profile_on_a_gpu_that_stays():
    here = GpuState("a", "n", ones(0, holder=ReplicaHolder("r", 20)) + ones(1))
    there = GpuState("b", "m", ones(3) + ones(0, 4, holder=JobHolder("7")))
    step = only(plan(A100, [here, there], waiting("7g.80gb"), TERMS))
    assert step.moves == ("r",)
    assert step.create == (placed("7g.80gb", 0),)


def test_a_replica_moves_to_no_gpu_of_its_own_node_which_is_reserved_meanwhile():
    here = GpuState("a", "n", ones(0, holder=ReplicaHolder("r", 20)) + ones(1))
    beside = GpuState("b", "n", ones(3) + ones(0, 4, holder=JobHolder("7")))
    assert plan(A100, [here, beside], waiting("7g.80gb"), TERMS) == ()


def test_a_replica_that_finds_no_place_stays():
    gpu = GpuState("a", "n", ones(0, holder=ReplicaHolder("r", 20)))
    assert plan(A100, [gpu], waiting("7g.80gb"), TERMS) == ()


def test_a_replica_moves_only_where_the_gain_is_worth_it():
    here = GpuState("a", "n", ones(0, holder=ReplicaHolder("r", 20 * 3_600)))
    there = GpuState("b", "m", ones(3) + ones(0, 4, holder=JobHolder("7")))
    assert plan(A100, [here, there], waiting("7g.80gb"), TERMS) == ()


def test_a_repartition_that_takes_half_the_horizon_does_not_pay():
    gpu = GpuState("g", "n", ones(4, 5, 6))
    patient = replace(TERMS, repartition_s=1_800)
    assert plan(A100, [gpu], waiting("3g.40gb", waited_s=0), patient) == ()
    assert plan(A100, [gpu], waiting("3g.40gb", waited_s=3_600), patient) != ()


def test_who_is_expected_keeps_what_is_free_from_who_is_expected_less():
    gpu = GpuState("g", "n", ones(4, 5, 6))
    seldom = InstanceDemand(expected={"1g.10gb": 6.0, "3g.40gb": 0.1})
    often = InstanceDemand(expected={"1g.10gb": 0.1, "3g.40gb": 6.0})
    assert not any(step.destroy for step in plan(A100, [gpu], seldom, TERMS))
    assert only(plan(A100, [gpu], often, TERMS)).create == (
        placed("3g.40gb", 0),
        placed("3g.40gb", 4),
    )


def test_whoever_waits_longer_or_weighs_more_comes_first():
    gpu = GpuState("g", "n", ones(0, 1, 2, holder=JobHolder("7")))
    demand = InstanceDemand(
        (InstanceRequest("3g.40gb", 0), InstanceRequest("2g.20gb", 0, weight=4.0))
    )
    assert only(plan(A100, [gpu], demand, TERMS)).create == (placed("2g.20gb", 4),)


def test_an_instance_that_is_free_before_a_repartition_would_be_is_waited_for():
    soon = GpuState("a", "n", (InstanceState(placed("3g.40gb", 0), JobHolder("7", ends_in_s=30)),))
    late = GpuState("a", "n", (InstanceState(placed("3g.40gb", 0), JobHolder("7", ends_in_s=600)),))
    uncut = GpuState("b", "m")
    assert plan(A100, [soon, uncut], waiting("3g.40gb"), TERMS) == ()
    assert only(plan(A100, [late, uncut], waiting("3g.40gb"), TERMS)).create != ()


def test_gpus_in_work_are_left_alone_and_count_as_nodes():
    work = GpuState("w", "x", (InstanceState(placed("7g.80gb", 0)),), in_work=True)
    gpus = [work, GpuState("a", "n"), GpuState("b", "n"), GpuState("c", "m")]
    steps = plan(A100, gpus, waiting(*["7g.80gb"] * 4), TERMS)
    assert [(step.gpu, step.node) for step in steps] == [("a", "n"), ("b", "n")]


def test_a_gpu_that_was_just_cut_changes_only_for_who_came_since():
    gpu = GpuState("g", "n", ones(4, 5, 6), cut_ago_s=100)
    assert plan(A100, [gpu], waiting("3g.40gb", waited_s=200), TERMS) == ()
    assert plan(A100, [gpu], waiting("3g.40gb", waited_s=50), TERMS) != ()
    rested = replace(gpu, cut_ago_s=3_600)
    assert plan(A100, [rested], waiting("3g.40gb", waited_s=200), TERMS) != ()


def test_a_gpu_that_is_cut_for_one_instance_is_cut_full():
    whole = GpuState("a", "n", (InstanceState(placed("7g.80gb", 0)),))
    step = only(plan(A100, [whole], waiting("1g.10gb"), TERMS))
    assert step.create == tuple(placed("1g.10gb", start) for start in range(7))
    assert step.asked == (placed("1g.10gb", 0),)
    assert step.reason.endswith("less: 1 7g.80gb; the rest: 6 1g.10gb")


def test_the_rest_is_cut_for_who_is_expected_rather_than_for_more_of_the_same():
    whole = GpuState("a", "n", (InstanceState(placed("7g.80gb", 0)),))
    demand = replace(waiting("1g.10gb"), expected={"1g.10gb": 1.0, "3g.40gb": 0.4})
    (step,) = plan(A100, [whole], demand, TERMS)
    assert Counter(one.profile for one in step.create) == {"1g.10gb": 4, "3g.40gb": 1}
    assert placed("3g.40gb", 4) in step.create


def test_shapes_that_guarantees_lack_come_first():
    whole = GpuState("a", "n", (InstanceState(placed("7g.80gb", 0)),))
    demand = replace(waiting("1g.10gb"), guaranteed={"2g.20gb": 2, "4g.40gb": 0})
    (step,) = plan(A100, [whole], demand, TERMS)
    assert Counter(one.profile for one in step.create) == {"1g.10gb": 3, "2g.20gb": 2}
    there = GpuState(
        "b",
        "n",
        (
            InstanceState(placed("2g.20gb", 0), JobHolder("7")),
            *ones(*range(2, 7), holder=JobHolder("8")),
        ),
    )
    (step,) = plan(A100, [whole, there], demand, TERMS)
    assert Counter(one.profile for one in step.create) == {"1g.10gb": 5, "2g.20gb": 1}


def test_where_a_larger_shape_waits_for_its_neighbours_to_end_the_rest_stays_uncut():
    """A 3g would fit on the upper half, but for a job on a 1g that has not ended yet."""
    gpu = GpuState("a", "n", ones(0, 1, 2, 5, holder=JobHolder("7")))
    step = only(plan(A100, [gpu], waiting("1g.10gb", "3g.40gb"), TERMS))
    assert step.create == (placed("1g.10gb", 3),)
    step = only(plan(A100, [gpu], waiting("1g.10gb"), TERMS))
    assert step.create == tuple(placed("1g.10gb", start) for start in (3, 4, 6))
    lacking = replace(waiting("1g.10gb"), guaranteed={"3g.40gb": 1})
    assert only(plan(A100, [gpu], lacking, TERMS)).create == (placed("1g.10gb", 3),)


def test_the_last_whole_gpus_that_guarantees_could_claim_stay():
    """Four tenants of seven slices with whole GPUs; another one waits for a 1g."""
    gpus = [GpuState(name, "n", (InstanceState(placed("7g.80gb", 0)),)) for name in "abcd"]
    asked = waiting("1g.10gb")
    assert len(plan(A100, gpus, asked, TERMS)) == 1
    assert plan(A100, gpus, replace(asked, guaranteed={"7g.80gb": 4}), TERMS) == ()
    # One of the four asks for it itself, so that it can claim no whole GPU beside it.
    assert len(plan(A100, gpus, replace(asked, guaranteed={"7g.80gb": 3}), TERMS)) == 1
    more = replace(waiting(*["1g.10gb"] * 9), guaranteed={"7g.80gb": 3})
    assert len(plan(A100, gpus, more, TERMS)) == 1
    # A shape of which there are too few already: none goes, and one that waits is made.
    uncut = [*gpus[:2], GpuState("e", "n", ones(0, 1))]
    desired = replace(waiting("7g.80gb", "7g.80gb", "7g.80gb"), guaranteed={"7g.80gb": 3})
    assert [step.gpu for step in plan(A100, uncut, desired, TERMS)] == ["e"]


def test_who_waits_within_a_guarantee_gets_what_others_only_may_claim_at_last():
    whole = InstanceState(placed("7g.80gb", 0))
    own = InstanceDemand(
        (InstanceRequest("1g.10gb", 60, is_guaranteed=True),), guaranteed={"7g.80gb": 2}
    )
    gpus = [GpuState(name, "n", (whole,)) for name in "ab"]
    assert len(plan(A100, gpus, own, TERMS)) == 1
    assert plan(A100, gpus, replace(own, claimed={"7g.80gb": 2}), TERMS) == ()
    assert plan(A100, gpus, replace(waiting("1g.10gb"), guaranteed={"7g.80gb": 2}), TERMS) == ()
    # Also where the others are expected, too: one of them waits now.
    expected = replace(own, expected={"7g.80gb": 2.0})
    assert len(plan(A100, gpus, expected, TERMS)) == 1
    # Somebody else's free instance rather than what another may claim.
    other = GpuState("c", "m", (InstanceState(placed("4g.40gb", 0)),))
    assert only(plan(A100, [*gpus, other], own, TERMS)).gpu == "c"


def test_a_change_within_a_guarantee_has_to_gain_the_margin_too():
    """It drains 8/7 of a GPU for a 1g that waits; the margin says how often it must gain that."""
    gpus = [GpuState(name, "n", (InstanceState(placed("7g.80gb", 0)),)) for name in "ab"]
    own = InstanceDemand(
        (InstanceRequest("1g.10gb", 0, is_guaranteed=True),), guaranteed={"7g.80gb": 2}
    )
    step = only(plan(A100, gpus, own, TERMS))
    times = step.gain_millislice_s / step.drained_millislice_s
    enough, too_much = int(times), int(times) + 1
    assert enough > 1
    assert len(plan(A100, gpus, own, replace(TERMS, margin=enough))) == 1
    assert plan(A100, gpus, own, replace(TERMS, margin=too_much)) == ()


def owed(*profiles: str, waited_s: int = 60) -> InstanceDemand:
    waits = (
        InstanceRequest(profile, waited_s, is_guaranteed=True, is_owed=True) for profile in profiles
    )
    return InstanceDemand(tuple(waits))


def on_loan(name: str, ran_s: int) -> JobHolder:
    return JobHolder(name, on_loan_s=ran_s)


def test_for_who_is_owed_a_type_those_on_loan_end_that_have_run_the_least():
    long = GpuState("a", "n", ones(*range(7), holder=on_loan("1", 3000)))
    short = GpuState("b", "n", ones(*range(6), holder=on_loan("2", 30)) + ones(6))
    guaranteed = GpuState("c", "n", ones(*range(7), holder=JobHolder("3")))
    step = only(plan(A100, [long, short, guaranteed], owed("3g.40gb"), TERMS))
    assert (step.gpu, step.create) == ("b", (placed("3g.40gb", 4),))
    assert step.ends == ("2", "2")
    assert "on loan" in step.reason
    step = only(plan(A100, [long, guaranteed], owed("3g.40gb"), TERMS))
    assert (step.gpu, len(step.ends)) == ("a", 3)
    # However long they have run, a guarantee holds.
    ages = GpuState("a", "n", ones(*range(7), holder=on_loan("1", 10**6)))
    assert only(plan(A100, [ages], owed("7g.80gb"), TERMS)).ends == ("1",) * 7


def test_nobody_ends_for_who_is_owed_nothing():
    gpu = GpuState("a", "n", ones(*range(7), holder=on_loan("1", 30)))
    own = InstanceDemand((InstanceRequest("3g.40gb", 60, is_guaranteed=True),))
    assert plan(A100, [gpu], own, TERMS) == ()
    assert plan(A100, [gpu], waiting("3g.40gb"), TERMS) == ()


def test_what_is_free_or_on_loan_of_the_type_is_enough_for_who_is_owed_it():
    """Slurm preempts who is on loan by itself."""
    small = GpuState("a", "n", ones(*range(7), holder=on_loan("1", 30)))
    for holder in (None, on_loan("2", 900)):
        held = InstanceState(placed("3g.40gb", 4), JobHolder("3"))
        large = GpuState("b", "m", (InstanceState(placed("3g.40gb", 0), holder), held))
        steps = plan(A100, [small, large], owed("3g.40gb"), TERMS)
        assert all(not step.ends for step in steps)
        two = plan(A100, [small, large], owed("3g.40gb", "3g.40gb", "3g.40gb"), TERMS)
        assert any(step.ends for step in two)


def test_for_who_is_owed_a_type_a_replica_moves_onto_a_loan_that_slurm_preempts():
    own = ones(0, 1, 2, 3, holder=JobHolder("7"))
    small = ones(0, 4, holder=JobHolder("8")) + ones(1, holder=on_loan("1", 30))
    for preempts, node, asked, can in (
        (1, "m", owed("3g.40gb"), True),
        (0, "m", owed("3g.40gb"), False),
        (1, "n", owed("3g.40gb"), False),
        (1, "m", waiting("3g.40gb"), False),
    ):
        here = GpuState("a", "n", own + ones(4, holder=ReplicaHolder("r", 20, preempts)))
        steps = plan(A100, [here, GpuState("b", node, small)], asked, TERMS)
        assert [(step.gpu, step.moves, step.ends) for step in steps] == [("a", ("r",), ())] * can


def test_two_replicas_share_no_place():
    own = ones(0, 1, 2, 3, holder=JobHolder("7"))
    here = GpuState("a", "n", own + ones(4, 5, holder=ReplicaHolder("r", 20, preempts=2)))
    held = ones(0, 4, holder=JobHolder("8"))
    for more in (ones(1, 2, holder=on_loan("1", 30)), ones(1, holder=on_loan("1", 30)) + ones(2)):
        steps = plan(A100, [here, GpuState("b", "m", held + more)], owed("3g.40gb"), TERMS)
        assert only(steps).moves == ("r", "r")
        less = GpuState("b", "m", held + more[:1])
        assert plan(A100, [here, less], owed("3g.40gb"), TERMS) == ()


def test_replicas_of_one_tenant_share_the_room_of_its_guarantee():
    there = GpuState(
        "b", "m", ones(0, 4, holder=JobHolder("8")) + ones(1, 2, holder=on_loan("1", 30))
    )
    for tenant, preempts, can in (("x", 2, True), ("x", 1, False), ("y", 1, True)):
        movers = (ReplicaHolder("r", 20, preempts, "x"), ReplicaHolder("s", 20, preempts, tenant))
        own = ones(0, 1, 2, 3, holder=JobHolder("7"))
        here = GpuState("a", "n", own + ones(4, holder=movers[0]) + ones(5, holder=movers[1]))
        steps = plan(A100, [here, there], owed("3g.40gb"), TERMS)
        assert [step.moves for step in steps] == [("r", "s")] * can


def test_what_others_claim_goes_for_nobody_who_is_owed_a_type():
    gpu = GpuState("a", "n", (InstanceState(placed("7g.80gb", 0), on_loan("1", 30)),))
    asked = owed("3g.40gb")
    assert only(plan(A100, [gpu], asked, TERMS)).ends == ("1",)
    assert plan(A100, [gpu], replace(asked, claimed={"7g.80gb": 1}), TERMS) == ()
    # What others only may claim goes.
    assert plan(A100, [gpu], replace(asked, guaranteed={"7g.80gb": 1}), TERMS)


def test_a_gpu_that_was_just_cut_is_cut_for_who_is_owed_a_type():
    gpu = GpuState("a", "n", ones(*range(7), holder=on_loan("1", 30)), cut_ago_s=100)
    assert plan(A100, [gpu], owed("3g.40gb", waited_s=200), TERMS)
    # Where that was in vain, another one is: else the same would be tried for ever.
    in_vain, other = replace(gpu, in_vain=True), replace(gpu, name="b", cut_ago_s=None)
    assert only(plan(A100, [in_vain, other], owed("3g.40gb", waited_s=200), TERMS)).gpu == "b"
    assert plan(A100, [in_vain], owed("3g.40gb", waited_s=200), TERMS) == ()
    assert plan(A100, [in_vain], owed("3g.40gb", waited_s=50), TERMS)
    free = GpuState("a", "n", ones(*range(7)), cut_ago_s=100)
    assert plan(A100, [free], waiting("3g.40gb", waited_s=200), TERMS) == ()


def test_who_is_owed_a_type_comes_first_and_on_its_own_node():
    """Only one node's GPUs are cut at a time, however much more another plan would gain."""
    free = [GpuState(name, "n", ones(*range(7))) for name in "bc"]
    lent = GpuState("a", "m", ones(*range(7), holder=on_loan("1", 30)))
    terms = replace(TERMS, nodes_at_once=1)
    large = (InstanceState(placed("7g.80gb", 0), JobHolder("9")),)
    demand = replace(
        owed("7g.80gb"), waiting=(*owed("7g.80gb").waiting, *waiting("3g.40gb").waiting)
    )
    steps = plan(A100, [GpuState("d", "m", large), lent, *free], demand, terms)
    # A free GPU is cut rather than that jobs end.
    assert steps[0].create == (placed("7g.80gb", 0),)
    assert steps[0].ends == ()
    steps = plan(A100, [GpuState("d", "m", large), lent], demand, terms)
    assert (steps[0].gpu, len(steps[0].ends)) == ("a", 7)


def test_instances_that_no_table_knows_are_left_alone():
    strange = InstanceState(Placement("1c.3g.40gb", 0, 4))
    assert plan(A100, [GpuState("g", "n", (strange,))], waiting("1g.10gb"), TERMS) == ()


def test_who_runs_is_among_the_expected():
    uncut = GpuState("a", "n")
    runs = tuple(InstanceState(placed("3g.40gb", start), JobHolder("7")) for start in (0, 4))
    gpus = [GpuState(name, "m", runs) for name in "bcd"]
    expected = InstanceDemand(expected={"3g.40gb": 1.0})
    assert only(plan(A100, [uncut], expected, TERMS)).create == (
        placed("3g.40gb", 0),
        placed("3g.40gb", 4),
    )
    assert plan(A100, [uncut, *gpus], expected, TERMS) == ()


def test_what_pays_only_after_another_change_comes_after_it():
    def free(profile: str, start: int, holder: JobHolder | None = None) -> InstanceState:
        return InstanceState(Placement(profile, start, int(profile[0])), holder)

    gpus = [
        GpuState(
            "0", "n", (free("1g.6gb", 0), free("1g.6gb", 1), free("1g.6gb", 2, JobHolder("j0")))
        ),
        GpuState("1", "n", (free("1g.6gb", 0), free("2g.12gb", 2))),
        GpuState("2", "m", (free("1g.6gb", 1), free("1g.6gb", 2, JobHolder("j2")))),
    ]
    waits = (InstanceRequest("2g.12gb", 0), InstanceRequest("4g.24gb", 0, 0.5))
    demand = InstanceDemand(waits, {"1g.6gb": 1.0, "2g.12gb": 1.0})
    steps = plan(board("A30-24GB"), gpus, demand, TERMS)
    assert len(steps) == 3
    assert all(step.gain_millislice_s > 0 for step in steps)
