"""Remembers which waiting jobs quota alone does not start, so that no loan flaps for them.

Slurm gives one reason at a time: a job that lacks quota and is over a limit of the site's, too,
says first that it lacks quota. It is lent some, then names the other limit, so the loan goes, and
then it lacks quota again. By its reason alone it would be lent quota every time.

A job is barred once it names something that quota does not mend. When it says again that it lacks
quota, that is tried; each time it is barred again without a start, the next trial comes twice as
late, up to an hour. Until then it wants nothing. It is tried at once if

- the job changed, or a limit of its user, its account or those above: nothing is known then,
- a run of its tenant's tree or of its user ended since the last trial, unless the limit is on what
  was used before,
- Slurm passed it: the job waits for GPUs.

Trials are due at full multiples of their pause, so jobs are tried together. A limit bars all jobs
alike (of a user in a QOS, with the same size and time limit), and others of that account begin
where these have got to; anything else bars one job or array. Slurm leaves old reasons on jobs that
it does not reach, so the first in its order says whether jobs alike are over a limit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from slicewise.cluster.language.jobs import WAITING, JobView
from slicewise.cluster.language.slurm.interface import Association
from slicewise.slurm_plugin.rules.common.qos_names import is_ours
from slicewise.slurm_plugin.rules.quota.jobs import JobsByHolder, QosQueue
from slicewise.slurm_plugin.rules.quota.tenants import upward
from slicewise.slurm_plugin.rules.quota.types import Policy
from slicewise.slurm_plugin.rules.quota.waits import NODES_AWAY, QOS_SLICES, QOS_TYPES, waits_of

FIRST_PAUSE_S, LONGEST_PAUSE_S = 60, 3600
"""Seconds before the second trial, and at most before any later one."""
_MOST_TRIALS = 16
"""More trials change no pause."""
_NOT_LOOKED_AT = "None"
"""The reason of a job that Slurm has not looked at yet."""
LACKS_QUOTA = frozenset({QOS_SLICES, QOS_TYPES, "Priority", _NOT_LOOKED_AT})
"""Reasons of jobs that lack quota, or that Slurm has not looked at: another one is later in its
order, so the job was let pass by all limits."""


class _Alike(NamedTuple):
    """What jobs have in common that a limit treats alike."""

    account: str
    user: str
    qos: str
    partition: str
    time_limit_s: int | None
    gpus: tuple[tuple[str, int], ...]


class _One(NamedTuple):
    """A job or array, by its number, that waits for something of its own: in any QOS."""

    number: int
    as_it_is: _Alike


_Key = _Alike | _One


@dataclass(frozen=True)
class Bar:
    """What keeps a job, or jobs alike, from their start beside quota.

    Attributes:
        account, user: of the jobs.
        reason: Slurm's word for it.
        seen_s: Unix seconds of the last look that showed it.
        trials: how often quota was tried since, without a start.
        is_tried: whether quota is wanted for the jobs now.
        is_freed: whether a run has ended since the last trial that may have kept them.
        limits: the limits of their account when it was seen first.
    """

    account: str
    user: str
    reason: str
    seen_s: int
    trials: int = 0
    is_tried: bool = False
    is_freed: bool = False
    limits: object = None

    @property
    def due_s(self) -> int:
        """When quota is tried again, in Unix seconds."""
        if not self.trials:
            return self.seen_s
        pause_s = min(FIRST_PAUSE_S << (self.trials - 1), LONGEST_PAUSE_S)
        return (self.seen_s // pause_s + 1) * pause_s

    @property
    def is_used_up(self) -> bool:
        """Whether it is a limit on what was used before, which the end of a run mends no more."""
        return "Minutes" in self.reason and "RunMinutes" not in self.reason


@dataclass(frozen=True)
class BarredJob:
    """A waiting job that is barred; ``due_s`` is when quota is tried again, in Unix seconds."""

    reason: str
    due_s: int


@dataclass(frozen=True)
class Barred:
    """What is barred as of one look, which the next look goes on from.

    Attributes:
        bars: what keeps jobs from their start.
        runs: the tree and the user of each run, by job id; empty while nothing is barred.
        jobs: the jobs that lack quota and want none now, by job id.
        damped: how often quota was tried without a start, in all.
        usable: names of the nodes on which Slurm starts jobs; empty while nothing is barred.
    """

    bars: Mapping[_Key, Bar] = field(default_factory=dict, hash=False)
    runs: Mapping[int, tuple[str, str]] = field(default_factory=dict, hash=False)
    jobs: Mapping[int, BarredJob] = field(default_factory=dict, hash=False)
    damped: int = 0
    usable: frozenset[str] = frozenset()

    def told(self, jobs: tuple[JobView, ...]) -> tuple[JobView, ...]:
        """The jobs, those that are barred with what bars them as Slurm's reason."""
        if not self.jobs:
            return jobs
        return tuple(
            replace(job, reason=bar.reason)
            if (bar := self.jobs.get(job.job_id)) is not None
            and job.state in WAITING
            and job.reason in LACKS_QUOTA
            else job
            for job in jobs
        )


NOTHING_BARRED = Barred()


