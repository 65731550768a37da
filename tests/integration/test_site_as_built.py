"""A site as sites are built, on which Slicewise is a guest: nothing changes that is not its own.

The site has CPU partitions that bill, one of them with AllowQos, on the nodes of the GPUs; users
with QOS, priorities and shares of their own; limits on accounts; another cluster on its slurmdbd.
All its accounts become tenants. Jobs run and wait on all partitions the whole time.
"""

import asyncio
import json
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from effort import is_nightly
from jobs_as_users import Modes
from run_folder import path_for
from service_status import services, status, until_routed
from site_dumps import Dump, Site, assert_same, reason, split_reasons
from waiting import until, until_is

from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.demo.commands import publish_models
from slicewise.sandbox.demo.load import Load
from slicewise.sandbox.demo.trace import Arrival
from slicewise.sandbox.host.inventory import CLUSTER, PARTITION
from slicewise.slurm_plugin.rules.common.qos_names import GATE_QOS

pytestmark = pytest.mark.integration

UNDER_LOAD_S, LOOKS_APART_S = (3600, 20) if is_nightly() else (5, 0)
FAIRSHARE_WEIGHT = 2000
CONF = rf"""
PriorityWeightAge=500
PriorityWeightAssoc=300
PriorityWeightFairshare={FAIRSHARE_WEIGHT}
PriorityWeightPartition=100
PriorityWeightQOS=1000
PriorityCalcPeriod=1
# Use is kept whole, so that it can be reckoned.
PriorityDecayHalfLife=0
PriorityUsageResetPeriod=YEARLY
PartitionName=cpu Nodes=ALL MaxCPUsPerNode=8 PriorityJobFactor=3 TRESBillingWeights=CPU=1000 \
DefMemPerCPU=10
PartitionName=quick Nodes=ALL MaxCPUsPerNode=4 AllowQos=express,long TRESBillingWeights=CPU=500 \
DefMemPerCPU=10
"""
ACCOUNTS = """\
add qos long priority=100 maxwall=2-0
add qos express priority=1000 grpjobs=1 usagefactor=2
modify account vision set fairshare=40 grptres=cpu=12 grptresmins=billing=900000000
modify account vision set qos+=long,express
modify user {alice} where account=vision set qos=normal,long defaultqos=long fairshare=3 priority=70
modify account nlp set fairshare=20 priority=30 grpsubmit=500
add user {bob} account=nlp partition=cpu fairshare=5 maxjobs=40
add account biology fairshare=30 grptres=cpu=6 qos=normal,express defaultqos=express
add user {bob} account=biology qos=normal defaultqos=normal
add user {carol} account=biology fairshare=9 priority=11
modify user {carol} set defaultaccount=biology
add account zoology parent=biology fairshare=2 grptresmins=billing=10
add user {alice} account=zoology defaultqos=normal
add account ecology fairshare=4
add user {carol} account=ecology
add cluster other
add account vision,nlp,far cluster=other grptresmins=billing=500 fairshare=11
add user {alice} account=vision cluster=other maxjobs=3 qos=normal,long defaultqos=long
quit
"""
MEANWHILE = """\
add qos overnight priority=5
modify qos long set maxjobsperuser=50
modify account nlp set qos=normal,express
modify account guest set qos+=overnight fairshare=7
modify account zoology set grptres=cpu=3
modify user {carol} where account=guest set qos=normal,overnight defaultqos=overnight
add account botany parent=vision fairshare=6 grptresmins=cpu=40
add user {bob} account=botany
modify account vision where cluster=other set qos=normal,long defaultqos=long
quit
"""
"""What the site changes while Slicewise is there."""
OF_NO_GPU = ("biology", "zoology", "ecology")
RUNNING = (
    ("alice", "--partition=cpu --cpus-per-task=8"),
    ("bob", "--partition=cpu --cpus-per-task=2"),
    ("carol", "--partition=cpu --cpus-per-task=4 --qos=normal"),
    ("carol", "--partition=quick"),
    # Submitted before there was a gate.
    ("alice", "--partition=gpu --gres=gpu:1g.18gb:1 --mem=10 --time=240"),
)
WAITING = {
    "AssocGrpCpuLimit": ("alice", "--partition=cpu --cpus-per-task=8"),
    "QOSGrpJobsLimit": ("carol", "--partition=quick"),
    "AssocGrpBillingMinutes": ("alice", "--account=zoology --partition=cpu"),
    "Resources or Priority": ("bob", "--partition=cpu --nodes=4 --ntasks-per-node=8"),
    "BeginTime": ("carol", "--account=ecology --partition=cpu --begin=now+2hours"),
    "JobHeldUser": ("bob", "--account=biology --partition=cpu,gpu --hold"),
}
PROBES = (
    ("alice", "--partition=cpu"),
    ("alice", "--partition=cpu,quick"),
    ("alice", "--partition=cpu --qos=normal --nice=7"),
    ("alice", "--partition=quick --qos=normal"),
    ("alice", "--partition=cpu --account=zoology"),
    ("alice", "--partition=cpu --account=nlp"),
    ("bob", "--partition=cpu --cpus-per-task=3"),
    ("bob", "--partition=cpu --account=biology"),
    ("bob", "--partition=quick"),
    ("carol", "--partition=cpu"),
    ("carol", "--partition=cpu --account=ecology"),
    ("carol", "--partition=quick --account=biology"),
    ("carol", "--partition=cpu --qos=long"),
)
"""Submissions to partitions that are not managed: they become, or are refused, what they did."""
OF_PROBES = ("Account", "QOS", "Partition", "TRES", "Nice", "AdminComment", "Comment", "TimeLimit")
QUOTAS = """\
[tenants]
nlp = { nominal = 3, borrowing_limit = 6 }
guest = { nominal = 6, lending_limit = 6 }
# Beyond the four hours that its job may take that was there before: enough for one of its tasks.
vision = { nominal = 3, budget = { period = "none", amount = 4.08 } }
"""
BORROWED_RUNS = 4
"""Of nlp at most: what guest has idle."""
RUNS_S, TASKS = (120, 400) if is_nightly() else (8, 400)
LOAD = (
    ("alice", f"--array=0-{TASKS - 1}", RUNS_S),
    ("bob", f"--array=0-{TASKS - 1} --account=nlp", RUNS_S),
    ("carol", "--array=0-1 --account=guest --time=100", 9000),
)
"""Of tenants: vision's budget binds, nlp borrows, guest lends."""


