"""The launcher on the sandbox: real Slurm, Triton and HAProxy, and each of them killed."""

import asyncio
import json
import math
import os
import re
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from processes import children_of
from quotas import until_in_force
from service_status import services, status, until_routed
from stand_ins.emulated_gpus import FaultyDriver
from waiting import until, until_is

from slicewise.launcher.gateway.runtime_api import Maps
from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.demo.commands import publish_models
from slicewise.sandbox.demo.load import Load
from slicewise.sandbox.demo.record import RequestRecord
from slicewise.sandbox.demo.trace import Arrival
from slicewise.sandbox.host.process import read_stat
from slicewise.sandbox.servers import gpus, haproxy

pytestmark = pytest.mark.integration

NAME, SERVICE = "launched", "nlp/launched"
NOMINAL = 3
TOKENS = (500, 200)
TOKEN_S = 0.0012
KILL_WAIT_S = 8
"""Of the sandbox's Slurm."""
BRIEF_S, LASTING_S = 6, 120
"""Times that a replica is kept: for who waits until it has gone, and for who looks at it."""
LOADS = 3
"""Tried until as many replicas serve at once as the quota allows."""
FILE = """\
[service]
name = "launched"
tenant = "nlp"
model_repository = {models}
model = "{model}"
profile = "1g.18gb"
max_replicas = 4
concurrency = 2
keep_alive_s = {keep_alive_s}
lease_s = 600
memory_mib = 512
"""
BROKEN = """
class TritonPythonModel:
    def initialize(self, args):
        raise RuntimeError("this model can't start")
"""
CUT_OFF = {"status 502", "ServerDisconnectedError"}
"""What a client is told whose replica ended before it had answered; HAProxy closes without a word
if the connection to the replica had served others before.
"""
ON_GPU = """
import ctypes
class OnGpu(TritonPythonModel):
    def initialize(self, args):
        self.reach()
        super().initialize(args)
    def execute(self, requests):
        self.reach()
        return super().execute(requests)
    def reach(self):
        nvml, device = ctypes.CDLL("{nvml}"), ctypes.c_void_p()
        nvml.nvmlInitWithFlags(0)
        code = nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
        if code:
            raise RuntimeError(f"NVML says {{code}}")
TritonPythonModel = OnGpu
"""
WITH_WEIGHTS = """
import pathlib
class WithWeights(TritonPythonModel):
    def initialize(self, args):
        folder = pathlib.Path(args["model_repository"], args["model_version"])
        (folder / "weights").read_bytes()
        super().initialize(args)
TritonPythonModel = WithWeights
"""
HANGING = """
import pathlib
class Hanging(TritonPythonModel):
    def execute(self, requests):
        numbers = [pb_utils.get_input_tensor_by_name(one, "CONTEXT_TOKENS") for one in requests]
        while any(n.as_numpy()[0] == 1 for n in numbers) and pathlib.Path("{mark}").exists():
            time.sleep(0.05)
        return super().execute(requests)
TritonPythonModel = Hanging
"""
ESCAPING = """
import subprocess
subprocess.Popen(["sleep", "3600"], start_new_session=True)
"""


