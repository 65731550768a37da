"""Admission, sync and actions on the sandbox's real slurmctld, slurmdbd and PostgreSQL.

Only what these have to show: most of slots, loans and budgets is tried on the model (tests/model).
"""

import json
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from quotas import until_in_force
from second_witness import accounted_runs, sacct
from stand_ins.http_peer import sent
from waiting import until, until_is

from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.host.probes import unix_socket_answers
from slicewise.sandbox.servers.slurm import slurmd_version

pytestmark = pytest.mark.integration

SCRIPT = """#!/bin/bash
#SBATCH --job-name=bert --account=vision --array=0-3 --hold --time=30 --requeue
#SBATCH --open-mode=append --output=/dev/null
#SLICEWISE name=bert
#SLICEWISE tenant=vision
#SLICEWISE model_repository=/models
#SLICEWISE model=bert
#SLICEWISE profile=1g.10gb
#SLICEWISE max_replicas=4
trap 'kill $server; exit 187' TERM
srun --resv-ports=3 sh -c 'while [ ! -e "$HOME/end-$SLURM_ARRAY_TASK_ID" ]; do sleep 0.2; done' &
server=$!
wait $server
exit 187
"""
PLAIN = ("sbatch", "--parsable", "--output=/dev/null", "--time=5", "--gres=gpu:1g.10gb:1")
REST_S = 4.0
"""Looks are further apart only where nothing happens."""
ASK = """
import http.client, socket, sys
place, method, target, body = sys.argv[1:]
connection = http.client.HTTPConnection("localhost")
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.settimeout(120)
connection.sock.connect(place)
connection.request(method, target, body or None)
print(connection.getresponse().read().decode())
"""


