"""What a site sees of its own Slurm: settings and jobs that are not Slicewise's, to be compared.

A dump maps "what of whom" to what Slurm's commands print. What moves by itself, with the time or
with what others use, is left out; each list below says what, and why.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from jobs_as_users import Job, Users

from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.host.inventory import CLUSTER, PARTITION
from slicewise.slurm_plugin.rules.common.qos_names import is_ours

Dump = Mapping[str, str]

_ASSOCIATION = (
    *("Cluster", "Account", "User", "Partition", "ID", "ParentID", "ParentName"),
    *("Fairshare", "Priority", "DefaultQOS", "QOS", "GrpJobs", "GrpJobsAccrue", "GrpSubmitJobs"),
    *("GrpTRES", "GrpTRESMins", "GrpTRESRunMins", "GrpWall", "MaxJobs", "MaxJobsAccrue"),
    *("MaxSubmitJobs", "MaxTRES", "MaxTRESMins", "MaxTRESPerNode", "MaxWall"),
)
"""All but QosRaw, which is QOS by number, and LFT and RGT, which are ParentID once more: from Slurm
23.11 on sacctmgr does not know them, and ends with an error.
"""
_QOS = (
    *("Name", "Description", "ID", "Flags", "GraceTime", "Preempt", "PreemptMode"),
    *("PreemptExemptTime", "Priority", "UsageFactor", "UsageThreshold", "MinPrioThreshold"),
    *("GrpJobs", "GrpJobsAccrue", "GrpSubmitJobs", "GrpTRES", "GrpTRESMins", "GrpTRESRunMins"),
    *("GrpWall", "MaxJobsAccruePA", "MaxJobsAccruePU", "MaxJobsPA", "MaxJobsPU", "MaxSubmitPA"),
    *("MaxSubmitPU", "MaxTRES", "MaxTRESMins", "MaxTRESPA", "MaxTRESPerNode", "MaxTRESPU"),
    *("MaxTRESRunMinsPA", "MaxTRESRunMinsPU", "MaxWall", "MinTRES"),
)
_CLUSTER = (
    *("Cluster", "ControlHost", "ControlPort", "Classification", "Flags", "NodeCount"),
    *("ClusterNodes", "TRES", "QOS", "DefaultQOS", "Fairshare", "GrpTRES", "MaxJobs"),
)
_USER = ("User", "DefaultAccount", "DefaultWCKey", "AdminLevel", "Coordinators")
_ACCOUNT = ("Account", "Description", "Organization", "Coordinators")
_TABLES: Mapping[str, tuple[tuple[str, ...], Sequence[str], int]] = {
    "association": (("association",), _ASSOCIATION, 4),
    # With it a list of an account's own is told from one that it inherits.
    "own": (("association", "wopinfo"), _ASSOCIATION, 4),
    "qos": (("qos",), _QOS, 1),
    "cluster": (("cluster",), _CLUSTER, 1),
    "user": (("user",), _USER, 1),
    "account": (("account",), _ACCOUNT, 1),
    "tres": (("tres",), ("ID", "Type", "Name"), 1),
}
"""What is shown; its columns; how many of them say what it is of."""

_SHARES = ("Account", "User", "Partition", "RawShares", "NormShares", "GrpTRESMins")
"""Without RawUsage, NormUsage, EffectvUsage, TRESRunMins, and without FairShare and LevelFS, which
follow them: GPUs that tenants use are used whoever lets them in. ``used`` has the first,
``off_share`` says whether priorities follow FairShare.
"""
_PRIORITY = {"QOS": "Q", "ASSOC": "B", "PARTITION": "P", "JOBSIZE": "J", "SITE": "S", "TRES": "T"}
"""Columns of sprio. Without AGE, which grows with the wait, FAIRSHARE and PRIORITY, their sum."""
_OF_PARTITION_OF_OURS = frozenset({"QoS"})
_OF_NODES = (
    *("Gres", "CfgTRES", "Partitions", "Weight", "ActiveFeatures", "AvailableFeatures"),
    *("CPUTot", "CPUEfctv", "RealMemory", "MemSpecLimit", "Owner", "MCS_label", "Comment"),
)
"""Not what their jobs do to them."""
_OF_JOBS = (
    *("JobName", "UserId", "Account", "QOS", "Partition", "JobState", "Nice", "TRES"),
    *(
        "AdminComment",
        "Comment",
        "TimeLimit",
        "Requeue",
        "Restarts",
        "NodeList",
        "StartTime",
        "EndTime",
    ),
    *("SubmitTime", "OverSubscribe", "MinCPUsNode", "TresPerNode", "PreemptTime", "SuspendTime"),
)
_OF_WAITING_JOBS = tuple(
    {*_OF_JOBS} - {"StartTime", "EndTime", "NodeList"},  # When and where Slurm plans them.
)
_RESERVED = (
    "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions"
)
_ONE_REASON = frozenset({"Resources", "Priority", _RESERVED})
"""Which of these it is depends on who else waits there, and on which partition."""
_ALL_THE_TIME = re.compile(r"Configuration data|BOOT_TIME|NEXT_JOB_ID|HASH_VAL|Slurmctld\(")


def split_reasons(dump: Dump) -> tuple[Dump, Dump]:
    """Why jobs wait, and all else."""
    reasons = {name: value for name, value in dump.items() if name.endswith(" Reason")}
    return reasons, {name: value for name, value in dump.items() if name not in reasons}


def assert_same(before: Dump, now: Dump) -> None:
    """Else a line for each difference: what of whom, what it was, what it is."""
    none = "not there"
    found = [
        f"{what}: {before.get(what, none)!r} before, {now.get(what, none)!r} now"
        for what in sorted({*before, *now})
        if before.get(what) != now.get(what)
    ]
    assert not found, "\n".join(("it is not as before", *found))


class Site:
    """Asks as root."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._users = Users(sandbox)

    def ask(self, *argv: str) -> str:
        return self._sandbox.run("root", argv).stdout

    def dump(self, jobs: Collection[str] = ()) -> Dump:
        """Everything of the site but what is Slicewise's, and those jobs of it."""
        return {
            **dict(self._accounting()),
            **dict(self._controller()),
            **dict(self._shares()),
            **dict(self._jobs(jobs)),
        }

    def _accounting(self) -> Iterator[tuple[str, str]]:
        for kind, (shown, columns, of) in _TABLES.items():
            names = f"format={','.join(columns)}"
            for line in self.ask("sacctmgr", "-nP", "show", *shown, names).splitlines():
                row = dict(zip(columns, line.split("|"), strict=True))
                if kind == "qos" and is_ours(row["Name"]):
                    continue
                if row.get("Cluster") == CLUSTER and "Account" in row:
                    row["QOS"] = _without_ours(row["QOS"])
                whose = "/".join(row[name] for name in columns[:of])
                yield from ((f"{kind} {whose} {name}", row[name]) for name in columns[of:])

    def _controller(self) -> Iterator[tuple[str, str]]:
        for line in self.ask("scontrol", "-o", "show", "partition").splitlines():
            words = dict(word.split("=", 1) for word in line.split())
            name = words.pop("PartitionName")
            left_out = _OF_PARTITION_OF_OURS if name == PARTITION else frozenset()
            yield from (
                (f"partition {name} {word}", value)
                for word, value in words.items()
                if word not in left_out
            )
        for line in self.ask("scontrol", "show", "config").splitlines():
            name, equals, value = line.partition("=")
            if equals and not _ALL_THE_TIME.search(line):
                yield f"config {name.strip()}", value.strip()
        for line in self.ask("scontrol", "-o", "show", "node").splitlines():
            words = dict(word.split("=", 1) for word in line.split() if "=" in word)
            yield from (
                (f"node {words['NodeName']} {one}", words.get(one, "")) for one in _OF_NODES
            )

    def _shares(self) -> Iterator[tuple[str, str]]:
        columns = f"--format={','.join(_SHARES)}"
        for line in self.ask("sshare", "-anP", columns).splitlines():
            row = [value.strip() for value in line.split("|")]
            named = zip(_SHARES[3:], row[3:], strict=True)
            yield from ((f"share {'/'.join(row[:3])} {name}", value) for name, value in named)

    def _jobs(self, ids: Collection[str]) -> Iterator[tuple[str, str]]:
        for job_id in ids:
            job = self._users.job(job_id)
            waits = job["JobState"] == "PENDING"
            for field in _OF_WAITING_JOBS if waits else _OF_JOBS:
                yield f"job {job_id} {field}", job[field]
            if waits:
                yield f"job {job_id} Reason", reason(job)
        form = "|".join(f"%{letter}" for letter in ("i", *_PRIORITY.values()))
        for line in self.ask("sprio", "--noheader", f"--format={form}").splitlines():
            job_id, *values = (value.strip() for value in line.split("|"))
            if job_id in ids:
                named = zip(_PRIORITY, values, strict=True)
                yield from ((f"priority {job_id} {name}", value) for name, value in named)

    def job(self, job_id: str) -> Job:
        return self._users.job(job_id)

    def off_share(self, ids: Collection[str], weight: int) -> list[str]:
        """Of those jobs the waiting ones whose priority has another part for FairShare than their
        association's.
        """
        columns = "--format=Account,User,Partition,FairShare"
        rows = [line.split("|") for line in self.ask("sshare", "-anP", columns).splitlines()]
        factors = {tuple(map(str.strip, row[:3])): row[3] for row in rows if row[1]}
        points = self.ask("sprio", "--noheader", "--format=%i|%F").split()
        found = []
        for job_id, has in (line.split("|") for line in points):
            if job_id in ids:
                job = self.job(job_id)
                of = (job["Account"], job["UserId"].partition("(")[0])
                factor = factors.get((*of, job["Partition"])) or factors[(*of, "")]
                if abs(int(has) - weight * float(factor)) > 1:
                    found.append(f"job {job_id} has {has} of {weight} by a factor of {factor}")
        return found

    def used(self, accounts: Collection[str]) -> Mapping[str, int]:
        """Of each account, those below it left out: what Slurm counts as its users' use."""
        found = dict.fromkeys(accounts, 0)
        for line in self.ask("sshare", "-anP", "--format=Account,User,RawUsage").splitlines():
            account, user, raw = (value.strip() for value in line.split("|"))
            if user and account in found:
                found[account] += int(raw)
        return found

    def accounted(self, accounts: Collection[str]) -> Mapping[str, int]:
        """The same of their runs: what each billed, by seconds and by the factor of its QOS."""
        shown = self.ask("sacctmgr", "-nP", "show", "qos", "format=Name,UsageFactor")
        factors = dict(line.split("|") for line in shown.splitlines())
        found = dict.fromkeys(accounts, 0.0)
        which = ("--allusers", "--allocations", "--duplicates", "--starttime=now-1days")
        columns = "--format=Account,QOS,ElapsedRaw,AllocTRES"
        for line in self.ask("sacct", "-nP", *which, columns).splitlines():
            account, qos, seconds, tres = line.split("|")
            billing = re.search(r"billing=(\d+)", tres)
            if account in found and billing:
                found[account] += int(billing[1]) * int(seconds) * float(factors[qos])
        return {account: round(amount) for account, amount in found.items()}

    def qos_of_ours(self) -> set[str]:
        names = self.ask("sacctmgr", "-nP", "show", "qos", "format=Name").split()
        return {name for name in names if is_ours(name)}


def reason(job: Job) -> str:
    """Why it waits, as far as that does not hang on others who wait."""
    return "Resources or Priority" if job["Reason"] in _ONE_REASON else job["Reason"]


def _without_ours(value: str) -> str:
    """A list of QOS without ours."""
    return ",".join(name for name in value.split(",") if not is_ours(name))
