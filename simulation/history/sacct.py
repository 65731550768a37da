"""Reads what ``sacct -a -X -P`` prints, with ``-D`` or without, with names of columns or without.

Times are Unix seconds (``SLURM_TIME_FORMAT=%s``), or ISO 8601 with an offset or in UTC. What
accounting does not show of a site's past, no replay can know: why somebody submitted a job when he
did, reservations, what an array's own bound (``%4``) held back.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from math import inf
from string import punctuation
from sys import intern

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.language.gres import gpu_types_of_tres, parse_gpu_requests
from slicewise.cluster.language.jobs import PastRun
from slicewise.cluster.language.slurm.job_history import HISTORY_FIELDS, past_run
from slicewise.cluster.language.slurm.unread import quoted
from slicewise.cluster.language.slurm.values import numbers, time_s
from slicewise.simulation.history.csv_rows import IN_UTC, MOST_S, cells_of
from slicewise.simulation.history.lines import MOST_JOBS, TWICE, Line, UnreadLines, read_each
from slicewise.simulation.rules.history.jobs import ENDS_FIRST, HistoryJob, JobHistory, in_order

PUBLISHED_FIELDS = (
    *("JobIDRaw", "JobID", "Cluster", "User", "Account", "QOS", "Partition", "Submit", "Eligible"),
    *("Start", "End", "State", "Reason", "TimelimitRaw", "ElapsedRaw", "Suspended", "ReqTRES"),
    *("AllocTRES", "NNodes", "NodeList", "Priority", "Constraints", "Flags", "ExitCode"),
)
"""Columns of the dumps that sites publish, in their order."""


def _of_xdmod(qos: bool, requested: Sequence[str]) -> tuple[str, ...]:
    return (
        *("JobID", "JobIDRaw", "Cluster", "Partition", *(("QOS",) if qos else ()), "Account"),
        *("Group", "GID", "User", "UID", "Submit", "Eligible", "Start", "End", "Elapsed"),
        *("ExitCode", "State", "NNodes", "NCPUS", "ReqCPUS", "ReqMem", *requested),
        *("Timelimit", "NodeList", "JobName"),
    )


XDMOD_FIELDS = _of_xdmod(qos=False, requested=("ReqGRES", "ReqTRES", "AllocTRES"))
"""Columns of the files that Open XDMoD has sites make; its versions differ in some."""
_NAMELESS: Mapping[str, Sequence[tuple[str, ...]]] = {
    "those that docs/reference/history-files.md names": (HISTORY_FIELDS,),
    "those of published dumps": (PUBLISHED_FIELDS,),
    "those of Open XDMoD": (
        XDMOD_FIELDS,
        _of_xdmod(qos=True, requested=("ReqTRES", "AllocTRES")),
        _of_xdmod(qos=False, requested=("ReqTRES", "AllocTRES")),
        _of_xdmod(qos=False, requested=("ReqGRES", "ReqTRES")),
    ),
}
"""Columns of text without their names, by whose they are."""
_NEEDED = ("Submit", "Start", "End", "State")
_IDS = {"JobID", "JobIDRaw"}
_TRES = {"ReqTRES", "AllocTRES"}
_FREE_TEXT = "JobName"
"""A column that may have the separator in it, which sacct does not escape."""
_LACKING: Mapping[tuple[str, ...], str] = {
    ("TimelimitRaw", "Timelimit"): "no job has a time limit",
    ("ElapsedRaw", "Elapsed"): "a job ran from its start to its end",
    ("Eligible",): "each job could start when it was submitted",
    ("Account",): "all jobs are of one account",
    ("User",): "all jobs are of one user",
    ("Partition",): "all jobs are of one partition",
}
"""What is assumed where a file has none of some columns."""
_READ = {*chain(*_LACKING, HISTORY_FIELDS, PUBLISHED_FIELDS, XDMOD_FIELDS)}
_NAMES = {name.lower(): name for name in _READ}
"""sacct's spelling of the columns that are read, by lower case."""
_ALL_SEPARATORS = "|,;\t" + "".join(letter for letter in punctuation if letter not in '|,;"_')
"""What parts columns, the usual first: sacct's --delimiter may be any."""
_STEPS = "they are steps of jobs, such as 814.batch"
_REVOKED = "they started on another cluster of their federation (REVOKED)"
_RUN_UNKNOWN = "how long they would have run is not known"
_NEVER_ELIGIBLE = "they were never eligible to run"
_ELAPSED_WINS = (
    "Jobs that by their times end before they start ran as long as Elapsed says: the times may be"
    " those of a zone that changes its offset."
)
_INVALID_LIMIT = "A time limit that sacct shows as INVALID is taken for none."
_CUT = "..."
"""Behind the tasks of an array that sacct shows, where they have no room in its column."""
_SHOWN_TASKS = (
    "Of arrays whose list of tasks sacct cuts (814_[1,3,...]) there are those that it shows."
)
_CAME_BACK = {"REQUEUED", "PREEMPTED", "NODE_FAIL"}
"""States of a run after which the same job may have another one."""
_WITHOUT_OFFSET = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?P<clock>[T ][0-9:]{4,8}(?:\.[0-9]+)?)?")
_STATE = re.compile(r"[A-Z_]{4,}( .*)?")
_ID = re.compile(r"[0-9]{1,18}(?![0-9])")
_PER = re.compile(r"(?:PER_(?P<what>[A-Z]+):)?(?P<gres>.*)", re.DOTALL)
"""What ReqGRES counts GPUs by."""
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
    return _named(first) is not None or (
        len(cells) >= len(_NEEDED) + 1 and _ID.match(cells[0]) is not None
    )


