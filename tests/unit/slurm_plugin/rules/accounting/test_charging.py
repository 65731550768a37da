from dataclasses import replace
from fractions import Fraction

import pytest
from builders.ledger_world import COSTS, PARTITION, START_S, SimulatedRun, job_view, run_record
from stand_ins.memory_ledger import MemoryStore

from slicewise.cluster.language.billing import BillingUnit
from slicewise.cluster.language.jobs import JobState, RunRecord
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.slurm_plugin.rules.accounting.charging import (
    ACCOUNTING_DELAY_S,
    Rates,
    charge,
    next_watermark_s,
)
from slicewise.slurm_plugin.rules.accounting.types import Charging, Reservation, RunKey
from slicewise.slurm_plugin.rules.common.costs import run_cost

RATES = Rates("testing", frozenset({PARTITION}), COSTS, {"tenant1": "group"}, "tenant")
DAY_S = 86_400
OPERATOR_PAYS = replace(RATES, node_failure="operator")


def a_run(**changes: object) -> SimulatedRun:
    values = {
        "job_id": 7,
        "start_s": START_S,
        "gres": {"1g.10gb": 1},
        "partition": PARTITION,
        "limit_s": 60,
    }
    return SimulatedRun(**(values | changes))  # type: ignore[arg-type]


def live(run: SimulatedRun, *held: Reservation, rates: Rates = RATES) -> Charging:
    return charge(rates, [job_view(run)], [], held, {})


def ended(run: SimulatedRun, seconds: int, *held: Reservation, rates: Rates = RATES) -> Charging:
    run.end_s = run.visible_s = run.start_s + seconds
    return charge(rates, [], [run_record(run, run.end_s)], held, {})


def amounts(decided: Charging) -> list[tuple[str, int, int]]:
    """Kind, amount and how far it covers, in seconds from the start."""
    (one,) = decided.charges
    return [(t.kind.value, t.amount, t.until_s - START_S) for t in one.transfers]


def reservation(run: SimulatedRun) -> Reservation:
    store = MemoryStore()
    store.charges.post(live(run).charges)
    (held,) = store.charges.open_reservations()
    return held


@pytest.mark.parametrize("field", ["state", "tres", "start_s", "time_limit_s"])
def test_what_can_not_be_read_reserves_nothing_and_keeps_what_it_has(field: str):
    run = a_run()
    held = reservation(run)
    odd = replace(job_view(run), time_limit_s=None, unread=frozenset({field}))
    assert charge(RATES, [odd], [], (), {}).charges == ()
    assert charge(RATES, [odd], [], (held,), {}).charges == ()


@pytest.mark.parametrize("qos", ["slicewise_tenant1", "slicewise_tenant1_borrowed"])
def test_an_account_s_run_in_the_qos_of_a_tenant_is_paid_for_as_that_tenant_s(qos: str):
    run = a_run()
    students = {"account": "students", "qos": qos}
    (seen,) = charge(RATES, [replace(job_view(run), **students)], [], (), {}).charges
    run.end_s = run.visible_s = START_S + 20
    record = replace(run_record(run, run.end_s), **students)
    (missed,) = charge(RATES, [], [record], (), {}).charges
    elsewhere = charge(RATES, [], [replace(record, qos="normal")], (), {})
    charges = (seen, missed, *elsewhere.charges)
    assert [(one.run.tenant, one.run.payer) for one in charges] == [
        ("students", "group"),
        ("students", "group"),
        ("students", "students"),
    ]


def test_a_start_reserves_cost_times_limit():
    decided = live(a_run(gres={"1g.10gb": 2, "3g.40gb": 1}))
    assert amounts(decided) == [("reserve", 60 * 5500, 60)]
    (one,) = decided.charges
    assert (one.after, one.run.tenant, one.run.user, one.run.task) == (0, "tenant1", "alice", "7")
    assert one.run.key == RunKey("testing", 7, START_S)
    assert one.run.payer == "group"
    assert decided.observations == ()


def test_what_is_reserved_already_is_not_reserved_again():
    run = a_run()
    assert live(run, reservation(run)).charges == ()


@pytest.mark.parametrize(
    ("limit_s", "reserved_s"),
    [
        pytest.param(None, 30 * DAY_S, id="30 days without a limit"),
        (0, 1),
        (3600, 3600),
        pytest.param(68 * 366 * DAY_S, 366 * DAY_S, id="366 days of Slurm's longest limit"),
    ],
)
def test_limits(limit_s: int | None, reserved_s: int):
    assert amounts(live(a_run(limit_s=limit_s))) == [("reserve", 1000 * reserved_s, reserved_s)]


