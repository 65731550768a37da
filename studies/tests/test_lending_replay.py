"""Tests the rebalancing replay: tenants that share a cluster, and each alone on its own part."""

from collections.abc import Sequence

import pytest

from studies.lending import anomaly
from studies.lending.cluster import alone, packed
from studies.lending.shared import Shared
from studies.lending.tenants import SPAN_S, Ask, Wishes, backlog, levels
from studies.lending.wants import Terms

ONE, TWO, THREE = "1g.18gb", "2g.35gb", "3g.71gb"
HOUR_S = 3600


def service(name: str, *asks: Ask, kind: str = ONE, drain_s: int = 20) -> Wishes:
    return Wishes(name, "group", kind, asks, drain_s)


def jobs(name: str, *times: tuple[int, int], kind: str = ONE, borrows: bool = True) -> Wishes:
    """``times``: submission and length."""
    asks = tuple(Ask(submit_s, lasts_s=lasts_s) for submit_s, lasts_s in times)
    return Wishes(name, "group", kind, asks, 0, borrows)


def shared(wishes: Sequence[Wishes], nominal: Sequence[int], terms: Terms | None = None) -> Shared:
    needed: dict[str, int] = {}
    for one, count in zip(wishes, nominal, strict=True):
        needed[one.kind] = needed.get(one.kind, 0) + count
    world = Shared(wishes, nominal, packed(needed), terms or Terms())
    world.run()
    return world


def waits(world: Shared, tenant: int) -> list[int]:
    return [want.waited_s for want in world.wants if want.tenant == tenant]


@pytest.mark.parametrize(
    ("nominal", "gpus", "millislices"),
    [
        ({ONE: 7}, 1, 7000),
        ({ONE: 8}, 2, 14_000),
        ({THREE: 1, ONE: 4}, 1, 7500),
        ({TWO: 3, THREE: 2}, 2, 14_000),
    ],
)
def test_partitions_are_packed_into_the_fewest_gpus(
    nominal: dict[str, int], gpus: int, millislices: int
):
    found = packed(nominal)
    assert (found.gpus, found.millislices) == (gpus, millislices)


def test_the_last_replica_that_was_added_is_the_first_to_go():
    assert list(levels([1, 3, 2])) == [
        Ask(0, until_s=30, level=1),
        Ask(10, until_s=30, level=2),
        Ask(10, until_s=20, level=3),
    ]


def test_a_quantile_is_what_suffices_for_that_part_of_the_time():
    most = SPAN_S * 6 // 10
    one = service("a", Ask(0, until_s=most, level=1), Ask(most - 100, until_s=most, level=2))
    assert [one.quantile(part) for part in (0.3, 0.5, 0.99, 1.0)] == [0, 1, 1, 2]


def test_alone_jobs_wait_for_their_own_partition_and_further_replicas_for_ever():
    found = alone(jobs("a", (0, 100), (10, 100), (20, 100)), 2)
    assert found.waits_s == (0, 0, 80)
    assert found.held_millislice_s == 300 * 1000
    replicas = alone(service("b", *(Ask(0, until_s=60, level=level) for level in (1, 2))), 1)
    assert replicas.waits_s == (0, None)
    assert replicas.held_millislice_s == 60 * 1000


def test_idle_quota_is_lent_and_comes_back_as_soon_as_a_replica_has_drained():
    lender = service("lender", *(Ask(HOUR_S, until_s=2 * HOUR_S, level=n) for n in (1, 2)))
    borrower = service("borrower", *(Ask(0, until_s=SPAN_S, level=n) for n in range(1, 8)))
    world = shared([lender, borrower], [3, 4])
    assert waits(world, 0) == [20, 20]
    assert world.counts.asked == 2
    assert world.counts.preempted_replicas == world.counts.cut_off == 0
    # Two of seven wait for the hour, and after it they run again.
    assert sorted(waits(world, 1)) == [0] * 5 + [HOUR_S - 20] * 2


def test_what_drains_too_long_is_preempted_when_the_grace_is_over():
    lender = service("lender", Ask(HOUR_S, until_s=2 * HOUR_S, level=1))
    borrower = service("borrower", *(Ask(0, until_s=SPAN_S, level=n) for n in (1, 2)), drain_s=99)
    world = shared([lender, borrower], [6, 1], Terms(grace_s=30))
    assert waits(world, 0) == [0]
    world = shared([lender, _filled(borrower)], [6, 1], Terms(grace_s=30))
    assert waits(world, 0) == [30]
    assert (world.counts.asked, world.counts.cut_off) == (1, 1)


def _filled(one: Wishes) -> Wishes:
    asks = tuple(Ask(0, until_s=SPAN_S, level=n) for n in range(1, 8))
    return Wishes(one.name, one.group, one.kind, asks, one.drain_s)


def test_borrowed_jobs_are_preempted_at_once_and_do_their_work_anew():
    lender = jobs("lender", (HOUR_S, 600))
    borrower = jobs("borrower", *((0, 2 * HOUR_S) for _ in range(7)))
    world = shared([lender, borrower], [1, 6])
    assert waits(world, 0) == [0]
    assert (world.counts.preempted_jobs, world.counts.asked) == (1, 0)
    assert world.counts.lost_millislice_s == HOUR_S * 1000
    assert sorted(waits(world, 1)) == [0] * 6 + [600]


def test_who_does_not_borrow_waits_as_alone():
    owner = jobs("owner", (0, 100), (0, 100), (0, 100), borrows=False)
    world = shared([owner, jobs("idle", (SPAN_S - 1, 1))], [1, 6])
    assert waits(world, 0) == [0, 100, 200]
    assert world.counts.loans == 0


def test_a_backlog_takes_all_that_lies_idle_and_nobody_within_its_nominal_waits_beyond_the_grace():
    lender = service(
        "lender", *(Ask(n * 500, until_s=n * 500 + 400, level=1) for n in range(1, 80))
    )
    fillers = backlog({ONE: 7})
    world = shared([lender, *fillers], [7, 0], Terms(grace_s=60))
    assert max(waits(world, 0)) == fillers[0].drain_s
    assert world.counts.held_millislice_s == pytest.approx(7000 * SPAN_S, rel=0.02)
    assert world.counts.asked == 79


def test_the_report_of_a_replay_has_what_the_tables_show(monkeypatch: pytest.MonkeyPatch):
    times = [(number * 600, 900) for number in range(SPAN_S // 600)]
    found = [
        service("a", *(Ask(100, until_s=SPAN_S // 2, level=level) for level in (1, 2, 3))),
        jobs("b", *times, borrows=False),
        jobs("c", *sorted((*times, (30, 900), (40, 900)))),
    ]
    monkeypatch.setattr(anomaly, "tenants", lambda *_: found)
    cell = anomaly.Cell("gentd26", "p90")
    report = anomaly.replayed(cell, anomaly.Path(), 1, Terms())
    assert report["tenants"] == 3
    assert report["asks"] == 3 + 72 + 74
    for world in report["worlds"].values():
        assert world["anomaly_max_s"] <= 0
        assert world["within_nominal"] == 3 + 72
        assert world["borrowers"]["jobs"] == 74
    borrowers = report["worlds"]["shared"]["borrowers"]
    assert borrowers["mean_wait_s"] < borrowers["mean_wait_alone_s"]
    assert report["worlds"]["with_backlog"]["utilisation"] > 0.9
    assert report["alone"]["utilisation"] < 0.8
