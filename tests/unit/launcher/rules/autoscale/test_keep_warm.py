"""Tests what is kept for requests that may come, apart from what present ones need."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from slicewise.cluster.language.keep_warm import WarmDay, warm_words
from slicewise.launcher.rules.autoscale.keep_warm import KeptWarm, WarmTotal, added_up
from slicewise.launcher.rules.autoscale.policy import Memory, autoscale
from slicewise.launcher.rules.autoscale.types import Scaling, ServiceLook, Supply
from slicewise.launcher.rules.gateway.types import Load

SCALING = Scaling(3, 40, 2, max_queue_s=2.0)
DAY_S = 86_400.0


def looked(
    *loads: Load, ready: int = 3, scaling: Scaling = SCALING, memory: Memory | None = None
) -> Sequence[KeptWarm]:
    """What each look after the first finds; a second lies between two."""
    memory, kept = memory or Memory(), []
    for second, load in enumerate(loads):
        look = ServiceLook(100.0 + second, load, Supply(ready=ready))
        memory, decision = autoscale(scaling, memory, look)
        kept.append(decision.kept_warm)
    return kept[1:]


NONE = Load(arrived=7, answered=7)


@pytest.mark.parametrize(("in_flight", "kept"), [(0, 3), (1, 2), (2, 2), (3, 1), (5, 0), (6, 0)])
def test_what_present_requests_do_not_need_is_kept(in_flight: int, kept: int) -> None:
    load = Load(in_flight, arrived=7 + in_flight, answered=7)
    found = looked(load, load)[-1]
    assert (found.replicas, found.replica_s) == (kept, kept)


def test_what_waits_needs_a_replica_and_what_starts_is_not_kept() -> None:
    waits = Load(2, 3, arrived=12, answered=7)
    assert looked(waits, waits)[-1].replicas == 0
    assert looked(NONE, NONE, ready=0)[-1] == KeptWarm()


def test_no_more_is_kept_than_stays() -> None:
    idle = replace(SCALING, min_replicas=0, keep_alive_s=0.0)
    assert looked(NONE, *[NONE] * 200, scaling=idle)[-1].replicas == 0


def test_a_replica_that_answers_again_and_again_is_no_idle_one() -> None:
    """Its requests are so short that no look finds one."""
    loads = [Load(arrived=7 + 9 * n, answered=7 + 9 * n) for n in range(5)]
    found = looked(*loads, ready=1, scaling=replace(SCALING, min_replicas=1))
    assert [one.replicas for one in found] == [0] * 4
    assert sum(one.spared or 0 for one in found[1:]) == 0


def test_requests_that_come_to_idle_replicas_were_spared_a_wait() -> None:
    came = Load(2, arrived=10, answered=8)
    assert [one.spared for one in looked(NONE, NONE, came, came)] == [0, 3, 0]


def test_of_a_busy_service_only_what_is_beyond_the_needed_replicas_places_counts() -> None:
    busy = Load(2, arrived=9, answered=7)
    more = Load(5, arrived=13, answered=8)
    assert [one.spared for one in looked(busy, busy, more)] == [0, 3]


def test_without_a_kept_replica_nobody_was_spared_anything() -> None:
    held = Load(held=2, arrived=9, answered=7)
    served = Load(2, arrived=9, answered=7)
    assert [one.spared for one in looked(held, held, served, ready=0)] == [0, 0]


def test_a_gap_and_another_backend_teach_nothing() -> None:
    memory, _ = autoscale(SCALING, Memory(), ServiceLook(100.0, NONE, Supply(ready=3)))
    late = ServiceLook(160.0, Load(2, arrived=9, answered=7), Supply(ready=3))
    assert autoscale(SCALING, memory, late)[1].kept_warm == KeptWarm(2)
    other = ServiceLook(101.0, Load(2, arrived=9, answered=7, counter="b2"), Supply(ready=3))
    memory = replace(memory, seen=replace(memory.seen, counter="b1") if memory.seen else None)
    assert autoscale(SCALING, memory, other)[1].kept_warm == KeptWarm(2, 3)


def test_a_gateway_that_is_not_seen_says_nothing_of_need() -> None:
    memory, _ = autoscale(SCALING, Memory(), ServiceLook(100.0, NONE, Supply(ready=3)))
    blind = ServiceLook(101.0, Load(), Supply(ready=3), is_known=False)
    assert autoscale(SCALING, memory, blind)[1].kept_warm == KeptWarm()


def test_days_are_added_up_and_the_last_two_are_kept() -> None:
    total = WarmTotal()
    for at_s, spared in ((DAY_S - 1, 1), (DAY_S + 1, 2), (DAY_S + 2, 4), (2 * DAY_S, 8)):
        total = added_up(total, KeptWarm(2, 3.0, spared), 1500, at_s)
    days = (WarmDay("1970-01-02", 9000, 6), WarmDay("1970-01-03", 4500, 8))
    assert total == WarmTotal(18_000, 15, days)
    assert added_up(total, KeptWarm(1), 1500, 9 * DAY_S) is total


def test_of_a_share_nobody_knows_whose_requests_were_spared() -> None:
    total = added_up(WarmTotal(), KeptWarm(2, 4.0, 3).part(0.25), 1000, 0.0)
    assert total == WarmTotal(1000, 0, (WarmDay("1970-01-01", 1000),))
    total = added_up(total, KeptWarm(2, 4.0, 3), 1000, 1.0)
    assert total.days == (WarmDay("1970-01-01", 5000, 3),)


def test_it_is_said_in_slice_hours_the_newest_day_first() -> None:
    days = (
        WarmDay("2026-11-29", 45_000_000, 1377),
        WarmDay("2026-11-30", 11_520_000, None),
    )
    assert warm_words(1, days) == (
        "1 replica now; 3.2 slice-hours on 2026-11-30 UTC;"
        " 12.5 slice-hours on 2026-11-29 UTC spared at least 1,377 requests a wait"
    )
    assert warm_words(0.5, ()) == "0.5 replicas now"
