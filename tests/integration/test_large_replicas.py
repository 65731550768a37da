"""Replicas of several GPUs and several nodes on the sandbox, by a site's own engine.

They start, are counted, lose a rank, are taken back and charged as one.
"""

import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import toy_engine
import toy_server
from quotas import daemon_of, until_in_force
from second_witness import accounted_runs
from service_status import services, status, until_routed
from waiting import PATIENCE_S, until, until_is

from slicewise.sandbox.cluster import Sandbox
from slicewise.slurm_plugin.common.tenant_requests import TenantDetailsRequest

pytestmark = pytest.mark.integration

SLICE, INSTANCES = 1000, 10
"""Millislices of a 1g.18gb, and how many there are: seven on gpu03, three on gpu04."""
FILE = """\
[service]
name = "{name}"
tenant = "nlp"
engine = "toy"
model_repository = {models}
model = "m"
profile = "1g.18gb"
gpus = {gpus}
nodes = {nodes}
min_replicas = {replicas}
max_replicas = 2
keep_alive_s = 600
memory_mib = 256
start_timeout_s = {timeout_s}
environment = {{ TOY_SAYS = {says}, TOY_JOINS = "{joins}" }}
"""


class Toys:
    """Services of bob's with the toy engine, and what their ranks say of themselves."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.place = sandbox.layout.directory / "toy"
        self.says = self.place / "says"
        self.models = self.place / "models"
        self.arrays: dict[str, int] = {}

    def slicewise(self, *words: str, user: str = "bob", check: bool = True) -> str:
        return self.sandbox.run(user, ("slicewise", *words), check=check).stdout

    def apply(
        self, name: str, gpus: int, nodes: int, replicas: int = 0, *, joins: bool = True
    ) -> int:
        """Without ``joins`` rank 0 waits for the others in vain."""
        file = self.sandbox.layout.home / self.sandbox.state.users["bob"].name / f"{name}.toml"
        values = {
            "models": json.dumps(str(self.models)),
            "says": json.dumps(str(self.says)),
            "joins": "yes" if joins else "no",
            "timeout_s": 600 if joins else 10,
        }
        file.write_text(FILE.format(name=name, gpus=gpus, nodes=nodes, replicas=replicas, **values))
        applied = json.loads(self.slicewise("service", "apply", str(file), "--json"))
        until_routed(self.sandbox, f"nlp/{name}")
        self.arrays[name] = int(applied["array_job_id"])
        return self.arrays[name]

    def ask(self, name: str) -> Any:
        url = f"{self.sandbox.layout.gateway_url}/nlp/{name}/v1/completions"
        body = json.dumps({"prompt": "1"}).encode()
        request = Request(url, body, {"Content-Type": "application/json"})  # noqa: S310 -- http
        with urlopen(request, timeout=2 * PATIENCE_S) as answer:  # noqa: S310
            return json.load(answer)

    def ranks(self, name: str) -> dict[str, dict[str, Any]]:
        """What each rank that lives has said, by identity and rank."""
        found = {}
        for file in self.says.glob(f"{name}.*[0-9]"):
            said = json.loads(file.read_text())
            if Path(f"/proc/{said['pid']}").exists():
                found[file.name] = said
        return found

    def in_use(self) -> int:
        """Millislices that nlp holds."""
        answer = daemon_of(self.sandbox).call(TenantDetailsRequest.of(tenant="nlp"))
        return answer.details.in_use_millislices

    def sbatch(self, user: str, count: int) -> str:
        asks = (f"--array=1-{count}", "--gres=gpu:1g.18gb:1", "--output=/dev/null")
        argv = ("sbatch", "--parsable", *asks, "--wrap=sleep 3000")
        return self.sandbox.run(user, argv).stdout.strip()

    def states(self, job: str) -> Counter[str]:
        argv = ("squeue", "--noheader", "--array", f"--jobs={job}", "--format=%T")
        return Counter(self.sandbox.run("root", argv).stdout.split())

    def shown(self, task: str) -> list[str]:
        """Job, start and end of a task, as slurmctld has them."""
        argv = ("squeue", "--noheader", "--states=all", f"--jobs={task}", "--format=%A %S %e")
        return self.sandbox.run("root", ("env", "SLURM_TIME_FORMAT=%s", *argv)).stdout.split()

    def quotas(self, *sets: str) -> None:
        for words in sets:
            self.slicewise("tenant-quota", "set", *words.split(), user="root")
        until_in_force(self.sandbox, *(words.split()[0] for words in sets))

    def delete(self, name: str) -> None:
        self.slicewise("service", "delete", f"nlp/{name}", "--now", check=False)
        until(lambda: f"nlp/{name}" not in services(self.sandbox))

    def charged(self, array: int) -> dict[tuple[int, int], int]:
        """Millislice-seconds of the runs of an array that have ended, as the ledger has them."""
        argv = ("ledger", "statement", "nlp", "--journal", "--json")
        return {
            (run["job_id"], run["start_s"]): run["used_millislice_s"]
            for run in json.loads(self.slicewise(*argv, user="root"))["runs"]
            if run["end_s"] is not None and run["task"].startswith(f"{array}_")
        }

    def seconds(self, array: int) -> dict[tuple[int, int], int]:
        """The same runs, as accounting has their seconds."""
        return {
            (run.job_id, run.start_s): run.end_s - run.start_s
            for run in accounted_runs(self.sandbox)
            if run.task.startswith(f"{array}_")
        }


@pytest.fixture(scope="module")
def toys(sandbox: Sandbox) -> Iterator[Toys]:
    found = Toys(sandbox)
    found.says.mkdir(parents=True)
    found.says.chmod(0o777)
    (found.models / "m").mkdir(parents=True)
    (found.models / "m" / "m.gguf").touch()
    with installed(found):
        found.quotas("nlp --nominal 4")
        yield found
        for account in ("vision", "guest"):
            sandbox.run("root", ("scancel", f"--account={account}"))
        for name in found.arrays:
            found.delete(name)
        until_is(found.in_use, 0)


@pytest.fixture(scope="module")
def wide(toys: Toys) -> Toys:
    """Those that have a service whose one replica takes four GPUs of two nodes."""
    toys.apply("wide", gpus=2, nodes=2)
    toys.slicewise("service", "scale", "nlp/wide", "--min", "1")
    return toys


@contextmanager
def installed(toys: Toys) -> Iterator[None]:
    """As a site's package is: a module, an entry point, and a section of slicewise.toml."""
    layout = toys.sandbox.layout
    package = toys.place / "toy_engine-1.dist-info"
    package.mkdir()
    shutil.copyfile(toy_engine.__file__, toys.place / "toy_engine.py")
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-engine\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[slicewise.engines]\ntoy = toy_engine:ENGINE\n")
    server = toys.place / "toy-server"
    server.write_text("#!/usr/bin/python3\n" + Path(toy_server.__file__).read_text())
    server.chmod(0o755)
    command, settings = layout.bin / "slicewise", layout.settings_file
    before = {file: file.read_text() for file in (command, settings)}
    command.write_text(before[command].replace("PYTHONPATH=", f"PYTHONPATH={toys.place}:"))
    section = f'\n[engines.toy]\ncommand = "{server}"\nprivate_shm = false\ninterface = "lo"\n'
    settings.write_text(before[settings] + section)
    try:
        reconfigure(toys.sandbox)
        yield
    finally:
        for file, text in before.items():
            file.write_text(text)
        reconfigure(toys.sandbox)


