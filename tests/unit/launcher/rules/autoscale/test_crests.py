"""Tests what is learnt of bursts, and for how long replicas are kept for the next one."""

from dataclasses import replace

import pytest

from slicewise.launcher.rules.autoscale.attainment import Attainment
from slicewise.launcher.rules.autoscale.crests import (
    Crest,
    Stakes,
    learn_crests,
    reached_since,
    worth_having,
)
from slicewise.launcher.rules.autoscale.histogram import added
from slicewise.launcher.rules.autoscale.idle import (
    EDGES_S,
    Pauses,
    learn_pause,
    price_of_waiting,
)
from slicewise.launcher.rules.autoscale.policy import Memory, Peak, autoscale, initial
from slicewise.launcher.rules.autoscale.types import Scaling, ScalingDecision, ServiceLook, Supply
from slicewise.launcher.rules.gateway.types import Load

HORIZON_S = 30.0
DEAR = Stakes(late_s=100.0, most_late_s=900.0, most_s=3600.0, dearer=1.0, start_s=25.0)


def bursts(count: int, gap_s: int, places: int = 8, lasts_s: int = 10) -> tuple[Crest, ...]:
    known: tuple[Crest, ...] = ()
    for second in range(count * (gap_s + lasts_s)):
        here = places if second % (gap_s + lasts_s) < lasts_s else 0
        known = learn_crests(known, here, 1000.0 + second, 1.0, HORIZON_S)
    return known


@pytest.mark.parametrize("age_s", [100.0, 100_000.0, 131_000.0, 200_000.0])
def test_a_long_pause_after_months_of_short_ones_is_not_waited_for(age_s: float):
    """Weights of pauses never seen fade with each that was, to the least numbers there are."""
    pauses = Pauses().pauses
    for _ in range(40_000):
        pauses = added(pauses, EDGES_S, 40.0, 0.98)
    assert price_of_waiting(pauses, age_s) > 30.0


def test_a_crest_has_its_length_and_the_pause_before_it():
    top = bursts(5, 60)[-1]
    assert top.count == pytest.approx(4, rel=0.05)
    assert top.total_used_s / top.count == pytest.approx(10)
    assert sum(top.pauses) == pytest.approx(4.7, abs=0.3)


def test_pauses_shorter_than_a_start_are_part_of_a_crest():
    assert not any(one.count for one in bursts(5, 20))


@pytest.mark.parametrize(("after_s", "level"), [(20, 8), (100, 8), (50_000, 0)])
def test_replicas_are_kept_while_the_next_burst_is_worth_them(after_s: int, level: int):
    known = bursts(10, 120)
    at_s = known[-1].last_s + after_s
    assert worth_having(known, at_s, 1.25, 1, replace(DEAR, late_s=20.0)) == level


def test_the_next_burst_may_be_larger_than_all_before_the_more_so_the_fewer_there_were():
    """Up to what a late request is worth, and nothing of it after a long pause."""
    few, many = bursts(3, 120), bursts(60, 120)
    levels = [
        [
            worth_having(known, known[-1].last_s + 100, 1.25, 1, replace(DEAR, late_s=late_s))
            for late_s in (20.0, 100.0, 300.0)
        ]
        for known in (few, many)
    ]
    assert levels == [[8, 11, 16], [8, 11, 11]]
    assert worth_having(few, few[-1].last_s + 1000, 1.25, 1, DEAR) == 0


def test_bursts_of_many_sizes_are_expected_to_grow_further_than_those_of_one_size():
    known: tuple[Crest, ...] = ()
    for second in range(16 * 130):
        number, here = divmod(second, 130)
        size = 4 * max(part for part in (1, 2, 4) if number % part == 0)
        known = learn_crests(known, size if here < 10 else 0, 1000.0 + second, 1.0, HORIZON_S)
    alike = bursts(4, 510, places=16)
    stakes = replace(DEAR, late_s=200.0)
    many, one = (worth_having(k, k[-1].last_s + 100, 1.25, 1, stakes) for k in (known, alike))
    assert (many, one) == (32, 16)


def test_a_size_of_which_none_came_for_long_is_not_expected_of_smaller_bursts():
    known: tuple[Crest, ...] = ()
    for second in range(60 * 130):
        size = 16 if second < 20 * 130 else 4
        known = learn_crests(known, size if second % 130 < 10 else 0, 1000.0 + second, 1.0, 30.0)
    at_s = known[0].last_s + 100
    assert worth_having(known, at_s, 1.25, 1, replace(DEAR, late_s=20.0)) == 4


