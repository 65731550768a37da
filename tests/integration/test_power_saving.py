"""A node that Slurm powers down, and a replica that wakes it, on the sandbox's real slurmctld.

The programs of power saving do nothing: the test ends and starts the node's slurmd as they would.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from quotas import until_in_force
from service_status import status
from waiting import until, until_is

from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.demo.commands import publish_models

pytestmark = pytest.mark.integration

NODE = "gpu02"
"""The only one with this type."""
SERVICE = "vision/woken"
FILE = """\
[service]
name = "woken"
tenant = "vision"
model_repository = {models}
model = "tokens"
profile = "3g.40gb"
max_replicas = 1
min_replicas = 1
lease_s = 600
memory_mib = 512
"""
CONF = """\
SuspendProgram=/bin/true
ResumeProgram=/bin/true
SuspendTime=10
SuspendTimeout=5
ResumeTimeout=600
SuspendExcNodes=gpu01,gpu03,gpu04
"""


def asked(sandbox: Sandbox, *words: str) -> Any:
    return json.loads(sandbox.run("root", ("slicewise", *words, "--json")).stdout)


def states(sandbox: Sandbox) -> list[str]:
    shown = sandbox.run("root", ("scontrol", "show", "node", NODE)).stdout
    return shown.partition("State=")[2].split()[0].split("+")


def condition(sandbox: Sandbox) -> str:
    gpus = asked(sandbox, "overview")["gpus"]
    return next(str(gpu["condition"]) for gpu in gpus if gpu["node"] == NODE)


@pytest.fixture
def powered_down(sandbox: Sandbox) -> Iterator[None]:
    """One node is powered down."""
    site = sandbox.layout.site_conf
    before = site.read_text()
    site.write_text(before + CONF)
    sandbox.run("root", ("slicewise-restart", "slurmctld"))
    until(lambda: "POWERED_DOWN" in states(sandbox))
    sandbox.stop(f"slurmd-{NODE}")
    yield
    sandbox.run("alice", ("slicewise", "service", "delete", SERVICE, "--now"), check=False)
    site.write_text(before + CONF.replace("SuspendTime=10", "SuspendTime=INFINITE"))
    sandbox.run("root", ("slicewise-restart", "slurmctld"))
    if "POWERED_DOWN" in states(sandbox):
        sandbox.run("root", ("scontrol", "update", f"NodeName={NODE}", "State=POWER_UP"))
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

    models = publish_models(sandbox.layout.models)
    file = sandbox.layout.home / sandbox.state.users["alice"].name / "woken.toml"
    file.write_text(FILE.format(models=json.dumps(str(models))))
    sandbox.run("alice", ("slicewise", "service", "apply", str(file), "--json"))
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
