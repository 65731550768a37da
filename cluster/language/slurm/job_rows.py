"""Parses what ``squeue`` prints of jobs into ``JobView``.

Users choose names, comments and paths, and Slurm quotes none of them: a line break in a job's name
can imitate a whole record of ``scontrol show job``, with a tag. So jobs are read from ``squeue``
with a separator that no user can guess. A value that can't be read affects its own job only.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from slicewise.cluster.language.errors import OutsideError
from slicewise.cluster.language.jobs import JobState, JobView, RunOfJob
from slicewise.cluster.language.slurm.interface import Target, Tasks
from slicewise.cluster.language.slurm.unnamed_gpus import AskedGpus, gpus_of_job
from slicewise.cluster.language.slurm.unread import Fields, ReportsUnread, each
from slicewise.cluster.language.slurm.values import (
    duration_s,
    hosts,
    is_whole,
    named,
    numbers,
    plain,
    time_s,
    tres,
    unreadable,
    whole,
)

JOB_FIELDS = (
    "JobId",
    "ArrayJobId",
    "ArrayTaskId",
    "Name",
    "UserName",
    "UserId",
    "Account",
    "Partition",
    "QOS",
    "State",
    "Reason",
    "PriorityLong",
    "admin_comment",
    "Comment",
    "tres-alloc",
    "NodeList",
    "SubmitTime",
    "StartTime",
    "EndTime",
    "EligibleTime",
    "TimeLimit",
    "RestartCnt",
    "tres-per-node",
    "tres-per-job",
    "tres-per-socket",
    "tres-per-task",
    "NumTasks",
    "HetJobId",
)
"""Fields that ``squeue -O`` is asked for. ``tres-alloc`` is the request while the job is pending.
"""

RELEASE_FIELDS = ("ArrayTaskId", "State", "RestartCnt", "SubmitTime")
RUN_OF_JOB_FIELDS = ("JobId", "ArrayJobId", "ArrayTaskId", "StartTime")

_JOB_ID = re.compile(r"[0-9]{1,10}")
_THROTTLED = re.compile(r"^([0-9]{1,10})_\[[^\]%]*%[0-9]+\]$", re.MULTILINE)
_ENDED = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "LAUNCH_FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "RECONFIG_FAIL",
        "TIMEOUT",
    }
)
_PENDING = frozenset({"REQUEUE_HOLD", "RESV_DEL_HOLD", "EXPEDITING"})
_OTHERS = frozenset(
    {"REQUEUED", "REQUEUE_FED", "REVOKED", "STAGE_OUT", "POWER_UP_NODE", "UPDATE_DB"}
)
_RUNNING = frozenset({"SIGNALING", "STOPPED", "RESIZING"})
"""Words of ``squeue`` for a running job while it is sent a signal, by its own user too, once it has
got STOP, and while it gives nodes back. The job holds its GPUs all the time.
"""
HOLDABLE = frozenset({JobState.PENDING, JobState.SPECIAL_EXIT})
OVER = frozenset({JobState.ENDED, JobState.COMPLETING})
"""States of a job that is over. Without a time limit only such a job has an end: for a running one
Slurm makes an end up.
"""


def job_format(fields: Sequence[str], separator: str) -> str:
    """The text for SQUEUE_FORMAT2: each field in full, ended by the separator (a letter first)."""
    return ",".join(f"{field}:{separator}" for field in fields)


def parse_rows(text: str, fields: Sequence[str], separator: str) -> tuple[Mapping[str, str], ...]:
    """Split squeue's text into rows by field.

    Whatever a user wrote stays inside its value, line breaks too.
    """
    *cells, end = text.split(separator)
    if end.strip() or len(cells) % len(fields):
        raise unreadable("job list", text)
    width = len(fields)
    # Each row ends with a line break, which is then at the beginning of the next row's first cell.
    cells[::width] = (cell.removeprefix("\n") for cell in cells[::width])
    starts = range(0, len(cells), width)
    return tuple(dict(zip(fields, cells[start : start + width], strict=True)) for start in starts)


Shown = tuple[int, frozenset[int], frozenset[int]]
"""An array's untouched tasks as rows show them: its id, their indices, and those of the tasks with
an id of their own.
"""


def uncertain(rows: Sequence[Mapping[str, str]]) -> frozenset[Shown]:
    """Arrays of which ``squeue -r`` may have left out the last untouched task; see ``records``.

    slurmctld writes indices as ``first-last:step`` only if they are more than two, evenly spaced,
    without neighbours, and the last is more than ten from the first.
    """
    own: dict[str, set[int]] = {}
    untouched: dict[str, set[int]] = {}
    for row in rows:
        if not is_whole(row["ArrayTaskId"]):
            continue
        if row["JobId"] != row["ArrayJobId"]:
            own.setdefault(row["ArrayJobId"], set()).add(whole(row["ArrayTaskId"]))
        elif _is_pending(row["State"]):
            untouched.setdefault(row["ArrayJobId"], set()).add(whole(row["ArrayTaskId"]))
    return frozenset(
        (whole(array), frozenset(indices), frozenset(own.get(array, ())))
        for array, indices in untouched.items()
        if is_whole(array) and _is_spaced(sorted(indices))
    )


_SPAN = 10


def _is_spaced(indices: Sequence[int]) -> bool:
    """Whether these and one more would be evenly spaced, and written as such."""
    steps = {later - earlier for earlier, later in pairwise(indices)}
    if len(steps) != 1 or 1 in steps:
        return False
    return indices[-1] + min(steps) - indices[0] > _SPAN


def parse_pending(text: str, told: ReportsUnread) -> Mapping[int, frozenset[int]]:
    """Waiting indices by array, from lines such as ``814_[0-8:2,11%4]``.

    ``squeue -o %i`` prints such lines without ``-r``.
    """
    indices: dict[int, frozenset[int]] = {}
    lines = (line for line in text.split() if "_" in line)
    for array, several in each("pending tasks", lines, _pending, told, str):
        indices[array] = indices.get(array, frozenset()) | several
    return indices


def parse_throttled(text: str) -> frozenset[int]:
    """Arrays with a bound on tasks at the same time, from lines as of ``parse_pending``."""
    return frozenset(int(array) for array in _THROTTLED.findall(text))


def _pending(line: str) -> tuple[int, frozenset[int]]:
    array, _, indices = line.partition("_")
    return whole(array), frozenset(numbers(indices.strip("[]")))


def parse_jobs(
    rows: Sequence[Mapping[str, str]], pending: Mapping[int, frozenset[int]], told: ReportsUnread
) -> tuple[JobView, ...]:
    """Convert rows of ``squeue -r`` as ``read_rows`` and ``records`` do."""
    return records(read_rows(rows, {}, told).values(), pending)


def read_rows(
    rows: Iterable[Mapping[str, str]], before: Mapping[str, JobView], told: ReportsUnread
) -> Mapping[str, JobView]:
    """Convert each row, by its text; a row that was there ``before`` is the same object.

    Most rows are the same at each look, and reading one takes twenty times as long as finding it.
    One with a value that could not be read is read, and told, again.

    Raises OutsideError (SW-SLURM-FAILED) for a row without a job id: nothing says which job would
    be missing, and a missing job looks ended.
    """
    jobs: dict[str, JobView] = {}
    for row in rows:
        text = _BETWEEN.join(row.values())
        job = before.get(text)
        jobs[text] = _job(row, told) if job is None or job.unread else job
    return jobs


_BETWEEN = "\0"
"""What no value has: Slurm keeps texts as C does."""


def records(jobs: Iterable[JobView], pending: Mapping[int, frozenset[int]]) -> tuple[JobView, ...]:
    """Join an array's untouched tasks, which share an id, into one record.

    Where the untouched indices are evenly spaced (``0-8:2``), ``squeue -r`` of 22.05 leaves out the
    last. So ``pending`` completes them with all tasks that have no row of their own.
    """
    grouped: dict[int, list[JobView]] = {}
    for job in jobs:
        grouped.setdefault(job.job_id, []).append(job)
    split = _split_tasks(same[0] for same in grouped.values())
    return tuple(
        _record(same, pending.get(job_id, frozenset()) - split.get(job_id, set()))
        for job_id, same in grouped.items()
    )


def _split_tasks(jobs: Iterable[JobView]) -> Mapping[int, set[int]]:
    """The tasks that have an id of their own, by array."""
    split: dict[int, set[int]] = {}
    for job in jobs:
        array = job.array_job_id
        if array is not None and array != job.job_id and job.task_index is not None:
            split.setdefault(array, set()).add(job.task_index)
    return split


def _record(same: Sequence[JobView], missed: frozenset[int]) -> JobView:
    first = same[0]
    indices = missed.union(job.task_index for job in same if job.task_index is not None)
    if len(indices) <= 1:
        return first
    # The untouched tasks can also end together: none of them can be released any more.
    untouched = frozenset() if first.state is JobState.ENDED else indices
    unread = first.unread.union(*(job.unread for job in same))
    return replace(first, task_index=None, untouched=untouched, unread=unread)


def _job(row: Mapping[str, str], told: ReportsUnread) -> JobView:
    job_id = row["JobId"]
    if not _JOB_ID.fullmatch(job_id):
        raise unreadable("job", str(dict(row)))
    fields = Fields("job", job_id, row.__getitem__, told)
    state = fields.read("state", "State", job_state, JobState.OTHER)
    priority = fields.read("priority", "PriorityLong", whole, -1)
    task_index, untouched = fields.read("task_index", "ArrayTaskId", _task, _NO_TASK)
    is_task = task_index is not None or bool(untouched)
    array_job_id = fields.read("array_job_id", "ArrayJobId", whole, None) if is_task else None
    gpus = gpus_of_job(fields.read("tres", "tres-alloc", tres, {}), _asked(row))
    return JobView(
        job_id=whole(job_id),
        array_job_id=array_job_id,
        task_index=task_index,
        untouched=untouched if state is not JobState.ENDED else frozenset(),
        name=plain(row["Name"]),
        user=row["UserName"],
        uid=fields.read("uid", "UserId", whole, -1),
        account=plain(row["Account"]),
        partition=row["Partition"],
        qos=plain(row["QOS"]),
        state=state,
        reason=row["Reason"],
        held=state in HOLDABLE and priority == 0,
        priority=max(priority, 0),
        admin_comment=plain(row["admin_comment"]),
        comment=plain(row["Comment"]),
        tres=gpus.tres,
        unnamed=gpus.unnamed,
        nodes=fields.read("nodes", "NodeList", hosts, ()),
        submit_s=fields.read("submit_s", "SubmitTime", time_s, None),
        start_s=fields.read("start_s", "StartTime", time_s, None),
        end_s=fields.read("end_s", "EndTime", time_s, None),
        eligible_s=fields.read("eligible_s", "EligibleTime", time_s, None),
        time_limit_s=fields.read("time_limit_s", "TimeLimit", duration_s, None),
        restarts=fields.read("restarts", "RestartCnt", whole, 0),
        ended=row["State"] if state is JobState.ENDED else "",
        het_job_id=fields.read("het_job_id", "HetJobId", _het_job_id, -1),
        unread=fields.unread,
    )


_PER = ("tres-per-node", "tres-per-job", "tres-per-socket", "tres-per-task")


def _asked(row: Mapping[str, str]) -> AskedGpus:
    node, job, socket, task = (named(row[field]) for field in _PER)
    tasks = row["NumTasks"]
    return AskedGpus(node, job, socket, task, int(tasks) if _JOB_ID.fullmatch(tasks) else 1)


_NO_INDEX = frozenset({"N/A", "(null)", ""})
_NO_TASK: tuple[int | None, frozenset[int]] = (None, frozenset())


def _het_job_id(text: str) -> int:
    return 0 if text in _NO_INDEX else whole(text)


def _task(text: str) -> tuple[int | None, frozenset[int]]:
    """The task's index; for several tasks that Slurm shows in one row, the set of their indices."""
    if text in _NO_INDEX:
        return _NO_TASK
    several = numbers(text)
    return (several[0], frozenset()) if len(several) == 1 else (None, frozenset(several))


