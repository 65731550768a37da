"""All that serves or decides is killed, hangs or is cut off, under steady load: what may fail.

Only a hard kill of a Triton, a node or HAProxy, and a partition between gateway and node may cost
requests: those in flight there.
"""

import asyncio
import json
import os
import random
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest
from effort import is_nightly
from faults import SmallDisk, deaf
from processes import children_of
from quotas import until_in_force
from service_status import status
from standbys import BackupController, StandbyServer
from steady_load import Answer, SteadyLoad
from waiting import PATIENCE_S, until, until_is

from slicewise.cluster.language.errors import UnreachableError
from slicewise.cluster.runtime.database import postgres_engine
from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.demo.commands import publish_models
from slicewise.sandbox.host.host import wrapper_environment
from slicewise.sandbox.host.inventory import CLUSTER
from slicewise.sandbox.host.process import MARK, is_alive, read_stat
from slicewise.sandbox.servers import gpus
from slicewise.slurm_plugin.ledger.store import Ledger

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

    def doors(self) -> list[int]:
        """Pids of what listens for its servers on the nodes' ports."""
        return [pid for pid in running("/door.py ") if self.owns(pid)]

    def is_saved(self) -> bool:
        """Whether slurmctld has written down that its replicas run: each has said so in its job's
        comment. What is younger than some 5 s a killed slurmctld has never seen.
        """
        shown = self.sandbox.run("root", ("scontrol", "show", "job", "--oneliner")).stdout
        comments = re.findall(r" Comment=(slicewise:certificate=\S+ \S+)", shown)
        saved = (self.sandbox.layout.lib / "slurmctld" / "job_state").read_bytes()
        return len(comments) >= REPLICAS and all(one.encode() in saved for one in comments)

    def kill_server(self, name: str) -> None:
        """And wait until it has ended."""
        self.sandbox.kill(name)
        until_is(lambda: is_alive(self.sandbox.state.processes[name]), False)

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

    def reboot(self, node: str) -> None:
        """As an operator orders it; once no job is there, the node is off and comes back."""
        self.scontrol("reboot", "ASAP", "nextstate=RESUME", node)
        show = ("scontrol", "show", "node", node)
        until(lambda: "REBOOT_ISSUED" in self.sandbox.run("root", show).stdout)
        name, layout = f"slurmd-{node}", self.sandbox.layout
        pid = self.sandbox.state.processes[name].pid
        self.sandbox.kill(name)
        until(lambda: read_stat(pid) is None)
        environment = {**wrapper_environment(layout, node), **gpus.environment(layout, node)}
        words = (f"{key}={value}" for key, value in environment.items())
        self.sandbox.start(name, "root", ("env", *words, "slurmd", "-D", "-N", node, "-b"))
        until_is(lambda: self.sandbox.node_states()[node], "idle")

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
    send(signal.SIGKILL, pids)


