"""Leases of a minute under steady load: extended, or ended in good order where others come."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from effort import is_nightly
from quotas import until_daemon_leads, until_in_force
from second_witness import accounted_runs
from service_status import status
from steady_load import SteadyLoad
from waiting import until

from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.messages import EvictRequest
from slicewise.cluster.settings.read import load_settings
from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.demo.commands import publish_models

pytestmark = pytest.mark.integration

LEASE_S = 60
RATE_PER_S = 2.0
EXTENDED_S = 600.0 if is_nightly() else 0.0
"""By night for so long; else past the end of the first lease."""
AFTER_S = 3.0
PROFILE, ELSEWHERE = "1g.18gb", "1g.10gb"
RESERVATION = "lease-test"
CREATED = f"reservationname={RESERVATION}"
INSTANCES = {"gpu03": 7, "gpu04": 3}
"""Of the first."""
FILE = """\
[service]
name = "{name}"
tenant = "nlp"
model_repository = {models}
model = "tokens"
profile = "{profile}"
min_replicas = 1
max_replicas = 3
concurrency = 2
lease_s = {lease_s}
memory_mib = 512
"""


class Leased:
    """A service of bob's that keeps one replica, by short leases."""

    def __init__(self, sandbox: Sandbox, name: str, profile: str) -> None:
        self.sandbox = sandbox
        self.name, self.profile = name, profile
        self.service = f"nlp/{name}"
        self.home = sandbox.layout.home / sandbox.state.users["bob"].name
        self.array = 0

    def apply(self) -> None:
        models = json.dumps(str(publish_models(self.sandbox.layout.models)))
        file = self.home / f"{self.name}.toml"
        named = {"name": self.name, "profile": self.profile}
        file.write_text(FILE.format(models=models, lease_s=LEASE_S, **named))
        argv = ("slicewise", "service", "apply", str(file), "--json")
        self.array = json.loads(self.sandbox.run("bob", argv).stdout)["array_job_id"]
        until(self.runs)

    def delete(self) -> None:
        self.sandbox.run("root", ("scancel", str(self.array)))
        until(lambda: not self.squeue("%i", "pending,running,completing"))

    def squeue(self, fields: str, states: str) -> list[list[str]]:
        which = (f"--jobs={self.array}", f"--states={states}", f"--format={fields}")
        argv = ("env", "SLURM_TIME_FORMAT=%s", "squeue", "--noheader", "--array", *which)
        # Slurm forgets arrays after a while.
        lines = self.sandbox.run("root", argv, check=False).stdout.splitlines()
        return [line.split() for line in lines]

    def runs(self) -> dict[str, tuple[str, int, int]]:
        """Node, start and end of what runs, by task."""
        rows = self.squeue("%i %N %S %e", "running")
        return {task: (node, int(start), int(end)) for task, node, start, end in rows}

    def a_run(self) -> tuple[str, tuple[str, int, int]]:
        return next(iter(self.runs().items()))

    def ends_on(self, node: str) -> int:
        """When the last run there ends; 0 if there is none."""
        return max((end_s for where, _, end_s in self.runs().values() if where == node), default=0)

    def is_fresh(self) -> bool:
        """No lease is about to be extended, nor to end."""
        ends_s = [end_s for _, _, end_s in self.runs().values()]
        return bool(ends_s) and min(ends_s) > time.time() + 0.75 * LEASE_S

    def states(self) -> dict[int, str]:
        return {int(index): state for index, state in self.squeue("%K %T", "all")}

    def starts(self) -> int:
        return sum(log.read_text().count("starting on") for log in self.logs())

    def logs(self) -> Iterator[Path]:
        return self.home.glob(f"{self.name}.logs/*.log")

    def whys(self) -> list[str]:
        """Why replicas must end, as ``service status`` says. It is said for seconds only."""
        texts = _texts(status(self.sandbox, self.service))
        return [one.split(": ", 1)[1] for one in texts if "ends in" in one]

    def while_asked(self, happens: Callable[[], None]) -> SteadyLoad:
        """Clients before, during and after it."""
        url = f"{self.sandbox.layout.gateway_url}/{self.service}"

        async def load() -> SteadyLoad:
            async with SteadyLoad(url, RATE_PER_S) as clients:
                await asyncio.sleep(AFTER_S)
                await asyncio.to_thread(happens)
                await asyncio.sleep(AFTER_S)
            return clients

        return asyncio.run(load())

    @contextmanager
    def settings(self, line: str) -> Iterator[None]:
        """Of the daemon, for a while."""
        file = self.sandbox.layout.settings_file
        text = file.read_text()
        file.write_text(text.replace("[daemon]\n", f"[daemon]\n{line}\n"))
        self.restart_daemon()
        try:
            yield
        finally:
            file.write_text(text)
            self.restart_daemon()

    def restart_daemon(self) -> None:
        self.sandbox.stop("daemon")
        self.sandbox.start("daemon", "slurm", ("slicewise", "daemon"))
        until_daemon_leads(self.sandbox)


