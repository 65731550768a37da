"""Reads what ``sacct -a -X -P`` prints, with ``-D`` or without, with names of columns or without.

Times are Unix seconds (``SLURM_TIME_FORMAT=%s``) or in UTC. What accounting does not show of a
site's past, no replay can know: why somebody submitted a job when he did, reservations, what an
array's own bound (``%4``) held back.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice

from cluster.language.gres import gpu_types_of_tres
from cluster.language.jobs import PastRun
from cluster.slurm.fields import numbers
from cluster.slurm.job_history import HISTORY_FIELDS, past_run
from simulation.history.csv_rows import MOST_S
from simulation.history.jobs import HistoryJob, JobHistory, in_order
from simulation.history.lines import MOST_JOBS, Line, UnreadLines, read_each

PUBLISHED_FIELDS = (
    *("JobIDRaw", "JobID", "Cluster", "User", "Account", "QOS", "Partition", "Submit", "Eligible"),
    *("Start", "End", "State", "Reason", "TimelimitRaw", "ElapsedRaw", "Suspended", "ReqTRES"),
    *("AllocTRES", "NNodes", "NodeList", "Priority", "Constraints", "Flags", "ExitCode"),
)
"""Columns of the dumps that sites publish, in their order."""
_NAMELESS = {len(fields): fields for fields in (HISTORY_FIELDS, PUBLISHED_FIELDS)}
"""Columns of text without their names, by how many there are."""
_NEEDED = ("Submit", "Start", "End", "State")
_IDS = {"JobID", "JobIDRaw"}
_TRES = {"ReqTRES", "AllocTRES"}
_CAME_BACK = {"REQUEUED", "PREEMPTED", "NODE_FAIL"}
"""States of a run after which the same job may have another one."""
_OPEN = {"RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING"}
_PENDING = "PENDING"
_AMOUNT = re.compile(r"(?P<number>[0-9]{1,15}(?:\.[0-9]{1,6})?)(?P<unit>[KMGTP]?)")
_MIB = {"K": 2**-10, "": 1, "M": 1, "G": 2**10, "T": 2**20, "P": 2**30}
_COUNTS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_GOLDEN = 0.618033988749895
"""Its multiples' fractions are spread evenly, however many are taken."""
_MOST = 1_000_000
"""GPUs or nodes of one job."""


def is_sacct(first: str) -> bool:
    """Whether a file with this first line is sacct's."""
    cells = first.split("|")
    return not _IDS.isdisjoint(cells) or (
        len(cells) in _NAMELESS and cells[0].partition("_")[0].isdecimal()
    )


def read_sacct(lines: Iterable[Line], unread: UnreadLines) -> JobHistory:
    """Read the jobs; the runs of a requeued job become one job.

    sacct shows what waited or ran in a time, so also jobs that came long before it. Nobody wrote
    down when that time begins: it is not after the first end of a run.

    Raises InvalidInputError (SW-INPUT-FILE) if the first line lacks a column that is needed, or
    for more runs or jobs than ``MOST_JOBS``.
    """
    rest = iter(lines)
    first = next(rest, (1, ""))
    columns, is_header = _columns(first, unread)
    rows = rest if is_header else chain([first], rest)
    by_job: dict[tuple[str, int], list[PastRun]] = defaultdict(list)
    runs = read_each(rows, lambda line: _run(line[1], columns), unread)
    for run in runs:
        by_job[run.task, run.job_id].append(run)
    counts = {"open": 0, "left": 0}
    first_end_s = min(_ends(by_job.values()), default=None)
    # Each run is let go when its job is made: both at once would take twice as much.
    jobs = (job for key in tuple(by_job) for job in _jobs_of(by_job.pop(key), counts))
    found = in_order(islice(jobs, MOST_JOBS + 1))
    if len(found) > MOST_JOBS:
        raise unread.error(first[0], f"more than {MOST_JOBS} jobs follow")
    return JobHistory(
        jobs=found,
        unread=unread.count,
        first_unread=unread.first,
        open_ended=counts["open"],
        without_run_s=counts["left"],
        whole_from_s=first_end_s,
    )


def _ends(jobs: Iterable[Sequence[PastRun]]) -> Iterator[float]:
    return (float(run.end_s) for runs in jobs for run in runs if run.end_s is not None)


def _columns(first: Line, unread: UnreadLines) -> tuple[Sequence[str], bool]:
    number, text = first
    cells = text.split("|")
    if _IDS.isdisjoint(cells):
        columns = _NAMELESS.get(len(cells))
        if columns is None:
            raise unread.nothing(
                number, "neither names of sacct's columns nor as many as are known"
            )
        return columns, False
    missing = [name for name in _NEEDED if name not in cells]
    if _TRES.isdisjoint(cells):
        missing.append("ReqTRES")
    if missing:
        raise unread.error(number, f"no column {', '.join(missing)}")
    return cells, True


def _run(text: str, columns: Sequence[str]) -> PastRun | None:
    """Read one row; a step's (``814.batch``) is nothing."""
    cells = text.removesuffix("|").split("|") if text.count("|") == len(columns) else None
    cells = cells or text.split("|")
    if len(cells) != len(columns):
        raise ValueError(f"{len(cells)} columns in place of {len(columns)}")
    row = dict(zip(columns, cells, strict=True))
    if "." in (row.get("JobIDRaw") or row["JobID"]):
        return None
    run = past_run(row)
    times = (run.submit_s, run.eligible_s, run.start_s, run.end_s, run.elapsed_s, run.time_limit_s)
    if max(one or 0 for one in times) >= MOST_S:
        raise ValueError("a time that no calendar has")
    # Whatever can't be read of it is found here, where it costs this line alone.
    _request(run), _several(run.task)
    return run


