"""GPUs that jobs share by Slurm's shard: refused without a price, with one limited and charged."""

import json
import re
from collections.abc import Iterator

import pytest
from jobs_as_users import Modes, Users
from quotas import until_in_force
from waiting import until, until_is

from sandbox.cluster import Sandbox

pytestmark = pytest.mark.integration

NODE, SHARDS = "gpu01", 8


@pytest.fixture(scope="module")
def users(sandbox: Sandbox) -> Iterator[Users]:
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
    _restart(sandbox)
    users = Users(sandbox)
    users.slicewise("tenant-quota", "set", "vision", "--nominal", "2")
    until_in_force(sandbox, "vision")
    yield users
    users.clear()
    for file, text in before.items():
        file.write_text(text)
    _restart(sandbox)


def _restart(sandbox: Sandbox) -> None:
    for server in ("slurmctld", f"slurmd-{NODE}"):
        sandbox.run("root", ("slicewise-restart", server))
    until_is(lambda: _said(sandbox, "sinfo", "-h", "-n", NODE, "-o", "%t"), "idle")


def _said(sandbox: Sandbox, *argv: str) -> str:
    return sandbox.run("root", argv).stdout.strip()


def test_without_a_price_no_shard_is_had(users: Users) -> None:
    refused = users.submit("alice", "sbatch", "--gres=shard:1")
    assert refused.status != 0
    assert "SW-GRES-SHARED" in refused.text
    # Beside slicewise.lua nothing would hold them: Slurm bills no TRES that has no weight.
    warnings = "\n".join(_warnings(users))
    assert "GPUs that jobs share by shard, which has no price" in warnings


def _warnings(users: Users) -> list[str]:
    found: list[str] = json.loads(users.slicewise("compile", "--dry-run", "--json"))["warnings"]
    return found


@pytest.fixture
def priced(users: Users) -> Iterator[None]:
    """In slicewise.toml and, as ``compile --slurm-conf`` says it, in slurm.conf."""
    settings, conf = users.sandbox.layout.settings_file, users.sandbox.layout.slurm_conf
    before = {file: file.read_text() for file in (settings, conf)}
    settings.write_text(f"{before[settings]}\n[shared]\nshard_millislices = 875\n")
    printed = users.slicewise("compile", "--slurm-conf")
    text = before[conf]
    for value in (r"AccountingStorageTRES=\S+", r'TRESBillingWeights="\S+"'):
        (said,) = re.findall(value, printed)
        text = re.sub(value, said, text)
    conf.write_text(text)
    users.sandbox.run("root", ("slicewise-restart", "slurmctld"))
    Modes(users.sandbox).restart_daemon()
    yield
    users.clear()
    for file, text in before.items():
        file.write_text(text)
    users.sandbox.run("root", ("slicewise-restart", "slurmctld"))
    Modes(users.sandbox).restart_daemon()


@pytest.mark.usefixtures("priced")
def test_with_a_price_shards_are_limited_and_charged(users: Users) -> None:
    assert "shard" not in "\n".join(_warnings(users))
    first, second = (_submitted(users, "--gres=shard:1") for _ in range(2))
    until_is(lambda: [users.job(one)["JobState"] for one in (first, second)], ["RUNNING"] * 2)
    assert [users.job(one).billing for one in (first, second)] == [875, 875]
    third = _submitted(users, "--gres=shard:1")
    until(lambda: users.job(third)["Reason"] == "QOSGrpBilling")
    assert "SW-QUOTA-EXCEEDED" in users.submit("alice", "sbatch", "--gres=shard:8").text
    explained = json.loads(users.slicewise("why", "--limits", "vision", "--json"))
    assert explained["in_use_millislices"] == 1750
    until(lambda: _charged(users, first) == {"shard": 1})
    users.slicewise("tenant-quota", "set", "vision", "--nominal", "4", "--limit", "shard=2")
    show = ("sacctmgr", "-nP", "show", "assoc", "where", "account=vision", "user=")
    until_is(lambda: _said(users.sandbox, *show, "format=grptres"), "gres/shard=2")
    until(lambda: users.job(third)["Reason"] == "AssocGrpGRES")


def _submitted(users: Users, gres: str) -> str:
    outcome = users.submit("alice", "sbatch", gres)
    assert outcome.status == 0, outcome.text
    return outcome.jobs[0].job_id


def _charged(users: Users, job: str) -> dict[str, int]:
    printed = users.slicewise("ledger", "statement", "vision", "--journal", "--json")
    rows = json.loads(printed)["runs"]
    found = [row["gres"] for row in rows if str(row["job_id"]) == job]
    return found[0] if found else {}
