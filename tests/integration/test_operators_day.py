"""The operator's day on the sandbox: from Slurm's accounts to a statement that adds up."""

import csv
import io
import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from ledger_rows import rows_of_every_table
from processes import children_of
from quotas import until_in_force
from waiting import until, until_is

from slicewise.cluster.language.codes import Code
from slicewise.cluster.settings.gateway import GatewaySettings
from slicewise.cluster.settings.read import load_settings
from slicewise.launcher.gateway.identity import create
from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.host.inventory import CLUSTER
from slicewise.slurm_plugin.rules.limits.warnings import modify_account

pytestmark = pytest.mark.integration

SLICE_HOUR = 3_600_000


class Operator:
    """Runs commands as root; on a ledger of its own, with those variables, if given some."""

    def __init__(self, sandbox: Sandbox, **variables: str) -> None:
        self.sandbox = sandbox
        named = (f"{name}={value}" for name, value in variables.items())
        self._environment = ("env", *named) if variables else ()

    def run(self, *words: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        argv = (*self._environment, "slicewise", *words)
        answer = self.sandbox.run("root", argv, check=False)
        assert not check or answer.returncode == 0, answer.stderr
        return answer

    def said(self, *words: str) -> str:
        return self.run(*words).stdout

    def read(self, *words: str) -> Any:
        return json.loads(self.said(*words, "--json"))

    def refused(self, *words: str) -> str:
        answer = self.run(*words, check=False)
        assert "Traceback" not in answer.stderr
        message, hint, code = answer.stderr.strip().rsplit("\n", 2)
        assert answer.returncode == Code(code).exit_code, answer
        assert message
        assert hint
        return code


def account(sandbox: Sandbox, parent: str = "root", user: str = "") -> str:
    """An account of its own in Slurm."""
    name = f"unit{uuid4().hex[:8]}"
    sandbox.run("slurm", ("sacctmgr", "-i", "add", "account", name, f"parent={parent}"))
    if user:
        member = sandbox.state.users[user].name
        sandbox.run("slurm", ("sacctmgr", "-i", "add", "user", member, f"account={name}"))
    return name


def diagnosed(sandbox: Sandbox, *words: str, **variables: str) -> tuple[int, dict[str, str]]:
    """The doctor's exit code, and what it finds, by code."""
    answer = doctor(sandbox, *words, "--json", **variables)
    assert not answer.stderr, answer.stderr
    sections = json.loads(answer.stdout)["sections"]
    found = {one["code"]: one["what"] for part in sections for one in part["findings"]}
    return answer.returncode, found


def doctor(sandbox: Sandbox, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run it with settings that accept what these tests alone have: PostgreSQL with fsync off."""
    settings = sandbox.layout.settings_file
    known = settings.with_name("known.toml")
    known.write_text(settings.read_text().replace("accept = [", 'accept = ["SW-LEDGER-FSYNC", '))
    environment = {"SLICEWISE_CONFIG": str(known), **variables}
    argv = ("env", *(f"{name}={value}" for name, value in environment.items()))
    return sandbox.run("root", (*argv, "slicewise", "doctor", *words), check=False)


@pytest.mark.promise("The doctor has nothing to mend on a good site.")
def test_the_doctor_has_nothing_to_mend_on_a_good_site(sandbox: Sandbox):
    # Right after a module before this one the daemon may still put limits back.
    until_is(lambda: diagnosed(sandbox), (0, {}))
    section = ("--section", "daemon")
    assert "nothing to mend" in doctor(sandbox, *section).stdout
    assert doctor(sandbox, *section, "--fix").stdout == "# nothing to mend\n"


SECURITY = Path(__file__).parents[2] / "docs" / "explanation" / "security.md"


def test_files_sockets_and_ports_are_those_that_the_pages_name(sandbox: Sandbox):
    settings, layout = load_settings(sandbox.layout.settings_file), sandbox.layout
    section = SECURITY.read_text().partition("## Files and sockets\n")[2].partition("\n## ")[0]
    named = dict(re.findall(r"^\| `(\S+) \| (0\d+) \|", section, re.MULTILINE))
    places = {
        "daemon.run_dir": layout.run_dir,
        "gateway.directory": layout.gateway_directory,
        "gateway.identity": settings.gateway.identity,
        "gateway.runtime_socket": settings.gateway.runtime_socket,
    }
    for name, mode in named.items():
        key, _, rest = name.partition("`")
        path = Path(f"{places[key]}{rest}")
        assert f"{path.stat().st_mode & 0o777:04o}" == mode, name
    assert len(named) == 11
    listen = int(str(settings.daemon.listen).rpartition(":")[2])
    assert (listening(sandbox, "daemon"), listening(sandbox, "launcher")) == ({listen}, set())


def listening(sandbox: Sandbox, name: str) -> set[int]:
    """TCP ports on which a server, or a child of it, listens."""
    first = sandbox.state.processes[name].pid
    held: set[str] = set()
    for pid in (first, *children_of(first)):
        for one in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                held.add(str(one.readlink()))
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{first}/net/{table}").read_text().splitlines()[1:]
    ]
    listens = "0A"
    return {
        int(row[1].rpartition(":")[2], 16)
        for row in rows
        if row[3] == listens and f"socket:[{row[9]}]" in held
    }


SPOILT_CONF = """\
KillWait=2
JobRequeue=0
RequeueExitHold=99
MinJobAge=20
PriorityWeightQOS=16000
PreemptMode=CANCEL
"""


@pytest.mark.promise("The doctor finds what Slurm has otherwise than the ledger says.")
def test_the_doctor_finds_what_slurm_has_otherwise(sandbox: Sandbox):
    site = sandbox.layout.site_conf
    before = site.read_text()
    # The site's own PreemptMode is not among them: that of a QOS wins.
    due = ("BOUNDS", "KILL-WAIT", "REQUEUE", "SERVICES", "WEIGHTS")
    wanted = {f"SW-CONF-{word}" for word in due}
    try:
        site.write_text(SPOILT_CONF)
        sandbox.run("slurm", ("scontrol", "reconfigure"))
        until_is(lambda: set(diagnosed(sandbox, "--section", "slurm")[1]), wanted)
        fixes = doctor(sandbox, "--fix").stdout
        mended = {"KillWait=30", "MinJobAge=300", "RequeueExitHold=99,187"}
        assert mended <= set(fixes.splitlines())
        assert "PreemptMode" not in fixes
    finally:
        site.write_text(before)
        sandbox.run("slurm", ("scontrol", "reconfigure"))
    until_is(lambda: diagnosed(sandbox, "--section", "slurm"), (0, {}))


def test_the_doctor_finds_what_is_wrong_with_files_settings_and_programs(
    sandbox: Sandbox,
):
    layout = sandbox.layout
    (layout.etc / "database-url").chmod(0o644)
    (layout.etc / "off").touch()
    sandbox.stop("daemon")
    sandbox.stop("launcher")
    elsewhere = layout.database_url("olga")
    try:
        code, found = diagnosed(sandbox, SLICEWISE_DATABASE_URL=elsewhere)
    finally:
        (layout.etc / "database-url").chmod(0o600)
        (layout.etc / "off").unlink()
        sandbox.restore(print)
    assert code == 1
    down = ("DAEMON-DOWN", "LAUNCHER-DOWN", "DATABASE-DOWN", "FILE-RIGHTS", "SCRIPT-OFF")
    assert set(found) == {f"SW-{word}" for word in down}
    assert "database-url has mode 0644" in found["SW-FILE-RIGHTS"]
    back = ("--section", "daemon", "--section", "gateway", "--section", "host")
    until_is(lambda: diagnosed(sandbox, *back), (0, {}))

    # Of settings that Slurm, the daemon and the gateway do not have.
    text = layout.settings_file.read_text()
    other = text.replace('mode = "enforce"', 'mode = "observe"').replace("[gateway]", OTHER)
    copy = layout.etc / "other.toml"
    copy.write_text(re.sub("munge_socket = .*", "", other))
    try:
        code, found = diagnosed(sandbox, SLICEWISE_CONFIG=str(copy))
    finally:
        copy.unlink()
    wanted = {"RESTART", "GATEWAY-STALE", "CONF-AUTH", "SACCTMGR-DUMP"}
    assert {f"SW-{word}" for word in wanted} <= set(found)
    assert "haproxy.cfg" in found["SW-GATEWAY-STALE"]
    assert code == 1  # no munged answers at the default socket


OTHER = "[gateway]\nhold_s = 17"


def test_the_doctor_sees_as_slurmuser_and_the_launcher_do_what_root_reads(
    sandbox: Sandbox, tmp_path: Path
):
    layout, users = sandbox.layout, sandbox.state.users
    url, key = layout.etc / "database-url", layout.gateway_directory / "identity.pem"
    identity = load_settings(layout.settings_file).gateway.identity
    other = GatewaySettings(directory=tmp_path, identity=tmp_path / "gateway.crt")
    create(other)
    known, owners = identity.read_bytes(), {path: path.stat() for path in (url, key)}
    role = users["slurm"].name
    psql = ("env", "PGOPTIONS=-c default_transaction_read_only=off", "psql", "--quiet")
    psql = (*psql, layout.database_url(role), "--command")
    try:
        for path in owners:
            os.chown(path, 0, 0)
            path.chmod(0o600)
        identity.write_bytes(other.identity.read_bytes())
        sandbox.run("root", (*psql, f'ALTER ROLE "{role}" SET {READ_ONLY} = on'))
        found = diagnosed(sandbox)[1]
        said = " ".join(doctor(sandbox).stdout.split())
    finally:
        sandbox.run("root", (*psql, f'ALTER ROLE "{role}" RESET {READ_ONLY}'))
        identity.write_bytes(known)
        for path, before in owners.items():
            os.chown(path, before.st_uid, before.st_gid)
            path.chmod(before.st_mode & 0o777)
    wanted = {"SW-FILE-RIGHTS", "SW-GATEWAY-IDENTITY", "SW-DATABASE-READ-ONLY"}
    assert wanted <= found.keys()
    assert f"User {role} can't read {url}" in said
    assert f"User {users['slicewise'].name} can't read {key}" in said
    until_is(lambda: diagnosed(sandbox), (0, {}))


READ_ONLY = "default_transaction_read_only"


@pytest.mark.promise("slicewise setup proposes the files of a site and changes nothing.")
def test_setup_proposes_what_the_site_has_and_changes_nothing(sandbox: Sandbox):
    etc = sandbox.layout.etc
    before = {path: path.read_bytes() for path in etc.rglob("*") if path.is_file()}
    answers, output = sandbox.layout.home / "answers.toml", sandbox.layout.home / "proposals"
    answers.write_text('login_hosts = ["login1"]\n')
    words = ("slicewise", "setup", "--answers", str(answers), "--output", str(output))
    sandbox.run("root", words)
    assert {path: path.read_bytes() for path in etc.rglob("*") if path.is_file()} == before
    proposed, own = (load_settings(path) for path in (output / "slicewise.toml", settings(sandbox)))
    assert proposed.cluster == own.cluster
    assert proposed.costs.keys() <= own.costs.keys()
    lines = (output / "slurm.conf.lines").read_text()
    assert "TaskPlugin=task/cgroup,task/affinity" in lines
    assert "RequeueExitHold" not in lines  # the sandbox has it


def settings(sandbox: Sandbox) -> Path:
    return sandbox.layout.settings_file


@pytest.fixture
def served(sandbox: Sandbox) -> Iterator[tuple[Operator, str, str]]:
    """The sandbox's own ledger with a tenant and one below it, for alice."""
    operator = Operator(sandbox)
    above = account(sandbox)
    below = account(sandbox, above, "alice")
    yield operator, above, below
    sandbox.run("slurm", ("scancel", "-A", below))
    for name in (below, above):
        operator.run("tenant", "delete", name, "--yes", check=False)


def test_the_doctor_finds_what_only_sacctmgr_shows(served: tuple[Operator, str, str]):
    operator, above, name = served
    sandbox, user = operator.sandbox, operator.sandbox.state.users["alice"].name
    for tenant in (above, name):
        operator.run("tenant", "create", tenant)
        operator.run("tenant-quota", "set", tenant, "--nominal", "1")
    until_in_force(sandbox, above, name)
    qos = f"slicewise_{name}"

    def sacctmgr(*words: str) -> None:
        sandbox.run("slurm", ("sacctmgr", "-i", *words))

    def fixes() -> list[str]:
        lines = doctor(sandbox, "--section", "limits", "--fix").stdout.splitlines()
        ours = ("sacctmgr modify qos", "sacctmgr modify user")
        return sorted(one for one in lines if one.startswith(ours))

    assert fixes() == []
    bounds = ("MaxTRESPerUser=gres/gpu=0", "MaxJobsPerAccount=0", "MaxWall=1-00:00:00")
    try:
        sacctmgr("modify", "qos", qos, "set", *bounds)
        sacctmgr("modify", "user", user, "set", "AdminLevel=Operator")
        found = fixes()
        assert found == [
            f"sacctmgr modify qos {qos} set MaxJobsPerAccount=-1",
            f"sacctmgr modify qos {qos} set MaxTRESPerUser=gres/gpu=-1",
            f"sacctmgr modify qos {qos} set MaxWall=-1",
            f"sacctmgr modify user {user} set AdminLevel=None",
        ]
        for line in found:
            sacctmgr(*line.split()[1:])
        assert fixes() == []
    finally:
        restored = ("sacctmgr", "-i", "modify", "user", user, "set", "AdminLevel=None")
        sandbox.run("slurm", restored, check=False)


OTHER_CLUSTER = """\
add cluster other
add account {0} cluster=other maxsubmitjobs=7
modify account where name={0} cluster=other set qos+=slicewise_{0}
quit
"""


def test_what_another_cluster_of_slurmdbd_has_is_named_and_left_alone(
    served: tuple[Operator, str, str],
):
    operator, name, _ = served
    sandbox = operator.sandbox

    def others() -> str:
        where = ("where", "cluster=other", "format=cluster,account,qos,maxsubmit,parentname")
        return sandbox.run("slurm", ("sacctmgr", "-nP", "show", "assoc", *where)).stdout

    operator.said("tenant", "create", name)
    operator.said("tenant-quota", "set", name, "--nominal", "1")
    until_in_force(sandbox, name)
    try:
        sandbox.run("slurm", ("sacctmgr", "-i"), input=OTHER_CLUSTER.format(name))
        before = others()
        assert f"slicewise_{name}|7|root" in before
        _, found = diagnosed(sandbox, "--section", "limits")
        assert found["SW-LIMITS-SHARED"].endswith(f", too: {name}")
        # What is advised for an account of which both clusters have one.
        advised = modify_account(name, CLUSTER, "MaxSubmitJobs=1000").split()
        sandbox.run("slurm", (advised[0], "-i", *advised[1:]))
        operator.said("tenant-quota", "set", name, "--nominal", "2")
        until_in_force(sandbox, name)
        assert others() == before
    finally:
        sandbox.run("slurm", ("sacctmgr", "-i", "delete", "cluster", "other"))


def test_from_an_account_to_a_statement_that_adds_up(served: tuple[Operator, str, str]):
    operator, above, below = served
    assert "is now a tenant at the top" in operator.said("tenant", "create", above)
    operator.said("tenant-quota", "set", above, "--nominal", "3", "--reason", "one of three GPUs")
    set_words = ("tenant-quota", "set", below, "--nominal", "2", "--limit", "1g.10gb=1")
    operator.read(*set_words)
    until_in_force(operator.sandbox, above, below)
    found = operator.read("tenant", "show", below)
    assert (found["parent"], found["payer"], found["in_slurm"]) == (above, below, True)
    assert "SW-QUOTA-TREE" in operator.refused("tenant-quota", "set", below, "--nominal", "4")

    # The parent's budget pays.
    budget = ("budget", "set", above, "--period", "day", "--amount", "2", "--overdraft", "1")
    assert operator.read(*budget)["has_started"]
    assert left(operator, above) == 2 * SLICE_HOUR
    granted = ("budget", "grant", above, "--amount", "0.5", "--reason", "for the paper")
    assert operator.read(*granted)["left"] == 2.5 * SLICE_HOUR
    assert operator.read("tenant", "show", below)["payer"] == above

    # Of the type one instance may run, and that is what explain says.
    job = submit(operator.sandbox, below)
    until_is(lambda: operator.read("tenant", "show", below)["running"], 1)
    rooms = {room["gres_type"]: room for room in operator.read("why", "--limits", below)["types"]}
    assert rooms["1g.10gb"]["guaranteed"] == 0
    assert rooms["1g.10gb"]["guaranteed_bound"]["cause"] == "type-limit"
    assert below in operator.said("why", "--limits", below)
    until(lambda: left(operator, above) < 2.5 * SLICE_HOUR)
    time.sleep(2)
    operator.sandbox.run("slurm", ("scancel", job))
    until_is(lambda: operator.read("tenant", "show", below)["running"], 0)

    # It is all in the ledger.
    (run,) = until(lambda: settled(operator, below))
    assert run["used_millislice_s"] == run["seconds"] * 1000 > 0
    (balance,) = operator.read("ledger", "balance", above)
    assert balance["granted"] == 2.5 * SLICE_HOUR
    assert balance["left"] == 2.5 * SLICE_HOUR - run["used_millislice_s"]
    (own,) = operator.read("ledger", "balance", below)
    assert own["used"] == run["used_millislice_s"]
    (budget,) = operator.read("budget", "show", above)
    assert budget["used"] == run["used_millislice_s"]
    assert operator.read("ledger", "verify")["imbalance"] == 0

    # Every figure comes out again.
    rows = list(csv.DictReader(io.StringIO(operator.said("ledger", "export"))))
    own_rows = [row for row in rows if above in {row["tenant"], row["payer"]}]
    posted = [row for row in own_rows if row["kind"] == "post"]
    assert sum(int(row["amount"]) for row in posted) == run["used_millislice_s"]
    assert {row["kind"] for row in own_rows} == {"grant", "reserve", "post", "void"}
    (line,) = csv.DictReader(
        io.StringIO(operator.said("ledger", "statement", below, "--journal", "--csv"))
    )
    assert line["used_millislice_s"] == str(run["used_millislice_s"])

    # And who did what.
    first = operator.read("tenant-quota", "history", above)[-2]
    assert (first["update"]["nominal_millislices"], first["reason"]) == (3000, "one of three GPUs")
    kinds = [event["kind"] for event in operator.read("budget", "history", above)]
    assert kinds == ["grant", "roll", "rule"]
    assert "SW-TENANT-CHILDREN" in operator.refused("tenant", "delete", above)


def settled(operator: Operator, tenant: str) -> list[dict[str, Any]]:
    """Its runs that have ended, as the ledger has them."""
    runs = operator.read("ledger", "statement", tenant, "--journal")["runs"]
    return [run for run in runs if run["end_s"] is not None]


def left(operator: Operator, tenant: str) -> int:
    (line,) = operator.read("ledger", "balance", tenant) or [{}]
    return line.get("left") or 0


def submit(sandbox: Sandbox, tenant: str) -> str:
    options = (f"--account={tenant}", "--gres=gpu:1g.10gb:1", "--time=5", "--output=/dev/null")
    argv = ("sbatch", "--parsable", *options)
    return sandbox.run("alice", argv, input="#!/bin/sh\nsleep 600\n").stdout.strip()


@pytest.fixture
def alone(sandbox: Sandbox, database: str) -> Iterator[Operator]:
    """An empty ledger, with a daemon of its own that only observes Slurm."""
    layout, name = sandbox.layout, "observer"
    run_dir, settings_file = layout.run_dir.parent / name, layout.etc / f"{name}.toml"
    lines = layout.settings_file.read_text().splitlines()
    kept = [line for line in lines if not line.startswith(("mode", "run_dir", "listen", "connect"))]
    own = f'[daemon]\nmode = "observe"\nrun_dir = "{run_dir}"'
    settings_file.write_text("\n".join(kept).replace("[daemon]", own))
    sandbox.run("root", ("install", "-d", "-o", sandbox.state.users["slurm"].name, str(run_dir)))
    operator = Operator(
        sandbox, SLICEWISE_DATABASE_URL=database, SLICEWISE_CONFIG=str(settings_file)
    )
    assert "base → " in operator.said("ledger", "db", "upgrade")
    argv = ("env", f"SLICEWISE_DATABASE_URL={database}", "slicewise", "daemon")
    sandbox.start(name, "slurm", (*argv, "--config", str(settings_file)))
    until(lambda: operator.run("tenant", "list", check=False).returncode == 0)
    yield operator
    sandbox.kill(name)


def test_slurms_tree_is_taken_over_and_compared(sandbox: Sandbox, alone: Operator):
    above = account(sandbox)
    below = account(sandbox, above)
    assert "would be taken over" in alone.said("tenant", "import", "--dry-run")
    assert alone.read("tenant", "list") == []
    alone.said("tenant", "import", "--reason", "the beginning")
    tenants = {one["tenant"]: one for one in alone.read("tenant", "list")}
    assert (tenants[above]["parent"], tenants[below]["parent"]) == ("", above)
    assert tenants["vision"]["in_slurm"]
    assert "root" not in tenants
    assert alone.read("tenant", "check") == []
    assert alone.read("tenant", "import") == []

    sandbox.run("slurm", ("sacctmgr", "-i", "modify", "account", below, "set", "parent=root"))
    assert alone.refused("tenant", "check") == "SW-TENANT-ACCOUNTS"
    (moved,) = alone.read("tenant", "import")
    assert moved["difference"] == {
        "account": below,
        "kind": "moved",
        "parent": above,
        "slurm_parent": "",
    }
    sandbox.run("slurm", ("sacctmgr", "-i", "delete", "account", below))
    assert alone.refused("tenant", "check") == "SW-TENANT-ACCOUNTS"
    alone.said("tenant", "delete", below, "--yes")
    assert alone.read("tenant", "check") == []


SQL_NAME = "x'; DROP TABLE slicewise.transfers; --"
NOT_UTF_8 = "\udcff\udcfe"
# More of these, with a ledger in memory, are in the unit tests.
BAD = (
    (("tenant", "create", "nobody"), "SW-TENANT-UNKNOWN"),
    (("tenant", "create", NOT_UTF_8), "SW-VALUE"),
    (("tenant", "move", "vision", "--parent", "vision"), "SW-TENANT-CHILDREN"),
    (("tenant", "delete", SQL_NAME), "SW-TENANT-UNKNOWN"),
    (("tenant", "delete", "nlp", "--yes", "--reason", NOT_UTF_8), "SW-VALUE"),
    (("tenant-quota", "set", "vision", "--nominal=-1"), "SW-VALUE"),
    (("tenant-quota", "set", "vision", "--nominal", "9999999"), "SW-VALUE"),
    (("tenant-quota", "set", "vision", "--weight", "9" * 40), "SW-VALUE"),
    (("tenant-quota", "set", SQL_NAME, "--nominal", "1"), "SW-VALUE"),
    (("budget", "set", "vision", "--period", "year", "--amount", "1"), "SW-VALUE"),
    (("budget", "set", "vision", "--period", "day", "--amount", "9" * 12), "SW-VALUE"),
    (("budget", "grant", "vision", "--amount", "1", "--reason", "r"), "SW-BUDGET-NONE"),
    (("ledger", "statement", SQL_NAME), "SW-TENANT-UNKNOWN"),
    (("ledger", "db", "grant", SQL_NAME, "--as", "reader"), "SW-DATABASE-ROLE"),
)


def test_bad_input_is_explained_and_writes_nothing(alone: Operator, database: str):
    alone.said("tenant", "create", "vision")
    alone.said("tenant", "create", "nlp")
    before = written_by_operators(database)
    with ThreadPoolExecutor(4) as pool:
        codes = list(pool.map(lambda bad: alone.refused(*bad[0]), BAD))
    assert codes == [code for _, code in BAD]
    assert written_by_operators(database) == before


def written_by_operators(database: str) -> dict[str, int]:
    """Rows by table, but for those that the daemon writes by itself."""
    return {
        table: count
        for table, count in rows_of_every_table(database).items()
        if not table.startswith(DAEMONS_TABLES)
    }


DAEMONS_TABLES = ("history", "observ", "watermark", "lost_runs", "runs", "transfers", "seal")
