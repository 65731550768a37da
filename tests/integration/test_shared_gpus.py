"""GPUs that are no MIG instances: shared by Slurm's shard, and AMD's partitions.

A shard is refused without a price, and with one limited and charged; a partition likewise.
"""

import json
import re
from collections.abc import Iterator

import pytest
from jobs_as_users import Modes, Users
from quotas import until_in_force
from run_folder import path_for
from waiting import until, until_is

from slicewise.sandbox.amd_smi.driver import EmulatedAmdDriver, EmulatedAmdGpu
from slicewise.sandbox.cluster import Sandbox

pytestmark = pytest.mark.integration

NODE, SHARDS = "gpu01", 8


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    """One of its own: a slurmctld that has seen other numbers of GPUs on a node gives jobs none of
    some types afterwards, and counts nothing for them.
    """
    running = Sandbox.up(path_for("shared"), progress=print)
    yield running
    running.down()


@pytest.fixture(scope="module")
def users(sandbox: Sandbox) -> Users:
    """vision has two slices; gpu01 has one GPU, which is not cut, of eight shards."""
    layout = sandbox.layout
    conf, gres = layout.slurm_conf, layout.etc / "gres.conf"
    before = {file: file.read_text() for file in (conf, gres)}
    (line,) = (one for one in before[conf].splitlines() if one.startswith(f"NodeName={NODE} "))
    shared = f"{line.partition(' Gres=')[0]} Gres=gpu:a100:1,shard:{SHARDS}"
    conf.write_text(
        before[conf].replace(line, shared).replace("GresTypes=gpu", "GresTypes=gpu,shard")
    )
    device = f"NodeName={NODE} AutoDetect=off Name={{}} File={layout.directory}/dev/{NODE}/nvidia0"
    others = [one for one in before[gres].splitlines() if not one.startswith(f"NodeName={NODE} ")]
    own = (device.format("gpu Type=a100"), device.format(f"shard Count={SHARDS}"))
    gres.write_text("\n".join((*others, *own, "")))
    _restart(sandbox, NODE)
    users = Users(sandbox)
    users.slicewise("tenant-quota", "set", "vision", "--nominal", "2")
    until_in_force(sandbox, "vision")
    return users


def _restart(sandbox: Sandbox, node: str) -> None:
    """A slurmd that has not been started anew would tell of the GPUs that the node had, and Slurm
    drains a node with fewer than it should have.
    """
    sandbox.stop(f"slurmd-{node}")
    sandbox.run("root", ("slicewise-restart", "slurmctld"))
    sandbox.restore(print)
    until_is(lambda: _said(sandbox, "sinfo", "-h", "-n", node, "-o", "%t"), "idle")


def _said(sandbox: Sandbox, *argv: str) -> str:
    return sandbox.run("root", argv).stdout.strip()


def test_without_a_price_no_shard_is_had(users: Users) -> None:
    refused = users.submit("alice", "sbatch", "--gres=shard:1")
    assert refused.status != 0
    assert "SW-GRES" in refused.text
    # Beside slicewise.lua nothing would hold them: Slurm bills no TRES that has no weight.
    # The daemon looks at nodes now and then.
    unpriced = "GPUs that jobs share by shard, which has no price"
    until(lambda: unpriced in "\n".join(_warnings(users)))


def _warnings(users: Users) -> list[str]:
    found: list[str] = json.loads(users.slicewise("compile", "--dry-run", "--json"))["warnings"]
    return found


@pytest.fixture
def priced(users: Users) -> Iterator[None]:
    """In slicewise.toml and, as ``compile --slurm-conf`` says it, in slurm.conf."""
    settings, conf = users.sandbox.layout.settings_file, users.sandbox.layout.slurm_conf
    before = {file: file.read_text() for file in (settings, conf)}
    settings.write_text(f"{before[settings]}\n[shared]\nshard_millislices = 875\n")
    conf.write_text(_as_compiled(users, before[conf]))
    users.sandbox.run("root", ("slicewise-restart", "slurmctld"))
    Modes(users.sandbox).restart_daemon()
    yield
    users.clear()
    for file, text in before.items():
        file.write_text(text)
    users.sandbox.run("root", ("slicewise-restart", "slurmctld"))
    Modes(users.sandbox).restart_daemon()


def _as_compiled(users: Users, slurm_conf: str) -> str:
    printed = users.slicewise("compile", "--slurm-conf")
    for value in (r"AccountingStorageTRES=\S+", r'TRESBillingWeights="\S+"'):
        (said,) = re.findall(value, printed)
        slurm_conf = re.sub(value, said, slurm_conf)
    return slurm_conf


