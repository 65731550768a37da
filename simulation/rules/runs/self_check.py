"""Compares the replay of the present policy with what really happened."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from slicewise.simulation.rules.history.jobs import HistoryJob
from slicewise.simulation.rules.runs.run_figures import SelfCheck
from slicewise.simulation.rules.runs.summary import mean, percentile

_NEXT = 100
"""Jobs that came after one and are compared with it, at most: queues may be very long."""


@dataclass(frozen=True)
class ComparedJob:
    """A job that started both in the past and in the replay, in Unix seconds."""

    submit_s: float
    really_s: float
    replayed_s: float


def compared_jobs(
    history: Sequence[HistoryJob], starts_s: Mapping[int, float]
) -> tuple[ComparedJob, ...]:
    """The jobs of the history with a start in both; ``starts_s`` are the replay's, by number."""
    return tuple(
        ComparedJob(job.submit_s, job.started_s, starts_s[number])
        for number, job in enumerate(history)
        if job.started_s is not None and number in starts_s
    )


def self_check(
    jobs: Sequence[ComparedJob],
    utilisation_of_history: float,
    utilisation: float,
    *,
    never_started: int,
) -> SelfCheck | None:
    """How far the replay is from the past; None if no job can be compared.

    ``never_started`` jobs can't be: they started in the past only.
    """
    if not jobs:
        return None
    past = sorted(max(0.0, job.really_s - job.submit_s) for job in jobs)
    now = sorted(max(0.0, job.replayed_s - job.submit_s) for job in jobs)
    errors = sorted(abs(job.replayed_s - job.really_s) for job in jobs)
    return SelfCheck(
        jobs=len(jobs),
        wait_error_s=percentile(errors, 50),
        wait_mean_of_history_s=mean(past),
        wait_mean_s=mean(now),
        wait_p99_of_history_s=percentile(past, 99),
        wait_p99_s=percentile(now, 99),
        utilisation_of_history=utilisation_of_history,
        utilisation=utilisation,
        start_order=kendall_tau([(job.really_s, job.replayed_s) for job in jobs]),
        never_started=never_started,
        queue_order=queue_order(jobs),
    )


def queue_order(jobs: Sequence[ComparedJob]) -> float | None:
    """Share of the pairs that really waited at the same time and started in the same order.

    Each job is compared with at most ``_NEXT`` that came after it; ties count for neither.
    """
    in_order = sorted(jobs, key=lambda job: job.submit_s)
    pairs = agreeing = 0
    for nth, first in enumerate(in_order):
        for other in in_order[nth + 1 : nth + 1 + _NEXT]:
            if other.submit_s >= first.really_s:
                break
            really_s, now_s = other.really_s - first.really_s, other.replayed_s - first.replayed_s
            if really_s and now_s:
                pairs += 1
                agreeing += (really_s > 0) == (now_s > 0)
    return agreeing / pairs if pairs else None


def kendall_tau(pairs: Sequence[tuple[float, float]]) -> float:
    """Kendall's tau-a of two orders: 1 if they agree, -1 if one is the other reversed.

    Pairs that are tied in either order count for neither; with fewer than two values it is 1.
    """
    count = len(pairs)
    if count < 2:  # noqa: PLR2004
        return 1.0
    by_first = sorted(pairs)
    every = count * (count - 1) // 2
    tied_first = _tied([first for first, _ in by_first])
    tied_both = _tied(by_first)
    tied_second = _tied(sorted(second for _, second in pairs))
    _, swapped = _swaps([second for _, second in by_first])
    agreeing = every - tied_first - tied_second + tied_both - swapped
    return (agreeing - swapped) / every


def _tied(in_order: Sequence[object]) -> int:
    """Pairs of equal values in a sorted sequence."""
    nodes_seen = same = 0
    for before, value in pairwise(in_order):
        same = same + 1 if value == before else 0
        nodes_seen += same
    return nodes_seen


def _swaps(values: list[float]) -> tuple[list[float], int]:
    """Sort, and count the pairs that stand the wrong way round."""
    if len(values) < 2:  # noqa: PLR2004
        return values, 0
    middle = len(values) // 2
    left, in_left = _swaps(values[:middle])
    right, in_right = _swaps(values[middle:])
    merged: list[float] = []
    swapped, i = in_left + in_right, 0
    for value in right:
        while i < len(left) and left[i] <= value:
            merged.append(left[i])
            i += 1
        swapped += len(left) - i
        merged.append(value)
    return merged + left[i:], swapped
