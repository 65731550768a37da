"""``slicewise snapshot`` of the sandbox: read back, it is what Slurm and the ledger say."""

import json
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from waiting import until

from slicewise.cluster.language.jobs import JobState
from slicewise.cluster.language.slurm.parse import parse_version
from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.demo.commands import publish_models
from slicewise.simulation.rules.snapshot.site import described
from slicewise.simulation.snapshot.archive_reader import TakenSnapshot, read_snapshot

pytestmark = pytest.mark.integration

NAME = f"secretwork{uuid4().hex[:6]}"
"""Of two jobs, and in the comment of one."""


@pytest.fixture(scope="module")
def lab(sandbox: Sandbox) -> Iterator[str]:
    """A tenant with a share, a window and a budget; one job of it has run and one waits."""
    name = f"lab{uuid4().hex[:8]}"
    alice = sandbox.state.users["alice"].name
    for words in (
        ("add", "account", name, "parent=root", "fairshare=7"),
        ("add", "user", alice, f"account={name}"),
    ):
        sandbox.run("slurm", ("sacctmgr", "-i", *words))
    sandbox.run("root", ("slicewise", "tenant", "create", name))
    quota = ("slicewise", "tenant-quota")
    sandbox.run("root", (*quota, "set", name, "--nominal", "3", "--overcommit", "--timeout", "60"))
    sandbox.run(
        "root", ("slicewise", "budget", "set", name, "--amount", "100", "--period", "month")
    )
    job = ("sbatch", "--parsable", "--output=/dev/null", "--time=5", "--gres=gpu:1g.10gb:1")
    own = (*job, f"--account={name}", f"--job-name={NAME}", f"--comment={NAME}")
    ran = sandbox.run("alice", (*own, "--wrap=true")).stdout.split(";")[0].strip()
    # Accounting leaves out of a window what came in its last seconds.
    until(lambda: f"{ran}|COMPLETED" in ended(sandbox, name))
    sandbox.run("alice", (*own, "--hold", "--wrap=true"))
    yield name
    sandbox.run("slurm", ("scancel", "-A", name))
    sandbox.run("root", ("slicewise", "tenant", "delete", name, "--yes"), check=False)


def ended(sandbox: Sandbox, account: str) -> str:
    window = ("-S", "now-1hours", "-E", "now")
    argv = ("sacct", "-a", "-X", "-n", "-P", "-A", account, *window, "-o", "JobID,State")
    return sandbox.run("slurm", argv).stdout


def taken(sandbox: Sandbox, path: Path, *words: str) -> tuple[TakenSnapshot, dict[str, Any]]:
    argv = ("slicewise", "snapshot", str(path), "--json", *words)
    said = json.loads(sandbox.run("root", argv).stdout)
    return read_snapshot(path), said


def lines(sandbox: Sandbox, *argv: str) -> list[list[str]]:
    return [line.split("|") for line in sandbox.run("slurm", argv).stdout.splitlines()]