def test_a_raised_limit_extends_by_the_difference():
    run = a_run()
    held = reservation(run)
    run.limit_s = 100
    decided = live(run, held)
    assert amounts(decided) == [("extend", 40_000, 100)]
    assert decided.charges[0].after == 1


def test_a_lowered_limit_waits_for_the_end():
    run = a_run()
    held = reservation(run)
    run.limit_s = 30
    assert live(run, held).charges == ()


def test_an_end_posts_the_exact_use_and_voids_the_rest():
    run = a_run()
    assert amounts(ended(run, 13, reservation(run))) == [("post", 13_000, 13), ("void", 47_000, 13)]


TWO, ONE = {"1g.10gb": 2}, {"1g.10gb": 1}


def part(start_s: int, end_s: int, gres: dict[str, int], state: str = "CANCELLED") -> RunRecord:
    """A record of job 7, seconds after its start."""
    until_s = START_S + end_s
    run = a_run(start_s=START_S + start_s, gres=gres, end_s=until_s, visible_s=until_s)
    return replace(run_record(run, until_s), state=state)


@pytest.mark.parametrize("rest_starts_s", [0, 12], ids=["22.05", "where the first ended"])
def test_a_job_that_gives_nodes_back_is_charged_to_its_end(rest_starts_s: int):
    """Its record ends, and its run goes on: for nothing, as was seen on Slurm 22.05."""
    held = reservation(a_run(gres=TWO))
    now = job_view(a_run(gres=ONE))
    first = part(0, 12, TWO, "RESIZING")
    assert charge(RATES, [now], [first], [held], {}).charges == ()
    rest = part(rest_starts_s, 17, ONE)
    # Accounting may be ahead of the look at jobs.
    for jobs in ([], [now], [replace(now, state=JobState.ENDED)]):
        decided = charge(RATES, jobs, [first, rest], [held], {})
        assert amounts(decided) == [("post", 34_000, 17), ("void", 86_000, 17)]
        assert decided.observations == ()


def test_a_part_that_ended_before_what_is_asked_for_is_not_missed():
    held = reservation(a_run(gres=TWO))
    ended = replace(job_view(a_run(gres=ONE)), state=JobState.ENDED)
    decided = charge(RATES, [ended], [part(12, 17, ONE)], [held], {})
    assert amounts(decided) == [("post", 34_000, 17), ("void", 86_000, 17)]


@pytest.mark.parametrize("rest_starts_s", [0, 15])
def test_a_run_that_nobody_saw_is_charged_with_its_largest_part(rest_starts_s: int):
    steps = [part(0, 12, TWO, "RESIZING"), part(rest_starts_s and 12, 15, ONE, "RESIZING")]
    decided = charge(RATES, [], [*steps, part(rest_starts_s, 17, ONE)], [], {})
    assert amounts(decided)[-2:] == [("post", 34_000, 17), ("void", 86_000, 17)]


def test_what_was_billed_is_that_of_the_part_that_is_charged():
    """The rest asked for as much as the first part had, so it counts for as much."""
    first, rest = part(0, 12, TWO, "RESIZING"), part(12, 17, ONE)
    rest = replace(rest, tres={**first.tres, "billing": rest.tres["billing"]})
    decided = charge(RATES, [], [first, rest], [reservation(a_run(gres=TWO))], {})
    assert amounts(decided) == [("post", 34_000, 17), ("void", 86_000, 17)]
    assert decided.observations == ()


def test_a_run_after_a_requeue_is_another_one():
    first, again = part(0, 12, ONE, "REQUEUED"), part(14, 17, ONE)
    held = reservation(a_run())
    decided = charge(RATES, [job_view(a_run(start_s=START_S + 14))], [first, again], [held], {})
    assert [one.run.key.start_s - START_S for one in decided.charges] == [0, 14]
    # slurmctld is behind: that the record of the first run is not there yet makes no whole of both.
    behind = charge(RATES, [], [again], [held], {})
    assert [one.run.key.start_s - START_S for one in behind.charges] == [14]


def partly_posted(run: SimulatedRun, seconds: int) -> Reservation:
    posted = MillisliceSeconds(1000 * seconds)
    held = reservation(run)
    rest = MillisliceSeconds(held.reserved_millislice_s - posted)
    return replace(held, reserved_millislice_s=rest, posted_millislice_s=posted, transfers=2)


