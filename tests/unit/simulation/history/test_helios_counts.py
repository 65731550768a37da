"""Tests making jobs of counts: their own counts, and those of a replay, are those of the trace."""

import os
from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate
from math import ceil
from pathlib import Path

import pytest
from builders.history_text import text_lines

from slicewise.simulation.history.formats import read_history
from slicewise.simulation.history.helios_counts import COLUMNS, read_helios_counts
from slicewise.simulation.history.lines import UnreadLines, lines_of, opened
from slicewise.simulation.rules.history.jobs import HistoryJob

TRACE = "helios_earth_2020-05_vc_minute.csv.xz"
FOLDER = Path(os.environ.get("SLICEWISE_TRACES", "traces"))


def made(rows: Sequence[tuple[int, int, int, int]], seed: int = 0) -> tuple[HistoryJob, ...]:
    """Jobs of running and pending GPUs, running and pending jobs, minute by minute."""
    text = [
        ",".join(COLUMNS),
        *(f"{minute},vc,{','.join(map(str, row))}" for minute, row in enumerate(rows)),
    ]
    return read_helios_counts(text_lines("\n".join(text)), UnreadLines("a"), seed).jobs


def counts(jobs: Sequence[HistoryJob], minutes: int) -> list[tuple[int, ...]]:
    """The counts of the jobs as they were made, in the order of ``made``."""
    changes = [[0] * (minutes + 1) for _ in range(4)]

    def add(column: int, since_s: float, until_s: float, gpus: int) -> None:
        for at_s, sign in ((since_s, 1), (until_s, -1)):
            minute = min(max(ceil(at_s / 60) - 1, 0), minutes)
            changes[column][minute] += sign * gpus
            changes[column + 2][minute] += sign

    for job in jobs:
        gpus = sum(job.gpus.values())
        left_s = job.submit_s + job.run_s if job.started_s is None else job.started_s
        lasts = (minutes + 1) * 60
        add(1, job.submit_s, left_s if left_s < minutes * 60 else lasts, gpus)
        if job.started_s is not None:
            ended_s = job.started_s + job.run_s
            add(0, job.started_s, ended_s if ended_s < minutes * 60 - 0.5 else lasts, gpus)
    columns = [list(accumulate(column[:minutes])) for column in changes]
    return [tuple(row) for row in zip(*columns, strict=True)]


STEPS = (
    (0, 0, 0, 0),
    (8, 0, 1, 0),
    (16, 4, 3, 1),
    (12, 4, 2, 1),
    (16, 0, 3, 0),
    # One ended and another came with a GPU more.
    (15, 0, 3, 0),
    (15, 64, 3, 4),
    # Those who waited left, nobody ended.
    (15, 0, 3, 0),
    (0, 0, 0, 0),
    # A job without a GPU.
    (8, 0, 2, 0),
)


@pytest.mark.parametrize("seed", range(5))
def test_the_jobs_have_the_counts(seed: int):
    assert counts(made(STEPS, seed), len(STEPS)) == list(STEPS)


def test_the_seed_decides():
    first, same, other = (made(STEPS, seed) for seed in (1, 1, 2))
    assert first == same
    assert first != other


def test_who_never_started_was_cancelled_waiting():
    left = [job for job in made(STEPS) if job.is_cancelled_waiting]
    assert sum(job.gpus[""] for job in left) == 64
    assert all(0 < job.run_s < 120 for job in left)


def replayed(jobs: Sequence[HistoryJob], capacity: int, minutes: int) -> list[tuple[int, int]]:
    """Running and pending GPUs of first come, first served, where who fits may go before."""
    from heapq import heapify, heappop, heappush

    events = [(job.submit_s, 1, n) for n, job in enumerate(jobs)]
    events += [
        (job.submit_s + job.run_s, 0, n) for n, job in enumerate(jobs) if job.started_s is None
    ]
    heapify(events)
    gpus = [sum(job.gpus.values()) for job in jobs]
    free, found = capacity, []
    waiting: dict[int, None] = {}
    running: set[int] = set()
    for minute in range(1, minutes + 1):
        while events and events[0][0] <= minute * 60:
            now_s, comes, number = heappop(events)
            if comes:
                waiting[number] = None
            elif number in running:
                free += gpus[number]
                running.remove(number)
            else:
                waiting.pop(number, None)
            for other in [number for number in waiting if gpus[number] <= free]:
                if gpus[other] <= free:
                    del waiting[other]
                    free -= gpus[other]
                    running.add(other)
                    if jobs[other].started_s is not None:
                        heappush(events, (now_s + jobs[other].run_s, 0, other))
        found.append((capacity - free, sum(gpus[number] for number in waiting)))
    return found


@pytest.mark.skipif(not (FOLDER / TRACE).exists(), reason="SLICEWISE_TRACES has no Helios")
@pytest.mark.nightly
def test_a_replay_of_helios_gives_the_counts_back():
    """Of 856 GPUs for a month; the made jobs' own counts are those of the trace but for 0.1 %.

    Replayed without nodes, running GPUs are off by 2.2 % in the mean over minutes. Those of the
    waiting are off by more than their mean: where one waits that would have fitted, which a count
    does not explain, the replay starts him, and all that follows has another order.
    """
    truth: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    with opened(FOLDER / TRACE) as file:
        for _, line in list(lines_of(file, UnreadLines(TRACE)))[1:]:
            _, name, *cells = line.split(",")
            running, pending, idle, running_jobs, pending_jobs = map(int, cells)
            truth[name].append((running, pending, running_jobs, pending_jobs, running + idle))
    history = read_history(FOLDER / TRACE)
    jobs: dict[str, list[HistoryJob]] = defaultdict(list)
    for job in history.jobs:
        jobs[job.account].append(job)
    own_error = [0, 0, 0, 0]
    total = [0, 0, 0, 0]
    error = 0
    for name, rows in truth.items():
        for row, own in zip(rows, counts(jobs[name], len(rows)), strict=True):
            for column in range(4):
                own_error[column] += abs(row[column] - own[column])
                total[column] += row[column]
        capacity = max(row[4] for row in rows)
        again = replayed(jobs[name], capacity, len(rows))
        error += sum(abs(row[0] - one[0]) for row, one in zip(rows, again, strict=True))
    assert all(one <= 0.001 * of for one, of in zip(own_error, total, strict=True))
    assert error <= 0.03 * total[0]
    assert len(history.jobs) == pytest.approx(92_500, rel=0.02)