def test_a_cheap_late_request_keeps_fewer_and_one_burst_keeps_none():
    known = bursts(10, 120)
    at_s = known[-1].last_s + 100
    assert worth_having(known, at_s, 1.25, 1, replace(DEAR, late_s=0.1, start_s=5.0)) == 0
    assert worth_having(bursts(2, 120), at_s, 1.25, 1, DEAR) == 0


def test_higher_levels_that_are_rare_are_given_back_first():
    known: tuple[Crest, ...] = ()
    for second in range(9 * 2600):
        here = 0 if second % 130 >= 10 else 32 if second % 2600 < 10 else 8
        known = learn_crests(known, here, 1000.0 + second, 1.0, HORIZON_S)
    at_s = known[-1].last_s + 1200
    assert worth_having(known, at_s, 1.25, 1, replace(DEAR, late_s=20.0)) == 8
    every, lately = (reached_since(known, since_s) for since_s in (0.0, at_s))
    assert every[-1] == (32, 9.0)
    assert lately == every[: len(lately)]
    assert lately[-1] == (8, 9.0)
    assert reached_since(known, at_s + 5000) == []


SCALING = Scaling(0, 40, 1, max_queue_s=2.0)


def served(scaling: Scaling, seconds: int, *, each: int = 120) -> list[ScalingDecision]:
    """Bursts of 10 s, of 8 requests a second that take a second; starts take a second."""
    memory, found = initial(Supply(), 0.0), list[ScalingDecision]()
    arrived = answered = waiting = busy = replicas = 0
    for second in range(seconds):
        answered += busy
        came = 8 if second % each < 10 else 0
        arrived, waiting = arrived + came, waiting + came
        busy = min(waiting, replicas)
        waiting -= busy
        load = Load(busy, waiting if replicas else 0, 0 if replicas else waiting, arrived, answered)
        look = ServiceLook(float(second), load, Supply(ready=replicas), serving=replicas)
        memory, decision = autoscale(scaling, memory, look)
        replicas = decision.wanted
        found.append(decision)
    return found


def test_replicas_do_not_follow_a_pause_down_while_bursts_are_expected():
    found = served(SCALING, 3600)
    in_pauses = [one.wanted for second, one in enumerate(found) if second % 120 == 119]
    assert min(in_pauses[10:]) >= 4


def test_replicas_are_started_for_a_larger_burst_to_come_but_only_while_others_serve():
    """A burst has 8 requests in parallel, so more than 11 replicas are for one like none before."""
    wanted = [one.wanted for one in served(replace(SCALING, aim=0.999), 1200)]
    assert max(wanted[120:]) > 11
    rises = [second for second in range(1, 1200) if wanted[second] > wanted[second - 1]]
    assert max(second % 120 for second in rises) < 12


def test_status_says_which_number_would_do_where_the_aim_is_out_of_reach():
    found = served(replace(SCALING, max_replicas=3), 3600)
    assert "max_replicas = 3 lets no more run, about 10 would do" in found[-115].reason
    assert "began in time, not 99 %" in found[-115].reason.replace("%", " %")


def test_a_place_that_a_crest_reaches_saves_one_late_request_though_that_takes_long():
    """A crest of 10 s of requests of a minute: one more of them waits for a place to begin."""
    known = bursts(10, 120)
    at_s = known[-1].last_s + 100
    assert worth_having(known, at_s, 60.0, 1, replace(DEAR, late_s=50.0, start_s=5.0)) == 8


def test_while_an_aim_is_missed_bursts_may_cost_more():
    """Bursts that are rare and large: at the usual highest price no replica waits for one."""
    known = bursts(6, 6000, places=32)
    missed = Attainment(begun=100.0, late=20.0, factor=8.0, goal=8.0)
    look = ServiceLook(known[-1].last_s + 300, Load(), Supply(ready=32))
    kept = [
        autoscale(
            SCALING,
            Memory(
                crests=known,
                attained=attained,
                peaks=(Peak(look.at_s, 1),),
                idle=learn_pause(Pauses(), 0, known[-1].last_s),
            ),
            look,
        )[1].wanted
        for attained in (Attainment(), missed)
    ]
    assert kept[0] == 0 < kept[1]


@pytest.mark.parametrize("start_s", [25.0, None])
def test_while_an_aim_is_missed_crests_larger_than_all_before_are_worth_no_more(
    start_s: float | None,
):
    """Who was late came at a level that was reached: more replicas than these do not help him."""
    known = bursts(10, 120)
    stakes = replace(DEAR, late_s=7200.0, start_s=start_s)
    at_s = known[-1].last_s + (100 if start_s else 0)
    usual, dear = (
        worth_having(known, at_s, 1.25, 1, replace(stakes, dearer=dearer)) for dearer in (1.0, 8.0)
    )
    assert dear == usual > 8