def _texts(shown: object) -> Iterator[str]:
    if isinstance(shown, str):
        yield shown
    elif isinstance(shown, dict | list):
        for one in shown.values() if isinstance(shown, dict) else shown:
            yield from _texts(one)


@pytest.fixture(scope="module")
def world(sandbox: Sandbox) -> Sandbox:
    for tenant, slices in (("nlp", "4"), ("vision", "7")):
        argv = ("slicewise", "tenant-quota", "set", tenant, "--nominal", slices)
        sandbox.run("root", argv)
        until_in_force(sandbox, tenant)
    return sandbox


@pytest.fixture(scope="module")
def applied(world: Sandbox) -> Iterator[Leased]:
    found = Leased(world, "leased", PROFILE)
    found.apply()
    yield found
    found.delete()


@pytest.fixture
def leased(applied: Leased) -> Leased:
    """With its one replica, whatever the test before did to it; it is not about to be replaced, as
    where its lease could not be extended.
    """
    until(lambda: len(applied.runs()) == 1 and applied.is_fresh())
    return applied


@pytest.fixture
def beside(world: Sandbox) -> Iterator[Leased]:
    """On other nodes."""
    found = Leased(world, "beside", ELSEWHERE)
    found.apply()
    yield found
    found.delete()


def test_where_leases_are_not_extended_a_successor_takes_over(leased: Leased) -> None:
    with leased.settings("extend_leases = false"):
        first, started = set(leased.runs().values()), leased.starts()

        def is_over() -> bool:
            now = set(leased.runs().values())
            return bool(now) and first.isdisjoint(now)

        clients = leased.while_asked(partial(until, is_over, 4 * LEASE_S))
        assert clients.failed == []
        # Slurm says that it runs before its script has said so.
        until(lambda: leased.starts() > started)
        assert all(end_s == start_s + LEASE_S for _, start_s, end_s in leased.runs().values())
        assert "TIMEOUT" not in leased.states().values()


@dataclass(frozen=True)
class Reserved:
    """A reservation, which the daemon knows of, of the node of the one; and a run of the other."""

    node: str
    begins_s: int
    task: str
    start_s: int


def reserve(leased: Leased, beside: Leased) -> Reserved:
    """After all leases that are there. One that is extended just before the daemon sees the
    reservation may end after its begin, and a busy machine may have a second replica for a while:
    then it is made anew.
    """
    what = ("flags=maint,ignore_jobs", "users=root", "duration=60")
    for _ in range(3):
        until(leased.is_fresh)
        node, _, leased_until_s = leased.a_run()[1]
        task, (_, start_s, end_s) = beside.a_run()
        begins_s = max(end_s, leased_until_s) + 15
        begin = (f"starttime=uts{begins_s}", f"nodes={node}", *what)
        leased.sandbox.run("root", ("scontrol", "create", "reservation", CREATED, *begin))
        why = f"reservation {RESERVATION} of {node} begins"
        until(lambda why=why, node=node: why in leased.whys() or not leased.ends_on(node))
        if 0 < leased.ends_on(node) <= begins_s:
            return Reserved(node, begins_s, task, start_s)
        leased.sandbox.run("root", ("scontrol", "delete", CREATED))
    raise AssertionError("each time the lease was extended past the reservation")


