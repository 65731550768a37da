"""Lending of whole jobs on a real Slurm: no deadlock, turns, and a tenant's own borrowed run.

What needs many tenants is tried on the model of Slurm (tests/model).
"""

import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
from jobs_as_users import Users
from quotas import until_daemon_leads, until_in_force
from waiting import PATIENCE_S, until, until_is

from slicewise.sandbox.cluster import Sandbox

pytestmark = pytest.mark.integration

SMALL, LARGE = "--gres=gpu:1g.10gb:1", "--gres=gpu:3g.40gb:1"
"""They cost 1 and 3.5 slices. There is one large instance, on gpu02, which has small ones, too."""
ACCOUNT = {"alice": "vision", "bob": "nlp", "carol": "guest"}
AWAY = "gpu01"


@pytest.fixture
def users(sandbox: Sandbox) -> Iterator[Users]:
    found = Users(sandbox)
    yield found
    found.clear()


def quotas(users: Users, nominal: float, *tenants: str) -> None:
    """These have so many slices each, and lend and borrow freely."""
    nominals(users, **dict.fromkeys(tenants, nominal))


def nominals(users: Users, **slices: float) -> None:
    """So many slices for each of these tenants, which lend and borrow freely."""
    more = ("--borrowing-limit", "20", "--lending-limit", "20", "--reason", "test")
    for name, nominal in slices.items():
        users.slicewise("tenant-quota", "set", name, "--nominal", f"{nominal:g}", *more)
    until_in_force(users.sandbox, *slices)


def submitted(users: Users, user: str, *options: str, script: str = "") -> str:
    outcome = users.submit(user, "sbatch", *options, script=script)
    assert outcome.status == 0, outcome.text
    return outcome.jobs[0].job_id


def states(users: Users, *job_ids: str) -> list[str]:
    return [users.job(one)["JobState"] for one in job_ids]


@pytest.fixture
def drained(users: Users) -> Iterator[str]:
    change = ("update", f"NodeName={AWAY}")
    assert users.scontrol("root", *change, "State=DRAIN", "Reason=test")[0] == 0
    yield AWAY
    assert users.scontrol("root", *change, "State=RESUME")[0] == 0


def test_who_waits_for_a_node_that_is_away_keeps_no_loan_from_starting(
    users: Users, drained: str
) -> None:
    """Each wants the only large instance, for which both guaranteed quotas are needed."""
    quotas(users, 1.75, "vision", "nlp")
    both = ("alice", "bob")
    waiting = [
        submitted(users, user, SMALL, f"--nodelist={drained}", f"--qos=slicewise_{ACCOUNT[user]}")
        for user in both
    ]
    until(lambda: all("ReqNodeNotAvail" in users.job(one)["Reason"] for one in waiting))
    large = [submitted(users, user, LARGE) for user in both]
    until(lambda: "RUNNING" in states(users, *large))
    assert states(users, *waiting) == ["PENDING", "PENDING"]


def test_what_a_tenants_own_borrowed_run_keeps_out_starts_on_a_loan(users: Users) -> None:
    """The run holds all that is guaranteed; in the own QOS nothing would start before its end."""
    quotas(users, 1, "vision", "nlp")
    borrowed = "slicewise_vision_borrowed"
    running = submitted(users, "alice", SMALL, f"--qos={borrowed}")
    until_is(lambda: states(users, running), ["RUNNING"])
    lender = submitted(users, "bob", SMALL)
    until_is(lambda: states(users, lender), ["RUNNING"])
    waiting = submitted(users, "alice", SMALL)
    until_is(lambda: users.job(waiting)["QOS"], borrowed)
    users.sandbox.run("root", ("scancel", lender))
    until_is(lambda: states(users, running, waiting), ["RUNNING", "RUNNING"])


@pytest.mark.promise("A lender's return ends the fewest batch jobs.")
def test_a_lender_that_comes_back_ends_the_fewest_batch_jobs(users: Users) -> None:
    """Slurm would end the youngest of them, which holds twice as much as is wanted."""
    nominals(users, guest=3, nlp=0, vision=7)
    rest = [submitted(users, "carol", SMALL, "--nodelist=gpu02") for _ in range(3)]
    rest.append(submitted(users, "alice", SMALL, "--nodelist=gpu01"))
    small = [submitted(users, "bob", SMALL) for _ in range(2)]
    until(lambda: set(states(users, *rest, *small)) == {"RUNNING"})
    large = submitted(users, "bob", "--gres=gpu:1g.10gb:4")
    until_is(lambda: states(users, large), ["RUNNING"])
    stays = [large, *rest]
    began = [users.job(one)["StartTime"] for one in stays]
    assert users.job(large)["StartTime"] > max(users.job(one)["StartTime"] for one in small)
    lender = submitted(users, "alice", "--gres=gpu:1g.10gb:2")
    until_is(lambda: states(users, lender), ["RUNNING"])
    assert [users.job(one)["Restarts"] for one in (*small, *stays)] == ["1"] * 2 + ["0"] * 5
    assert [users.job(one)["StartTime"] for one in stays] == began
    assert states(users, *small, *stays) == ["PENDING"] * 2 + ["RUNNING"] * 5
    said = users.sandbox.run("bob", ("slicewise", "why", small[0])).stdout
    assert f"vision takes back 1 slice: job {lender} waits" in " ".join(said.split())