def test_what_is_posted_already_is_not_posted_again():
    run = a_run()
    held = partly_posted(run, 10)
    assert amounts(ended(run, 13, held)) == [("post", 3000, 13), ("void", 47_000, 13)]
    assert amounts(ended(run, 10, held)) == [("void", 50_000, 10)]
    assert amounts(ended(run, 61, held)) == [("extend", 1000, 61), ("post", 51_000, 61)]
    run.limit_s = 61
    assert amounts(live(run, held)) == [("extend", 1000, 61)]


def test_an_end_that_accounting_puts_before_what_is_posted_reverses_the_excess():
    run = a_run()
    held = partly_posted(run, 10)
    assert amounts(ended(run, 7, held)) == [("reverse", 3000, 7), ("void", 53_000, 7)]
    assert amounts(ended(run, 0, held)) == [("reverse", 10_000, 0), ("void", 60_000, 0)]


def test_a_failed_node_is_its_tenants_bad_luck():
    run = a_run(failed=True)
    assert amounts(ended(run, 13, reservation(run))) == [("post", 13_000, 13), ("void", 47_000, 13)]


def test_a_failed_node_is_the_operators_to_bear_where_that_is_the_rule():
    run = a_run(failed=True)
    decided = ended(run, 13, partly_posted(run, 10), rates=OPERATOR_PAYS)
    assert amounts(decided) == [
        ("reverse", 10_000, 13),
        ("waive", 13_000, 13),
        ("void", 60_000, 13),
    ]
    unseen = ended(run, 60, rates=OPERATOR_PAYS)
    assert amounts(unseen) == [
        ("reserve", 60_000, 60),
        ("waive", 60_000, 60),
        ("void", 60_000, 60),
    ]
    well = a_run()
    assert amounts(ended(well, 60, reservation(well), rates=OPERATOR_PAYS)) == [
        ("post", 60_000, 60)
    ]


def test_a_run_keeps_the_payer_of_its_reservation():
    run = a_run()
    held = reservation(run)
    (one,) = ended(run, 10, held, rates=replace(RATES, payers={})).charges
    assert one.run.payer == "group"


def test_a_run_to_the_last_second_voids_nothing():
    run = a_run()
    assert amounts(ended(run, 60, reservation(run))) == [("post", 60_000, 60)]


def test_a_run_without_length_only_voids():
    run = a_run()
    assert amounts(ended(run, 0, reservation(run))) == [("void", 60_000, 0)]


def test_a_run_that_outlived_its_reservation_is_extended_first():
    run = a_run()
    assert amounts(ended(run, 61, reservation(run))) == [("extend", 1000, 61), ("post", 61_000, 61)]


def test_a_run_that_nobody_saw_is_reserved_and_settled_at_once():
    assert amounts(ended(a_run(), 13)) == [
        ("reserve", 60_000, 60),
        ("post", 13_000, 13),
        ("void", 47_000, 13),
    ]


def test_accounting_stands_above_a_stale_look():
    run = a_run()
    look = job_view(run)
    held = reservation(run)
    run.end_s = run.visible_s = START_S + 5
    decided = charge(RATES, [look], [run_record(run, run.end_s)], [held], {})
    assert amounts(decided) == [("post", 5000, 5), ("void", 55_000, 5)]


@pytest.mark.parametrize("state", sorted(set(JobState) - {JobState.RUNNING, JobState.SUSPENDED}))
def test_only_what_runs_is_reserved(state: JobState):
    assert live(a_run(state=state)).charges == ()


def test_a_suspended_run_holds_its_gpus_and_is_reserved():
    assert amounts(live(a_run(state=JobState.SUSPENDED))) == [("reserve", 60_000, 60)]


@pytest.mark.parametrize("changes", [{"partition": "cpu"}, {"gres": {}}])
def test_other_jobs_are_left_alone(changes: dict[str, object]):
    run = a_run(**changes)
    assert live(run) == Charging((), (), frozenset())
    assert ended(run, 10) == Charging((), (), frozenset())


def test_a_reserved_run_is_settled_even_if_its_partition_is_managed_no_more():
    run = a_run()
    held = reservation(run)
    run.partition = "cpu"
    assert amounts(ended(run, 10, held)) == [("post", 10_000, 10), ("void", 50_000, 10)]


def test_a_run_keeps_the_cost_of_its_reservation():
    run = a_run()
    held = reservation(run)
    dearer = replace(RATES, costs={"1g.10gb": Millislices(2000)})
    run.end_s = run.visible_s = START_S + 10
    decided = charge(dearer, [], [run_record(run, run.end_s)], [held], {})
    assert amounts(decided) == [("post", 10_000, 10), ("void", 50_000, 10)]


