"""Everything that serves a request is killed, under steady load: what fails, and what must not.

Only the hard kill of a Triton, a node or HAProxy may cost requests: those in flight on it.
"""

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from effort import is_nightly
from processes import children_of
from quotas import until_in_force
from service_status import status
from steady_load import Answer, SteadyLoad
from waiting import seconds_until, until, until_is

from sandbox.cluster import Sandbox
from sandbox.demo.commands import publish_models
from sandbox.host.process import MARK, is_alive, read_stat

pytestmark = pytest.mark.integration

SERVICE = "nlp/chaos"
REPLICAS, CONCURRENCY = 2, 2
RATE_PER_S = 5.0
"""One replica alone could answer them."""
AFTER_S = 3.0
"""So long the load goes on before and after; its full rate is reached by then."""
KILLS = 50 if is_nightly() else 5
GPU = "--gres=gpu:1g.18gb:1"
INSTANCES = 10
"""Of that type in the sandbox."""
GRACE_S = 65
"""Of more than 70 s the launcher waits for a successor first."""
FILE = """\
[service]
name = "chaos"
tenant = "nlp"
model_repository = {models}
model = "tokens"
profile = "1g.18gb"
min_replicas = {replicas}
max_replicas = {slots}
concurrency = {concurrency}
lease_s = 600
memory_mib = 512
"""


