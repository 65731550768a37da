"""Who asks for instances that could be cut: who waits, who is expected; what a re-cut costs."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from cluster.jobs import JobView, NodeView, RunRecord
from cluster.mig_profiles import Board
from cluster.units import Millislices
from slurm_plugin.decide.bounds import highest_ceilings
from slurm_plugin.decide.charging import run_cost
from slurm_plugin.decide.demand import is_managed, waits_for_others
from slurm_plugin.decide.mig.guaranteed_shapes import Needs
from slurm_plugin.decide.mig.recut_looks import unfit
from slurm_plugin.decide.mig.recut_steps import StepName
from slurm_plugin.decide.mig.recutting_worth import Demand, Waiting
from slurm_plugin.decide.policy import Policy
from slurm_plugin.decide.qos_names import qos_name
from slurm_plugin.decide.slurm_gres import Kind

_PARTS = (StepName.CUT, StepName.TELL, StepName.VERIFY, StepName.RESUME)
"""While these last, what was drained is not to be had."""
_NEWEST, _ENOUGH = 20, 3


class Awaited(NamedTuple):
    """An instance that somebody waits for.

    Attributes:
        is_guaranteed: in its tenant's own QOS.
    """

    gres_type: str
    waited_s: int
    is_guaranteed: bool


def profiles_by_type(board: Board, types: Mapping[Kind, str]) -> Mapping[str, str]:
    """The site's GRES types of that board, and the profile's name there."""
    return {
        gres_type: kind.profile
        for kind, gres_type in types.items()
        if kind.model == board.model and kind.profile in board.profiles
    }


def demand(
    waiting: Sequence[Awaited],
    in_use: Mapping[str, float],
    needed: Needs,
    elsewhere: Mapping[str, int],
    profiles: Mapping[str, str],
) -> Demand:
    """Of one board, whose ``profiles`` are by type.

    ``waiting``, ``in_use`` and what guarantees need are the whole cluster's, see below;
    ``elsewhere`` are instances on nodes of which nothing can be planned: they serve their part of
    it.
    """
    mine = [
        Waiting(profiles[one.gres_type], one.waited_s, is_guaranteed=one.is_guaranteed)
        for one in waiting
        if one.gres_type in profiles
    ]
    count = Counter(one.profile for one in mine)
    expected = {
        profile: in_use.get(kind, 0.0) + count[profile] - elsewhere.get(kind, 0)
        for kind, profile in profiles.items()
    }
    return Demand(
        tuple(mine),
        {profile: mean for profile, mean in expected.items() if mean > 0},
        _not_elsewhere(needed.claimed, elsewhere, profiles),
        _not_elsewhere(needed.all, elsewhere, profiles),
    )


def _not_elsewhere(
    needed: Mapping[str, int], elsewhere: Mapping[str, int], profiles: Mapping[str, str]
) -> Mapping[str, int]:
    return {
        profile: most
        for kind, profile in profiles.items()
        if (most := needed.get(kind, 0) - elsewhere.get(kind, 0)) > 0
    }


def waiting_for_instances(
    jobs: Iterable[JobView],
    partitions: frozenset[str],
    room: Mapping[str, int],
    costs: Mapping[str, Millislices],
    now_s: float,
) -> Iterator[Awaited]:
    """Each instance that somebody waits for, as others have it.

    Who waits for quota, a time or another job is none: an instance would not help him. Slurm says
    Priority of a tenant's tasks, too, that will be over its quota once the first of them run: of an
    account's there are no more than its ``room`` in millislices lets run.
    """
    left = dict(room)
    those = (job for job in jobs if waits_for_others(job) and is_managed(job, partitions))
    for job in sorted(those, key=lambda job: -job.priority):
        cost, count = run_cost(job.gpus, costs), max(1, len(job.untouched))
        if cost and job.account in left:
            count = min(count, max(0, left[job.account]) // cost)
            left[job.account] -= count * cost
        since_s = job.eligible_s or job.submit_s or now_s
        waited_s = max(0, int(now_s - since_s))
        for kind, each in job.gpus.items():
            one = Awaited(kind, waited_s, job.qos == qos_name(job.account))
            yield from [one] * (each * count)


def room_of(policy: Policy, used: Mapping[str, int]) -> Mapping[str, int]:
    """Millislices that each tenant's jobs may still take, with all that it may ever borrow."""
    highest = highest_ceilings(policy, None)
    return {name: most - used.get(name, 0) for name, most in highest.items()}


def in_use(runs: Iterable[RunRecord], since_s: float, now_s: float) -> Mapping[str, float]:
    """By GRES type: instances that were held at a time, in the mean."""
    held_s = Counter[str]()
    for run in runs:
        end_s = now_s if run.end_s is None else min(run.end_s, now_s)
        lasted_s = max(0, int(end_s - max(run.start_s, since_s)))
        for kind, count in run.gpus.items():
            held_s[kind] += count * lasted_s
    return {kind: total_s / (now_s - since_s) for kind, total_s in held_s.items()}


def instances_of(nodes: Iterable[NodeView]) -> Mapping[str, int]:
    """By GRES type, on nodes that are in use."""
    found = Counter[str]()
    for node in nodes:
        if not unfit(node):
            found.update(node.gpus)
    return found


def recut_s(step_seconds: Mapping[StepName, Sequence[float]], otherwise: int) -> int:
    """How long one takes: the median of the last 20, newest first; until there are 3, otherwise."""
    parts = (step_seconds.get(step, ()) for step in _PARTS)
    totals = [sum(seconds) for seconds in zip(*parts, strict=False)][:_NEWEST]
    return max(1, round(median(totals))) if len(totals) >= _ENOUGH else otherwise


def move_s(step_seconds: Mapping[StepName, Sequence[float]], otherwise: int) -> int:
    """How long a replica and its successor both hold an instance; likewise, of those that moved."""
    moves = [one for one in step_seconds.get(StepName.MOVE, ()) if one >= _MOVED_S][:_NEWEST]
    return round(median(moves)) if len(moves) >= _ENOUGH else otherwise


_MOVED_S = 2.0
"""A shorter step found nobody."""