def barred(
    before: Barred,
    by_holder: JobsByHolder,
    policy: Policy,
    associations: Sequence[Association] = (),
    *,
    now_s: int,
    usable: frozenset[str] = frozenset(),
) -> Barred:
    """What is barred at a look that shows these jobs of managed partitions, as Slurm has them.

    ``usable`` are the names of the nodes on which Slurm starts jobs.
    """
    queues = [queue for qos, queue in by_holder.queues.items() if is_ours(qos)]
    named = {key: job for queue in queues for key, job in _named_in(queue).items()}
    if not before.bars and not named:
        return before
    above, rows = (
        upward(policy),
        {(association.account, association.user): association for association in associations},
    )
    runs = {job.job_id: (_top(job.account, above), job.user) for job in by_holder.runs}
    gone = [of for job_id, of in before.runs.items() if job_id not in runs]
    trees, users = {tree for tree, _ in gone}, {user for _, user in gone}
    bars = _kept(before.bars, by_holder, rows)
    is_node_back = bool(usable - before.usable)
    bars = {
        key: replace(bar, is_freed=True)
        if _top(bar.account, above) in trees
        or bar.user in users
        or (is_node_back and bar.reason.startswith(NODES_AWAY))
        else bar
        for key, bar in bars.items()
    }
    trials_of: dict[tuple[str, str], int] = {}
    for key, bar in bars.items():
        if isinstance(key, _Alike):
            of = bar.account, bar.reason
            trials_of[of] = max(bar.trials, trials_of.get(of, 0))
    damped = before.damped
    for key, job in named.items():
        trials = trials_of.get((job.account, job.reason), 0) if isinstance(key, _Alike) else 0
        bar = bars.get(key) or Bar(
            job.account, job.user, job.reason, now_s, trials, limits=_limits(job, rows)
        )
        damped += bar.is_tried
        trials = min(bar.trials + bar.is_tried, _MOST_TRIALS)
        bars[key] = replace(bar, reason=job.reason, seen_s=now_s, trials=trials, is_tried=False)
    lacking = [
        (job, key)
        for queue in queues
        for job in queue.seen
        if waits_of(job).for_quota
        for key in _keys(job)
        if key in bars
    ]
    for job, key in lacking:
        bar = bars[key]
        is_due = now_s >= bar.due_s or (bar.is_freed and not bar.is_used_up)
        if key not in named and (is_due or job.reason not in LACKS_QUOTA):
            bars[key] = replace(bar, is_tried=True, is_freed=False)
    # One that Slurm let pass by all limits wants what it waits for, whatever jobs like it say:
    # they may show a reason that Slurm has not looked at since.
    jobs = {
        job.job_id: BarredJob(bar.reason, bar.due_s)
        for job, key in lacking
        if job.reason in LACKS_QUOTA and not (bar := bars[key]).is_tried
    }
    return Barred(bars, runs if bars else {}, jobs, damped, usable if bars else frozenset())


def _kept(
    bars: Mapping[_Key, Bar], by_holder: JobsByHolder, rows: Mapping[tuple[str, str], Association]
) -> dict[_Key, Bar]:
    """The bars of jobs that still wait, of which none has started and whose limits are the same."""
    waiting = {key: job for job in by_holder.others for key in _keys(job)}
    started: dict[_Key, int] = {}
    for job in by_holder.runs:
        for key in _keys(job):
            started[key] = max(started.get(key, 0), job.start_s or 0)
    return {
        key: bar
        for key, bar in bars.items()
        if key in waiting
        and started.get(key, -1) < bar.seen_s
        and bar.limits == _limits(waiting[key], rows)
    }


def _named_in(queue: QosQueue) -> Mapping[_Key, JobView]:
    """Those of the jobs of a QOS that name something which quota does not mend."""
    by_key: dict[_Key, JobView] = {}
    passed: set[_Key] = set()
    for job in queue.jobs:
        waits = waits_of(job)
        if not waits.could_start or waits.for_budget:
            continue
        own_key, alike = _keys(job)
        if job.reason == _NOT_LOOKED_AT:
            continue
        if waits.for_quota:
            passed.add(alike)
        elif not waits.names_a_limit:
            by_key[own_key] = job
        elif alike not in passed:
            by_key.setdefault(alike, job)
    return by_key


def _keys(job: JobView) -> tuple[_One, _Alike]:
    gpus = tuple(sorted(job.gpus.items()))
    alike = _Alike(job.account, job.user, job.qos, job.partition, job.time_limit_s, gpus)
    return _One(job.array_job_id or job.job_id, alike._replace(qos="")), alike


def _top(account: str, above: Mapping[str, Sequence[str]]) -> str:
    return above[account][-1] if account in above else account


def _limits(job: JobView, rows: Mapping[tuple[str, str], Association]) -> object:
    """What changes with the limits of a job's user, account, and the accounts above."""
    chain, row = [rows.get((job.account, job.user))], rows.get((job.account, ""))
    while row is not None and len(chain) <= len(rows):
        chain.append(row)
        row = rows.get((row.parent, ""))
    return tuple(
        tuple(sorted(limits.items()))
        for association in chain
        if association is not None
        for limits in (
            association.grp_tres,
            association.grp_tres_run_mins,
            association.grp_tres_mins,
        )
    )
