"""Compares the admission worker, with a large snapshot, to a bare asyncio echo server.

The worker is the daemon's own, and the daemon's own loop makes the first snapshot. A changed
snapshot is published each second. One client asks the two servers in alternating blocks, each over
one connection.
"""

import asyncio
import os
import random
import socket
import statistics
import struct
import sys
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import crowd
from benchmarks.submissions import ECHO, QUESTION, SLICEWISE
from slicewise.cluster.language.jobs import JobView, NodeView, StepView
from slicewise.cluster.language.slurm.interface import Submission
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.settings.file import DaemonSettings
from slicewise.cluster.settings.read import load_settings
from slicewise.cluster.slurm.commands import CommandSlurm
from slicewise.slurm_plugin.admission_server.worker_process import AdmissionProcess
from slicewise.slurm_plugin.rules.admission.snapshot import Snapshot
from slicewise.slurm_plugin.state.cluster_state import ClusterState

_ETC = Path(__file__).resolve().parents[1] / "etc" / "slicewise.toml"
_LISTENING_S = 60.0
_CHANGED_TENANTS = 200
_PACE_S = 0.002
"""Seconds between two questions of a paced block, as submissions come."""
_PACED_PART = 20
"""A paced block has one in this many of the questions."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_CREDENTIALS = struct.Struct("3i")


class GeneratedSlurm(CommandSlurm):
    """A Slurm that shows the generated large cluster."""

    def __init__(self) -> None:
        super().__init__()
        self._all_jobs, self._all_nodes = crowd.jobs(), crowd.nodes()

    async def clock_s(self, known_for_s: float = 0.0) -> float:  # noqa: ARG002
        """The time of this host."""
        return wall_s()

    async def jobs(self) -> tuple[JobView, ...]:
        """All generated jobs."""
        return self._all_jobs

    async def nodes(self) -> tuple[NodeView, ...]:
        """All generated nodes."""
        return self._all_nodes

    async def steps(self, jobs: Collection[JobView]) -> tuple[StepView, ...]:  # noqa: ARG002
        """No steps."""
        return ()

    async def submissions(self, job_ids: Collection[int]) -> Mapping[int, Submission]:
        """The batch scripts of services' arrays."""
        return {job_id: Submission(crowd.directives(job_id), "") for job_id in job_ids}


class _Published:
    """Keeps the snapshot that ``ClusterState`` publishes."""

    snapshot: Snapshot

    def publish(self, snapshot: Snapshot, observed_s: float) -> None:  # noqa: ARG002
        self.snapshot = snapshot


@dataclass
class Decided:
    """Measurements by server and block; both servers have their blocks in the same rounds.

    Attributes:
        latencies_s: seconds of each round trip, one question right after the other.
        paced_s: the same, with a pause before each question.
        look_s: seconds of one turn of the daemon's loop on that cluster, without Slurm's part.
        cpu_s: CPU seconds of the worker in its blocks of ``latencies_s``, including those for
            taking new snapshots.
        actions: number of decisions by action and code.
        publishes: number of snapshots published.
    """

    latencies_s: Mapping[str, list[list[float]]] = field(
        default_factory=lambda: {ECHO: [], SLICEWISE: []}
    )
    paced_s: Mapping[str, list[list[float]]] = field(
        default_factory=lambda: {ECHO: [], SLICEWISE: []}
    )
    look_s: float = 0.0
    cpu_s: float = 0.0
    actions: Mapping[str, int] = field(default_factory=dict)
    publishes: int = 0

    def figures(self) -> Mapping[str, object]:
        """The figures that have aims, and their parts. Ratios are medians over the rounds."""
        ours = [each for block in self.latencies_s[SLICEWISE] for each in block]
        echo = [each for block in self.latencies_s[ECHO] for each in block]
        paced = [each for block in self.paced_s[SLICEWISE] for each in block]
        return {
            "daemon_cpu_us": self.cpu_s / len(ours) * 1e6,
            "daemon_p50_vs_echo": _p50_ratio(self.latencies_s),
            "daemon_p50_vs_echo_paced": _p50_ratio(self.paced_s),
            "daemon_p50_ms_paced": _percentile_ms(paced, 50),
            "daemon_p99_ms_paced": _percentile_ms(paced, 99),
            "daemon_p50_ms": _percentile_ms(ours, 50),
            "daemon_p99_ms": _percentile_ms(ours, 99),
            "daemon_max_ms": max(ours) * 1000,
            "echo_p50_ms": _percentile_ms(echo, 50),
            "echo_p99_ms": _percentile_ms(echo, 99),
            "decisions": len(ours),
            "decisions_by_action": self.actions,
            "snapshots_published": self.publishes,
            "daemon_look_s": self.look_s,
        }


def measure(rounds: int, questions: int, seed: int) -> Decided:
    """Measure ``rounds`` rounds: for each server a block of ``questions`` and a paced block."""
    return asyncio.run(_measure(rounds, questions, seed))


