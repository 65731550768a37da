"""sacct, asked directly: every run, also where it hides one or has lost its start."""

from dataclasses import dataclass

from slicewise.sandbox.cluster import Sandbox

BY_STATE = ("--endtime=now", "--state=RUNNING,REQUEUED,PREEMPTED,NODE_FAIL")


@dataclass(frozen=True)
class AccountedRun:
    """A run with GPUs that has ended; its cost is what Slurm bills."""

    job_id: int
    task: str
    account: str
    start_s: int
    end_s: int
    billing: int

    @property
    def used_millislice_s(self) -> int:
        return (self.end_s - self.start_s) * self.billing


def accounted_runs(sandbox: Sandbox) -> list[AccountedRun]:
    found = []
    unstarted: list[str] | None = None
    for row in sacct(sandbox, *BY_STATE):
        job, task, account, start, end, tres = row
        if "." not in job:
            unstarted = None if start.isdigit() else row
        elif unstarted is not None and job.endswith(".batch"):
            job, task, account, _, end, tres = unstarted
        if "." not in job and "gres/gpu" in tres and start.isdigit() and end.isdigit():
            billing = int(tres.split("billing=")[1].split(",")[0])
            found.append(AccountedRun(int(job), task, account, int(start), int(end), billing))
    return found


def sacct(sandbox: Sandbox, *which: str) -> list[list[str]]:
    """Rows of JobIDRaw, JobID, Account, Start, End, AllocTRES, steps among them."""
    window = ("--allusers", "--duplicates", "--starttime=now-1hours")
    fields = "--format=JobIDRaw,JobID,Account,Start,End,AllocTRES"
    argv = ("env", "SLURM_TIME_FORMAT=%s", "sacct", "--noheader", "--parsable2", *window, *which)
    return [line.split("|") for line in sandbox.run("root", (*argv, fields)).stdout.splitlines()]
