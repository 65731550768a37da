"""The meter as a process, on the emulated driver: killed, it counts nothing twice or too little."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from stand_ins.emulated_gpus import BUILDS, FaultyDriver, gpu_node
from waiting import until

from slicewise.cluster.gpu.nvml import destroy_instance
from slicewise.cluster.language.gpus.energy import NodeMoment
from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.sandbox.nvml.driver import EmulatedGpu
from slicewise.slurm_plugin.cli.commands.node_meter import MeterLoop

ONE_G, TWO_G, THREE_G = (
    Placement("1g.18gb", 6, 1),
    Placement("2g.36gb", 4, 2),
    Placement("3g.72gb", 0, 4),
)
UNKNOWN_IDLE = EmulatedGpu("GH200-144GB")
"""The table has no watts of it: all that it takes is of who holds it."""
SITE = """
[cluster]
name = "testing"
partitions = ["gpu"]
[gpus."H200-141GB"]
types = ["1g.18gb"]
[daemon]
run_dir = "{run_dir}"
"""
PROGRAM = """
from slicewise.launcher.main import main
from slicewise.slurm_plugin.cli.commands import node_meter
node_meter.READ_S, node_meter.TELL_S = 0.05, 0.1
main()
"""


@dataclass
class Books:
    """A daemon that keeps what meters tell, as the ledger does: the largest sum of each hour."""

    place: Path
    hours: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)
    told: int = 0

    def serve(self) -> None:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(self.place))
            server.listen()
            while True:
                connection, _ = server.accept()
                with connection, connection.makefile("rwb") as stream:
                    self._answer(stream)

    def _answer(self, stream: Any) -> None:
        length = 0
        while (line := stream.readline().strip()) != b"":
            if match := re.fullmatch(rb"content-length: (\d+)", line, re.IGNORECASE):
                length = int(match[1])
        request = json.loads(stream.read(length))
        for hour in request["hours"]:
            key = (request["seen_by"], hour["hour_s"], hour["gpu_uuid"], hour["measure"])
            if key not in self.hours or self.hours[key]["energy_mj"] <= hour["energy_mj"]:
                self.hours[key] = hour
        self.told += 1
        stream.write(b'HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{"v":1,"ok":true}')
        stream.flush()

    def sums(self) -> tuple[int, dict[int, int]]:
        """Millijoules of all boards, and by job."""
        jobs: dict[int, int] = {}
        for hour in self.hours.values():
            for part in hour["parts"]:
                jobs[part["job_id"]] = jobs.get(part["job_id"], 0) + part["energy_mj"]
        return sum(hour["energy_mj"] for hour in self.hours.values()), jobs


@dataclass
class Site:
    """A GPU node, and the daemon that it tells."""

    node: FaultyDriver
    books: Books
    root: Path

    def meter(self) -> subprocess.Popen[bytes]:
        words = ("node", "meter", "--node", "gpu01", "--state", str(self.root / "state.json"))
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *words, "--host-root", str(self.node.host_root)],
            env={
                **os.environ,
                **self.node.environment(BUILDS),
                "SLICEWISE_CONFIG": str(self.root / "slicewise.toml"),
            },
        )

    def heard(self) -> None:
        """Wait until the meter has told what it has seen since now."""
        before = self.books.told
        until(lambda: self.books.told >= before + 3)

    def job(self, pid: int, job_id: int) -> None:
        cgroup = self.node.host_root / "proc" / str(pid) / "cgroup"
        cgroup.parent.mkdir(parents=True, exist_ok=True)
        cgroup.write_text(f"0::/slurmstepd.scope/job_{job_id}/step_0\n", encoding="ascii")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with gpu_node(UNKNOWN_IDLE, EmulatedGpu("H200-141GB", mig=False)) as node:
        (tmp_path / "run").mkdir()
        (tmp_path / "slicewise.toml").write_text(SITE.format(run_dir=tmp_path / "run"))
        boot = node.host_root / "proc" / "sys" / "kernel" / "random" / "boot_id"
        boot.parent.mkdir(parents=True)
        boot.write_text("a-boot\n")
        books = Books(tmp_path / "run" / "user.sock")
        threading.Thread(target=books.serve, daemon=True).start()
        until(books.place.exists)
        yield Site(node, books, tmp_path)


def test_runs_and_idle_are_the_counters_to_the_millijoule(site: Site) -> None:
    """Across a change of instances, and a meter that is killed while boards go on."""
    node, books = site.node, site.books
    half, quarter = node.create(THREE_G), node.create(TWO_G)
    for pid, job_id in ((11, 801), (12, 802), (13, 803)):
        site.job(pid, job_id)
    node.hold(0, half.gi_id, 0, 11, 1)
    node.hold(0, quarter.gi_id, 0, 12, 1)
    node.count(0, 5_000_000)
    node.count(1, 7_000_000)
    first = site.meter()
    try:
        site.heard()
        node.count(0, 5_012_345)
        node.count(1, 7_000_011)
        site.heard()
        destroyed = node.gpus()[0].uuid
        node.release(12)
        destroy_instance(destroyed, quarter.gi_id)
        node.hold(0, node.create(ONE_G).gi_id, 0, 13, 1)
        # Who holds a board and what it counts are not read at one moment.
        site.heard()
        node.count(0, 5_023_456)
        site.heard()
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    before, by_job = books.sums()
    assert before == 23_456 + 11
    assert by_job.keys() >= {801, 802, 803}
    node.count(0, 5_034_567)
    time.sleep(0.2)
    second = site.meter()
    try:
        site.heard()
        node.count(1, 7_000_100)
        site.heard()
    finally:
        second.terminate()
        second.wait()
    taken, by_job = books.sums()
    assert taken == 34_567 + 100
    assert sum(by_job.values()) == taken
    assert len({key[0] for key in books.hours}) == 1


def test_a_file_is_on_disk_before_it_replaces_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a node that loses power may have an empty one, and no meter from then on."""
    synced: list[tuple[str, int]] = []

    def fsync(fd: int) -> None:
        synced.append((str(Path(f"/proc/self/fd/{fd}").readlink()), os.fstat(fd).st_size))

    monkeypatch.setattr(os, "fsync", fsync)
    state = tmp_path / "state.json"
    told: Any = SimpleNamespace(call=lambda _: None)
    MeterLoop("gpu01", state, told).turn((), NodeMoment(3_600_000, 1, "a"))
    assert synced == [(str(tmp_path / "state.new"), state.stat().st_size)]
    assert MeterLoop("gpu01", state, told).now.boards == {}


def test_two_meters_do_not_share_a_file(site: Site) -> None:
    meter = site.meter()
    try:
        site.heard()
        assert site.meter().wait() != 0
    finally:
        meter.terminate()
        meter.wait()