def test_of_two_runs_that_start_in_one_second_the_longer_counts():
    first, second = a_run(), a_run()
    first.end_s, second.end_s = START_S, START_S + 30
    for order in ((first, second), (second, first)):
        decided = charge(RATES, [], [run_record(run, START_S + 60) for run in order], [], {})
        assert amounts(decided)[1] == ("post", 30_000, 30)


def test_a_task_of_an_array_has_the_name_that_people_use():
    look = job_view(a_run())
    values = {name: getattr(look, name) for name in look.__dataclass_fields__}
    task = type(look)(**(values | {"array_job_id": 5, "task_index": 3}))
    assert charge(RATES, [task], [], [], {}).charges[0].run.task == "5_3"


def test_slurm_billing_something_else_is_reported_and_not_taken():
    cheaper = replace(RATES, costs={"1g.10gb": Millislices(900)})
    decided = live(a_run(), rates=cheaper)
    assert amounts(decided) == [("reserve", 54_000, 60)]
    assert "Slurm bills 1000, the settings say 900" in decided.observations[0].text


def test_a_site_that_bills_in_its_own_unit_is_charged_by_slices():
    """The last run began when a slice was 1,000."""
    eight = replace(RATES, billing=BillingUnit(Fraction(8)))
    old = job_view(a_run())
    for run, reported in ((replace(old, tres={**old.tres, "billing": "8"}), 0), (old, 1)):
        decided = charge(eight, [run], [], [], {})
        assert amounts(decided) == [("reserve", 60_000, 60)]
        assert len(decided.observations) == reported
    assert "Slurm bills 1000, the settings say 8 for 1000" in decided.observations[0].text


def test_a_type_without_a_cost_is_reported_and_charges_nothing():
    unknown = replace(RATES, costs={})
    decided = live(a_run(), rates=unknown)
    assert (decided.charges, decided.observations) == ((), ())
    assert decided.unpriced == {"1g.10gb"}
    assert live(a_run()).unpriced == frozenset()


def test_accounting_that_shows_other_gpus_is_reported():
    run = a_run()
    held = reservation(run)
    run.gres = {"3g.40gb": 1}
    texts = [odd.text for odd in ended(run, 10, held).observations]
    assert any("reserved for {'1g.10gb': 1}" in text for text in texts)


def test_accounting_that_does_not_know_the_gpus_yet_is_not():
    run = a_run()
    held = reservation(run)
    run.gres = {}
    decided = ended(run, 10, held)
    assert amounts(decided) == [("post", 10_000, 10), ("void", 50_000, 10)]
    assert decided.observations == ()


UNNAMED = {"cpu": "1", "gres/gpu": "1", "billing": "3"}
"""TRES of a run that began before accounting knew its type."""


def test_a_run_whose_type_accounting_does_not_name_is_charged_from_its_start_to_its_end():
    run = a_run(limit_s=600)
    seen = replace(job_view(run), tres=UNNAMED, unnamed={"1g.10gb": 1})
    (begun,) = charge(RATES, [seen], [], (), {}).charges
    assert (begun.run.gres, begun.run.key.start_s) == ({"1g.10gb": 1}, START_S)
    assert begun.transfers[-1].amount == 600_000
    store = MemoryStore()
    store.charges.post([begun])
    (held,) = store.charges.open_reservations()
    run.end_s = run.visible_s = START_S + 90
    record = replace(run_record(run, run.end_s), tres=UNNAMED)
    decided = charge(RATES, [], [record], (held,), {})
    store.charges.post(decided.charges)
    assert [transfer.kind.value for transfer in decided.charges[0].transfers] == ["post", "void"]
    assert decided.charges[0].transfers[0].amount == 90_000
    assert decided.untyped == frozenset()
    # Accounting goes on to show it, and so does slurmctld: nothing is booked twice.
    over = replace(seen, state=JobState.ENDED, end_s=run.end_s)
    assert [one.run.key for one in charge(RATES, [over], [record], (), {}).charges] == [
        begun.run.key
    ]
    again = charge(RATES, [over], [record], (), {}).charges
    assert not store.charges.post(again)


@pytest.mark.parametrize("tres", [UNNAMED, {"cpu": "1"}], ids=["no type", "no GPUs"])
def test_a_run_that_ended_unseen_has_the_type_that_slurmctld_still_knows(tres: dict[str, str]):
    run = a_run(gres={"3g.40gb": 2})
    run.end_s = run.visible_s = START_S + 20
    record = replace(run_record(run, run.end_s), tres=tres)
    over = replace(
        job_view(run), tres={"gres/gpu": "2"}, unnamed={"3g.40gb": 2}, state=JobState.ENDED
    )
    (one,) = charge(RATES, [over], [record], (), {}).charges
    assert (one.run.gres, one.run.cost_millislices) == ({"3g.40gb": 2}, 7000)
    # Another run of the job may have had other GPUs.
    before = charge(RATES, [replace(over, start_s=START_S + 500)], [record], (), {})
    assert (before.charges, bool(before.untyped)) == ((), tres is UNNAMED)