SERVICE = "nlp/early"
SERVICE_FILE = """\
[service]
name = "early"
tenant = "nlp"
model_repository = {models}
model = "tokens"
profile = "1g.10gb"
max_replicas = 4
keep_alive_s = 3600
memory_mib = 512
"""
NO_LUA = """\
function slurm_job_submit(job_desc, part_list, submit_uid) return slurm.SUCCESS end
function slurm_job_modify(job_desc, job_rec, part_list, modify_uid) return slurm.SUCCESS end
return slurm.SUCCESS
"""
"""A job_submit.lua as sites have it that never heard of Slicewise."""


class Guest:
    """The site, and Slicewise on it."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.site = Site(sandbox)
        self.modes = Modes(sandbox)
        self.jobs: list[str] = []
        self.loads: list[str] = []

    def root(self, *argv: str) -> str:
        return self.sandbox.run("root", argv).stdout

    def build(self) -> None:
        """The site, of which Slicewise has nothing yet."""
        layout = self.sandbox.layout
        # First: from 25.11 on slurmctld ends where AllowQos names a QOS that is not there.
        self.sacctmgr(ACCOUNTS)
        layout.site_conf.write_text(CONF)
        script = layout.etc / "job_submit.lua"
        ours = f'partitions = {{ "{PARTITION}" }},'
        beside = f'{ours} beside = {{ "cpu", "quick" }},'
        script.write_text(script.read_text().replace(ours, beside))
        self.root("slicewise", "admission", "off")
        self.gate(closed=False)
        # The decay of use does not change by a reconfigure.
        self.root("slicewise-restart", "slurmctld")

    def sacctmgr(self, commands: str) -> None:
        names = {role: user.name for role, user in self.sandbox.state.users.items()}
        argv = ("sacctmgr", "--immediate")
        done = self.sandbox.run("root", argv, input=commands.format(**names))
        assert not done.stderr, done

    def gate(self, *, closed: bool) -> None:
        """Put its word into the managed partition's line, or take it out."""
        conf = self.sandbox.layout.slurm_conf
        plain = conf.read_text().replace(f" QOS={GATE_QOS}", "")
        line = f"PartitionName={PARTITION} "
        conf.write_text(plain.replace(line, f"{line}QOS={GATE_QOS} ") if closed else plain)
        self.root("scontrol", "reconfigure")

    def submit(
        self, user: str, words: str, seconds: int = 9000
    ) -> "subprocess.CompletedProcess[str]":
        options = ("--parsable", "--output=/dev/null", *words.split())
        argv = ("sbatch", *options, f"--wrap=sleep {seconds}")
        return self.sandbox.run(user, argv, check=False)

    def submitted(self, user: str, words: str, seconds: int = 9000) -> str:
        done = self.submit(user, words, seconds)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def begin(self) -> None:
        """Jobs that run, and that wait for each reason, for as long as the test lasts."""
        self.use_up()
        running = [self.submitted(user, words) for user, words in RUNNING]
        for job in running:
            until_is(lambda job=job: self.state(job), "RUNNING")
        waiting = {self.submitted(*of): why for why, of in WAITING.items()}
        for job, wanted in waiting.items():
            until_is(lambda job=job: reason(self.site.job(job)), wanted)
        self.jobs = [*running, *waiting]

    def use_up(self) -> None:
        """What zoology may use, by a job that ends."""
        job = self.submitted("alice", "--account=zoology --partition=cpu", 2)
        until_is(lambda: self.state(job), "COMPLETED")

    def state(self, job: str) -> str:
        argv = ("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T")
        return self.root(*argv).strip()

    def seen(self) -> Dump:
        return {**self.site.dump(self.jobs), **self.probes()}

    def assert_same(self, before: Dump) -> None:
        """What others have is as before: at once, but for why jobs wait. Of several reasons Slurm
        names the one that the last of its two schedulers met, so these may take a cycle.
        """
        reasons, rest = split_reasons(before)
        assert_same(rest, split_reasons(self.seen())[1])
        until_is(lambda: split_reasons(self.site.dump(self.jobs))[0], reasons)

    def probes(self) -> Dump:
        found: dict[str, str] = {}
        for user, words in PROBES:
            done = self.submit(user, f"--begin=now+1hour --time=7 {words}")
            found[f"sbatch {user} {words}"] = done.stderr
            if done.returncode == 0:
                job = self.site.job(done.stdout.strip())
                found |= {f"sbatch {user} {words} {name}": job[name] for name in OF_PROBES}
                self.root("scancel", job.job_id)
        return found

    def load(self) -> None:
        gpu = f"--partition={PARTITION} --gres=gpu:1g.10gb:1 --mem=10 --time=3"
        for user, words, runs_s in LOAD:
            self.loads.append(self.submitted(user, f"{gpu} {words}", runs_s))

    def unload(self) -> None:
        self.root("scancel", *self.loads)
        until(lambda: not self._jobs_in("running,completing").keys() & self.site.qos_of_ours())

    def running_in(self) -> Counter[str]:
        """How many jobs run in each QOS."""
        return self._jobs_in("running")

    def waiting_in(self) -> Counter[str]:
        """How many jobs wait in each QOS."""
        return self._jobs_in("pending")

    def _jobs_in(self, state: str) -> Counter[str]:
        argv = ("squeue", "--noheader", "--array", f"--states={state}", "--format=%q")
        return Counter(self.root(*argv).split())

    def reasons(self) -> set[str]:
        """Why jobs wait for GPUs of the managed partition."""
        which = (f"--partition={PARTITION}", "--states=pending", "--format=%r")
        return set(self.root("squeue", "--noheader", "--array", *which).split())

    def observe(self) -> None:
        """All accounts are tenants, with quotas and a budget; nothing is to be in Slurm."""
        self.modes.set("observe")
        self.root("slicewise", "admission", "on")
        self.root("slicewise", "tenant", "import")
        self.sandbox.run("root", ("slicewise", "tenant-quota", "apply", "/dev/stdin"), input=QUOTAS)
        self.root("slicewise", "compile", "--dry-run")

    @contextmanager
    def without_lua(self) -> Iterator[None]:
        """Nothing of Slicewise runs in slurmctld."""
        script = self.sandbox.layout.etc / "job_submit.lua"
        ours = script.read_text()
        time.sleep(1.1)  # slurmctld sees a change by the second.
        script.write_text(NO_LUA)
        try:
            yield
        finally:
            time.sleep(1.1)
            script.write_text(ours)

    def apply(self) -> str:
        """Apply a service as its owner does; return its array."""
        home = self.sandbox.layout.home / self.sandbox.state.users["bob"].name
        models = json.dumps(str(publish_models(self.sandbox.layout.models)))
        file = home / "early.toml"
        file.write_text(SERVICE_FILE.format(models=models))
        words = ("slicewise", "service", "apply", str(file), "--json")
        done = self.sandbox.run("bob", words, check=False)
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout)["array_job_id"])

    def ask(self, count: int) -> list[str]:
        """Send requests through the gateway; return what went wrong with each."""

        async def send() -> list[str]:
            async with Load(self.sandbox.layout.gateway_url, [SERVICE], 240.0) as load:
                await load.replay([Arrival(0.05 * i, SERVICE, 20, 5) for i in range(count)])
                return [record.error for record in load.records]

        return asyncio.run(send())

    def states(self) -> dict[str, int]:
        """How many slots of the service are in which state."""
        found = {
            state: len(slots) for state, slots in status(self.sandbox, SERVICE)["slots"].items()
        }
        return {state: count for state, count in found.items() if count}

    def whole_dump(self) -> Dump:
        """What else Slurm says of itself in one piece."""
        name = self.sandbox.layout.etc / "dump.cfg"
        self.root("sacctmgr", "dump", CLUSTER, f"file={name}")
        return {
            "sacctmgr dump": name.read_text(),
            "reservations": self.root("scontrol", "-o", "show", "reservation"),
            "slurm.conf": self.sandbox.layout.slurm_conf.read_text(),
        }

    def enforce(self) -> None:
        """As docs/how-to/install.md says: the daemon, slicewise.lua, then the gate."""
        self.modes.set("enforce")
        # What came with the sandbox was taken out: until the daemon has seen that limits are wanted
        # again jobs pass unchanged.
        self.root("slicewise", "compile", "--again")
        self.modes.restart_daemon()
        until(lambda: GATE_QOS in self.site.qos_of_ours())
        self.gate(closed=True)

    def leave(self) -> None:
        """No daemon any more, and a job_submit.lua that changes nothing."""
        self.modes.set("observe")
        self.sandbox.stop("daemon")

    def nothing_waits_on_borrowed_quota(self) -> bool:
        """After one more try to move it."""
        # Exits 75 as long as jobs are in QOS.
        self.sandbox.run("root", ("slicewise", "uninstall", "--finish"), check=False)
        return self.waiting_in()["slicewise_nlp_borrowed"] == 0

    def used_and_accounted(self) -> dict[str, tuple[int, int]]:
        """Of accounts without GPUs, where these differ."""
        used, accounted = self.site.used(OF_NO_GPU), self.site.accounted(OF_NO_GPU)
        both = {name: (used[name], accounted[name]) for name in OF_NO_GPU}
        return {name: (ours, slurms) for name, (ours, slurms) in both.items() if ours != slurms}

    def uninstall(self) -> list[str]:
        """What it says that has to wait."""
        return list(json.loads(self.root("slicewise", "uninstall", "--yes", "--json"))["waits"])