class Daemon:
    """The daemon as a user reaches it, and Slurm beside it."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self._socket = sandbox.layout.run_dir / "user.sock"
        # What ran before is another module's: ends that move, and jobs that gave nodes back.
        self._began_s = int(time.time())

    def ask(self, user: str, op: str, **fields: object) -> dict[str, Any]:
        method, target, body = sent(op, **fields)
        argv = ("/usr/bin/python3", "-c", ASK, str(self._socket), method, target, body.decode())
        return dict(json.loads(self.sandbox.run(user, argv).stdout))

    def set_desired_slots(
        self, array: int, *slots: int, avoid: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        # JSON has no numbers as keys.
        after = self.ask("slicewise", op="view")["desired_slots_versions"].get(str(array), 0)
        wish = {
            "array_job_id": array,
            "slots": slots,
            "avoid_nodes": avoid,
            "replaces_version": after,
        }
        return self.ask("slicewise", op="desired-slots", **wish)

    def slots(self, array: int) -> list[dict[str, Any]]:
        services = self.ask("slicewise", op="view")["services"]
        return [slot for s in services if s["array_job_id"] == array for slot in s["slots"]]

    def states(self, array: int) -> list[str]:
        return [slot["state"] for slot in self.slots(array)]

    def is_up(self) -> bool:
        return unix_socket_answers(self._socket)

    def start(self) -> None:
        self.sandbox.start("daemon", "slurm", ("slicewise", "daemon"))
        until(self.is_up)

    def kill(self) -> None:
        self.sandbox.kill("daemon", signal.SIGKILL)
        # Who answers slicewise.lua is another process, which ends a moment after the daemon.
        admission = self.sandbox.layout.run_dir / "admission" / "admission.sock"
        until(lambda: not self.is_up() and not unix_socket_answers(admission))

    def sbatch(self, user: str, *argv: str, script: str | None = None) -> tuple[int, str]:
        done = self.sandbox.run(user, argv or ("sbatch", "--parsable"), input=script, check=False)
        return done.returncode, done.stdout + done.stderr

    def job(self, job_id: int) -> str:
        return self.sandbox.run("root", ("scontrol", "show", "job", str(job_id))).stdout

    def scontrol(self, user: str, *words: str) -> int:
        return self.sandbox.run(user, ("scontrol", *words), check=False).returncode

    def slicewise(self, *words: str) -> str:
        return self.sandbox.run("root", ("slicewise", *words)).stdout

    def set_quota(self, tenant: str, slices: str, *limits: str) -> None:
        self.slicewise("tenant-quota", "set", tenant, "--nominal", slices, *limits)
        until_in_force(self.sandbox, tenant)

    def looked_s(self) -> float:
        """When the last look at Slurm began."""
        return float(self.ask("root", op="status")["observed_s"])

    def asked(self) -> Counter[str]:
        """Requests to slurmctld by kind, without those of sdiag."""
        shown = self.sandbox.run("root", ("sdiag",)).stdout
        kinds = shown.partition("by message type")[2].partition("by user")[0]
        rows = re.findall(r"(\w+) +\( *\d+\) count:(\d+)", kinds)
        return Counter({kind: int(count) for kind, count in rows if kind != "REQUEST_STATS_INFO"})

    def run_minutes(self) -> str:
        """What slurmdbd has of vision's own QOS."""
        show = ("sacctmgr", "-n", "show", "qos", "slicewise_vision", "format=grptresrunm")
        return self.sandbox.run("root", show).stdout.strip()

    def job_states(self, user: str) -> list[str]:
        squeue = ("squeue", "--noheader", f"--user={user}", "--format=%T %r")
        return sorted(self.sandbox.run("root", squeue).stdout.splitlines())

    def runs(self, user: str) -> list[str]:
        """Jobs that run, and since when."""
        squeue = ("squeue", "--noheader", f"--user={user}", "--states=running", "--format=%i %S")
        return sorted(self.sandbox.run("root", squeue).stdout.splitlines())

    def statement(self) -> Mapping[tuple[str, int], int]:
        """Settled millislice-seconds by task and start, waived ones included."""
        rows = json.loads(self.slicewise("ledger", "statement", "--journal", "--json"))["runs"]
        return {
            (row["task"], row["start_s"]): row["used_millislice_s"] + row["waived_millislice_s"]
            for row in rows
            if row["end_s"] is not None and row["start_s"] >= self._began_s
        }

    def accounting(self) -> Mapping[tuple[str, int], int]:
        """The same out of sacct."""
        return {
            (run.task, run.start_s): run.used_millislice_s
            for run in accounted_runs(self.sandbox)
            if run.start_s >= self._began_s
        }

    def differences(self) -> set[tuple[tuple[str, int], int]]:
        """What only one of the two says."""
        return set(self.statement().items() ^ self.accounting().items())


@pytest.fixture(scope="module")
def daemon(sandbox: Sandbox) -> Iterator[Daemon]:
    """Without the launcher: it would desire slots of its own."""
    sandbox.stop("launcher")
    daemon = Daemon(sandbox)
    daemon.set_quota("vision", "3")
    daemon.set_quota("nlp", "5")
    yield daemon
    sandbox.start("launcher", "slicewise", ("slicewise", "launcher"))


@pytest.fixture
def array(daemon: Daemon) -> Iterator[int]:
    """A service of four slots, all held as administrator."""
    code, text = daemon.sbatch("alice", script=SCRIPT)
    assert code == 0, text
    array = int(text)
    until_is(lambda: [slot["reason"] for slot in daemon.slots(array)], ["JobHeldAdmin"] * 4)
    yield array
    cancel_all(daemon)


@pytest.fixture
def clean(daemon: Daemon) -> Iterator[None]:
    yield
    cancel_all(daemon)


def cancel_all(daemon: Daemon) -> None:
    for user in ("alice", "bob", "carol"):
        daemon.sandbox.run("root", ("scancel", f"--user={user}"), check=False)
    until(lambda: not daemon.sandbox.run("root", ("squeue", "--noheader")).stdout)
    until(lambda: not daemon.is_up() or not daemon.ask("slicewise", op="view")["services"])


