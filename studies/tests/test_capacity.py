"""Tests the replay on ParvaGPU's tables: its server, and that what is learnt is near the best."""

from random import Random

import pytest

from studies import capacity
from studies.capacity import Replica, batch_s, best, full, rate, service_s, steady, tables

TABLE = ((1, 0.010), (2, 0.012), (4, 0.016), (8, 0.024))


def test_the_tables_are_of_eleven_models_on_five_slices():
    found = tables()
    assert len(found) == 55
    assert found["bert 1g"][0] == (1, pytest.approx(1 / 74.408))


@pytest.mark.parametrize(("requests", "seconds"), [(1, 0.01), (3, 0.014), (8, 0.024), (16, 0.048)])
def test_a_batch_between_two_rows_takes_a_time_between_theirs(requests: int, seconds: float):
    assert batch_s(TABLE, requests) == pytest.approx(seconds)


@pytest.mark.parametrize("concurrency", [1, 2, 8])
def test_a_full_replica_works_as_is_reckoned(concurrency: int):
    replica = Replica(TABLE, Random(1), 0.0, concurrency)  # noqa: S311 -- seeded on purpose
    replica.until(100.0, capacity.endless)
    assert len(replica.took) / 100 == pytest.approx(rate(TABLE, concurrency), rel=0.02)
    assert replica.took[-1][0] == pytest.approx(service_s(TABLE, concurrency), rel=0.02)


def test_the_best_is_the_quickest_in_time():
    assert best(TABLE, 0.009) == 1
    assert best(TABLE, 0.033) == 8


def test_what_is_learnt_is_near_the_best_and_hardly_late():
    """On every fifth table."""
    found = list(tables().values())[::5]
    each = [full(table, 0.4, 0.3, 2000) for table in found]
    assert sorted(one["of_best"] for one in each)[len(each) // 2] >= 0.9
    assert max(one["late"] for one in each) <= 0.01
    loads = [steady(table, 0.4, 0.3, 2000) for table in found]
    assert max(one["late"] for one in loads) <= 0.05
