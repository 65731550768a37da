"""Makes plausible jobs of Helios' counts per minute and virtual cluster, which are no jobs.

Where hard partitions are replayed with these jobs, first come, first served, about as many run and
wait at each minute as did. Between two minutes as few jobs come, start and end as the counts allow,
so jobs that came and ended within one minute are not seen. Which of the running jobs ended, and how
GPUs are spread over jobs that came together, is drawn: young jobs end more often, sizes are mostly
powers of two.
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from slicewise.simulation.history.csv_rows import Row, count, read_rows
from slicewise.simulation.history.lines import Line, UnreadLines
from slicewise.simulation.rules.history.jobs import HistoryJob, JobHistory, even_nodes, in_order

COLUMNS = ("minute", "vc", "running_gpu", "pending_gpu", "running_jobs", "pending_jobs")
_MINUTE_S = 60.0
_ENDS_S, _COMES_S = 10.0, (25.0, 55.0)
"""In which seconds of a minute jobs end and come: all that end in one at the same moment, so that
who waited starts in the same minute when it is replayed, and who comes finds what ended before."""
_SIZES = (1, 2, 4, 8, 16, 32, 64)
_TRIES = 40
_MOST_EXTRA = 3
"""How many jobs more than needed may start and others end, so that the numbers of GPUs come out."""
_ON_A_NODE = 8
_FIRST_NUMBERS = 1_000_000
"""Numbers of jobs of one virtual cluster, at most."""


class MinuteCounts(NamedTuple):
    """What was counted of one virtual cluster at the end of one minute."""

    minute: int
    running_gpus: int
    pending_gpus: int
    running_jobs: int
    pending_jobs: int


@dataclass(eq=False)
class _Job:
    gpus: int
    submit_s: float
    start_s: float | None = None
    end_s: float | None = None


@dataclass(frozen=True)
class _Move:
    """How many jobs do what within one minute.

    Attributes:
        starts: of them ``waited`` waited before; the others come and start at once.
        comes: with those that start at once.
    """

    starts: int
    waited: int
    ends: int
    comes: int
    leaves: int

    @property
    def at_once(self) -> int:
        return self.starts - self.waited

    @property
    def stays(self) -> int:
        return self.comes - self.at_once


@dataclass(frozen=True)
class _Choice:
    """Which jobs they are, and how many GPUs the new ones have in all."""

    starts: Sequence[_Job]
    ends: Sequence[_Job]
    leaves: Sequence[_Job]
    at_once_gpus: int
    stays_gpus: int


class _Site:
    """One virtual cluster: jobs that run, and those that wait, the first first."""

    def __init__(self, rng: random.Random) -> None:
        self.jobs: list[_Job] = []
        self._running: list[_Job] = []
        self._waiting: list[_Job] = []
        self._rng = rng

    def move_to(self, counts: MinuteCounts) -> None:
        """Let a minute pass, after which the counts are these, or as near as was found."""
        more = counts.running_jobs - len(self._running)
        more_wait = counts.pending_jobs - len(self._waiting)
        more_gpus = counts.running_gpus - _gpus(self._running)
        more_wait_gpus = counts.pending_gpus - _gpus(self._waiting)
        if not (more or more_wait or more_gpus or more_wait_gpus):
            return
        start_s = counts.minute * _MINUTE_S
        moves = list(_moves(more, more_wait, len(self._running), len(self._waiting)))
        for least in (1, 0):
            for move in moves:
                choice = self._choice(move, more_gpus, more_wait_gpus, start_s, least)
                if choice is not None:
                    self._apply(move, choice, start_s)
                    return
        self._apply(moves[0], self._nearest(moves[0], more_gpus, more_wait_gpus), start_s)

    def _choice(
        self, move: _Move, more_gpus: int, more_wait_gpus: int, now_s: float, least: int
    ) -> _Choice | None:
        """Draw until the sums are right; each new job has ``least`` GPUs or more."""
        for attempt in range(_TRIES):
            goes = self._from_queue(move, more_wait_gpus, is_first=attempt == 0)
            starts, leaves = goes[: move.waited], goes[move.waited :]
            stays_gpus = more_wait_gpus + _gpus(goes)
            if not _fits(stays_gpus, move.stays, least):
                continue
            missing = _gpus(starts) - more_gpus
            ends = self._ending(move, missing, now_s)
            at_once_gpus = _gpus(ends) - missing
            if _fits(at_once_gpus, move.at_once, least):
                return _Choice(starts, ends, leaves, at_once_gpus, stays_gpus)
        return None

    def _from_queue(self, move: _Move, more_wait_gpus: int, *, is_first: bool) -> list[_Job]:
        """Those that start and those that leave: at first the oldest start, the newest leave."""
        wanted = move.waited + move.leaves
        if is_first:
            newest = self._waiting[len(self._waiting) - move.leaves :]
            return [*self._waiting[: move.waited], *newest]
        sample = self._rng.sample(self._waiting, wanted)
        return sample if move.stays else _with_sum(sample, self._waiting, -more_wait_gpus)

    def _ending(self, move: _Move, missing: int, now_s: float) -> list[_Job]:
        """Draw those that end, the young ones with more weight."""
        if not move.ends:
            return []
        weights = [_MINUTE_S / (_MINUTE_S + now_s - (job.start_s or 0.0)) for job in self._running]
        ending: list[_Job] = []
        while len(ending) < move.ends:
            (job,) = self._rng.choices(self._running, weights)
            if job not in ending:
                ending.append(job)
        return ending if move.at_once else _with_sum(ending, self._running, missing)

    def _nearest(self, move: _Move, more_gpus: int, more_wait_gpus: int) -> _Choice:
        """The numbers of jobs come out, those of GPUs only about."""
        goes = self._from_queue(move, more_wait_gpus, is_first=True)
        starts, leaves = goes[: move.waited], goes[move.waited :]
        missing = _gpus(starts) - more_gpus
        ends = self._rng.sample(self._running, move.ends)
        at_once = max(0, _gpus(ends) - missing) if move.at_once else 0
        stays = max(0, more_wait_gpus + _gpus(goes)) if move.stays else 0
        return _Choice(starts, ends, leaves, at_once, stays)

    def _apply(self, move: _Move, choice: _Choice, start_s: float) -> None:
        for job in choice.ends:
            job.end_s = start_s + _ENDS_S
            self._running.remove(job)
        for job in (*choice.starts, *choice.leaves):
            self._waiting.remove(job)
        for job in choice.leaves:
            job.end_s = start_s + _ENDS_S
        for job in choice.starts:
            job.start_s = start_s + _ENDS_S
        times = sorted(start_s + self._rng.uniform(*_COMES_S) for _ in range(move.comes))
        sizes = _split(choice.at_once_gpus, move.at_once, self._rng)
        sizes += _split(choice.stays_gpus, move.stays, self._rng)
        new = [_Job(gpus, at_s) for gpus, at_s in zip(sizes, times, strict=True)]
        for job in new[: move.at_once]:
            job.start_s = job.submit_s
        self._running += [*choice.starts, *new[: move.at_once]]
        self._waiting += new[move.at_once :]
        self.jobs += new


def _moves(more: int, more_wait: int, running: int, waiting: int) -> Iterator[_Move]:
    """Moves with these differences in numbers of jobs, those with the fewest starts first.

    Nobody leaves the queue if those who do can have started, and as many others ended.
    """
    for starts in sorted(
        {max(more, 0) + n for n in range(_MOST_EXTRA + 1)} | {max(more, -more_wait)}
    ):
        ends, change = starts - more, more_wait + starts
        if ends > running:
            continue
        comes, leaves = max(change, 0), max(-change, 0)
        for waited in range(min(starts, waiting - leaves), max(0, starts - comes) - 1, -1):
            yield _Move(starts, waited, ends, comes, leaves)


def _gpus(jobs: Iterable[_Job]) -> int:
    return sum(job.gpus for job in jobs)


def _fits(gpus: int, jobs: int, least: int) -> bool:
    """Whether new jobs, if there are any, can have so many GPUs together."""
    return gpus >= least * jobs if jobs else gpus == 0


def _with_sum(sampled: list[_Job], among: Sequence[_Job], wanted: int) -> list[_Job]:
    """Put another one in the place of the last, so that all have ``wanted`` GPUs, if one fits."""
    if not sampled or _gpus(sampled) == wanted:
        return sampled
    others = sampled[:-1]
    needed, taken = wanted - _gpus(others), {id(job) for job in others}
    last = (job for job in among if job.gpus == needed and id(job) not in taken)
    return [*others, next(last, sampled[-1])]


def _split(gpus: int, jobs: int, rng: random.Random) -> list[int]:
    """Spread GPUs over so many jobs; each gets one at least, if there are enough."""
    sizes: list[int] = []
    for left in range(jobs, 1, -1):
        spare = gpus - (left - 1)
        choices = [size for size in _SIZES if size <= min(spare, 2 * gpus // left)]
        sizes.append(rng.choice(choices) if choices else min(gpus, 1))
        gpus -= sizes[-1]
    if jobs:
        sizes.append(gpus)
    rng.shuffle(sizes)
    return sizes


def read_helios_counts(lines: Iterable[Line], unread: UnreadLines, seed: int = 0) -> JobHistory:
    """Make the jobs of all virtual clusters; the same for the same seed."""
    by_cluster: dict[str, list[MinuteCounts]] = defaultdict(list)
    for name, counts in read_rows(lines, COLUMNS, _counts, unread):
        by_cluster[name].append(counts)
    found: list[HistoryJob] = []
    for number, (name, several) in enumerate(sorted(by_cluster.items())):
        rng = random.Random(f"{seed} {name}")  # noqa: S311 -- not for secrets
        jobs = reconstructed(name, sorted(several), rng, number * _FIRST_NUMBERS + 1)
        found += jobs
    unread.assume(
        "The file has counts and no jobs: jobs are made of them, which nodes of 8 GPUs could have"
        " run, and its times are replayed from 1970 on."
    )
    return unread.history(in_order(found))


def _counts(_: int, row: Row) -> tuple[str, MinuteCounts]:
    return row["vc"], MinuteCounts(
        int(count(row["minute"])), *(count(row[column]) for column in COLUMNS[2:])
    )


def reconstructed(
    name: str, minutes: Sequence[MinuteCounts], rng: random.Random, first_id: int
) -> Iterator[HistoryJob]:
    """Jobs of one virtual cluster, of which ``minutes`` are ascending and not empty."""
    site = _Site(rng)
    for counts in minutes:
        site.move_to(counts)
    end_s = (minutes[-1].minute + 1) * _MINUTE_S
    for job_id, job in enumerate(site.jobs, first_id):
        started_s = job.start_s
        ended_s = end_s if job.end_s is None else job.end_s
        yield HistoryJob(
            job_id=job_id,
            user="",
            account=name,
            partition=name,
            qos="",
            submit_s=job.submit_s,
            run_s=max(1.0, ended_s - (job.submit_s if started_s is None else started_s)),
            time_limit_s=None,
            gpus={"": job.gpus} if job.gpus else {},
            nodes=even_nodes(job.gpus, _ON_A_NODE),
            started_s=started_s,
            is_cancelled_waiting=started_s is None,
        )