@pytest.mark.promise("A plain sbatch gets its QOS, its priority and its tag at the submission.")
@pytest.mark.usefixtures("clean")
def test_a_plain_job_gets_qos_priority_and_tag(daemon: Daemon) -> None:
    code, text = daemon.sbatch("alice", *PLAIN, "--hold", "--wrap=true")
    assert code == 0, text
    job = daemon.job(int(text))
    assert re.search("QOS=slicewise_vision *$", job, flags=re.MULTILINE)
    tag = "AdminComment=slicewise:1 token=[0-9a-f]{16} tenant=vision flexible *$"
    assert re.search(tag, job, flags=re.MULTILINE)
    assert daemon.scontrol("alice", "update", f"JobId={text.strip()}", "QOS=normal") != 0
    assert daemon.scontrol("alice", "release", text.strip()) == 0


REFUSED = [
    # user, arguments, what the terminal must show
    ("carol", ("--gres=gpu:1g.10gb:1",), ["SW-QUOTA-NONE", "tenant-quota set guest"]),
    ("alice", ("--gres=gpu:1",), ["SW-GRES", "gpu:TYPE:1", "3g.40gb (3.5)"]),
    ("alice", ("--gpus=2",), ["SW-GRES"]),
    ("alice", ("--gpus=+1",), ["SW-GRES", "gpu:TYPE:COUNT"]),
    ("alice", ("--ntasks=2", "--ntasks-per-gpu=1"), ["SW-GRES"]),
    ("alice", ("--ntasks=1", "--gpus-per-task=1g.99gb:1"), ["SW-PROFILE-UNKNOWN", "1g.10gb"]),
    ("alice", ("--gres=gpu:3g.40gb:1",), ["SW-QUOTA-EXCEEDED", "3.5", "is 3"]),
]


@pytest.mark.parametrize(("user", "options", "words"), REFUSED)
def test_refused(daemon: Daemon, user: str, options: tuple[str, ...], words: list[str]) -> None:
    code, text = daemon.sbatch(user, "sbatch", *options, "--output=/dev/null", "--wrap=true")
    assert code == 1
    assert [word for word in words if word not in text] == []
    assert daemon.sandbox.run("root", ("squeue", "--noheader", "--user", user)).stdout == ""


def test_a_wrong_service_is_refused(daemon: Daemon) -> None:
    for change, code in (("-3", "SW-SERVICE"), ("-3%2", "SW-SERVICE")):
        script = SCRIPT.replace("--array=0-3", f"--array=1{change}")
        assert code in daemon.sbatch("alice", script=script)[1]
    script = SCRIPT.replace("model_repository=/models", "model_repository=/m;id")
    assert "model_repository" in daemon.sbatch("alice", script=script)[1]


@pytest.mark.promise("slicewise check tells the decision that the submission would meet.")
def test_check_is_the_same_decision(daemon: Daemon) -> None:
    lines = [line for line in SCRIPT.splitlines() if line.startswith("#SLICEWISE")]
    for _ in range(2):
        reply = daemon.ask("alice", op="admission-check", tenant="vision", directives=lines)
        assert (reply["action"], reply["gres"]) == ("admit", "gpu:1g.10gb:1")
    foreign = daemon.ask("bob", op="admission-check", tenant="vision", directives=lines)
    assert foreign["code"] == "SW-TENANT-UNKNOWN"
    assert foreign["hint"].startswith("Yours: nlp. ")


@pytest.mark.parametrize("who", ["alice", "bob"])
def test_a_slot_is_not_its_users(daemon: Daemon, array: int, who: str) -> None:
    assert daemon.scontrol(who, "release", f"{array}_0") != 0
    assert daemon.scontrol(who, "update", f"JobId={array}_0", "Priority=9") != 0
    assert daemon.scontrol(who, "update", f"JobId={array}", "QOS=normal") != 0
    assert daemon.scontrol(who, "update", f"JobId={array}", "Gres=gpu:3g.40gb:1") != 0
    assert daemon.scontrol(who, "update", f"JobId={array}", "AdminComment=mine") != 0
    assert daemon.states(array) == ["held"] * 4