@pytest.fixture(scope="module")
def guest() -> Iterator[Guest]:
    running = Sandbox.up(path_for("site"), progress=print)
    try:
        guest = Guest(running)
        guest.modes.set("observe")
        guest.build()
        running.stop("daemon")
        # The sandbox comes with it.
        guest.uninstall()
        assert guest.site.qos_of_ours() == set()
        guest.begin()
        yield guest
    finally:
        running.down()


def test_services_run_in_observe_and_nothing_changes_that_is_not_theirs(guest: Guest) -> None:
    before, whole = guest.seen(), guest.whole_dump()
    guest.observe()
    with guest.without_lua():
        array = guest.apply()
        until_routed(guest.sandbox, SERVICE)
        # It is known by the tag that the daemon gave it; its QOS is what the site gave it.
        job = guest.site.job(array)
        assert f"tenant=nlp service={SERVICE.split('/')[1]}" in job.tag
        assert (job["QOS"], job["Reason"]) == ("normal", "JobHeldAdmin")

        assert guest.ask(5) == [""] * 5
        guest.sandbox.run("bob", ("slicewise", "service", "scale", SERVICE, "--min", "4"))
        # The quota is of three slices.
        until_is(guest.states, {"ready": 3, "held": 1})
        guest.assert_same(before)
        assert guest.whole_dump() == whole
        assert "quota: nlp holds 3 of 3 slices" in guest.root("slicewise", "why", SERVICE)

        guest.sandbox.run(
            "bob", ("slicewise", "service", "scale", SERVICE, "--min", "1", "--max", "1")
        )
        until_is(guest.states, {"ready": 1, "held": 3})
        assert guest.ask(5) == [""] * 5
        # Nobody but the daemon lets a slot run.
        refused = guest.sandbox.run("bob", ("scontrol", "release", f"{array}_3"), check=False)
        assert refused.returncode != 0
        assert guest.states() == {"ready": 1, "held": 3}

        guest.sandbox.run("bob", ("slicewise", "service", "delete", SERVICE))
        until(lambda: SERVICE not in services(guest.sandbox))
    guest.assert_same(before)
    assert guest.whole_dump() == whole
    assert guest.site.qos_of_ours() == set()