@pytest.mark.promise("A snapshot for slicewise simulate has what Slurm and the ledger say.")
def test_it_is_what_slurm_and_the_ledger_say(sandbox: Sandbox, lab: str, tmp_path: Path):
    path = tmp_path / "site.zip"
    archive, said = taken(sandbox, path, "--pseudonyms", "none", "--days", "1")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    snapshot, site = archive.snapshot, described(archive.snapshot)

    nodes = lines(sandbox, "sinfo", "-h", "-N", "-o", "%N|%w|%c|%R")
    shown = {(node, int(weight), int(cpus)) for node, weight, cpus, _ in nodes}
    found = {(one.name, one.weight, one.cpus) for one in snapshot.nodes}
    assert found == shown
    assert {(one.name, of) for one in snapshot.nodes for of in one.partitions} == {
        (node, partition) for node, _, _, partition in nodes
    }
    assert not any(one.address for one in snapshot.nodes)

    shares = lines(sandbox, "sacctmgr", "-n", "-P", "show", "assoc", "format=account,user,share")
    assert {
        (one.account, one.user, "parent" if one.share is None else str(one.share))
        for one in snapshot.associations
    } == {tuple(row) for row in shares}
    assert (site.cluster.accounts[lab], site.cluster.shares[lab]) == ("root", 7)
    qos = lines(sandbox, "sacctmgr", "-n", "-P", "show", "qos", "format=name,priority")
    assert {(one.name, str(one.priority)) for one in snapshot.qos} == {tuple(row) for row in qos}

    queue = lines(sandbox, "squeue", "-h", "-A", lab, "-o", "%i|%q|%a|%j")
    own = [one for one in snapshot.jobs if one.account == lab]
    assert [[str(one.job_id), one.qos, one.account, one.name] for one in own] == queue
    assert [(one.state, one.held, one.comment) for one in own] == [(JobState.PENDING, True, "")]

    config = sandbox.run("slurm", ("scontrol", "show", "config")).stdout
    pairs = (line.partition("=") for line in config.splitlines())
    of_slurm = {key.strip(): value.strip() for key, _, value in pairs}
    kept = dict(snapshot.config)
    # Where munge listens is left out.
    assert kept.pop("AuthInfo") in of_slurm["AuthInfo"].split(",")
    assert kept.items() <= of_slurm.items()
    assert snapshot.slurm_version == parse_version(of_slurm["SLURM_VERSION"])

    tenants = json.loads(sandbox.run("root", ("slicewise", "tenant", "list", "--json")).stdout)
    assert {(one["tenant"], one["parent"], one["nominal_millislices"]) for one in tenants} == {
        (name, one.parent, one.quota.nominal_millislices)
        for name, one in snapshot.ledger.tenants.items()
    }
    budget = snapshot.ledger.tenants[lab].budget
    assert budget is not None
    assert budget.amount == 100 * 3600 * 1000
    assert snapshot.ledger.known == {}

    assert archive.history is not None
    ran = [job for job in archive.history.jobs if job.started_s is not None]
    own_runs = [(job.gpus, job.time_limit_s) for job in ran if job.account == lab]
    assert own_runs == [({"1g.10gb": 1}, 300)]
    assert archive.history.first_unread == ""
    assert snapshot.history_since_s == snapshot.taken_s + 1 - 86_400
    # Tasks of an array that wait are several jobs, and one line of accounting.
    assert said["runs"] >= len(ran) > 0
    assert said["tenants"] == len(tenants)


def test_names_are_others(sandbox: Sandbox, lab: str, tmp_path: Path):
    alice = sandbox.state.users["alice"].name
    for which, gone in (("names", ()), ("all", (lab,))):
        path = tmp_path / f"{which}.zip"
        archive, said = taken(sandbox, path, "--pseudonyms", which, "--days", "1")
        assert said["pseudonyms"] == which
        with zipfile.ZipFile(path) as packed:
            text = "".join(packed.read(name).decode() for name in packed.namelist())
        directory = str(sandbox.layout.etc.parent)
        for word in (alice, NAME, directory, sandbox.layout.head_address, *gone):
            assert word not in text
        accounts = {one.account for one in archive.snapshot.associations}
        assert archive.history is not None
        assert {job.account for job in archive.history.jobs} <= accounts
    assert lab not in accounts


def test_its_service_is_simulated_under_a_trace(sandbox: Sandbox, lab: str, tmp_path: Path):
    keys = {
        "name": "traced",
        "tenant": lab,
        "model": "tokens",
        "model_repository": str(publish_models(sandbox.layout.models)),
        "profile": "1g.10gb",
        "max_replicas": 2,
        "p95_ms": 60_000,
        "keep_alive_s": 5,
    }
    file = sandbox.layout.home / sandbox.state.users["alice"].name / "traced.toml"
    lines = (f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
    file.write_text("".join(("[service]\n", *lines)))
    sandbox.run("alice", ("slicewise", "service", "apply", str(file)))
    site, jobs, trace = (tmp_path / name for name in ("site.zip", "jobs.csv", "requests.csv"))
    taken(sandbox, site, "--pseudonyms", "none")
    columns = "timestamp,duration,num_gpus,gpu_time,cluster"
    jobs.write_text(f"{columns}\n2026-10-01 00:00:00,600,1,600,a\n")
    trace.write_text("0,2\n1,2\n600,2\n")
    words = ("--requests", f"{lab}/traced={trace}", "--jobs", str(jobs), "--days", "1", "--json")
    found = json.loads(sandbox.run("root", ("slicewise", "simulate", str(site), *words)).stdout)
    (service,) = found["present"]["services"]
    assert (service["service"], service["requests"], service["lost"]) == (f"{lab}/traced", 3, 0)
    # A replica loads for a minute, as nobody has measured it: those that wake one are late.
    assert service["attainment"] == 0.0
    assert 60 < service["wait_p99_s"] < 90
    assert service["slice_s"] > 60
    assert any("not measured, so assumed" in note for note in found["notes"])


def test_a_place_where_nothing_can_be_written_is_refused(sandbox: Sandbox, lab: str):
    done = sandbox.run("root", ("slicewise", "snapshot", "/nowhere/site.zip"), check=False)
    assert done.returncode == 2
    assert "SW-OUTPUT" in done.stderr