def test_who_may_ask_what(daemon: Daemon, array: int) -> None:
    desired = {"array_job_id": array, "slots": [0], "replaces_version": 0}
    assert daemon.ask("alice", op="desired-slots", **desired)["code"] == "SW-FORBIDDEN"
    assert daemon.ask("bob", op="service-delete", array_job_id=array)["code"] == "SW-FORBIDDEN"
    assert (
        daemon.ask("slicewise", op="service-delete", array_job_id=array)["code"] == "SW-FORBIDDEN"
    )
    assert [s["name"] for s in daemon.ask("alice", op="view")["services"]] == ["bert"]
    bobs = daemon.ask("bob", op="view")
    assert bobs["services"] == []
    assert [tenant["name"] for tenant in bobs["tenants"]] == ["nlp"]
    assert daemon.ask("alice", op="service-delete", array_job_id=array) == {"v": 1, "ok": True}
    until_is(lambda: daemon.slots(array), [])


def test_a_slot_that_no_other_node_can_run_starts_on_one_that_it_avoids(
    daemon: Daemon, array: int
) -> None:
    """Slurm holds it, as no node fits; then it avoids none."""
    assert daemon.scontrol("root", "update", f"JobId={array}_0", "ReqNodeList=gpu01") == 0
    daemon.set_desired_slots(array, 0, avoid=("gpu01",))

    def state() -> str:
        found = daemon.states(array)[0]
        if found == "held":
            daemon.set_desired_slots(array, 0, avoid=("gpu01",))
        return found

    until_is(state, "running")
    assert daemon.slots(array)[0]["node"] == "gpu01"


def test_at_rest_slurmctld_is_asked_little_and_what_happens_ends_the_rest(
    daemon: Daemon, array: int
) -> None:
    """At two looks a second it was asked 40 times in these five seconds."""

    def next_look() -> tuple[float, float, Counter[str]] | None:
        """When it began, the seconds from the look before, and what was asked for it.

        None where a look came between two readings, or was due: it would be counted or left out.
        """
        before_s, before = daemon.looked_s(), daemon.asked()
        if daemon.looked_s() != before_s:
            return None
        until(lambda: daemon.looked_s() != before_s)
        now_s, now = daemon.looked_s(), daemon.asked()
        is_next = daemon.looked_s() == now_s and time.time() < now_s + REST_S
        return (now_s, now_s - before_s, now - before) if is_next else None

    def look_at_rest() -> tuple[float, float, Counter[str]] | None:
        found = next_look()
        return found if found is not None and found[1] > REST_S else None

    at_s, apart_s, asked = until(look_at_rest)
    assert asked["REQUEST_JOB_INFO"] <= 1
    assert asked["REQUEST_JOB_STEP_INFO"] == 0
    # Limits are compiled every 15 s, and where nodes are is asked every 30 s.
    assert asked.total() <= 12, (at_s, apart_s, asked)
    assert daemon.set_desired_slots(array, 0)["released"] == [0]
    until_is(lambda: daemon.states(array), ["running"] + ["held"] * 3)
    # Its ports are known, so that they are not asked for any more.
    until(lambda: (one := next_look()) and not one[2]["REQUEST_JOB_STEP_INFO"])
    assert len(daemon.slots(array)[0]["ports"]) == 3


