"""A stream of submissions while what answers them fails: slurmctld never waits, nothing is lost."""

import json
import os
import re
import signal
import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from effort import is_nightly
from jobs_as_users import Users
from quotas import until_daemon_leads
from waiting import until, until_is

from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.host import process

pytestmark = pytest.mark.integration

SUBMISSIONS, STREAMS = 500 if is_nightly() else 200, 4
FAILS_AFTER = SUBMISSIONS // 5
"""Submissions that go well first."""
BUDGET_S = 0.010
LATE_S = 0.002
"""Latest end of a call that did not lose the processor to another process."""
ASKS_NOBODY_S = 0.001
OPENS_BREAKER = 3
"""So many questions in a row without an answer; fewer calls than these may all be the machine's."""
REPORT = Path(__file__).resolve().parents[3] / "build" / "reports" / "admission_failures.json"
HANGS_S = 60 if is_nightly() else 15
RUNNING = 3
"""As many as the quota allows."""
WRAPPER = """
local clock = require("socket").gettime
local measured = slurm_job_submit
function slurm_job_submit(...)
    local began = clock()
    local code = measured(...)
    local file = io.open("{calls}", "a")
    file:write(string.format("%.6f %.6f\\n", began, clock() - began))
    file:close()
    return code
end
return slurm.SUCCESS
"""
SUBMIT = """
for n in $(seq {count}); do
    while [ $n -gt $(({count} / 2)) ] && [ ! -e {has_failed} ]; do sleep 0.05; done
    gres=gpu:1g.10gb:1; [ $((n % 5)) = 0 ] && gres=gpu:auto:1
    sbatch --parsable --output=/dev/null --time=10 --gres=$gres --wrap='sleep 600' || true
done
"""


@dataclass
class World:
    """The sandbox, with a slicewise.lua whose calls are measured."""

    sandbox: Sandbox
    users: Users
    calls: Path

    @property
    def admission_socket(self) -> Path:
        return self.sandbox.layout.run_dir / "admission" / "admission.sock"

    @property
    def daemon_pid(self) -> int:
        return self.sandbox.state.processes["daemon"].pid

    @property
    def worker_pid(self) -> int:
        """As the kernel says: who listens on the socket."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.admission_socket))
            raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return int(struct.unpack("3i", raw)[0])

    def start_daemon(self) -> None:
        self.sandbox.start("daemon", "slurm", ("slicewise", "daemon"))
        until_daemon_leads(self.sandbox)

    def kill_daemon(self) -> None:
        self.sandbox.kill("daemon")
        until(lambda: not process.is_alive(self.sandbox.state.processes["daemon"]))

    def durations(self) -> list[tuple[float, float]]:
        """When each call of slicewise.lua began, and the seconds that it took."""
        if not self.calls.exists():
            return []
        rows = [line.split() for line in self.calls.read_text().splitlines()]
        return [(float(row[0]), float(row[1])) for row in rows if len(row) == 2]

    def squeue(self, *options: str) -> list[str]:
        argv = ("squeue", "--noheader", "--user=alice", *options)
        return self.sandbox.run("root", argv).stdout.splitlines()


@pytest.fixture(scope="module")
def world(sandbox: Sandbox) -> Iterator[World]:
    sandbox.stop("launcher")
    users = Users(sandbox)
    users.slicewise("tenant-quota", "set", "vision", "--nominal", str(RUNNING))
    script = sandbox.layout.etc / "job_submit.lua"
    calls = sandbox.layout.run_dir / "calls"
    before = script.read_text()
    time.sleep(1.1)
    measured = re.sub(r"timeout_s = [0-9.]+", f"timeout_s = {BUDGET_S}", before)
    script.write_text(
        measured.rstrip().removesuffix("return slurm.SUCCESS") + WRAPPER.format(calls=calls)
    )
    yield World(sandbox, users, calls)
    time.sleep(1.1)
    script.write_text(before)
    sandbox.start("launcher", "slicewise", ("slicewise", "launcher"))


class StandIn:
    """Listens in the daemon's place and answers each line with what ``reply`` does."""

    def __init__(self, world: World, reply: Callable[[socket.socket], None]) -> None:
        self._path = world.admission_socket
        self._reply = reply
        self._listener = socket.socket(socket.AF_UNIX)
        with suppress(FileNotFoundError):
            self._path.unlink()
        self._listener.bind(str(self._path))
        self._path.chmod(0o666)
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            while connection.recv(65536):
                self._reply(connection)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._path.unlink()


