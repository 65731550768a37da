"""Reads runs from accounting: what ``sacct`` is asked for, and what it prints."""

from collections.abc import Iterable, Iterator, Mapping

from slicewise.cluster.language.gres import parse_tres
from slicewise.cluster.language.jobs import RunRecord
from slicewise.cluster.language.slurm.parse import piped
from slicewise.cluster.language.slurm.unread import ReportsUnread, each, ignored
from slicewise.cluster.language.slurm.values import is_whole, named, time_s, tres, unreadable, whole

RUN_FIELDS = (
    "JobIDRaw",
    "JobID",
    "User",
    "Account",
    "Partition",
    "Start",
    "End",
    "State",
    "TimelimitRaw",
    "AllocTRES",
    "ReqTRES",
    "QOS",
)
"""Fields that every version has and that no user can write into; AllocTRES see ``_allotted``."""

_MOST_GPUS = 10**6
"""Of one type, that a record of an ended run is believed to have had."""

RUN_STATES = ("RUNNING", "REQUEUED", "PREEMPTED", "NODE_FAIL")
"""To sacct, RUNNING is whatever ran in the window, however it ended. The other states are what a
requeue leaves behind; without them sacct does not show a run that has no start.
"""


def jobs_without_start(text: str) -> frozenset[int]:
    """Raw ids of jobs with a run that has an end in accounting, but no start."""
    rows = _rows(text, ignored)
    return frozenset(whole(row["JobIDRaw"]) for row in rows if _start_is_lost(row))


def parse_runs(text: str, since_s: int, told: ReportsUnread) -> tuple[RunRecord, ...]:
    """Read lines of ``sacct -D -P -n``: runs that started, and ended after ``since_s`` or go on.

    A run may come twice, the second time with its steps. A run without a start takes that of its
    batch step, which slurmctld sets to the same second. A run that can't be read is left out: it
    stays open in the ledger, like one that accounting does not show.
    """
    rows = (row for row in _with_starts(_rows(text, told)) if time_s(row["Start"]))
    runs = dict.fromkeys(each("run", rows, _run, told, _name))
    return tuple(run for run in runs if run.end_s is None or run.end_s > since_s)


def _rows(text: str, told: ReportsUnread) -> Iterator[Mapping[str, str]]:
    """Rows with times that can be read."""
    return each("run", piped("run", text, RUN_FIELDS, told), _timed, told, _name)


def _timed(row: Mapping[str, str]) -> Mapping[str, str]:
    time_s(row["Start"]), time_s(row["End"])
    return row


def _name(row: Mapping[str, str]) -> str:
    return row["JobID"]


def _start_is_lost(row: Mapping[str, str]) -> bool:
    started, ended = time_s(row["Start"]), time_s(row["End"])
    return is_whole(row["JobIDRaw"]) and started is None and ended is not None


def _with_starts(rows: Iterable[Mapping[str, str]]) -> Iterator[Mapping[str, str]]:
    """Rows of jobs, with lost starts filled in; the rows of a run's steps follow its own."""
    run: Mapping[str, str] = {}
    for row in rows:
        job_id, _, step = row["JobIDRaw"].partition(".")
        if not step:
            run = row
            yield run
        elif step == "batch" and run and _start_is_lost(run) and run["JobIDRaw"] == job_id:
            yield {**run, "Start": row["Start"]}


def _run(row: Mapping[str, str]) -> RunRecord:
    start_s = time_s(row["Start"])
    if start_s is None or not is_whole(row["JobIDRaw"]):
        raise unreadable("accounting", str(dict(row)))
    minutes = row["TimelimitRaw"]
    return RunRecord(
        job_id=whole(row["JobIDRaw"]),
        task=row["JobID"],
        user=row["User"],
        account=row["Account"],
        partition=row["Partition"],
        start_s=start_s,
        end_s=time_s(row["End"]),
        state=row["State"].partition(" ")[0],
        time_limit_s=whole(minutes) * 60 if is_whole(minutes) else None,
        tres=_allotted(row),
        qos=named(row["QOS"]),
    )


def _allotted(row: Mapping[str, str]) -> Mapping[str, str]:
    """AllocTRES; of a run that has ended and lasted, with no fewer GPUs than it asked for.

    From Slurm 25.11 on whoever ran a job may then change AllocTRES in accounting to any number, or
    to none, but not ReqTRES. What is no sane number there counts as what was asked for.
    """
    started_s, ended_s = time_s(row["Start"]), time_s(row["End"])
    if ended_s is None or (started_s is not None and started_s >= ended_s):
        return tres(row["AllocTRES"])
    requested = {k: v for k, v in tres(row["ReqTRES"]).items() if k.startswith("gres/")}
    written = parse_tres(named(row["AllocTRES"]))
    counts = {k: v for k, v in written.items() if is_whole(v) and _is_believed(k, int(v))}
    # What else is wrong with GPUs nobody may read as none.
    unasked = {k: v for k, v in written.items() if k.startswith("gres/") and k not in requested}
    if not all(map(is_whole, unasked.values())):
        raise unreadable("TRES", row["AllocTRES"])
    return {**counts, **{k: max(v, counts.get(k, v), key=int) for k, v in requested.items()}}


def _is_believed(name: str, count: int) -> bool:
    return not name.startswith("gres/") or count <= _MOST_GPUS