@pytest.mark.promise("A daemon that is killed loses nothing.")
def test_killed_and_started_again_nothing_is_lost(daemon: Daemon, array: int) -> None:
    daemon.set_desired_slots(array, 0, 1)
    until_is(lambda: daemon.states(array)[:2], ["running"] * 2)
    before = daemon.slots(array)[:2]
    runs = {(f"{array}_{slot['index']}", slot["start_s"]) for slot in before}
    daemon.kill()
    daemon.start()
    kept = ("job_id", "node", "ports", "start_s")
    after = daemon.slots(array)[:2]
    assert [[slot[key] for key in kept] for slot in after] == [
        [slot[key] for key in kept] for slot in before
    ]
    daemon.set_desired_slots(array)
    until_is(lambda: daemon.states(array), ["held"] * 4)
    # Accounting learns of an end late: until then both are silent of it, and do not differ.
    until(lambda: runs <= daemon.statement().keys())
    until_is(daemon.differences, set())
    assert len(daemon.statement()) >= 2


def test_a_run_that_its_user_hides_from_sacct_is_charged(daemon: Daemon, array: int) -> None:
    daemon.set_desired_slots(array, 0)
    until_is(lambda: daemon.states(array)[0], "running")
    start_s = daemon.slots(array)[0]["start_s"]
    time.sleep(2)
    assert daemon.scontrol("alice", "hold", f"{array}_0") == 0
    assert daemon.states(array)[0] == "running"
    daemon.set_desired_slots(array)
    until_is(lambda: daemon.states(array)[0], "held")
    until(lambda: (f"{array}_0", start_s) in daemon.statement())
    assert daemon.statement()[f"{array}_0", start_s] >= 2000
    until_is(daemon.differences, set())
    # Without states, sacct shows nothing of it.
    rows = sacct(daemon.sandbox, "--allocations")
    assert [row for row in rows if row[1] == f"{array}_0" and row[3] == str(start_s)] == []


@pytest.fixture
def other_partition(daemon: Daemon, clean: None) -> Iterator[str]:
    """One that slicewise does not manage."""
    assert daemon.scontrol("root", "create", "PartitionName=other", "Nodes=ALL") == 0
    yield "other"
    cancel_all(daemon)
    assert daemon.scontrol("root", "delete", "PartitionName=other") == 0


HELD = ("sbatch", "--parsable", "--output=/dev/null", "--hold", "--wrap=sleep 60")


@pytest.mark.promise("A job that was not admitted gets no GPUs.")
def test_a_job_that_was_not_admitted_gets_no_gpus(daemon: Daemon, other_partition: str) -> None:
    code, text = daemon.sbatch("carol", *HELD)
    assert (code, "SW-WITHOUT-GPU" in text) == (1, True)
    off = daemon.sandbox.layout.etc / "off"
    off.touch()
    code, text = daemon.sbatch("carol", *HELD)
    off.unlink()
    assert code == 0, text
    job = text.strip()
    for change in ("Gres=gpu:2", "Gres=gpu:1g.10gb:1", "Gres=gpu:+1"):
        assert daemon.scontrol("carol", "update", f"JobId={job}", change) != 0
    assert daemon.scontrol("carol", "update", f"JobId={job}", "TimeLimit=3") == 0
    tres = re.findall(r"\b(?:Req|Alloc)?TRES=(.*)", daemon.job(int(job)))
    assert tres
    assert "gpu" not in "".join(tres)
    assert daemon.scontrol("carol", "release", job) == 0
    requests = (("--gpus=2",), ("--ntasks=2", "--ntasks-per-gpu=1"), ("--gres=gpu:1g.10gb:1",))
    for request in requests:
        code, text = daemon.sbatch("carol", *HELD, f"--partition={other_partition}", *request)
        assert code == 0, text
        move = ("update", f"JobId={text.strip()}", "Partition=gpu")
        assert daemon.scontrol("carol", *move) != 0
        assert f"Partition={other_partition} " in daemon.job(int(text))
        assert daemon.scontrol("root", *move) == 0
    code, text = daemon.sbatch("carol", *HELD, f"--partition={other_partition}")
    assert code == 0, text
    assert daemon.scontrol("carol", "update", f"JobId={text.strip()}", "Partition=gpu") != 0