def _jobs_of(runs: list[PastRun], counts: dict[str, int]) -> Iterator[HistoryJob]:
    """Jobs of rows with one id: one, unless Slurm has given the id again."""
    if len(runs) > 1:
        runs.sort(key=lambda run: (run.submit_s, run.start_s or run.submit_s))
    of_one: list[PastRun] = []
    for run in runs:
        of_one.append(run)
        if run.state not in _CAME_BACK:
            yield from _tasks(of_one, counts)
            of_one = []
    if of_one:
        yield from _tasks(of_one, counts)


def _tasks(runs: list[PastRun], counts: dict[str, int]) -> Iterator[HistoryJob]:
    """The job, or one for each untouched task of an array."""
    job = _job(runs)
    if job is None:
        counts["left"] += 1
        return
    several = _several(runs[0].task)
    if runs[-1].end_s is None:
        counts["open"] += several
    for _ in range(several):
        yield job


def _array(task: str) -> int | None:
    array, underscore, _ = task.partition("_")
    return int(array) if underscore and array.isdecimal() else None


def _several(task: str) -> int:
    """How many tasks ``814_[4-9]`` stands for; 1 if it is no array that was never touched."""
    _, bracket, indices = task.partition("_[")
    return len(numbers(indices.rstrip("]"))) if bracket else 1


def _job(runs: list[PastRun]) -> HistoryJob | None:
    """Join the runs of one job: it came with the first, and needed what the last one took."""
    first, last = runs[0], runs[-1]
    started = [run for run in runs if _has_run(run)]
    eligible_s = first.eligible_s or (first.submit_s if started else None)
    if eligible_s is None:
        return None
    submit_s = max(first.submit_s, eligible_s)
    if started:
        # A held job can become eligible in accounting after its start.
        submit_s = min(submit_s, started[0].start_s or submit_s)
        needed = last if _has_run(last) else max(started, key=lambda run: run.elapsed_s or 0)
        run_s = _within(needed.elapsed_s, first.job_id)
    else:
        run_s = last.time_limit_s if last.end_s is None else max(0, last.end_s - submit_s)
    if run_s is None:
        return None
    gpus, nodes, cpus, memory_mib = _request(first)
    return HistoryJob(
        job_id=first.job_id,
        user=first.user,
        account=first.account,
        partition=first.partition,
        qos=first.qos,
        submit_s=float(submit_s),
        run_s=float(run_s),
        time_limit_s=first.time_limit_s,
        gpus=gpus,
        nodes=nodes,
        cpus=cpus,
        memory_mib=memory_mib,
        started_s=float(started[0].start_s or 0) if started else None,
        is_cancelled_waiting=not started and last.end_s is not None,
        array_job_id=_array(first.task),
    )


def _within(elapsed_s: int | None, job_id: int) -> float | None:
    """How long a run may have taken of which both ends are known to the second.

    A run of 27 s took 26 to 28; each job gets a part of a second by its id, 0 on average. If all
    runs took whole seconds, they would end in step with Slurm's backfill in a replay, and each
    would keep the next one waiting for a whole cycle.
    """
    if not elapsed_s:
        return elapsed_s
    return elapsed_s + job_id * _GOLDEN % 1.0 - 0.5


def _has_run(run: PastRun) -> bool:
    """Whether it had nodes: some versions write a start for jobs that were cancelled waiting."""
    return run.start_s is not None and (bool(run.elapsed_s) or "node" in run.allotted)


def _request(run: PastRun) -> tuple[Mapping[str, int], int, int, int]:
    """GPUs by type, nodes, CPUs, memory in MiB."""
    tres = run.requested or run.allotted
    gpus = _kept_once(tuple((_gpus(tres) or _gpus(run.allotted)).items()))
    nodes = _count(tres.get("node", "")) or run.nodes or 1
    if max((nodes, *gpus.values())) > _MOST:
        raise ValueError(f"more than {_MOST} GPUs or nodes")
    return gpus, nodes, _count(tres.get("cpu", "")), int(_amount(tres.get("mem", ""), _MIB))


def _gpus(tres: Mapping[str, str]) -> Mapping[str, int]:
    """GPUs by type; "" has those without one."""
    for name, value in tres.items():
        if name.startswith("gres/gpu:") and not value.isdecimal():
            raise ValueError(f"no count of GPUs: {name}={value}")
    typed = gpu_types_of_tres(tres)
    untyped = _count(tres.get("gres/gpu", "")) - sum(
        count for name, count in typed.items() if f"gres/gpu:{name}" in tres
    )
    found = {**typed, "": untyped}
    return {name: count for name, count in found.items() if count > 0}


@lru_cache(1 << 12)
def _kept_once(gpus: tuple[tuple[str, int], ...]) -> Mapping[str, int]:
    """The same mapping for all jobs that ask for the same."""
    return dict(gpus)


def _count(text: str) -> int:
    return int(_amount(text, _COUNTS))


def _amount(text: str, units: Mapping[str, float]) -> float:
    if not text:
        return 0.0
    found = _AMOUNT.fullmatch(text)
    if found is None:
        raise ValueError(f"no amount: {text}")
    return float(found["number"]) * units[found["unit"]]