def rubbish(connection: socket.socket) -> None:
    connection.sendall(b'{"action":"admit","qos":7}\x00\xff{{{\n' * 3)


def slowly(connection: socket.socket) -> None:
    """An answer that is right, a byte at a time."""
    for byte in b'{"v":1,"action":"pass"}\n':
        time.sleep(0.005)
        connection.sendall(bytes([byte]))


Failure = Callable[[World], Callable[[], None]]
"""Makes something fail; what it gives makes that good again."""


def killed(world: World) -> Callable[[], None]:
    world.kill_daemon()
    return world.start_daemon


def _stopped(*pids: int) -> Callable[[], None]:
    for pid in pids:
        _signal(pid, signal.SIGSTOP)
    return lambda: [_signal(pid, signal.SIGCONT) for pid in pids] and None


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(_pidfd(pid), number)


def _pidfd(pid: int) -> int:
    return os.pidfd_open(pid)


def main_hangs(world: World) -> Callable[[], None]:
    return _stopped(world.daemon_pid)


def worker_hangs(world: World) -> Callable[[], None]:
    return _stopped(world.worker_pid)


def both_hang(world: World) -> Callable[[], None]:
    return _stopped(world.daemon_pid, world.worker_pid)


def answers_rubbish(world: World) -> Callable[[], None]:
    return _stood_in(world, rubbish)


def answers_slowly(world: World) -> Callable[[], None]:
    return _stood_in(world, slowly)


def _stood_in(world: World, reply: Callable[[socket.socket], None]) -> Callable[[], None]:
    world.kill_daemon()
    stand_in = StandIn(world, reply)

    def recover() -> None:
        stand_in.close()
        world.start_daemon()

    return recover


def socket_is_missing(world: World) -> Callable[[], None]:
    """And every open connection is cut: the worker is killed, and can't listen where it did."""
    world.kill_daemon()
    with suppress(FileNotFoundError):
        world.admission_socket.unlink()
    return world.start_daemon


def postgresql_stops(world: World) -> Callable[[], None]:
    world.sandbox.kill("postgres")
    until(lambda: not process.is_alive(world.sandbox.state.processes["postgres"]))

    def recover() -> None:
        # It starts what has ended, the launcher included, and knows the new pids.
        world.sandbox = Sandbox.up(world.sandbox.layout.directory, progress=print)
        world.users.sandbox = world.sandbox
        world.sandbox.stop("launcher")

    return recover


ANSWERED = {main_hangs, postgresql_stops}
"""Failures that no submission notices."""
FAILURES = (
    killed, main_hangs, worker_hangs, both_hang, answers_rubbish, answers_slowly,
    socket_is_missing, postgresql_stops,
)  # fmt: skip


class Watch:
    """Looks all the time how many of the jobs run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._ended = threading.Event()
        self.most = 0
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._ended.wait(0.2):
            running = self._world.squeue("--states=running,completing,configuring", "--format=%A")
            self.most = max(self.most, len(running))

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


@pytest.fixture
def watch(world: World, clean: None) -> Iterator[Watch]:
    watch = Watch(world)
    yield watch
    watch.end()


@pytest.fixture
def clean(world: World) -> Iterator[None]:
    with suppress(FileNotFoundError):
        world.calls.unlink()
    world.users.submit("alice", "sbatch", "--hold", "--gres=gpu:1g.10gb:1")
    world.users.clear()
    yield
    world.users.clear()


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.__name__)
def test_a_stream_of_submissions(world: World, watch: Watch, failure: Failure) -> None:
    log = world.sandbox.layout.log / "slurmctld.log"
    logged = log.stat().st_size
    called = len(world.durations())
    # The second half waits for the failure, however long the machine takes to make it.
    has_failed = world.sandbox.layout.home / world.sandbox.state.users["alice"].name / "has-failed"
    loop = SUBMIT.format(count=SUBMISSIONS // STREAMS, has_failed=has_failed)
    streams = [
        world.sandbox.popen("alice", ("bash", "-c", loop), stdout=-1, stderr=-1)
        for _ in range(STREAMS)
    ]
    until(lambda: len(world.durations()) >= called + FAILS_AFTER)
    failed_s, failed = time.time(), log.stat().st_size
    try:
        recover = failure(world)
    finally:
        has_failed.touch()
    try:
        outputs = [stream.communicate(timeout=120) for stream in streams]
    finally:
        ended_s = time.time()
        asked = unanswered(log, failed)
        has_failed.unlink()
        recover()
    recovered_s = time.monotonic()
    accepted = [line for out, _ in outputs for line in out.split()]
    assert all(line.isdecimal() for line in accepted), outputs
    refused = SUBMISSIONS - len(accepted)
    assert refused == 0, [err[-300:] for _, err in outputs]
    until(lambda: not undecided(world))
    decided_s = time.monotonic() - recovered_s
    assert sorted(world.squeue("--format=%A")) == sorted(accepted)
    until_is(lambda: len(world.squeue("--states=running")), RUNNING)
    assert watch.most <= RUNNING
    assert [line for line in log.read_text()[logged:].splitlines() if "error:" in line] == []
    figures = check_calls(world.durations()[called:], failed_s, ended_s, failure)
    if failure not in ANSWERED:
        assert asked <= most_asked(ended_s - failed_s)
    _keep(failure.__name__, {**figures, "decided_s": decided_s})


def _keep(name: str, figures: Mapping[str, object]) -> None:
    """Beside the reports of the benchmarks."""
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    report = json.loads(REPORT.read_text()) if REPORT.exists() else {}
    REPORT.write_text(json.dumps(report | {name: figures}, indent=2) + "\n")


def undecided(world: World) -> list[str]:
    """Jobs that wait for a decision: "%k" would be the comment; sacct knows no admin_comment."""
    shown = world.sandbox.run("root", ("scontrol", "show", "job", "--oneliner")).stdout
    jobs = [line for line in shown.splitlines() if "UserId=alice(" in line]
    return [line.split()[0] for line in jobs if "JobState=PENDING" in line and " undecided" in line]


def unanswered(log: Path, begin: int) -> int:
    """How many questions since then. A call may also take long without one: the machine's."""
    return log.read_text()[begin:].count("slicewise: no answer from")