def test_a_hostile_script_does_not_stop_slurmctld(daemon: Daemon) -> None:
    script = "#!/bin/bash\n#SBATCH --output=/dev/null\n#" + " " * 65_000 + "#\n" + " " * 65_000

    code, text = daemon.sbatch("alice", *PLAIN, script=f"{script}\ntrue\n")
    assert code == 0, text
    cancel_all(daemon)


@pytest.mark.skipif(
    slurmd_version() >= (26, 5), reason="its accounting keeps the start: of 33 runs on 26.05.5"
)
@pytest.mark.usefixtures("clean")
def test_a_run_whose_start_accounting_loses_is_charged(daemon: Daemon) -> None:
    code, text = daemon.sbatch("alice", script=SCRIPT.replace("trap '", "trap 'sleep 4; "))
    assert code == 0, text
    array = int(text)
    until_is(lambda: daemon.states(array), ["held"] * 4)
    start_s = until(lambda: start_that_accounting_loses(daemon, array), 300)
    until(lambda: (f"{array}_0", start_s) in daemon.statement())
    until_is(daemon.differences, set())


def start_that_accounting_loses(daemon: Daemon, array: int) -> int | None:
    """Of a run of the first slot; None if backfill did not come while it ended."""
    # The jobs of the attempt before may still hold the quota, which a wish then does not wait for.
    until_is(lambda: daemon.set_desired_slots(array, 0)["released"], [0])
    until_is(lambda: daemon.states(array)[0], "running")
    slot = daemon.slots(array)[0]
    # Only a run that slurmdbd knows of already can lose its start this way.
    until(lambda: str(slot["start_s"]) in [row[3] for row in sacct(daemon.sandbox)])
    # Backfill, each second where a job waits, takes the start from what is to be requeued.
    beside = [daemon.sbatch("alice", *PLAIN, "--wrap=sleep 60") for _ in range(4)]
    assert {code for code, _ in beside} == {0}
    daemon.set_desired_slots(array)
    until(lambda: daemon.states(array)[0] in {"ending", "held"})
    time.sleep(2)
    daemon.scontrol("root", "update", f"JobId={array}_0", "StartTime=now")
    until_is(lambda: daemon.states(array)[0], "held")
    daemon.sandbox.run("root", ("scancel", *(text.strip() for _, text in beside)))
    rows = sacct(daemon.sandbox, "--allocations", f"--jobs={slot['job_id']}")
    starts = [row[3] for row in rows if row[4].isdigit()]
    return None if str(slot["start_s"]) in starts else slot["start_s"]


@pytest.fixture
def lending(daemon: Daemon, clean: None) -> Iterator[None]:
    """vision lends up to 3 slices, nlp has 1 and may borrow 2."""
    daemon.set_quota("vision", "3", "--lending-limit", "3")
    daemon.set_quota("nlp", "1", "--borrowing-limit", "2")
    yield
    cancel_all(daemon)
    daemon.set_quota("vision", "3", "--lending-limit", "0")
    daemon.set_quota("nlp", "5", "--borrowing-limit", "0")


@pytest.mark.promise("Tenants lend idle slices, and batch jobs run on them.")
@pytest.mark.usefixtures("lending")
def test_idle_quota_is_lent_and_given_back_at_once(daemon: Daemon) -> None:
    of_vision = (*PLAIN, "--qos=slicewise_vision_borrowed", "--wrap=sleep 300")
    assert "SW-QUOTA-BORROW" in daemon.sbatch("alice", *of_vision)[1]
    borrowed = (*PLAIN, "--qos=slicewise_nlp_borrowed", "--wrap=sleep 300")
    # What he may borrow is lent at the next look.
    until_is(lambda: daemon.sbatch("bob", *borrowed)[0], 0)
    for _ in range(3):
        code, said = daemon.sbatch("bob", *borrowed)
        assert code == 0, said
    expected = ["PENDING QOSGrpBilling"] + ["RUNNING None"] * 3
    until_is(lambda: daemon.job_states("bob"), expected)
    borrowing = daemon.runs("bob")
    for _ in range(3):
        assert daemon.sbatch("alice", *PLAIN, "--wrap=sleep 300")[0] == 0
    until_is(lambda: daemon.job_states("alice"), ["RUNNING None"] * 3)
    # What it borrowed runs on as long as there are GPUs; nothing more starts.
    assert daemon.runs("bob") == borrowing
    # A reason is empty for a moment while Slurm looks at the job again.
    until_is(lambda: daemon.job_states("bob"), expected)


