"""A node that Slurm powers down, and who wakes it or need not, on the sandbox's real slurmctld.

The programs of power saving do nothing: the test ends and starts the node's slurmd as they would.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from quotas import until_in_force
from service_status import status, until_routed
from waiting import until, until_is

from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.demo.commands import publish_models
from slicewise.sandbox.demo.load import Load
from slicewise.sandbox.demo.record import RequestRecord
from slicewise.sandbox.demo.trace import Arrival

pytestmark = pytest.mark.integration

NODE = "gpu02"
"""The only one with a 3g.40gb."""
SERVICE = "vision/woken"
FILE = """\
[service]
name = "woken"
tenant = "vision"
model_repository = {models}
model = "tokens"
profile = "{profile}"
max_replicas = 1
min_replicas = {least}
lease_s = 600
memory_mib = 512
"""
SPARE = "gpu01"
"""Has 1g.10gb, too, and stays awake."""
CONF = """\
SuspendProgram=/bin/true
ResumeProgram=/bin/true
SuspendTime=10
SuspendTimeout=5
ResumeTimeout={resume_s}
SuspendExcNodes=gpu01,gpu03,gpu04
"""


def asked(sandbox: Sandbox, *words: str) -> Any:
    """What a command says; overview's exit code is what needs attention."""
    return json.loads(sandbox.run("root", ("slicewise", *words, "--json"), check=False).stdout)


def states(sandbox: Sandbox) -> list[str]:
    shown = sandbox.run("root", ("scontrol", "show", "node", NODE)).stdout
    return shown.partition("State=")[2].split()[0].split("+")


def condition(sandbox: Sandbox) -> str:
    gpus = asked(sandbox, "overview")["gpus"]
    return next(str(gpu["condition"]) for gpu in gpus if gpu["node"] == NODE)


def apply(sandbox: Sandbox, profile: str, least: int) -> None:
    models = json.dumps(str(publish_models(sandbox.layout.models)))
    file = sandbox.layout.home / sandbox.state.users["alice"].name / "woken.toml"
    file.write_text(FILE.format(models=models, profile=profile, least=least))
    sandbox.run("alice", ("slicewise", "service", "apply", str(file), "--json"))


@contextmanager
def a_job(sandbox: Sandbox) -> Iterator[str]:
    """A job of one slice, which two nodes have; yields the node on which it was started."""
    asked = ("--account=vision", "--gres=gpu:1g.10gb:1", "--time=5", "--output=/dev/null")
    job = sandbox.run("alice", ("sbatch", "--parsable", *asked, "--wrap=sleep 300")).stdout.strip()
    shown = ("squeue", "--noheader", "--jobs", job, "--format=%N")

    def node() -> str:
        return sandbox.run("root", shown).stdout.strip()

    yield until(node)
    sandbox.run("alice", ("scancel", job))


def update(sandbox: Sandbox, node: str, *words: str) -> None:
    sandbox.run("root", ("scontrol", "update", f"NodeName={node}", *words))


@pytest.fixture
def powered_down(sandbox: Sandbox, request: pytest.FixtureRequest) -> Iterator[None]:
    """One node is powered down; the parameter is how long it may take to boot, in seconds."""
    site = sandbox.layout.site_conf
    before = site.read_text()
    conf = CONF.format(resume_s=getattr(request, "param", 600))
    site.write_text(before + conf)
    sandbox.run("root", ("slicewise-restart", "slurmctld"))
    until(lambda: "POWERED_DOWN" in states(sandbox))
    sandbox.stop(f"slurmd-{NODE}")
    yield
    sandbox.run("alice", ("slicewise", "service", "delete", SERVICE, "--now"), check=False)
    update(sandbox, SPARE, "Weight=1")
    site.write_text(before + conf.replace("SuspendTime=10", "SuspendTime=INFINITE"))
    sandbox.run("root", ("slicewise-restart", "slurmctld"))
    if "DOWN" in states(sandbox):
        sandbox.boot(NODE)
        until(lambda: "DOWN" not in states(sandbox))
    if "POWERED_DOWN" in states(sandbox):
        update(sandbox, NODE, "State=POWER_UP")
    if "POWERING_UP" in states(sandbox):
        sandbox.boot(NODE)
    until_is(lambda: states(sandbox), ["IDLE"])
    site.write_text(before)
    sandbox.run("root", ("slicewise-restart", "slurmctld"))