def job_state(word: str) -> JobState:
    """Convert Slurm's word; a task held after a requeue (REQUEUE_HOLD) counts as pending.

    Raises OutsideError (SW-SLURM-FAILED) for a word that no known version prints.
    """
    if word in _ENDED:
        return JobState.ENDED
    if word in _PENDING:
        return JobState.PENDING
    if word in _RUNNING:
        return JobState.RUNNING
    if word in _OTHERS:
        return JobState.OTHER
    if word not in JobState.__members__:
        raise unreadable("job state", word)
    return JobState(word)


def last_end_s(rows: Sequence[Mapping[str, str]], now_s: int) -> int:
    """Unix second at which the last run of these tasks ended, from rows with ``RELEASE_FIELDS``.

    It is ``now_s`` if a run is still ending, and 0 if no task has run yet. A requeue sets
    SubmitTime, so that is when the run before it ended.
    """
    return max((_end_s(row, now_s) for row in rows), default=0)


def running_targets(
    rows: Iterable[Mapping[str, str]], told: ReportsUnread
) -> Mapping[RunOfJob, Target]:
    """What runs, by run, from ``RUN_OF_JOB_FIELDS``: a task of an array as that task alone."""
    runs = each("run", rows, _running_target, told, lambda row: row["JobId"])
    return dict(runs)


def _running_target(row: Mapping[str, str]) -> tuple[RunOfJob, Target]:
    job_id, task = whole(row["JobId"]), row["ArrayTaskId"]
    run = job_id, time_s(row["StartTime"])
    if is_whole(task):
        return run, Tasks(whole(row["ArrayJobId"]), frozenset({whole(task)}))
    return run, job_id


def started(rows: Sequence[Mapping[str, str]]) -> frozenset[int]:
    """Indices of these tasks, from ``RELEASE_FIELDS``, that are not known to be pending."""
    return frozenset(
        whole(row["ArrayTaskId"])
        for row in rows
        if is_whole(row["ArrayTaskId"]) and not _is_pending(row["State"])
    )


def _is_pending(word: str) -> bool:
    return word in _PENDING or word in HOLDABLE


def _end_s(row: Mapping[str, str], now_s: int) -> int:
    if row["State"] == JobState.COMPLETING:
        return now_s
    if row["RestartCnt"] == "0":
        return 0
    try:
        return time_s(row["SubmitTime"]) or 0
    except OutsideError:
        return now_s  # It may have been just now: waiting a second too long does no harm.
