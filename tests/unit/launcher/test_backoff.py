"""Failed starts: 1, 2, 4 ... 60 s; ended by a replica that stays."""

from launcher.decide.backoff import SETTLED_S, Backoff


def test_each_failure_doubles_the_wait_up_to_a_minute():
    backoff, waits = Backoff(), []
    for _ in range(9):
        backoff = backoff.failed(1000.0)
        waits.append(backoff.until_s - 1000.0)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_without_a_failure_nothing_waits():
    assert Backoff().until_s == 0.0


def test_a_replica_that_stays_ends_it():
    backoff = Backoff().failed(1000.0)
    assert backoff.settled(1010.0, 1010.0 + SETTLED_S) == Backoff()


def test_one_that_is_young_or_older_than_the_failure_does_not():
    backoff = Backoff().failed(1000.0)
    assert backoff.settled(1010.0, 1010.0 + SETTLED_S - 1) == backoff
    assert backoff.settled(900.0, 2000.0) == backoff