def test_a_run_of_which_nothing_says_the_type_is_named_and_not_charged():
    run = a_run()
    run.end_s = run.visible_s = START_S + 20
    record = replace(run_record(run, run.end_s), tres=UNNAMED)
    decided = charge(RATES, [], [record], (), {})
    assert (decided.charges, [key.job_id for key in decided.untyped]) == ((), [7])
    elsewhere = charge(RATES, [], [replace(record, partition="other")], (), {})
    assert elsewhere.untyped == frozenset()
    lives = charge(RATES, [replace(job_view(run), tres=UNNAMED)], [], (), {})
    assert (lives.charges, len(lives.untyped)) == ((), 1)


def test_of_two_types_accounting_may_name_one():
    run = a_run(gres={"1g.10gb": 1, "3g.40gb": 1})
    held = reservation(run)
    run.end_s = run.visible_s = START_S + 20
    record = run_record(run, run.end_s)
    partly = replace(record, tres={"gres/gpu": "2", "gres/gpu:1g.10gb": "1"})
    decided = charge(RATES, [], [partly], (held,), {})
    assert decided.charges == charge(RATES, [], [record], (held,), {}).charges
    assert (decided.observations, decided.untyped) == ((), frozenset())


def test_a_run_that_accounting_has_lost_is_charged_up_to_when_it_had_ended():
    run = a_run(gres={"1g.10gb": 2})
    held = reservation(run)
    decided = charge(RATES, [], [], [held], {held.key: START_S + 17})
    assert amounts(decided) == [("post", 34_000, 17), ("void", 86_000, 17)]
    (odd,) = decided.observations
    assert odd.key == held.key
    assert f"run 7 of tenant1, started at {START_S}, ended: charged up to" in odd.text


def test_a_lost_run_is_charged_up_to_its_time_limit_however_late_the_daemon_looked():
    held = reservation(a_run())
    decided = charge(RATES, [], [], [held], {held.key: START_S + 8 * 3600})
    assert amounts(decided) == [("post", 60_000, 60)]


def test_a_lost_run_is_charged_no_less_than_its_reservation_covers_with_what_is_posted():
    held = partly_posted(a_run(), 50)
    decided = charge(RATES, [], [], [held], {held.key: START_S + 8 * 3600})
    assert amounts(decided) == [("post", 10_000, 60)]


def test_what_accounting_shows_after_all_is_not_lost():
    run = a_run()
    held = reservation(run)
    run.end_s = run.visible_s = START_S + 5
    record = run_record(run, run.end_s)
    decided = charge(RATES, [], [record], [held], {held.key: START_S + 17})
    assert amounts(decided) == [("post", 5000, 5), ("void", 55_000, 5)]
    assert decided.observations == ()


def test_a_lost_run_is_charged_once():
    run = a_run()
    store = MemoryStore()
    store.charges.post(live(run).charges)
    (held,) = store.charges.open_reservations()
    lost = {held.key: START_S + 17}
    store.charges.post(charge(RATES, [], [], [held], lost).charges)
    before = store.audit.statement(None, 0, START_S)
    assert charge(RATES, [], [], store.charges.open_reservations(), lost) == Charging(
        (), (), frozenset()
    )
    late = ended(run, 5)  # Accounting shows it after all: too late.
    assert store.charges.post(late.charges) == frozenset()
    assert store.audit.statement(None, 0, START_S) == before


def test_costs_add_up():
    assert run_cost({"1g.10gb": 2, "1g.20gb": 1, "unknown": 3}, COSTS) == 3750


def test_the_watermark_waits_for_late_accounting():
    now_s = START_S + 10_000
    assert next_watermark_s(0, now_s, [], []) == now_s - ACCOUNTING_DELAY_S


def test_the_watermark_waits_for_a_reserved_run_that_runs_no_more():
    run = a_run()
    held = reservation(run)
    now_s = START_S + 10_000
    assert next_watermark_s(START_S - 50, now_s, [], [held]) == START_S - 1
    assert next_watermark_s(START_S + 50, now_s, [], [held]) == START_S + 50
    still = next_watermark_s(0, now_s, [job_view(run)], [held])
    assert still == now_s - ACCOUNTING_DELAY_S


def test_the_watermark_never_goes_back():
    assert next_watermark_s(START_S, START_S - 5, [], []) == START_S