class Service:
    """One service of bob's, and who sends to it."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.home = sandbox.layout.home / sandbox.state.users["bob"].name
        self.models = publish_models(sandbox.layout.models)

    def slicewise(self, user: str, *words: str) -> str:
        return self.sandbox.run(user, ("slicewise", *words)).stdout

    def apply(
        self, models: Path, model: str, more: str = "", *, keep_alive_s: int = LASTING_S
    ) -> int:
        file = self.home / "launched.toml"
        values = {"models": json.dumps(str(models)), "model": model, "keep_alive_s": keep_alive_s}
        file.write_text(FILE.format(**values) + more)
        answer = json.loads(self.slicewise("bob", "service", "apply", str(file), "--json"))
        return int(answer["array_job_id"])

    def status(self) -> Mapping[str, Any]:
        return status(self.sandbox, SERVICE)

    def slots(self, state: str) -> list[int]:
        return list(self.status()["slots"][state])

    async def send(self, count: int, every_s: float = 0.02) -> list[RequestRecord]:
        async with Load(self.sandbox.layout.gateway_url, [SERVICE], 240.0) as load:
            await load.replay([Arrival(every_s * i, SERVICE, *TOKENS) for i in range(count)])
            return list(load.records)

    def models_with(self, name: str, code: str) -> Path:
        """A repository of its own, where the model has that code at its end."""
        models = self.sandbox.layout.models / name
        shutil.copytree(self.models / "tokens", models / "tokens")
        with (models / "tokens" / "1" / "model.py").open("a") as model:
            model.write(code)
        return models

    def log(self, array: int, index: int) -> str:
        return (self.home / f"{NAME}.logs" / f"{array}_{index}.log").read_text()

    def tritons(self, index: int | None = None) -> list[int]:
        """Pids of this service's servers, or of that slot's."""
        slot = r"\d+" if index is None else index
        mine = re.compile(rf"--id={NAME}\.\d+\.{slot}\b.* --model-repository={self.models.parent}/")
        return [pid for pid, line in _command_lines() if mine.search(line)]

    def warn(self) -> None:
        """As the batch script itself does near the end of its lease."""
        place = str(self.sandbox.layout.lib).encode()
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if words[0] == b"/bin/bash" and words[1].startswith(place):
                    os.kill(int(entry.name), signal.SIGUSR1)

    async def ask_long(
        self, seconds: float, meanwhile: Callable[[], object]
    ) -> list[RequestRecord]:
        """One request of that length, and what is done while it is worked on."""
        tokens = int(seconds / TOKEN_S)
        async with Load(self.sandbox.layout.gateway_url, [SERVICE], 240.0) as load:
            sending = asyncio.create_task(load.replay([Arrival(0.0, SERVICE, 1, tokens)]))
            await asyncio.to_thread(until, lambda: self.status()["in_flight"] == 1)
            await asyncio.to_thread(meanwhile)
            await sending
            return list(load.records)

    @contextmanager
    def without_launcher(self) -> Iterator[None]:
        self.sandbox.stop("launcher")
        try:
            yield
        finally:
            self.sandbox.start("launcher", "slicewise", ("slicewise", "launcher"))

    def delete(self) -> None:
        self.sandbox.run("bob", ("slicewise", "service", "delete", SERVICE), check=False)
        until(lambda: NAME not in self.sandbox.run("root", ("squeue", "-h", "-o", "%j")).stdout)
        until(lambda: SERVICE not in services(self.sandbox))


def _command_lines() -> Iterator[tuple[int, str]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                line = (
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
                if "bin/tritonserver " in line.split(" --")[0] + " ":
                    yield int(entry.name), line


@pytest.fixture(scope="module")
def world(sandbox: Sandbox) -> Service:
    found = Service(sandbox)
    found.slicewise("root", "tenant-quota", "set", "nlp", "--nominal", str(NOMINAL))
    until_in_force(sandbox, "nlp")
    return found


@pytest.fixture(autouse=True)
def deleted(world: Service) -> Iterator[None]:
    """However a test ends."""
    yield
    world.delete()


@pytest.fixture
def service(world: Service) -> Service:
    world.apply(world.models, "tokens")
    until_routed(world.sandbox, SERVICE)
    return world


@pytest.fixture
def brief(world: Service) -> Service:
    """Its replicas go soon after their last request."""
    world.apply(world.models, "tokens", keep_alive_s=BRIEF_S)
    until_routed(world.sandbox, SERVICE)
    return world


@pytest.fixture
def hanging_epilog(sandbox: Sandbox) -> Iterator[Path]:
    """A file: while it is there, Epilogs do not end."""
    layout = sandbox.layout
    mark, script, site = layout.lib / "hang", layout.etc / "epilog.sh", layout.etc / "site.conf"
    script.write_text(f"#!/bin/sh\nwhile [ -e {mark} ]; do sleep 0.1; done\n")
    script.chmod(0o755)
    before = site.read_text()
    site.write_text(f"{before}Epilog={script}\n")
    sandbox.run("root", ("scontrol", "reconfigure"))
    yield mark
    mark.unlink(missing_ok=True)
    site.write_text(before)
    sandbox.run("root", ("scontrol", "reconfigure"))


def kill_haproxy(sandbox: Sandbox) -> None:
    """All of it: its worker ends after its master only, and takes connections until then."""
    workers = children_of(sandbox.state.processes["haproxy"].pid)
    sandbox.kill("haproxy", signal.SIGKILL)
    until(lambda: not any(map(read_stat, workers)))


def listens(url: str) -> bool:
    where = urlsplit(url)
    with suppress(OSError), socket.create_connection((where.hostname, where.port), 1.0):
        return True
    return False


def errors(records: list[RequestRecord]) -> list[str]:
    return [record.error for record in records if record.error]


def test_fifty_at_once_from_zero_up_to_the_quota_and_back_to_zero(brief: Service) -> None:
    """More than once where the machine starts the last replica when the load is over."""

    async def observed() -> tuple[list[RequestRecord], int]:
        records: list[RequestRecord] = []
        most = 0
        while most < NOMINAL and len(records) < LOADS * 150:
            sending = asyncio.create_task(brief.send(150, every_s=0.0))
            while not sending.done():
                most = max(most, len(await asyncio.to_thread(brief.slots, "ready")))
            records += await sending
        return records, most

    records, most = asyncio.run(observed())
    assert (errors(records), len(records) % 150, most) == ([], 0, NOMINAL)
    until_is(lambda: brief.slots("held"), [0, 1, 2, 3])
    # Slurm knows of their end before the kernel has buried them.
    until_is(brief.tritons, [])


def test_the_launcher_killed_in_mid_flight_loses_nothing(service: Service) -> None:
    async def killed() -> list[RequestRecord]:
        sending = asyncio.create_task(service.send(250))
        for _ in range(4):
            await asyncio.sleep(2)
            service.sandbox.kill("launcher", signal.SIGKILL)
            await asyncio.sleep(0.2)
            service.sandbox.start("launcher", "slicewise", ("slicewise", "launcher"))
        return await sending

    records = asyncio.run(killed())
    assert (errors(records), len(records)) == ([], 250)


@pytest.mark.promise("HAProxy that is killed gets its routes back, and requests wait for them.")
def test_haproxy_killed_gets_its_routes_back(service: Service) -> None:
    assert errors(asyncio.run(service.send(4))) == []
    sandbox = service.sandbox
    kept = Maps(sandbox.layout.gateway_directory).services
    until(lambda: f"{SERVICE} triton" in kept.read_text())
    for routes in (kept.read_text(), ""):
        kill_haproxy(sandbox)
        kept.write_text(routes)
        sandbox.start("haproxy", "slicewise", haproxy.command(sandbox.layout))
        until(lambda: listens(sandbox.layout.gateway_url))
        assert errors(asyncio.run(service.send(20))) == []


@pytest.mark.promise(
    "A replica that is killed costs its own requests only, and its slot comes back."
)
def test_a_killed_triton_costs_its_own_requests_only_and_its_slot_comes_back(
    brief: Service,
) -> None:
    array = brief.status()["array_job_id"]

    def is_dead() -> bool:
        """And told of: from then on nobody listens for it."""
        return any("Triton ended with 137" in brief.log(array, index) for index in range(NOMINAL))

    async def killed() -> tuple[list[RequestRecord], list[RequestRecord]]:
        sending = asyncio.create_task(brief.send(200))
        await asyncio.to_thread(until, lambda: len(brief.tritons()) == NOMINAL)
        await asyncio.sleep(1)
        os.kill(brief.tritons()[0], signal.SIGKILL)
        await asyncio.to_thread(until, is_dead)
        later = await brief.send(50)
        return await sending, later

    records, later = asyncio.run(killed())
    # What it had is lost: to send that again might kill the next one. What no replica has seen yet
    # goes to another one, and so does every request of later.
    assert set(errors(records)) <= CUT_OFF
    assert (errors(later), len(records)) == ([], 200)
    until_is(lambda: brief.slots("held"), [0, 1, 2, 3])


def test_a_replica_whose_model_has_died_is_asked_and_replaced(service: Service) -> None:
    """Triton stays ready, and answered 500 to everybody for ever."""
    assert errors(asyncio.run(service.send(1))) == []
    (server,) = service.tritons()
    for child in children_of(server):
        os.kill(child, signal.SIGKILL)

    def is_told() -> bool:
        """While clients go on asking."""
        asyncio.run(service.send(5, every_s=0.01))
        note = service.status()["note"]
        return "taken out: replica" in note and "were errors (5xx, gRPC), and an inference" in note

    until(is_told)
    until(lambda: not errors(asyncio.run(service.send(1))))
    assert service.tritons() != [server]


@pytest.mark.nightly
def test_beside_a_model_that_hangs_another_replica_starts_and_the_request_is_not_cut(
    world: Service,
) -> None:
    """Without a deadline: it may be a request of minutes, and the inference waits behind it."""
    mark = world.sandbox.layout.models / "hangs"
    models = world.models_with("hanging", HANGING.format(mark=mark))
    config = models / "tokens" / "config.pbtxt"
    config.write_text(config.read_text().replace("KIND_CPU count: 2", "KIND_CPU count: 1"))
    world.apply(models, "tokens", "p95_ms = 400\n")
    until_routed(world.sandbox, SERVICE)
    world.slicewise("bob", "service", "scale", NAME, "--max", "1")
    assert errors(asyncio.run(world.send(1))) == []

    def hang() -> None:
        until(lambda: "has answered nothing for 1" in world.status()["note"])
        world.slicewise("bob", "service", "scale", NAME, "--reset")
        until(lambda: world.slots("draining") == [0] and world.slots("ready"))
        assert errors(asyncio.run(world.send(10))) == []
        mark.unlink()

    mark.touch()
    try:
        assert errors(asyncio.run(world.ask_long(0.1, hang))) == []
    finally:
        mark.unlink(missing_ok=True)
    until(lambda: "has answered nothing" not in world.status()["note"])


def test_a_node_whose_gpu_fell_off_the_bus_is_avoided_after_two_failed_starts(
    world: Service,
) -> None:
    """Slurm hears nothing of it, and would choose that node again: its slices are free."""
    sandbox = world.sandbox
    nvml = gpus.library_directory(sandbox.layout) / "libnvidia-ml.so.1"
    array = world.apply(world.models_with("on-gpu", ON_GPU.format(nvml=nvml)), "tokens")
    until_routed(sandbox, SERVICE)
    FaultyDriver(sandbox.layout.drivers / "gpu03").lose(0)
    try:
        assert errors(asyncio.run(world.send(1))) == []
        (ready,) = world.slots("ready")
        words = ("squeue", "--noheader", f"--jobs={array}", "--states=running", "--format=%N %x")
        assert sandbox.run("root", words).stdout.split() == ["gpu04", "gpu03"]
        assert "NVML says 15" in world.log(array, ready)
    finally:
        FaultyDriver(sandbox.layout.drivers / "gpu03").reset(0)


def test_a_model_on_a_file_system_that_hangs_gives_its_slice_back(world: Service) -> None:
    """As long as ``start_timeout_s`` says; its requests wait for the next start."""
    models = world.models_with("hanging", WITH_WEIGHTS)
    weights = models / "tokens" / "1" / "weights"
    os.mkfifo(weights)
    world.apply(models, "tokens", "start_timeout_s = 10\n")
    until_routed(world.sandbox, SERVICE)

    def mend() -> None:
        """Readers of the pipe see its end, those that come later a file."""
        pipe = os.open(weights, os.O_RDWR | os.O_NONBLOCK)
        weights.unlink()
        weights.write_text("here again")
        os.close(pipe)

    async def asked() -> list[RequestRecord]:
        sending = asyncio.create_task(world.send(1))
        late = "failed: slicewise service logs launched; the last one was not ready within 10 s"
        await asyncio.to_thread(until, lambda: late in world.status()["note"])
        await asyncio.to_thread(mend)
        return await sending

    assert errors(asyncio.run(asked())) == []


def test_beside_a_replica_whose_end_hangs_another_one_starts(
    service: Service, hanging_epilog: Path
) -> None:
    """Slurm says COMPLETING for as long as an Epilog lasts, and gives the slice to no other job."""
    assert errors(asyncio.run(service.send(1))) == []
    (index,), (server,) = service.slots("ready"), service.tritons()
    hanging_epilog.touch()
    os.kill(server, signal.SIGKILL)
    until_is(lambda: service.slots("draining"), [index])
    assert errors(asyncio.run(service.send(5))) == []
    (row,) = [one for one in service.status()["replicas"] if one["slot"] == index]
    assert row["why"] == "Slurm is ending it (COMPLETING)"
    assert service.status()["quota"]["in_use_millislices"] == 2000
    hanging_epilog.unlink()
    until(lambda: index in service.slots("held"))


def test_whatever_a_killed_triton_leaves_behind_its_slot_comes_back(world: Service) -> None:
    array = world.apply(world.models_with("escaping", ESCAPING), "tokens")
    assert errors(asyncio.run(world.send(1))) == []
    with world.without_launcher():
        (index,), (server,) = world.slots("ready"), world.tritons()
        os.kill(server, signal.SIGKILL)
        until(lambda: "Triton ended with 137" in world.log(array, index))
        until_is(lambda: world.slots("held"), [0, 1, 2, 3])
        # Ended by Slurm in a next start, what escapes may keep the step, and the node is drained.
        world.slicewise("bob", "service", "delete", SERVICE, "--now")


def test_a_replica_that_is_told_to_end_comes_back_held(service: Service) -> None:
    """As Slurm does it at the time limit or in a preemption: no launcher drains before."""
    assert errors(asyncio.run(service.send(1))) == []
    with service.without_launcher():
        array = service.status()["array_job_id"]
        (index,) = service.slots("ready")
        service.sandbox.run("slurm", ("scontrol", "requeuehold", f"{array}_{index}"))
        until(lambda: index in service.slots("held"))
        assert "told to end: ending Triton" in service.log(array, index)
    assert errors(asyncio.run(service.send(1))) == []


def test_a_long_answer_survives_the_warning_but_not_the_order_to_end(service: Service) -> None:
    """Without a launcher, which would have drained before."""
    assert errors(asyncio.run(service.send(1))) == []
    with service.without_launcher():
        array = service.status()["array_job_id"]
        (index,) = service.slots("ready")
        records = asyncio.run(service.ask_long(2.5 * KILL_WAIT_S, service.warn))
        assert (errors(records), len(records)) == ([], 1)
        until(lambda: index in service.slots("held"))
        assert "its lease ends: ending Triton within 55 s" in service.log(array, index)

    assert errors(asyncio.run(service.send(1))) == []
    with service.without_launcher():
        (index,) = service.slots("ready")
        words = ("scontrol", "requeuehold", f"{array}_{index}")
        order = partial(service.sandbox.run, "slurm", words)
        assert errors(asyncio.run(service.ask_long(4.0 * KILL_WAIT_S, order))) != []
        until(lambda: index in service.slots("held"))
        assert "Triton ended with 137" in service.log(array, index)
        until_is(lambda: service.tritons(index), [])


def test_a_model_that_fails_at_its_start_is_not_started_over_and_over(world: Service) -> None:
    broken = world.sandbox.layout.models / "broken"
    (broken / "tokens" / "1").mkdir(parents=True)
    (broken / "tokens" / "1" / "model.py").write_text(BROKEN)
    configuration = (world.models / "tokens" / "config.pbtxt").read_text()
    (broken / "tokens" / "config.pbtxt").write_text(configuration)
    array = world.apply(broken, "tokens")

    began_s = time.monotonic()

    async def asking() -> list[RequestRecord]:
        sending = asyncio.create_task(world.send(1))
        await asyncio.to_thread(until, lambda: "3 starts in a row" in world.status()["note"])
        # The launcher may see that it has ended a turn before it sees how.
        ended = f"slicewise service logs {NAME}; the last one ended with 1"
        await asyncio.to_thread(until, lambda: ended in world.status()["note"])
        return await sending

    (refused,) = asyncio.run(asking())
    assert refused.error == "status 503"
    logs = list(world.home.glob(f"{NAME}.logs/{array}_*.log"))
    starts = sum(log.read_text().count("starting on") for log in logs)
    elapsed_s = time.monotonic() - began_s
    slots, note = world.status()["slots"], world.status()["note"]
    comments = ("squeue", "--array", "--noheader", "--Format=Comment:400")

    def said_to_all() -> str:
        """Once a turn has ended: the next one puts its certificate in the words' place."""
        seen_by_all = world.sandbox.run("alice", comments).stdout
        return seen_by_all if "slicewise:run=" in seen_by_all else ""

    seen_by_all = until(said_to_all)
    assert "this model can't start" not in seen_by_all + note

    def told_why() -> bool:
        """Its owner; not while it is started once more."""
        said = world.slicewise("bob", "service", "status", SERVICE, "--json")
        return any("this model can't start" in one["why"] for one in json.loads(said)["replicas"])

    until(told_why)
    assert 3 <= starts <= 2 + math.log2(1 + elapsed_s)  # 1, 2, 4 ... s after each other
    assert slots["gone"] == []