def reconfigure(sandbox: Sandbox) -> None:
    """The gateway gets backends of each engine, and the launcher knows them."""
    sandbox.run("slicewise", ("slicewise", "gateway", "render"))
    sandbox.kill("haproxy", signal.SIGUSR2)
    sandbox.stop("launcher")
    sandbox.restore(print)


def is_gone(path: str) -> bool:
    return not Path(path).parent.exists()


def test_a_replica_of_two_gpus_is_one_of_one_node(toys: Toys) -> None:
    array = toys.apply("pair", gpus=2, nodes=1)
    assert toys.ask("pair") == {"ranks": 1}
    (said,) = toys.ranks("pair").values()
    assert len(said["CUDA_VISIBLE_DEVICES"].split(",")) == 2
    until_is(toys.in_use, 2 * SLICE)
    shown = status(toys.sandbox, "nlp/pair")
    assert (shown["profile"], shown["gpus"], shown["nodes"]) == ("1g.18gb", 2, 1)
    toys.delete("pair")
    until_is(lambda: set(toys.charged(array)), set(until(lambda: toys.seconds(array))))
    assert toys.charged(array) == {k: 2 * SLICE * s for k, s in toys.seconds(array).items()}


@pytest.mark.usefixtures("wide")
@pytest.mark.promise("A replica may be larger than a node.")
def test_a_replica_of_two_nodes_serves_once_both_ranks_are_there(toys: Toys) -> None:
    assert toys.ask("wide") == {"ranks": 2}
    ranks = toys.ranks("wide")
    assert [len(one["CUDA_VISIBLE_DEVICES"].split(",")) for one in ranks.values()] == [2, 2]
    assert {one["SLURMD_NODENAME"] for one in ranks.values()} == {"gpu03", "gpu04"}
    assert {one["NCCL_SOCKET_IFNAME"] for one in ranks.values()} == {"=lo"}
    assert {one["VLLM_HOST_IP"] for one in ranks.values()} == {"127.0.0.1"}
    until_is(toys.in_use, 4 * SLICE)
    # A second one would cost 4 slices more than the quota has.
    toys.slicewise("service", "scale", "nlp/wide", "--min", "2")
    needs = "quota: nlp holds 4 of 4 slices; a replica needs 4"
    until(lambda: needs in status(toys.sandbox, "nlp/wide")["note"])
    toys.slicewise("service", "scale", "nlp/wide", "--min", "1", "--max", "1")


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("rank", [1, 0])
def test_when_a_rank_is_killed_all_end_and_the_slot_serves_again(toys: Toys, rank: int) -> None:
    before = until(lambda: both(toys.ranks("wide")))
    (killed,) = (one for name, one in before.items() if name.endswith(f".{rank}"))
    os.kill(killed["pid"], signal.SIGKILL)
    old = {one["pid"] for one in before.values()}
    after = until(lambda: both(toys.ranks("wide"), without=old))
    # Slurm knows of their end before the kernel has buried them.
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in old))
    assert toys.ask("wide") == {"ranks": 2}
    until_is(toys.in_use, 4 * SLICE)
    until(lambda: all(is_gone(one["tmp"]) for one in before.values()))
    assert {one["pid"] for one in after.values()}.isdisjoint(old)


