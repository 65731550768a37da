"""The leader's lock on a real PostgreSQL: one session has it, and it ends with that."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from waiting import until

from slicewise.cluster.language.errors import UnreachableError
from slicewise.cluster.runtime.leader_lock import LeaderLock
from slicewise.slurm_plugin.ledger.store import Ledger

pytestmark = pytest.mark.integration

HOLDER = """
import sys, time
from slicewise.slurm_plugin.ledger.store import Ledger
lock = Ledger(sys.argv[1], "testing").locks.leader("ctl1")
print(lock.hold(), flush=True)
time.sleep(600)
"""


@pytest.fixture
def lock_of(ledger_database: str) -> Iterator[Callable[..., LeaderLock]]:
    made: list[LeaderLock] = []

    def make(host: str, cluster: str = "testing") -> LeaderLock:
        with Ledger(ledger_database, cluster) as ledger:
            made.append(ledger.locks.leader(host))
        return made[-1]

    yield make
    for lock in made:
        lock.give_up()


LockOf = Callable[..., LeaderLock]


def test_one_daemon_of_a_cluster_has_it(lock_of: LockOf) -> None:
    first, second, elsewhere = lock_of("ctl1"), lock_of("ctl2"), lock_of("ctl3", "other")
    assert second.holder() == ""
    assert [first.hold(), first.hold(), second.hold(), elsewhere.hold()] == [True] * 2 + [
        False,
        True,
    ]
    assert (second.holder(), elsewhere.holder()) == ("ctl1", "ctl3")
    first.give_up()
    until(second.hold)
    assert not first.hold()


def test_it_is_free_as_soon_as_its_daemon_is_killed(lock_of: LockOf, database: str) -> None:
    argv = (sys.executable, "-c", HOLDER, database)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        standby = lock_of("ctl2")
        assert (standby.hold(), standby.holder()) == (False, "ctl1")
        # One that hangs keeps it.
        os.kill(holder.pid, signal.SIGSTOP)
        time.sleep(0.5)
        assert not standby.hold()
        holder.kill()
        until(standby.hold, 30)


def test_of_many_at_the_same_moment_one_has_it(lock_of: LockOf) -> None:
    locks = [lock_of(f"ctl{number}") for number in range(12)]
    with ThreadPoolExecutor(len(locks)) as pool:
        for _ in range(5):
            held = list(pool.map(LeaderLock.hold, locks))
            assert held.count(True) == 1
            locks[held.index(True)].give_up()
            until(lambda: locks[0].holder() == "")


def test_a_row_that_names_another_session_than_its_own_is_no_lock(
    lock_of: LockOf, database: str
) -> None:
    """A number comes again: for a session of another role, of another program, or later."""
    lock = lock_of("ctl1")
    assert lock.hold()
    other = lock_of("ctl2")
    for forged in ("role = 'other'", "application = 'other'", "session_start = now()"):
        assert not other.hold()
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("UPDATE slicewise.locks SET " + forged)  # noqa: S608
        assert other.hold()
        # Who had it is told at its next look.
        assert not lock.hold()
        lock, other = other, lock


def test_who_has_lost_its_session_is_told_and_takes_it_anew(lock_of: LockOf, database: str) -> None:
    lock, other = lock_of("ctl1"), lock_of("ctl2")
    assert lock.hold()
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity "
            "WHERE application_name = 'slicewise leader ctl1'"
        )
    with pytest.raises(UnreachableError, match="SW-DATABASE-DOWN"):
        lock.hold()
    assert [lock.hold(), other.hold()] == [True, False]


def test_a_server_that_can_only_be_read_has_no_leader(lock_of: LockOf, database: str) -> None:
    """As a standby of PostgreSQL."""
    name = database.partition("@/")[2].partition("?")[0]
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        lock = lock_of("ctl1")
        with pytest.raises(UnreachableError, match="SW-DATABASE-DOWN"):
            lock.hold()
        assert lock.holder() == ""
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = off")
    assert lock.hold()