@dataclass(frozen=True)
class _Table:
    columns: tuple[str, ...]
    separator: str = "|"


def _named(text: str) -> _Table | None:
    """The columns that a line names; None if it has no such names."""
    for separator in sorted(set(_ALL_SEPARATORS) & set(text), key=_ALL_SEPARATORS.index):
        try:
            cells = [cell.strip() for cell in _split(text, separator, 0)]
        except ValueError:
            continue
        names = tuple(_NAMES.get(cell.lower(), cell) for cell in cells)
        if len(names) > 1 and not _IDS.isdisjoint(names):
            return _Table(names if names[-1] else names[:-1], separator)
    return None


def _split(text: str, separator: str, columns: int) -> list[str]:
    """The values of a line; sacct quotes none, others quote those with a separator in them."""
    cells = text.split(separator)
    if '"' not in text:
        return cells
    if len(cells) != columns:
        return cells_of(text, separator)
    return [
        cell[1:-1] if cell[:1] == cell[-1:] == '"' and len(cell) > 1 else cell for cell in cells
    ]


def _nameless(first: Line, unread: UnreadLines) -> _Table:
    """The columns that a first line without names fits."""
    number, text = first
    for whose, several in _NAMELESS.items():
        for columns in several:
            try:
                row = _row(text, _Table(columns))
            except ValueError:
                continue
            if _fits(row):
                unread.assume(
                    f"The file names no columns: its {len(columns)} are taken for {whose}."
                )
                return _Table(columns)
    raise unread.nothing(
        number,
        f"its {len(text.split('|'))} columns have no names and are none that are known: add a first"
        " line with their names",
    )


def _fits(row: Mapping[str, str]) -> bool:
    try:
        times = [time_s(row[name]) for name in ("Submit", "Start", "End")]
    except SlicewiseError:
        return False
    tres = [row[name] for name in _TRES if name in row]
    return (
        times[0] is not None
        and _STATE.fullmatch(row["State"]) is not None
        and any(tres)
        and all("=" in text or not text for text in tres)
        and "=" not in row.get("ReqGRES", "")
    )