def most_asked(seconds: float) -> float:
    """Those that open the breaker; trials follow after 0.5, 1, 2, 4 and then each 5 s."""
    return OPENS_BREAKER + 4 + seconds / 5


def check_calls(
    calls: list[tuple[float, float]],
    failed_s: float,
    ended_s: float,
    failure: Failure,
) -> Mapping[str, float]:
    """Who waits, waits no longer than the budget; and few do."""
    assert len(calls) == SUBMISSIONS
    meanwhile = [took_s for began_s, took_s in calls if failed_s <= began_s <= ended_s]
    waited = [took_s for took_s in meanwhile if took_s > 0.9 * BUDGET_S]
    minutes = (ended_s - failed_s) / 60
    all_s = [took_s for _, took_s in calls]
    figures = {
        "calls_during_the_failure": len(meanwhile),
        "longest_ms": max(all_s) * 1000,
        "p99_ms": statistics.quantiles(all_s, n=100)[98] * 1000,
        "median_ms_during_the_failure": statistics.median(meanwhile) * 1000 if meanwhile else 0.0,
        "waited": len(waited),
        # After the breaker opened, as by three failures.
        "stalled_ms_per_minute": sum(waited[OPENS_BREAKER:]) * 1000 / minutes,
    }
    if failure not in ANSWERED:
        assert statistics.median(meanwhile) < ASKS_NOBODY_S
    # The machine may keep any one of them waiting for longer, but not all that waited for answers.
    assert len(waited) < OPENS_BREAKER or min(waited) <= BUDGET_S + LATE_S
    return figures


def test_a_daemon_that_hangs_on_stalls_slurmctld_for_next_to_nothing(
    world: World, clean: None
) -> None:
    log = world.sandbox.layout.log / "slurmctld.log"
    called, logged = len(world.durations()), log.stat().st_size
    recover = both_hang(world)
    began_s = time.time()
    try:
        while time.time() < began_s + HANGS_S:
            world.users.submit("alice", "sbatch", "--hold", "--gres=gpu:1g.10gb:1")
    finally:
        recover()
    calls_s = [took_s for _, took_s in world.durations()[called:]]
    waited_s = [took_s for took_s in calls_s if took_s > 0.9 * BUDGET_S]
    stalled_ms = sum(waited_s) * 1000 * 60 / HANGS_S
    _keep("hangs_on", {"calls": len(calls_s), "stalled_ms_per_minute": stalled_ms})
    asked = unanswered(log, logged)
    assert 4 <= asked <= most_asked(HANGS_S)
    # A busy machine submits hardly more than are asked: of the others each asks nobody.
    assert statistics.median(sorted(calls_s)[: max(1, len(calls_s) - asked)]) < ASKS_NOBODY_S
    # As many as the machine could submit in that time, up to a thousand.
    until(lambda: not undecided(world))