@pytest.mark.usefixtures("wide")
def test_when_slurm_ends_a_replica_all_ranks_end_and_the_slot_serves_again(toys: Toys) -> None:
    """As in a preemption. Two starts before it have failed, and this one has not."""
    failed = status(toys.sandbox, "nlp/wide")["report"]["failed_starts"]
    end_by_slurm(toys, "wide", "scontrol", "requeue")
    assert status(toys.sandbox, "nlp/wide")["report"]["failed_starts"] <= failed
    until_is(toys.in_use, 4 * SLICE)


def end_by_slurm(toys: Toys, name: str, *words: str) -> list[str]:
    """TERM comes to all steps together, KILL only after KillWait; the slot serves again.

    Returns job, start and end, as slurmctld has them while it ends the run.
    """
    before = until(lambda: both(toys.ranks(name)))
    old = {one["pid"] for one in before.values()}
    _, array, slot, _ = min(before).split(".")
    toys.sandbox.run("slurm", (*words, f"{array}_{slot}"))
    shown = toys.shown(f"{array}_{slot}")
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in old))
    until(lambda: all(is_gone(one["tmp"]) for one in before.values()))
    until(lambda: both(toys.ranks(name), without=old))
    assert toys.ask(name) == {"ranks": 2}
    return shown


def both(
    ranks: dict[str, dict[str, Any]], without: frozenset[int] | set[int] = frozenset()
) -> dict[str, dict[str, Any]]:
    """Ranks of which none is an old one, once there are two; {} before."""
    pids = {one["pid"] for one in ranks.values()}
    return ranks if len(pids) == 2 and pids.isdisjoint(without) else {}