def send(number: signal.Signals, pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def cut_off(clients: SteadyLoad) -> list[Answer]:
    """Those whose replica ended before it had answered; nothing else may have failed.

    Rarely HAProxy closes without a word: docs/explanation/gateway.md, what was learned.
    """
    words = ("SW-GATEWAY-LOST", "ServerDisconnectedError")
    lost = [one for one in clients.failed if any(word in one.error for word in words)]
    assert lost == clients.failed
    return lost


def until_answered(clients: SteadyLoad, more: int = 10) -> None:
    """Until so many further requests have ended."""
    ended = len(clients.answers) + more
    until(lambda: len(clients.answers) >= ended)


@contextmanager
def hanging(chaos: Chaos, *names: str) -> Iterator[None]:
    """Stop these servers, their own processes included, and let them go on in the end."""
    pids = [chaos.sandbox.state.processes[name].pid for name in names]
    pids += [child for pid in pids for child in children_of(pid)]
    send(signal.SIGSTOP, pids)
    try:
        yield
    finally:
        send(signal.SIGCONT, pids)


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


@pytest.fixture
def may_reboot(sandbox: Sandbox) -> Iterator[None]:
    """Slurm runs a RebootProgram on the node; here it does nothing, and the test does the rest."""
    site = sandbox.layout.etc / "site.conf"
    before = site.read_text()
    site.write_text(f"{before}RebootProgram=/bin/true\n")
    sandbox.run("root", ("scontrol", "reconfigure"))
    yield
    site.write_text(before)
    sandbox.run("root", ("scontrol", "reconfigure"))


@pytest.mark.nightly
@pytest.mark.usefixtures("may_reboot")
def test_a_node_that_is_rebooted_costs_nothing(chaos: Chaos) -> None:
    """Slurm lets nothing new start there, so its replicas are replaced before it goes."""
    node = chaos.jobs("bob", "running")[0].split()[-1]
    chaos.set_quota("nlp", str(2 * REPLICAS))
    try:
        clients = chaos.while_asked(lambda _: chaos.reboot(node))
    finally:
        chaos.set_quota("nlp", str(REPLICAS))
    assert clients.failed == []
    assert len(clients.answers) > 0


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
    in_flight = [one for one in clients.answers if one.sent_s < ended_s and one.ended_s > began_s]
    assert [one for one in clients.failed if one not in in_flight] == []


@pytest.fixture
def room(chaos: Chaos) -> Iterator[None]:
    """For one job of alice's."""
    chaos.set_quota("vision", "1")
    until_in_force(chaos.sandbox, "vision")
    yield
    chaos.sandbox.run("root", ("scancel", "--user=alice"))
    until(lambda: not chaos.jobs("alice"))
    chaos.set_quota("vision", "0")


def reserved_for(chaos: Chaos) -> str:
    """A new job of alice's that runs, and is in the ledger: Slurm, daemon and PostgreSQL work."""
    argv = ("sbatch", "--parsable", GPU, "--time=5", "--output=/dev/null", "--wrap=sleep 600")
    job = chaos.sandbox.run("alice", argv).stdout.strip()
    until(lambda: job in reserved(chaos.sandbox))
    return job


def ledger_of(sandbox: Sandbox) -> Ledger:
    url = sandbox.layout.database_url(sandbox.state.users["slurm"].name)
    return Ledger(url, CLUSTER)


def reserved(sandbox: Sandbox) -> set[str]:
    """Jobs whose runs are not settled."""
    with ledger_of(sandbox) as ledger:
        return {one.task for one in ledger.charges.open_reservations()}


def used_s(sandbox: Sandbox, job: str) -> list[int]:
    """Of each of its settled runs, as the ledger has it."""
    with ledger_of(sandbox) as ledger:
        rows = ledger.audit.statement("vision", 0, 0).rows
    settled = [row for row in rows if row.run.task == job and not row.reserved_millislice_s]
    return [row.used_millislice_s // row.run.cost_millislices for row in settled]


def test_a_control_plane_that_is_killed_or_hangs_costs_nothing(chaos: Chaos) -> None:
    """slurmctld hangs until Slurm's commands have given up on it, which is after 10 s; how often
    they do changes nothing. PostgreSQL hangs beside it.
    """

    def kill_one_by_one(clients: SteadyLoad) -> None:
        for name in ("slurmctld", "munged", "postgres"):
            chaos.kill_server(name)
            until_answered(clients)
            chaos.sandbox.restore(print)
            until_answered(clients, 5)
        decides_again = says(chaos.sandbox, "launcher", "deciding_again")
        gives_up = says(chaos.sandbox, "launcher", "no_decision")
        with hanging(chaos, "slurmctld", "postgres"):
            until(gives_up)
        until(decides_again)

    before = chaos.jobs("bob", "running")
    until(chaos.is_saved)
    assert chaos.while_asked(kill_one_by_one).failed == []
    assert chaos.jobs("bob", "running") == before


@pytest.mark.usefixtures("room")
def test_a_run_that_ends_while_accounting_is_away_is_charged_what_accounting_then_says(
    chaos: Chaos,
) -> None:
    """Without slurmdbd sacct fails, and also with a slurmdbd that has no database."""
    sandbox, batch_job = chaos.sandbox, reserved_for(chaos)

    def away(clients: SteadyLoad) -> None:
        notices = says(sandbox, "daemon", "accounting_unreachable")
        chaos.kill_server("slurmdbd")
        sandbox.run("root", ("scancel", batch_job))
        until(lambda: not chaos.jobs("alice"))
        until(notices)
        chaos.kill_server("mariadbd")
        until_answered(clients)
        assert batch_job in reserved(sandbox)
        sandbox.restore(print)

    assert chaos.while_asked(away).failed == []
    until(lambda: batch_job not in reserved(sandbox))
    argv = ("sacct", "-X", "-n", "-P", "-j", batch_job, "-o", "ElapsedRaw")
    assert used_s(sandbox, batch_job) == [int(sandbox.run("slurm", argv).stdout)]


@pytest.mark.nightly
def test_a_node_that_hears_nothing_of_the_gateway_costs_what_was_in_flight_there(
    chaos: Chaos,
) -> None:
    """A partition in one direction: the replica's own packets still go out."""

    def cut_off_one(clients: SteadyLoad) -> None:
        with deaf(chaos.doors()[0]):
            until_is(chaos.ready, REPLICAS - 1)
            until_answered(clients)

    clients = chaos.while_asked(cut_off_one)
    assert len(cut_off(clients)) <= 2 * CONCURRENCY, clients.failed


@pytest.mark.nightly
def test_a_replica_from_which_nothing_comes_any_more_costs_what_was_in_flight_there(
    chaos: Chaos,
) -> None:
    """The other direction: the node's kernel takes connections and requests, no answer comes."""

    def mute_one(clients: SteadyLoad) -> None:
        door = chaos.doors()[:1]
        send(signal.SIGSTOP, door)
        try:
            until_is(chaos.ready, REPLICAS - 1)
            until_answered(clients)
        finally:
            send(signal.SIGCONT, door)

    clients = chaos.while_asked(mute_one)
    assert len(cut_off(clients)) <= 2 * CONCURRENCY, clients.failed


@pytest.fixture
def backup(chaos: Chaos) -> Iterator[BackupController]:
    """A second slurmctld that waits."""
    until(chaos.is_saved)
    controller = BackupController(chaos.sandbox)
    controller.start()
    yield controller
    chaos.sandbox.restore(print)
    controller.end()


@pytest.mark.nightly
@pytest.mark.usefixtures("room")
def test_a_backup_slurmctld_takes_over_and_that_costs_nothing(
    chaos: Chaos, backup: BackupController
) -> None:
    """As an operator orders it: when it would by itself depends on timers of Slurm."""

    def take_over(clients: SteadyLoad) -> None:
        chaos.kill_server("slurmctld")
        until_answered(clients)
        chaos.scontrol("takeover")
        until(backup.leads)
        reserved_for(chaos)

    until(chaos.is_saved)
    before = chaos.jobs("bob", "running")
    assert chaos.while_asked(take_over).failed == []
    assert chaos.jobs("bob", "running") == before


@pytest.fixture
def state_disk(chaos: Chaos) -> Iterator[SmallDisk]:
    """Of slurmctld's own state; it is stopped while the disk comes and goes."""

    def stopped() -> None:
        chaos.sandbox.kill("slurmctld", signal.SIGTERM)
        until_is(lambda: is_alive(chaos.sandbox.state.processes["slurmctld"]), False)

    stopped()
    disk = SmallDisk(chaos.sandbox.layout.lib / "slurmctld", 8)
    try:
        chaos.sandbox.restore(print)
        yield disk
        stopped()
    finally:
        disk.end()
        chaos.sandbox.restore(print)
    until_is(chaos.ready, REPLICAS)


@pytest.mark.nightly
@pytest.mark.usefixtures("room")
def test_a_full_disk_of_slurmctld_costs_nothing(chaos: Chaos, state_disk: SmallDisk) -> None:
    """It takes no script, and goes on."""
    argv = ("sbatch", GPU, "--time=5", "--output=/dev/null", "--wrap=sleep 600")

    def fill(clients: SteadyLoad) -> None:
        cannot_save = says(chaos.sandbox, "slurmctld", "No space left on device")
        state_disk.fill()
        start_again(chaos, 1)
        until(cannot_save)
        assert chaos.sandbox.run("alice", argv, check=False).returncode != 0
        until_answered(clients)
        state_disk.free()
        # What it could not write it writes at the next change, not before.
        reserved_for(chaos)
        until(chaos.is_saved)

    assert chaos.while_asked(fill).failed == []
    until(chaos.is_saved)
    before = chaos.jobs("bob", "running")
    chaos.kill_server("slurmctld")
    chaos.sandbox.restore(print)
    until_is(lambda: chaos.jobs("bob", "running"), before)


def start_again(chaos: Chaos, count: int) -> None:
    """Requeue so many replicas; wait until they serve again."""
    slots = [one.split()[0] for one in chaos.jobs("bob", "running")[:count]]
    chaos.scontrol("requeuehold", ",".join(slots))
    until(lambda: not set(slots) & {one.split()[0] for one in chaos.jobs("bob", "running")})
    until_is(lambda: len(chaos.jobs("bob", "running")), REPLICAS)
    until_is(chaos.ready, REPLICAS)


@pytest.fixture
def standby(chaos: Chaos) -> Iterator[StandbyServer]:
    server = StandbyServer(chaos.sandbox)
    server.start()
    yield server
    server.end()


@pytest.mark.usefixtures("room")
def test_a_standby_of_postgresql_is_promoted_and_that_costs_nothing(
    chaos: Chaos, standby: StandbyServer
) -> None:
    with Ledger(standby.url, CLUSTER) as ledger:
        lock = ledger.locks.leader("elsewhere")
    # A daemon that reaches only a server that can't be written to does not lead.
    with pytest.raises(UnreachableError, match="SW-DATABASE-DOWN"):
        lock.hold()
    both = f"{standby.url}&host={chaos.sandbox.layout.postgres_directory}"
    with postgres_engine(f"{both}&target_session_attrs=read-write").connect() as connection:
        assert not connection.exec_driver_sql("SELECT pg_is_in_recovery()").scalar()

    def fail_over(clients: SteadyLoad) -> None:
        chaos.kill_server("postgres")
        until_answered(clients)
        standby.promote()
        reserved_for(chaos)

    try:
        assert chaos.while_asked(fail_over).failed == []
        # The daemon that led has the lead again.
        assert not lock.hold()
    finally:
        lock.give_up()
    chaos.sandbox.run("root", ("slicewise", "ledger", "verify"))


@pytest.fixture
def disks(chaos: Chaos) -> Iterator[tuple[SmallDisk, SmallDisk]]:
    """Of the gateway's directory, and of PostgreSQL's write-ahead log (16 MiB a file)."""
    layout = chaos.sandbox.layout
    chaos.sandbox.kill("postgres", signal.SIGINT)
    until_is(lambda: is_alive(chaos.sandbox.state.processes["postgres"]), False)
    made = []
    try:
        for directory, mib in (
            (layout.gateway_directory, 16),
            (layout.lib / "postgresql/pg_wal", 96),
        ):
            made.append(SmallDisk(directory, mib))
        chaos.sandbox.restore(print)
        yield made[0], made[1]
        chaos.sandbox.kill("postgres", signal.SIGINT)
        until_is(lambda: is_alive(chaos.sandbox.state.processes["postgres"]), False)
    finally:
        for disk in made:
            disk.end()
        chaos.sandbox.restore(print)
    until_is(chaos.ready, REPLICAS)


def use_up(url: str) -> None:
    """Write until there is no room for more of PostgreSQL's log."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE public.more AS SELECT 1")
        with suppress(psycopg.OperationalError):
            while True:
                connection.execute("INSERT INTO public.more SELECT generate_series(1, 100000)")


@pytest.mark.nightly
def test_full_disks_cost_nothing(chaos: Chaos, disks: tuple[SmallDisk, SmallDisk]) -> None:
    """Those of the launcher's maps, of the log of daemon and launcher, of PostgreSQL."""
    sandbox = chaos.sandbox
    gateway, wal = disks
    url = sandbox.layout.database_url(sandbox.state.users["slurm"].name)

    def fill(clients: SteadyLoad) -> None:
        for name, user in (("daemon", "slurm"), ("launcher", "slicewise")):
            chaos.kill_server(name)
            logs_nothing = ("bash", "-c", f"exec slicewise {name} >/dev/full 2>&1")
            sandbox.start(name, user, logs_nothing)
        gateway.fill()
        start_again(chaos, 1)
        wal.fill()
        use_up(url)
        until_is(lambda: is_alive(sandbox.state.processes["postgres"]), False)
        until_answered(clients)
        wal.free()
        sandbox.restore(print)
        until_answered(clients)

    try:
        clients = chaos.while_asked(fill)
    finally:
        for name in ("launcher", "daemon"):
            sandbox.stop(name)
        for name in ("daemon", "launcher"):
            chaos.restart(name)
    assert clients.failed == []
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP TABLE public.more")
    sandbox.run("root", ("slicewise", "ledger", "verify"))


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
    for name, word in (("launcher", "leads"), ("launcher2", "started")):
        before = events(sandbox, name, word)
        sandbox.start(name, "slicewise", argv)
        until(lambda seen=(name, word, before): events(sandbox, seen[0], seen[1]) > seen[2])
    yield "launcher2"
    for name in ("launcher", "launcher2"):
        sandbox.stop(name)
    chaos.restart("launcher")


def log_of(sandbox: Sandbox, name: str) -> str:
    log = sandbox.layout.log / f"{name}.log"
    return log.read_text() if log.exists() else ""


def events(sandbox: Sandbox, name: str, event: str) -> int:
    """How often the program has logged the event."""
    return len(re.findall(rf"event={event}\b", log_of(sandbox, name)))


def says(sandbox: Sandbox, name: str, event: str) -> Callable[[], bool]:
    """Whether the program has logged the event since this call."""
    before = events(sandbox, name, event)
    return lambda: events(sandbox, name, event) > before


def test_the_second_launcher_takes_over_and_that_costs_nothing(chaos: Chaos, second: str) -> None:
    def take_over(_: SteadyLoad) -> None:
        before = events(chaos.sandbox, second, "leads")
        chaos.sandbox.kill("launcher")
        until(lambda: events(chaos.sandbox, second, "leads") > before)
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


def take_back(chaos: Chaos) -> None:
    """What the lender lent, and one more than is free."""
    array = f"--array=1-{INSTANCES - 1}"
    argv = ("sbatch", GPU, array, "--time=5", "--output=/dev/null", "--wrap=sleep 600")
    chaos.sandbox.run("alice", argv)
    until(lambda: len(chaos.jobs("alice", "running")) == INSTANCES - 1, GRACE_S + PATIENCE_S)


@pytest.mark.usefixtures("borrowing")
def test_a_borrowed_replica_that_its_lender_takes_back_costs_nothing(chaos: Chaos) -> None:
    def its_lender_does(_: SteadyLoad) -> None:
        take_back(chaos)

    assert chaos.while_asked(its_lender_does, replicas=1).failed == []


@pytest.mark.usefixtures("borrowing", "grace")
def test_a_borrowed_replica_with_a_grace_time_gives_its_slice_back_before_that(
    chaos: Chaos,
) -> None:
    before = events(chaos.sandbox, "daemon", "requeue_hold")
    clients = chaos.while_asked(lambda _: take_back(chaos), replicas=1)
    assert clients.failed == []
    # Drained, and then ended by the daemon; Slurm would have ended it with the grace.
    until_is(lambda: events(chaos.sandbox, "daemon", "requeue_hold"), before + 1)


@pytest.mark.usefixtures("borrowing")
def test_a_borrowed_replica_that_slurm_preempts_costs_nothing(chaos: Chaos) -> None:
    """Its slice is nobody's loan to call back: who preempts has quota, but finds no instance."""
    chaos.set_quota("vision", str(INSTANCES + 2), "--lending-limit", "1")
    until_in_force(chaos.sandbox, "vision")
    asked = events(chaos.sandbox, "daemon", "requeue_hold")
    preempted = preemptions(chaos)
    clients = chaos.while_asked(lambda _: take_back(chaos), replicas=1)
    assert clients.failed == []
    assert preemptions(chaos) == preempted + 1
    assert events(chaos.sandbox, "daemon", "requeue_hold") == asked


def preemptions(chaos: Chaos) -> int:
    """How many jobs Slurm has preempted."""
    said = log_of(chaos.sandbox, "slurmctld")
    return len(re.findall(r"preempted JobId=\S+ has been requeued", said))