@pytest.mark.usefixtures("priced")
def test_with_a_price_shards_are_limited_and_charged(users: Users) -> None:
    assert "shard" not in "\n".join(_warnings(users))
    first, second = (_submitted(users, "--gres=shard:1") for _ in range(2))
    until_is(lambda: [users.job(one)["JobState"] for one in (first, second)], ["RUNNING"] * 2)
    assert [users.job(one).billing for one in (first, second)] == [875, 875]
    third = _submitted(users, "--gres=shard:1")
    until(lambda: users.job(third)["Reason"] == "QOSGrpBilling")
    assert "SW-QUOTA-EXCEEDED" in users.submit("alice", "sbatch", "--gres=shard:8").text
    # The daemon may have looked before the second one ran.
    until_is(lambda: _in_use(users), 1750)
    until(lambda: _charged(users, first) == {"shard": 1})
    users.slicewise("tenant-quota", "set", "vision", "--nominal", "4", "--limit", "shard=2")
    show = ("sacctmgr", "-nP", "show", "assoc", "where", "account=vision", "user=")
    until_is(lambda: _said(users.sandbox, *show, "format=grptres"), "gres/shard=2")
    until(lambda: users.job(third)["Reason"] == "AssocGrpGRES")


def _in_use(users: Users) -> int:
    """Millislices that vision holds."""
    return int(
        json.loads(users.slicewise("why", "--limits", "vision", "--json"))["in_use_millislices"]
    )


def _submitted(users: Users, gres: str) -> str:
    outcome = users.submit("alice", "sbatch", gres)
    assert outcome.status == 0, outcome.text
    return outcome.jobs[0].job_id


def _charged(users: Users, job: str) -> dict[str, int]:
    printed = users.slicewise("ledger", "statement", "vision", "--journal", "--json")
    rows = json.loads(printed)["runs"]
    found = [row["gres"] for row in rows if str(row["job_id"]) == job]
    return found[0] if found else {}


AMD_NODE, CPX = "gpu04", "cpx.nps4"


@pytest.fixture
def amd(users: Users) -> None:
    """gpu04 has one MI300X of eight partitions; its lines are those of ``slicewise node gres``."""
    layout = users.sandbox.layout
    settings, conf, gres = layout.settings_file, layout.slurm_conf, layout.etc / "gres.conf"
    before = {file: file.read_text() for file in (settings, conf, gres)}
    settings.write_text(f'{before[settings]}\n[gpus."MI300X-192GB"]\ntypes = ["{CPX}"]\n')
    dri = layout.devices / AMD_NODE / "dri"
    dri.mkdir()
    for minor in range(128, 136):
        (dri / f"renderD{minor}").symlink_to("/dev/null")
    driver = EmulatedAmdDriver(layout.drivers / "amd")
    driver.load([EmulatedAmdGpu("MI300X-192GB", CPX)])
    seen = {**driver.environment(layout.drivers), "SLICEWISE_HOST_ROOT": str(driver.host_root)}
    asked = ("slicewise", "node", "gres", "--node", AMD_NODE, "--json")
    variables = (f"{name}={value}" for name, value in seen.items())
    lines = json.loads(_said(users.sandbox, "env", *variables, *asked))
    others = [row for row in before[gres].splitlines() if f"NodeName={AMD_NODE} " not in row]
    gres.write_text("\n".join((*others, *lines["gres.conf"], "")))
    own = rf"(NodeName={AMD_NODE} .*) Gres=\S+"
    text = re.sub(own, rf"\1 Gres={lines['slurm.conf']}", before[conf])
    conf.write_text(_as_compiled(users, text))
    _restart(users.sandbox, AMD_NODE)
    Modes(users.sandbox).restart_daemon()


@pytest.mark.usefixtures("amd")
def test_amd_s_partitions_are_limited_charged_and_given_one_by_one(users: Users) -> None:
    users.slicewise("tenant-quota", "set", "vision", "--nominal", "2")
    until_in_force(users.sandbox, "vision")
    show = "#!/bin/sh\nenv | grep _VISIBLE_DEVICES > $HOME/gpu.$SLURM_JOB_ID\nsleep 300\n"
    first, second = (
        users.submit("alice", "sbatch", f"--gres=gpu:{CPX}:1", script=show).jobs[0].job_id
        for _ in range(2)
    )
    until_is(lambda: [users.job(one)["JobState"] for one in (first, second)], ["RUNNING"] * 2)
    assert [users.job(one).billing for one in (first, second)] == [875, 875]
    home = users.sandbox.layout.home / "alice"
    for one, index in ((first, 0), (second, 1)):
        given = home / f"gpu.{one}"
        until(given.exists)
        until_is(given.read_text, f"ROCR_VISIBLE_DEVICES={index}\n")
    third = _submitted(users, f"--gres=gpu:{CPX}:1")
    until(lambda: users.job(third)["Reason"] == "QOSGrpBilling")
    until(lambda: _charged(users, first) == {CPX: 1})