def _row(text: str, table: _Table) -> dict[str, str]:
    columns, separator = table.columns, table.separator
    cells = _split(text, separator, len(columns))
    if len(cells) == len(columns) + 1 and not cells[-1]:  # sacct -p
        cells.pop()
    if len(cells) > len(columns) and columns[-1] == _FREE_TEXT:
        cells[len(columns) - 1 :] = [separator.join(cells[len(columns) - 1 :])]
    if len(cells) != len(columns):
        raise ValueError(f"{len(cells)} columns in place of {len(columns)}")
    return dict(zip(columns, cells, strict=True))


def read_sacct(lines: Iterable[Line], unread: UnreadLines) -> JobHistory:
    """Read the jobs; the runs of a requeued job become one job.

    sacct shows what waited or ran in a time, so also jobs that came long before it. Nobody wrote
    down when that time begins: it is not after the first end of a run. Several files may follow
    each other: each has its own names of columns, and a job that is in two of them is one.

    Raises InvalidInputError (SW-INPUT-FILE) if the first line lacks a column that is needed, or
    for more runs or jobs than ``MOST_JOBS``.
    """
    rest = iter(lines)
    first = next(rest, (1, ""))
    reader = _Rows(first, unread)
    rows = rest if reader.has_names else chain([first], rest)
    by_job: dict[_Key, list[PastRun]] = defaultdict(list)
    for key, run in read_each(rows, reader.read, unread):
        by_job[key].append(run)
    clusters = sorted({cluster for cluster, _, _ in by_job})
    if len(clusters) > 1:
        shown = map(quoted, clusters[:_SHOWN])
        names = f"{', '.join(shown)}{', ...' if len(clusters) > _SHOWN else ''}"
        unread.assume(f"Jobs of {len(clusters)} clusters ({names}) are taken for those of one.")
    counts = _Counts(unread, _Untouched(by_job))
    first_end_s = min(_ends(by_job.values()), default=None)
    # Each run is let go when its job is made: both at once would take twice as much.
    jobs = (job for key in tuple(by_job) for job in _jobs_of(key[0], by_job.pop(key), counts))
    history_jobs = in_order(islice(jobs, MOST_JOBS + 1))
    if len(history_jobs) > MOST_JOBS:
        raise unread.error(first[0], f"more than {MOST_JOBS} jobs follow")
    return unread.history(history_jobs, open_ended=counts.open_ended, whole_from_s=first_end_s)


_Key = tuple[str, str, int]
"""A job's cluster, its name for people (``814_3``) and Slurm's raw number."""
_SHOWN = 5


def _ends(jobs: Iterable[Sequence[PastRun]]) -> Iterator[float]:
    return (float(run.end_s) for runs in jobs for run in runs if run.end_s is not None)


class _Untouched:
    """Which tasks of arrays have no row of their own.

    ``814_[4-9]`` waited in one file; in a later one 814_4 has run, and ``814_[5-9]`` wait.
    """

    def __init__(self, by_job: Mapping[_Key, Sequence[PastRun]]) -> None:
        folded = {(key[0], key[1].partition("_[")[0]) for key in by_job if "_[" in key[1]}
        self._seen: defaultdict[tuple[str, str, int], set[int]] = defaultdict(set)
        for (cluster, task, _), runs in by_job.items() if folded else ():
            array, _, index = task.partition("_")
            if index.isdecimal() and (cluster, array) in folded:
                for run in runs:
                    self._seen[cluster, array, run.submit_s].add(int(index))

    def count(self, cluster: str, task: str, submit_s: int) -> int:
        """How many tasks ``814_[4-9]`` stands for that were not counted; 1 if it is no array."""
        array, bracket, indices = task.partition("_[")
        if not bracket:
            return 1
        seen = self._seen[cluster, array, submit_s]
        fresh = set(_indices(indices)) - seen
        seen |= fresh
        return len(fresh)


@dataclass
class _Counts:
    """What is counted while jobs are made of runs."""

    unread: UnreadLines
    untouched: _Untouched
    open_ended: int = 0