@pytest.fixture
def rare_scheduling(users: Users) -> Iterator[None]:
    """slurmctld schedules after what is done to jobs, and by itself once in three hours."""
    site = users.sandbox.layout.site_conf
    before = site.read_text()
    rarely = "batch_sched_delay=0,sched_interval=10800,bf_interval=10800"
    site.write_text(f"{before}SchedulerParameters={rarely}\n")
    assert users.scontrol("root", "reconfigure")[0] == 0
    yield
    site.write_text(before)
    assert users.scontrol("root", "reconfigure")[0] == 0


@pytest.mark.usefixtures("rare_scheduling")
def test_a_loan_starts_jobs_however_rarely_slurm_schedules(users: Users) -> None:
    """A limit that grows is nothing after which slurmctld schedules by itself."""
    quotas(users, 2, "vision", "nlp")
    asked = (SMALL, "--array=1-4", "--qos=slicewise_nlp_borrowed")
    array = submitted(users, "bob", *asked)
    until_is(lambda: states(users, *(f"{array}_{nth}" for nth in range(1, 5))), ["RUNNING"] * 4)


def restart_daemon(users: Users, *argv: str) -> None:
    users.sandbox.kill("daemon", signal.SIGKILL)
    users.sandbox.start("daemon", "slurm", argv or ("slicewise", "daemon"))
    until_daemon_leads(users.sandbox)


@pytest.fixture
def short_memory(users: Users) -> Iterator[None]:
    """What a tenant's jobs held in tests before fades within a minute, not weeks."""
    file = users.sandbox.layout.settings_file
    before = file.read_text()
    file.write_text(f"{before}\n[priority]\nhalf_life_h = 0.003\n")
    restart_daemon(users)
    yield
    file.write_text(before)
    restart_daemon(users)


@pytest.mark.usefixtures("short_memory")
def test_equal_tenants_take_turns_on_the_only_instance(users: Users) -> None:
    """Who comes last has as many of the next turns as the others."""
    quotas(users, 1.2, *ACCOUNT.values())
    script, each, turns = "#!/bin/sh\nsleep 5\n", 6, 3
    owner = {}
    for _ in range(each):
        for user in ("alice", "bob"):
            owner[submitted(users, user, LARGE, script=script)] = user
    until(lambda: "COMPLETED" in states(users, *owner))
    for _ in range(each):
        owner[submitted(users, "carol", LARGE, script=script)] = "carol"
    began: dict[str, str] = {}

    def since_she_came() -> Sequence[str]:
        for one in owner.keys() - began.keys():
            job = users.job(one)
            if job["JobState"] != "PENDING":
                began[one] = job["StartTime"]
        order = [owner[one] for one in sorted(began, key=began.__getitem__)]
        return order[order.index("carol") :] if "carol" in order else []

    until(lambda: len(since_she_came()) >= turns * len(ACCOUNT), 3 * PATIENCE_S)
    had = Counter(since_she_came()[: turns * len(ACCOUNT)])
    assert min(had[user] for user in ACCOUNT) >= turns - 1, had


HASTY = """
from slicewise.slurm_plugin.rules.round import world
world.TURN_S = 20
from slicewise.launcher.main import main
main()
"""
"""The daemon, but that a job is due after 20 s, for which others wait half an hour."""


@pytest.fixture
def hasty_daemon(users: Users) -> Iterator[None]:
    restart_daemon(users, sys.executable, "-c", HASTY, "daemon")
    yield
    restart_daemon(users)


@pytest.mark.usefixtures("hasty_daemon")
def test_a_large_job_that_is_due_starts_beside_small_ones_that_come_and_go(users: Users) -> None:
    """It takes all of the first node, which is beyond its tenant's share; small jobs always waited
    for what became free.
    """
    quotas(users, 0, "vision", "nlp")
    quotas(users, 7, "guest")
    script = "#!/bin/sh\nsleep $((4 + SLURM_ARRAY_TASK_ID * 7 % 11))\n"
    small = submitted(users, "bob", SMALL, f"--nodelist={AWAY}", "--array=1-200", script=script)

    def tasks(state: str) -> int:
        squeue = ("squeue", "--noheader", "--array", f"--states={state}", f"--jobs={small}")
        return len(users.sandbox.run("root", squeue).stdout.splitlines())

    until_is(lambda: tasks("RUNNING"), 7)
    large = submitted(users, "alice", "--gres=gpu:1g.10gb:7")
    until(lambda: states(users, large) == ["RUNNING"] or not tasks("PENDING"), 4 * PATIENCE_S)
    assert tasks("PENDING")
