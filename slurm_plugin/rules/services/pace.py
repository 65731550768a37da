"""Decides when Slurm is looked at next: soon while something moves, seldom while nothing does.

Each look makes slurmctld pack all of its jobs, and while it does so it starts none. So a look comes
no sooner than five times what slurmctld took to answer the last one, which is longer where it is
slow or busy. What reading the answer took counts once: that is a pause for slurmctld, but no other.
All questions that the daemon asks slurmctld unasked, not only looks, take tokens from one bucket;
while it is empty, the next look waits.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from slicewise.cluster.language.jobs import JobState, JobView
from slicewise.cluster.rpc.messages import ServiceView, SlotView

LONGEST_S = 15.0
"""Seconds between looks at most, however slow slurmctld is: a lease may be a minute."""
_TIMES = 5.0
"""A pause is at least so many times what slurmctld took to answer the last look."""
STIRRED_S = 3.0
"""Seconds for which something that was heard of counts as moving: a job starts at about that time.
"""
_APPEARS_S = 0.2
"""Seconds from a submission's answer until slurmctld shows the job."""
QUICK_S = 0.5
"""A look that slurmctld answered within that is followed immediately by another one if something
was changed."""
MOST_ALONE = 4
"""Arrays that may be looked at alone. More of them cost slurmctld as much as all jobs."""
_ENDS_S = 60
"""A replica that must end within so many seconds is followed closely."""
_PUBLISHES_S = 60
"""Seconds from a run's start for which its certificate is waited for."""
_LOOK = 4
"""Requests to slurmctld that a look makes."""
_UNDER_WAY = frozenset({"released", "starting", "ending"})


@dataclass(frozen=True)
class Pace:
    """How often Slurm may be looked at.

    Attributes:
        moving_s: seconds between looks while something moves.
        waiting_s: seconds between looks while nothing does, but jobs wait for what others hold.
        rest_s: seconds between looks while neither is so.
        requests_per_min: requests per minute, and how many may come together after a rest.
    """

    moving_s: float
    waiting_s: float
    rest_s: float
    requests_per_min: float


PACE = Pace(moving_s=1.0, waiting_s=5.0, rest_s=10.0, requests_per_min=1200)
"""The daemon's pace. It is no setting: a slow slurmctld gets fewer looks by what a look takes, and
20 questions a minute are made at rest, so that the bound is far from what a site needs.
"""


@dataclass(frozen=True)
class Allowance:
    """How many requests were left at ``at_s``; less than 0 where others took what looks wait for.

    Times here are seconds of a clock that is never set.
    """

    left: float
    at_s: float


@dataclass(frozen=True)
class Looked:
    """What is known when a look is over, and later while the next one is waited for.

    Attributes:
        ended_s: when the look ended.
        took_s: what it took, with the reading of Slurm's answers.
        answered_s: what Slurm took until it answered.
        moves: whether it found something under way.
        waits: whether it found jobs that wait.
        stirred_s: when something was first heard of since the look; None if nothing was.
        stirred_last_s: when something was last heard of, before the look or after it.
        acted: whether Slurm was changed since the look.
    """

    ended_s: float
    took_s: float
    answered_s: float
    moves: bool = False
    waits: bool = False
    stirred_s: float | None = None
    stirred_last_s: float = float("-inf")
    acted: bool = False


def spent(allowance: Allowance, requests: int, pace: Pace, now_s: float) -> Allowance:
    """Return what is left at ``now_s``, after ``requests`` since ``allowance``."""
    gained = max(now_s - allowance.at_s, 0.0) * pace.requests_per_min / 60
    return Allowance(min(allowance.left + gained, pace.requests_per_min) - requests, now_s)


def next_look_s(looked: Looked, allowance: Allowance, pace: Pace) -> float:
    """Return when the next look is due."""
    missing = max(_LOOK - allowance.left, 0.0)
    affordable_s = allowance.at_s + 60 * missing / pace.requests_per_min
    latest_s = looked.ended_s + LONGEST_S
    if looked.acted:
        wanted_s = looked.ended_s + (looked.took_s if looked.answered_s > QUICK_S else 0.0)
    else:
        pause_s = max(looked.took_s, _TIMES * looked.answered_s)
        wanted_s = max(_wanted_s(looked, pace), looked.ended_s + pause_s)
    return min(max(wanted_s, affordable_s), latest_s)


def _wanted_s(looked: Looked, pace: Pace) -> float:
    """When the next look would be due if looks cost nothing."""
    soon_s = looked.ended_s + pace.moving_s
    if looked.moves or looked.stirred_last_s > looked.ended_s - STIRRED_S:
        if looked.stirred_s is not None and not looked.moves:
            return max(soon_s, looked.stirred_s + _APPEARS_S)
        return soon_s
    return max(soon_s, looked.ended_s + (pace.waiting_s if looked.waits else pace.rest_s))


def waits(jobs: Iterable[JobView]) -> bool:
    """Whether a job waits that is not held: one may start where another ends."""
    return any(job.state is JobState.PENDING and not job.held for job in jobs)


def is_moving(services: Iterable[ServiceView], now_s: float) -> bool:
    """Whether a replica of these services is about to start or to end, or waits for a slice.

    ``now_s``: Unix seconds of the look.
    """
    return any(_is_moving(slot, now_s) for service in services for slot in service.slots)


def _is_moving(slot: SlotView, now_s: float) -> bool:
    if slot.state in _UNDER_WAY:
        return True
    ends = (slot.ends_in_s, slot.time_left_s)
    is_near = any(left_s is not None and left_s < _ENDS_S for left_s in ends)
    # A script of the site's own may publish none.
    is_new = not slot.certificate and now_s - (slot.start_s or 0) < _PUBLISHES_S
    return slot.state == "running" and (is_near or is_new)