@pytest.fixture
def budget(daemon: Daemon, clean: None) -> Iterator[None]:
    """vision has a twentieth of a slice-hour: three minutes of a slice."""
    daemon.slicewise("budget", "set", "vision", "--period", "none", "--amount", "0.05")
    yield
    cancel_all(daemon)
    daemon.slicewise("budget", "delete", "vision")
    until_is(daemon.run_minutes, "")


@pytest.mark.promise("Budgets bound what a tenant uses up in a month.")
@pytest.mark.usefixtures("budget")
def test_what_a_budget_has_no_room_for_waits_for_a_grant(daemon: Daemon) -> None:
    until_is(daemon.run_minutes, "billing=3000")
    assert daemon.sbatch("alice", *PLAIN, "--wrap=sleep 300")[0] == 0
    until_is(lambda: daemon.job_states("alice"), ["PENDING QOSGrpBillingRunMinutes"])
    grant = ("budget", "grant", "vision", "--amount", "0.05", "--reason", "for the deadline")
    daemon.slicewise(*grant)
    until_is(lambda: daemon.job_states("alice"), ["RUNNING None"])


@pytest.fixture(scope="class")
def without_daemon(daemon: Daemon) -> Iterator[None]:
    # slicewise.lua goes by what the daemon has last said of each account, in tests before, too.
    daemon.sbatch("alice", *PLAIN, "--wrap=true")
    daemon.sbatch("carol", *PLAIN, "--wrap=true")
    cancel_all(daemon)
    daemon.kill()
    yield
    daemon.start()
    until_is(daemon.differences, set())


@pytest.mark.usefixtures("without_daemon", "clean")
class TestWithoutDaemon:
    """Policy holds while every process of ours is dead."""

    def test_a_tenant_keeps_within_its_quota(self, daemon: Daemon) -> None:
        for _ in range(5):
            assert daemon.sbatch("alice", *PLAIN, "--wrap=sleep 300")[0] == 0
        expected = ["PENDING QOSGrpBilling"] * 2 + ["RUNNING None"] * 3
        until_is(lambda: daemon.job_states("alice"), expected)

    def test_an_account_without_quota_runs_nothing(self, daemon: Daemon) -> None:
        assert daemon.sbatch("carol", *PLAIN, "--wrap=sleep 300")[0] == 0
        until_is(lambda: daemon.job_states("carol"), ["PENDING QOSGrpBilling"])

    def test_a_service_is_refused(self, daemon: Daemon) -> None:
        code, text = daemon.sbatch("alice", script=SCRIPT)
        assert code == 1
        assert "SW-DAEMON-DOWN" in text

    @pytest.mark.parametrize(
        "request_", [("--gpus=1",), ("--gpus=+1",), ("-n2", "--ntasks-per-gpu=1")], ids="".join
    )
    def test_an_untyped_gpu_is_held_and_its_user_can_not_let_it_go(
        self, daemon: Daemon, request_: tuple[str, ...]
    ) -> None:
        code, text = daemon.sbatch("alice", "sbatch", *request_, "--wrap=true")
        assert code == 0
        until_is(lambda: daemon.job_states("alice"), ["PENDING JobHeldUser"])
        (job,) = re.findall(r"Submitted batch job (\d+)", text)
        released = daemon.sandbox.run("alice", ("scontrol", "release", job), check=False)
        assert released.returncode != 0
        until_is(lambda: daemon.job_states("alice"), ["PENDING JobHeldUser"])
