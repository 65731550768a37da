"""Tests the pauses after failed starts: 1, 2, 4 ... 60 s, 5 min; and what ends them."""

from slicewise.launcher.rules.turn.backoff import SETTLED_S, Backoff


def test_each_failure_doubles_the_wait_up_to_a_minute_and_after_ten_it_is_five():
    backoff, waits = Backoff(), []
    for _ in range(11):
        backoff = backoff.failed(1000.0)
        waits.append(backoff.until_s - 1000.0)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60, 300, 300]


def test_without_a_failure_nothing_waits():
    assert Backoff().until_s == 0.0


def test_a_replica_that_stays_ends_it():
    backoff = Backoff().failed(1000.0)
    assert backoff.settled(1010.0, 1010.0 + SETTLED_S) == Backoff()


def test_one_that_is_young_or_older_than_the_failure_does_not():
    backoff = Backoff().failed(1000.0)
    assert backoff.settled(1010.0, 1010.0 + SETTLED_S - 1) == backoff
    assert backoff.settled(900.0, 2000.0) == backoff


def test_three_in_a_row_look_as_if_none_would_succeed():
    assert [Backoff(failures).is_failing for failures in range(5)] == [False] * 3 + [True] * 2


def test_an_order_to_restart_that_came_after_the_failure_ends_it():
    backoff = Backoff(4, 1000.0)
    assert backoff.restarted(1001.0) == Backoff()
    assert backoff.restarted(999.0) == backoff
    assert backoff.restarted(None) == backoff