async def _measure(rounds: int, questions: int, seed: int) -> Decided:
    measured, order = Decided(), random.Random(seed)  # noqa: S311 -- an order, no secret
    async with _servers(seed, measured) as sockets:
        pid = _server_pid(sockets[SLICEWISE])
        with get_context("spawn").Pool(1) as client:
            for number in range(rounds):
                for server in order.sample((ECHO, SLICEWISE), k=2):
                    before_s = _cpu_s(pid)
                    task = (sockets[server], questions, seed + number, 0.0)
                    block = await asyncio.to_thread(client.apply, _ask, task)
                    measured.latencies_s[server].append(block)
                    if server == SLICEWISE:
                        measured.cpu_s += _cpu_s(pid) - before_s
                    task = (sockets[server], questions // _PACED_PART, seed - number, _PACE_S)
                    block = await asyncio.to_thread(client.apply, _ask, task)
                    measured.paced_s[server].append(block)
    return measured


@asynccontextmanager
async def _servers(seed: int, measured: Decided) -> AsyncIterator[Mapping[str, Path]]:
    """Run both servers and publish a snapshot to the worker each second; yield their sockets."""
    with TemporaryDirectory(prefix="slicewise-bench-") as directory:
        run_dir = Path(directory)
        daemon = DaemonSettings(run_dir=run_dir)
        daemon.admission_socket.parent.mkdir()
        admission = AdmissionProcess(daemon.admission_socket, "enforce", frozenset({os.geteuid()}))
        snapshot = await _looked(measured)
        echo = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.echo", str(run_dir / "echo.sock"))
        )
        running = asyncio.create_task(admission.run())
        publishing = asyncio.create_task(_publish_each_second(admission, snapshot, seed, measured))
        try:
            async with asyncio.timeout(_LISTENING_S):
                await admission.listening.wait()
            worker = _server_pid(daemon.admission_socket)
            # With different niceness the nicer server would be the slower one.
            os.setpriority(os.PRIO_PROCESS, echo.pid, os.getpriority(os.PRIO_PROCESS, worker))
            yield {ECHO: run_dir / "echo.sock", SLICEWISE: daemon.admission_socket}
            measured.actions = _by_action(admission)
        finally:
            echo.kill()
            for task in (publishing, running):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            await echo.wait()


async def _looked(measured: Decided) -> Snapshot:
    """The snapshot that one turn of the daemon's own loop makes of the cluster."""
    published = _Published()
    settings = load_settings(_ETC).model_copy(update={"daemon": DaemonSettings(mode="enforce")})
    cluster_state = ClusterState(settings, GeneratedSlurm(), published)
    cluster_state.set_policy(crowd.policy(), crowd.accounts_by_uid())
    began_s = time.perf_counter()
    await cluster_state.turn()
    measured.look_s = time.perf_counter() - began_s
    return published.snapshot


async def _publish_each_second(
    admission: AdmissionProcess, snapshot: Snapshot, seed: int, measured: Decided
) -> None:
    """Publish snapshots in which some tenants hold more than before and other GPUs are free."""
    choose = random.Random(seed)  # noqa: S311 -- no secret
    while True:
        more = choose.sample(sorted(snapshot.used), _CHANGED_TENANTS)
        snapshot = replace(
            snapshot,
            used={**snapshot.used, **{name: snapshot.used[name] + 1 for name in more}},
            guaranteed_used={
                **snapshot.guaranteed_used,
                **{name: snapshot.guaranteed_used.get(name, 0) + 1 for name in more},
            },
            gpu_types={
                name: replace(one, free=choose.randrange(one.total + 1))
                for name, one in snapshot.gpu_types.items()
            },
        )
        admission.publish(snapshot, time.time())
        measured.publishes += 1
        await asyncio.sleep(1)


def _by_action(admission: AdmissionProcess) -> Mapping[str, int]:
    actions: dict[str, int] = {}
    for (action, code), count in admission.decisions.items():
        name = f"{action} {code}".strip()
        actions[name] = actions.get(name, 0) + count
    return actions


def _ask(path: Path, questions: int, seed: int, pause_s: float) -> list[float]:
    """Ask over one connection, in the client's process; return the seconds of each round trip."""
    lines = crowd.submissions(QUESTION, seed, questions)
    took_s = []
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        for line in lines:
            time.sleep(pause_s)
            began_s = time.perf_counter()
            connection.sendall(line)
            reply = connection.recv(65536)
            while not reply.endswith(b"\n"):
                reply += connection.recv(65536)
            took_s.append(time.perf_counter() - began_s)
    return took_s


def _server_pid(path: Path) -> int:
    """The process that listens on that socket, as reported by the kernel."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(found)[0])


def _cpu_s(pid: int) -> float:
    """CPU seconds of the process so far, in user mode and in the kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _p50_ratio(blocks: Mapping[str, Sequence[Sequence[float]]]) -> float:
    pairs = zip(blocks[SLICEWISE], blocks[ECHO], strict=True)
    return statistics.median(
        statistics.median(ours) / statistics.median(echo) for ours, echo in pairs
    )


def _percentile_ms(latencies_s: Sequence[float], percent: int) -> float:
    return statistics.quantiles(latencies_s, n=100)[percent - 1] * 1000