class _Rows:
    """Reads row after row by the names of columns that came last."""

    def __init__(self, first: Line, unread: UnreadLines) -> None:
        self._unread = unread
        table = _named(first[1])
        self.has_names = table is not None
        self._take(table or _nameless(first, unread), first[0])

    def _take(self, table: _Table, number: int) -> None:
        columns = table.columns
        missing = [name for name in _NEEDED if name not in columns]
        if _TRES.isdisjoint(columns):
            missing.append("ReqTRES")
        if missing:
            raise self._unread.error(number, f"no column {', '.join(missing)}")
        for names, what in _LACKING.items():
            if not set(names) & set(columns):
                self._unread.assume(f"No column {' or '.join(names)}: {what}.")
        self._table = table

    def read(self, line: Line) -> tuple[_Key, PastRun] | None:
        """Read one row; names of columns and a step's (``814.batch``) are nothing."""
        number, text = line
        if "jobid" in text.lower():
            table = _named(text)
            if table is not None and all(map(str.isalpha, table.columns)):
                self._take(table, number)
                return None
        row = _row(text, self._table)
        if any("." in row.get(name, "").partition("_[")[0] for name in _IDS):
            self._unread.leave_out(_STEPS)
            return None
        if row["State"].partition(" ")[0] == "REVOKED":
            self._unread.leave_out(_REVOKED)
            return None
        if _CUT in row.get("JobID", ""):
            self._unread.assume(_SHOWN_TASKS)
        self._check_times(row)
        row.setdefault("Eligible", row["Submit"])
        run = past_run(_with_gres(row))
        times = (
            *(run.submit_s, run.eligible_s, run.start_s, run.end_s, run.elapsed_s),
            run.time_limit_s,
        )
        if max(time or 0 for time in times) >= MOST_S:
            raise ValueError("a time that no calendar has")
        # Whatever can't be read of it is found here, where it costs this line alone.
        _request(run), _indices(run.task.partition("_[")[2])
        return (intern(row.get("Cluster", "")), run.task, run.job_id), run

    def _check_times(self, row: Mapping[str, str]) -> None:
        for name in ("Submit", "Start", "End"):
            match = _WITHOUT_OFFSET.fullmatch(row[name])
            if match is not None and match["clock"] is None:
                raise ValueError(f"a day without a time of day: {row[name]}")
            if match is not None:
                self._unread.assume(IN_UTC)
        if row.get("Timelimit") == "INVALID" and not row.get("TimelimitRaw"):
            self._unread.assume(_INVALID_LIMIT)


def _with_gres(row: dict[str, str]) -> Mapping[str, str]:
    """The row with GPUs by ReqGRES, where accounting has none of them as TRES."""
    gres = row.get("ReqGRES", "")
    if "gpu" not in gres or any("gres/gpu" in row.get(name, "") for name in _TRES):
        return row
    gres_match = _PER.fullmatch(gres)
    what = (gres_match and gres_match["what"]) or "NODE"
    if gres_match is None or what not in {"NODE", "JOB"}:
        raise ValueError(f"GPUs of which the number is not said: {gres}")
    nodes = int(row["NNodes"]) if row.get("NNodes", "").isdecimal() and what == "NODE" else 1
    asked = (
        f"gres/gpu{f':{gpus.gres_type}' if gpus.gres_type else ''}={gpus.count * max(1, nodes)}"
        for gpus in parse_gpu_requests(gres_match["gres"])
    )
    before = (row["ReqTRES"],) if row.get("ReqTRES") else ()
    return {**row, "ReqTRES": ",".join((*before, *asked))}


def _indices(text: str) -> tuple[int, ...]:
    """Indices of ``4-9%2]``; of ``1,3,17,...]`` those that sacct shows."""
    shown, cut, _ = text.partition(_CUT)
    return numbers(shown.rpartition(",")[0] if cut else shown.rstrip("]"))