@pytest.mark.promise(
    "Observing changes nothing, and uninstalling leaves nothing of Slicewise in Slurm."
)
def test_nothing_that_is_not_slicewises_changes_from_observe_to_uninstall(guest: Guest) -> None:
    before = guest.seen()

    guest.observe()
    guest.assert_same(before)
    assert guest.site.qos_of_ours() == set()

    guest.enforce()
    guest.load()
    until(lambda: guest.running_in()["slicewise_nlp_borrowed"])
    until_is(lambda: guest.running_in()["slicewise_guest"], 2)
    until(lambda: {"QOSGrpBilling", "QOSGrpBillingRunMinutes"} <= guest.reasons())
    guest.assert_same(before)

    guest.sacctmgr(MEANWHILE)
    # slurmctld hears of it all at once.
    until(lambda: "botany" in guest.root("sshare", "-anP", "--format=Account").split())
    before = guest.seen()
    until_s = time.monotonic() + UNDER_LOAD_S
    while time.monotonic() < until_s:
        guest.assert_same(before)
        time.sleep(LOOKS_APART_S)
    until(lambda: guest.running_in()["slicewise_nlp_borrowed"])

    guest.leave()
    waits = guest.uninstall()
    assert waits
    assert guest.running_in()["slicewise_guest"] == 2
    # What jobs in own QOS have preempted since is there again until it is moved, too; Slurm may
    # also refuse a move, which it says.
    is_told = any(one.startswith("Slurm does not move") for one in waits)
    assert is_told or guest.waiting_in()["slicewise_nlp_borrowed"] <= BORROWED_RUNS, waits
    until(guest.nothing_waits_on_borrowed_quota)
    assert guest.waiting_in()["slicewise_nlp"]
    guest.assert_same(before)

    guest.gate(closed=False)
    guest.unload()
    assert guest.uninstall() == []
    assert guest.site.qos_of_ours() == set()
    guest.assert_same(before)


def test_fair_share_and_use_are_what_slurm_makes_of_them(guest: Guest) -> None:
    """After all that was before: what waits goes by its user's share alone, and what accounts used
    is what their jobs billed.
    """
    until_is(lambda: guest.site.off_share(guest.jobs, FAIRSHARE_WEIGHT), [])
    guest.root("scancel", *guest.jobs)
    until_is(lambda: guest.root("squeue", "--noheader"), "")
    # Accounting may hear of the last ends later than slurmctld's own users.
    until_is(guest.used_and_accounted, {})