@pytest.mark.usefixtures("wide")
def test_each_run_is_charged_for_all_of_it(toys: Toys) -> None:
    """Four at least: each rank was killed once, and Slurm has ended one."""
    toys.delete("wide")
    until_is(toys.in_use, 0)
    until_is(lambda: toys.ranks("wide"), {})
    array = toys.arrays["wide"]
    until(lambda: len(toys.seconds(array)) >= 4)
    until(lambda: toys.charged(array).keys() == toys.seconds(array).keys())
    assert toys.charged(array) == {k: 4 * SLICE * s for k, s in toys.seconds(array).items()}


def test_a_replica_that_is_cancelled_leaves_nothing_and_its_slot_comes_back(toys: Toys) -> None:
    """It is charged to its cancellation; once it is requeued, accounting has another end."""
    array = toys.apply("cut", gpus=2, nodes=2, replicas=1)
    assert toys.ask("cut") == {"ranks": 2}
    job_id, start_s, end_s = map(int, end_by_slurm(toys, "cut", "scancel"))
    until(lambda: (job_id, start_s) in toys.charged(array))
    assert toys.charged(array)[job_id, start_s] == 4 * SLICE * (end_s - start_s)
    toys.delete("cut")
    until_is(toys.in_use, 0)
    until_is(lambda: toys.ranks("cut"), {})


def test_ranks_that_wait_for_each_other_in_vain_give_their_slot_back(toys: Toys) -> None:
    toys.apply("stuck", gpus=2, nodes=2, replicas=1, joins=False)
    stuck = until(lambda: both(toys.ranks("stuck")))
    until(lambda: (status(toys.sandbox, "nlp/stuck")["report"] or {}).get("failed_starts"))
    until(lambda: not any(Path(f"/proc/{one['pid']}").exists() for one in stuck.values()))
    toys.delete("stuck")
    until_is(toys.in_use, 0)


def test_a_lender_takes_a_whole_replica_back(toys: Toys) -> None:
    """One of two runs on a loan; for one slice of it all of that replica goes, and stays away."""
    toys.quotas(
        "nlp --nominal 2 --borrowing-limit 2",
        "vision --nominal 2 --lending-limit 2",
        f"guest --nominal {INSTANCES - 4}",
    )
    array = toys.apply("lent", gpus=1, nodes=2, replicas=2)
    until(lambda: len(toys.ranks("lent")) == 4)
    # The daemon looks at Slurm every few seconds.
    until_is(toys.in_use, 4 * SLICE)
    others = toys.sbatch("carol", INSTANCES - 4)
    until_is(lambda: toys.states(others), {"RUNNING": INSTANCES - 4})
    job = toys.sbatch("alice", 1)
    until_is(lambda: toys.states(job), {"RUNNING": 1})
    until_is(toys.in_use, 2 * SLICE)
    until(lambda: both(toys.ranks("lent")))
    until(lambda: toys.charged(array).keys() == toys.seconds(array).keys() != set())
    assert toys.charged(array) == {k: 2 * SLICE * s for k, s in toys.seconds(array).items()}
    assert len(toys.seconds(array)) == 1