def _jobs_of(cluster: str, runs: list[PastRun], counts: _Counts) -> Iterator[HistoryJob]:
    """Jobs of rows with one id: one, unless Slurm has given the id again."""
    if len(runs) > 1:
        rows = len(runs)
        runs = _once(runs)
        counts.unread.leave_out(TWICE, rows - len(runs))
    of_one: list[PastRun] = []
    for run in runs:
        of_one.append(run)
        if run.state not in _CAME_BACK:
            yield from _tasks(cluster, of_one, counts)
            of_one = []
    if of_one:
        yield from _tasks(cluster, of_one, counts)


def _once(runs: Iterable[PastRun]) -> list[PastRun]:
    """Each run once, in order: of two files that overlap, the later one knows its end."""
    found: dict[tuple[int, int | None], PastRun] = {}
    for run in runs:
        key = run.submit_s, run.start_s
        if key not in found or found[key].end_s is None:
            found[key] = run
    # It waited in the one and had started in the other. What came back waits anew.
    started = {
        run.submit_s
        for run in found.values()
        if run.start_s is not None and run.state not in _CAME_BACK
    }
    return sorted(
        (
            run
            for run in found.values()
            if run.start_s is not None or run.end_s is not None or run.submit_s not in started
        ),
        key=lambda run: (run.submit_s, run.start_s or run.end_s or inf),
    )


def _tasks(cluster: str, runs: list[PastRun], counts: _Counts) -> Iterator[HistoryJob]:
    """The job, or one for each untouched task of an array."""
    job = _job(runs)
    if isinstance(job, str):
        counts.unread.leave_out(job)
        return
    if any(_ends_first(run) for run in runs):
        counts.unread.assume(_ELAPSED_WINS)
    several = counts.untouched.count(cluster, runs[0].task, runs[0].submit_s)
    if not several:
        counts.unread.leave_out(TWICE)
    if runs[-1].end_s is None:
        counts.open_ended += several
    for _ in range(several):
        yield job


def _ends_first(run: PastRun) -> bool:
    return run.end_s is not None and run.start_s is not None and run.end_s < run.start_s


def _array(task: str) -> int | None:
    array, underscore, _ = task.partition("_")
    return int(array) if underscore and array.isdecimal() else None


def _job(runs: list[PastRun]) -> HistoryJob | str:
    """Join the runs of one job: it came with the first, and needed what the last one took.

    Else why there is none.
    """
    first, last = runs[0], runs[-1]
    started = [run for run in runs if _has_run(run)]
    eligible_s = first.eligible_s or (first.submit_s if started else None)
    if eligible_s is None:
        return _NEVER_ELIGIBLE
    submit_s = max(first.submit_s, eligible_s)
    if started:
        # A held job can become eligible in accounting after its start.
        submit_s = min(submit_s, started[0].start_s or submit_s)
        needed = last if _has_run(last) else max(started, key=lambda run: run.elapsed_s or 0)
        run_s = _within(needed.elapsed_s, first.job_id)
    else:
        if last.end_s is not None and last.end_s < first.submit_s:
            return ENDS_FIRST
        run_s = last.time_limit_s if last.end_s is None else max(0, last.end_s - submit_s)
    if run_s is None:
        return ENDS_FIRST if any(_ends_first(run) for run in started) else _RUN_UNKNOWN
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
    gpus = {**typed, "": untyped}
    return {name: count for name, count in gpus.items() if count > 0}


@lru_cache(1 << 12)
def _kept_once(gpus: tuple[tuple[str, int], ...]) -> Mapping[str, int]:
    """The same mapping for all jobs that ask for the same."""
    return dict(gpus)


def _count(text: str) -> int:
    return int(_amount(text, _COUNTS))


def _amount(text: str, units: Mapping[str, float]) -> float:
    if not text:
        return 0.0
    match = _AMOUNT.fullmatch(text)
    if match is None:
        raise ValueError(f"no amount: {text}")
    return float(match["number"]) * units[match["unit"]]