class Chaos:
    """A service of bob's that keeps two replicas, and what is done to it."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self._home = sandbox.layout.home / sandbox.state.users["bob"].name

    def apply(self) -> None:
        models = publish_models(self.sandbox.layout.models)
        file = self._home / "chaos.toml"
        text = FILE.format(
            models=json.dumps(str(models)),
            replicas=REPLICAS,
            slots=2 * REPLICAS,
            concurrency=CONCURRENCY,
        )
        file.write_text(text)
        self.sandbox.run("bob", ("slicewise", "service", "apply", str(file)))

    def delete(self) -> None:
        self.sandbox.run("bob", ("slicewise", "service", "delete", SERVICE), check=False)
        until(lambda: not self.jobs("bob"))

    def jobs(self, user: str, states: str = "pending,running,completing") -> list[str]:
        argv = ("squeue", "--noheader", "--array", f"--user={user}", f"--states={states}")
        return self.sandbox.run("root", (*argv, "--format=%i %T %q %N")).stdout.splitlines()

    def ready(self) -> int:
        """How many replicas answer."""
        return len(status(self.sandbox, SERVICE)["slots"]["ready"])

    def set_quota(self, tenant: str, *words: str) -> None:
        argv = ("slicewise", "tenant-quota", "set", tenant, "--nominal", *words)
        self.sandbox.run("root", argv)

    def while_asked(
        self,
        disturb: Callable[[SteadyLoad], None],
        *,
        retries_refused: bool = False,
        replicas: int = REPLICAS,
    ) -> SteadyLoad:
        """Clients before, during and after it; then so many replicas answer."""
        url = f"{self.sandbox.layout.gateway_url}/{SERVICE}"

        async def load() -> SteadyLoad:
            async with SteadyLoad(url, RATE_PER_S, retries_refused=retries_refused) as clients:
                await asyncio.sleep(AFTER_S)
                await asyncio.to_thread(disturb, clients)
                await asyncio.sleep(AFTER_S)
            return clients

        clients = asyncio.run(load())
        until_is(self.ready, replicas)
        return clients

    def tritons(self) -> list[int]:
        """Pids of its servers."""
        return [pid for pid in running("bin/tritonserver --", "--id=chaos.") if self.owns(pid)]

    def owns(self, pid: int, **said: str) -> bool:
        """Whether it is a process of this sandbox with that in its environment."""
        wanted = {MARK: str(self.sandbox.layout.directory)} | said
        return wanted.items() <= environment(pid).items()

    def kill_node(self, node: str) -> int:
        """All that Slurm runs there, those first that would tell of it; how many replicas died."""
        argv = ("squeue", "--noheader", f"--nodelist={node}", "--format=%A")
        jobs = self.sandbox.run("root", argv).stdout.split()
        self.sandbox.kill(f"slurmd-{node}")
        steps = (pid for job in jobs for pid in running(f"slurmstepd: [{job}."))
        kill(pid for pid in steps if self.owns(pid))
        kill(pid for pid in processes() if self.owns(pid, SLURMD_NODENAME=node))
        self.scontrol("update", f"NodeName={node}", "State=DOWN", "Reason=chaos")
        return len(jobs)

    def mend_node(self, node: str) -> None:
        """As it registers, Slurm takes it back."""
        self.sandbox.restore(print)
        until_is(lambda: self.sandbox.node_states()[node], "idle")

    def scontrol(self, *words: str) -> None:
        self.sandbox.run("root", ("scontrol", *words))

    def restart(self, name: str) -> None:
        """As systemd does it."""
        user = {"daemon": "slurm"}.get(name, "slicewise")
        self.sandbox.start(name, user, ("slicewise", name))


def processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def running(*words: str) -> list[int]:
    """Pids of those with all these words in their command lines."""
    return [pid for pid in processes() if all(word in command_line(pid) for word in words)]


def command_line(pid: int) -> str:
    with suppress(OSError):
        return (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    return ""


def kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def cut_off(clients: SteadyLoad) -> list[Answer]:
    """Those whose replica ended before it had answered; nothing else may have failed.

    HAProxy closes without a word if the connection to the replica had served others before.
    """
    words = ("SW-GATEWAY-LOST", "ServerDisconnectedError")
    lost = [one for one in clients.failed if any(word in one.error for word in words)]
    assert lost == clients.failed
    return lost


def environment(pid: int) -> dict[str, str]:
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
        return dict(line.split("=", 1) for line in lines if "=" in line)
    return {}


@pytest.fixture(scope="module")
def world(sandbox: Sandbox) -> Iterator[Chaos]:
    chaos = Chaos(sandbox)
    chaos.set_quota("nlp", str(REPLICAS))
    until_in_force(sandbox, "nlp")
    chaos.apply()
    yield chaos
    chaos.delete()


@pytest.fixture
def chaos(world: Chaos) -> Chaos:
    """Once all its replicas answer."""
    until_is(world.ready, REPLICAS)
    return world


def test_a_killed_triton_costs_what_was_in_flight_on_it(chaos: Chaos) -> None:
    clients = chaos.while_asked(lambda _: os.kill(chaos.tritons()[0], signal.SIGKILL))
    # As many again may be handed to it in the moment in which it dies.
    assert len(cut_off(clients)) <= 2 * CONCURRENCY, clients.failed


def test_a_killed_node_costs_what_was_in_flight_on_its_replicas(chaos: Chaos) -> None:
    node = chaos.jobs("bob", "running")[0].split()[-1]
    died: list[int] = []

    def kill_node(_: SteadyLoad) -> None:
        died.append(chaos.kill_node(node))
        until_is(chaos.ready, REPLICAS)

    try:
        clients = chaos.while_asked(kill_node)
    finally:
        chaos.mend_node(node)
    assert died[0] > 0
    assert len(cut_off(clients)) <= 2 * CONCURRENCY * died[0], clients.failed


@pytest.mark.parametrize("part", ["master", "worker"])
def test_a_killed_haproxy_costs_what_was_in_flight(chaos: Chaos, part: str) -> None:
    """Nobody accepts connections until it is up again: clients try those again, and only those."""
    master = chaos.sandbox.state.processes["haproxy"]
    workers = children_of(master.pid)
    pids = {"master": [master.pid], "worker": workers}[part]
    dying_s: list[float] = []

    def kill_haproxy(_: SteadyLoad) -> None:
        dying_s.append(time.monotonic())
        kill(pids)
        # A worker goes on for a moment after its master.
        until(lambda: not is_alive(master) and not any(map(read_stat, workers)))
        dying_s.append(time.monotonic())
        chaos.sandbox.restore(print)

    clients = chaos.while_asked(kill_haproxy, retries_refused=True)
    began_s, ended_s = dying_s
    # A client may send by a connection before it has read that this was closed.
    doomed_s = ended_s + 1
    in_flight = [one for one in clients.answers if one.sent_s < doomed_s and one.ended_s > began_s]
    assert [one for one in clients.failed if one not in in_flight] == []


def test_a_reload_costs_nothing(chaos: Chaos) -> None:
    def reload(_: SteadyLoad) -> None:
        for _ in range(3):
            chaos.sandbox.kill("haproxy", signal.SIGUSR2)
            time.sleep(2)

    assert chaos.while_asked(reload).failed == []


def test_launcher_and_daemon_killed_at_any_moment_cost_nothing(chaos: Chaos) -> None:
    chance = random.Random(5)  # noqa: S311 -- no secret

    def kill_one_by_one(_: SteadyLoad) -> None:
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.2, 4.0))
            name = chance.choice(("launcher", "daemon"))
            chaos.sandbox.kill(name)
            time.sleep(chance.uniform(0.2, 1.0))
            chaos.restart(name)
        chaos.sandbox.restore(print)

    clients = chaos.while_asked(kill_one_by_one)
    assert clients.failed == []
    assert len(clients.answers) > KILLS * RATE_PER_S


@pytest.fixture
def second(chaos: Chaos) -> Iterator[str]:
    """Two launchers, of which the first leads; the name of the second."""
    sandbox = chaos.sandbox
    settings = sandbox.layout.etc / "pair-of-launchers.toml"
    text = sandbox.layout.settings_file.read_text()
    settings.write_text(text.replace("[launcher]", "[launcher]\npair = true"))
    argv = ("slicewise", "launcher", "--config", str(settings))
    sandbox.stop("launcher")
    for name, word in (("launcher", " leads "), ("launcher2", " started ")):
        before = log_of(sandbox, name).count(word)
        sandbox.start(name, "slicewise", argv)
        until(lambda seen=(name, word, before): log_of(sandbox, seen[0]).count(seen[1]) > seen[2])
    yield "launcher2"
    for name in ("launcher", "launcher2"):
        sandbox.stop(name)
    chaos.restart("launcher")


def log_of(sandbox: Sandbox, name: str) -> str:
    log = sandbox.layout.log / f"{name}.log"
    return log.read_text() if log.exists() else ""


def test_the_second_launcher_takes_over_and_that_costs_nothing(chaos: Chaos, second: str) -> None:
    def take_over(_: SteadyLoad) -> None:
        before = log_of(chaos.sandbox, second).count(" leads ")
        chaos.sandbox.kill("launcher")
        until(lambda: log_of(chaos.sandbox, second).count(" leads ") > before)
        chaos.scontrol("requeuehold", chaos.jobs("bob", "running")[0].split()[0])
        until_is(lambda: len(chaos.jobs("bob", "running")), REPLICAS)

    assert chaos.while_asked(take_over).failed == []


@pytest.fixture
def borrowing(chaos: Chaos) -> Iterator[None]:
    """One of the replicas is on what vision lends."""
    chaos.set_quota("vision", str(INSTANCES), "--lending-limit", "1")
    chaos.set_quota("nlp", "1", "--borrowing-limit", "1")
    until_in_force(chaos.sandbox, "vision", "nlp")
    # What runs stays as it is: the next that starts is the one beyond the guarantee.
    chaos.scontrol("requeuehold", chaos.jobs("bob", "running")[0].split()[0])
    until(lambda: borrowed(chaos))
    until_is(chaos.ready, REPLICAS)
    yield
    chaos.sandbox.run("root", ("scancel", "--user=alice"))
    until(lambda: not chaos.jobs("alice"))
    chaos.set_quota("vision", "0", "--lending-limit", "0")
    chaos.set_quota("nlp", str(REPLICAS), "--borrowing-limit", "0")


@pytest.fixture
def grace(chaos: Chaos) -> Iterator[None]:
    """Whoever is preempted may go on for a while."""
    set_grace = ("sacctmgr", "--immediate", "modify", "qos", "slicewise_nlp_borrowed", "set")
    chaos.sandbox.run("root", (*set_grace, f"gracetime={GRACE_S}"))
    yield
    chaos.sandbox.run("root", (*set_grace, "gracetime=0"))


def borrowed(chaos: Chaos, states: str = "running") -> list[str]:
    return [job for job in chaos.jobs("bob", states) if "slicewise_nlp_borrowed" in job]


def take_back(chaos: Chaos) -> float:
    """What the lender lent, and one more than is free; how long a borrower still had that one."""
    array = f"--array=1-{INSTANCES - 1}"
    argv = ("sbatch", GPU, array, "--time=5", "--output=/dev/null", "--wrap=sleep 600")
    chaos.sandbox.run("alice", argv)
    # Slurm may take its time until it starts a job there.
    had_s = seconds_until(lambda: not borrowed(chaos, "running,completing"))
    until(lambda: len(chaos.jobs("alice", "running")) == INSTANCES - 1)
    return had_s


@pytest.mark.usefixtures("borrowing")
def test_a_borrowed_replica_that_its_lender_takes_back_costs_nothing(chaos: Chaos) -> None:
    def its_lender_does(_: SteadyLoad) -> None:
        take_back(chaos)

    assert chaos.while_asked(its_lender_does, replicas=1).failed == []


@pytest.mark.usefixtures("borrowing", "grace")
def test_a_borrowed_replica_with_a_grace_time_gives_its_slice_back_before_that(
    chaos: Chaos,
) -> None:
    had_s: list[float] = []
    before = log_of(chaos.sandbox, "daemon").count(" requeue_hold ")
    clients = chaos.while_asked(lambda _: had_s.append(take_back(chaos)), replicas=1)
    assert clients.failed == []
    assert had_s[0] < GRACE_S
    # Drained, and then ended by the daemon; Slurm would have ended it with the grace.
    until_is(lambda: log_of(chaos.sandbox, "daemon").count(" requeue_hold "), before + 1)