@pytest.mark.usefixtures("powered_down")
def test_a_replica_wakes_a_node_and_is_neither_late_nor_failed(sandbox: Sandbox) -> None:
    sandbox.run("root", ("slicewise", "tenant-quota", "set", "vision", "--nominal", "7"))
    until_in_force(sandbox, "vision")
    until_is(lambda: condition(sandbox), "powered down")
    slices = asked(sandbox, "overview")["slices"]
    assert (slices["idle_millislices"], slices["down_millislices"]) == (28_000, 0)

    # Of the lowest weight, and yet it comes last as long as it would have to boot.
    update(sandbox, SPARE, "Weight=9")
    with a_job(sandbox) as node:
        assert node == SPARE
    assert "POWERED_DOWN" in states(sandbox)

    apply(sandbox, "3g.40gb", least=1)
    until(lambda: "POWERING_UP" in states(sandbox))
    # As long as it boots Slurm says NOT_RESPONDING.
    until_is(lambda: condition(sandbox), "powering up")
    overview = asked(sandbox, "overview")
    assert overview["slices"]["down_millislices"] == 0
    assert not [item for item in overview["attention"] if item["code"] == "SW-NODE-DOWN"]
    (slot,) = until(lambda: status(sandbox, SERVICE)["slots"]["starting"])
    array = status(sandbox, SERVICE)["array_job_id"]
    why = sandbox.run("alice", ("slicewise", "why", f"{array}_{slot}")).stdout
    assert f"Power saving had ended {NODE}" in " ".join(why.split())

    sandbox.boot(NODE)
    until_is(lambda: status(sandbox, SERVICE)["slots"]["ready"], [slot])
    assert status(sandbox, SERVICE)["report"]["failed_starts"] == 0
    (start,) = asked(sandbox, "service", "trace", SERVICE)["starts"]
    assert start["at_s"]["booted"] - start["at_s"]["started"] >= 1
    assert condition(sandbox) == "up"
    with a_job(sandbox) as node:
        assert node == NODE


@pytest.mark.parametrize("powered_down", [15], indirect=True)
@pytest.mark.usefixtures("powered_down")
def test_a_boot_that_fails_costs_a_wait_and_no_request(sandbox: Sandbox) -> None:
    sandbox.run("root", ("slicewise", "tenant-quota", "set", "vision", "--nominal", "7"))
    until_in_force(sandbox, "vision")
    apply(sandbox, "1g.10gb", least=0)
    until_routed(sandbox, SERVICE)
    update(sandbox, SPARE, "State=DRAIN", "Reason=test")

    def fails() -> None:
        until(lambda: "POWERING_UP" in states(sandbox))
        update(sandbox, SPARE, "State=RESUME")
        until(lambda: "DOWN" in states(sandbox))

    async def asking() -> list[RequestRecord]:
        async with Load(sandbox.layout.gateway_url, [SERVICE], 240.0) as load:
            sending = asyncio.create_task(load.replay([Arrival(0.0, SERVICE, 1, 1)]))
            await asyncio.to_thread(fails)
            await sending
            return list(load.records)

    (record,) = asyncio.run(asking())
    assert record.error == ""
    service = status(sandbox, SERVICE)
    assert [(each["state"], each["node"]) for each in service["replicas"]] == [("ready", SPARE)]
    assert service["report"]["failed_starts"] == 0

    def starts() -> list[tuple[str, str]]:
        found = asked(sandbox, "service", "trace", SERVICE)["starts"]
        return [(start["state"], start["node"]) for start in found]

    until_is(lambda: starts()[-1], ("ready", SPARE))
    assert starts()[0] == ("ended", NODE)
    attention = asked(sandbox, "overview")["attention"]
    (down,) = [item for item in attention if item["code"] == "SW-NODE-DOWN"]
    assert "ResumeTimeout reached" in down["what"]
    assert condition(sandbox) == "down"