def test_nothing_runs_into_a_reservation_and_beside_it_leases_are_extended(
    leased: Leased, beside: Leased
) -> None:
    made: list[Reserved] = []

    def until_it_begins() -> None:
        made.append(reserve(leased, beside))
        while time.time() < made[0].begins_s:
            assert leased.ends_on(made[0].node) <= made[0].begins_s
            time.sleep(1)

    def both_are_asked() -> None:
        assert leased.while_asked(until_it_begins).failed == []
        assert made[0].node not in {where for where, _, _ in leased.runs().values()}
        time.sleep(EXTENDED_S)

    try:
        assert beside.while_asked(both_are_asked).failed == []
    finally:
        leased.sandbox.run("root", ("scontrol", "delete", CREATED), check=False)
    _, same_start_s, end_s = beside.runs()[made[0].task]
    assert same_start_s == made[0].start_s
    assert time.time() < end_s <= time.time() + LEASE_S + 60, (
        "no further ahead: Slurm plans with it"
    )


def test_who_is_told_to_leave_goes_once_another_serves_elsewhere(leased: Leased) -> None:
    """As in a repartition, in which Slicewise reserves the GPU's node."""
    node, start_s, _ = leased.a_run()[1]
    (job_id,) = (int(job_id) for (job_id,) in leased.squeue("%A", "running"))
    daemon = DaemonClient(load_settings(leased.sandbox.layout.settings_file).daemon)
    name = "reservationname=slicewise_repartition_0"
    what = ("flags=maint,ignore_jobs", "users=root", "duration=5", f"nodes={node}")
    leased.sandbox.run("root", ("scontrol", "create", "reservation", name, "starttime=now", *what))

    def has_left() -> bool:
        daemon.call(EvictRequest(runs=((job_id, start_s),), why="its GPU is cut anew"))
        nodes = {where for where, _, _ in leased.runs().values()}
        return bool(nodes) and node not in nodes

    def ended_s() -> int | None:
        """As accounting has it: a look at both at the same time may come too late."""
        runs = accounted_runs(leased.sandbox)
        mine = (one.end_s for one in runs if one.job_id == job_id and one.start_s >= start_s)
        return next(mine, None)

    try:
        assert leased.while_asked(partial(until, has_left)).failed == []
        successors_s = min(start_s for _, start_s, _ in leased.runs().values())
        assert successors_s < until(ended_s), "a successor first"
        assert not any("reservation" in why for why in leased.whys())
    finally:
        leased.sandbox.run("root", ("scontrol", "delete", name))


def test_a_bigger_job_starts_when_slurm_has_planned_it(leased: Leased) -> None:
    node, _, _ = leased.a_run()[1]
    gres = f"--gres=gpu:{PROFILE}:{INSTANCES[node]}"
    options = ("--parsable", gres, f"--nodelist={node}", "--time=1", "--output=/dev/null")
    argv = ("sbatch", *options, "--wrap=sleep 20")
    job = leased.sandbox.run("alice", argv).stdout.strip()

    def until_it_runs() -> None:
        until(lambda: f"job {job} is to start on {node}" in leased.whys(), 240)
        which = ("squeue", "--noheader", f"--jobs={job}", "--states=running", "--format=%T")
        until(lambda: leased.sandbox.run("root", which).stdout, 240)

    assert leased.while_asked(until_it_runs).failed == []
    leased.sandbox.run("root", ("scancel", job))
