"""A budget's run-minutes in parts: how much of it each QOS that draws on it may still take.

Slurm limits a QOS for itself (``GrpTRESRunMins``), and jobs of several use up one budget: those in
both QOS of its tenant, and of the tenants below it. A part is what the running jobs of a QOS may
still take, and what others may start with there at once. All parts of a budget together are no more
than it has.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from heapq import heapify, heappop, heappush

from cluster.jobs import ALLOTTED, JobView
from cluster.units import Millislices
from slurm_plugin.decide.charging import run_cost
from slurm_plugin.decide.demand import (
    FIRST_TASKS,
    QOS_BUDGET,
    QOS_SLICES,
    by_priority,
    is_managed,
    is_waiting,
    lacks_only_room,
    waits_for_quota,
)
from slurm_plugin.decide.policy import Policy
from slurm_plugin.decide.qos_names import borrowed_qos, is_borrowed, is_ours, qos_name
from slurm_plugin.decide.quota_room import QuotaRoom
from slurm_plugin.decide.tenants import ancestors


@dataclass(frozen=True)
class WaitingRun:
    """A waiting job, or one task of an array.

    Attributes:
        minutes: millislice-minutes that it takes if it runs to its time limit.
    """

    qos: str
    cost_millislices: int
    minutes: int


@dataclass(frozen=True)
class Runs:
    """What jobs take of budgets.

    Attributes:
        may_take: millislice-minutes that running jobs may still take, by account and QOS.
        waiting: as Slurm would start them; the first ones of each QOS.
    """

    may_take: Mapping[tuple[str, str], int] = field(default_factory=dict, hash=False)
    waiting: tuple[WaitingRun, ...] = ()


@dataclass(frozen=True)
class Claims:
    """What there is to divide budgets by.

    Attributes:
        may_take: millislice-minutes that running jobs may still take, by QOS.
        elsewhere: those of each tenant's jobs in QOS that are no tenant's. Of accounts without a
            quota below it there are none: what a tenant that is gone may still take is taken off
            what budgets have left, and others pay themselves.
        waiting: as Slurm would start them.
        limits, held: millislices that jobs of each QOS may hold together, and do.
    """

    may_take: Mapping[str, int] = field(hash=False)
    elsewhere: Mapping[str, int] = field(hash=False)
    waiting: tuple[WaitingRun, ...]
    limits: Mapping[str, int] = field(hash=False)
    held: Mapping[str, int] = field(hash=False)


@dataclass(frozen=True)
class Part:
    """What running jobs of a QOS may take together.

    Attributes:
        budgets: the tenants of whose budgets it is a part, the nearest first.
        minutes: millislice-minutes.
        least: with less than so many a waiting job that is to start could not; 0 if none is to.
    """

    budgets: tuple[str, ...]
    minutes: int
    least: int


def runs_of(jobs: Iterable[JobView], costs: Mapping[str, Millislices], now_s: float) -> Runs:
    """What jobs of managed partitions take; one without a time limit starts on no budget."""
    may_take: Counter[tuple[str, str]] = Counter()
    counts: Counter[str] = Counter()
    waiting: list[WaitingRun] = []
    for job in by_priority(jobs):
        cost = run_cost(job.gpus, costs)
        if job.state in ALLOTTED:
            may_take[job.account, job.qos] += minutes_left(job, cost, now_s)
        elif cost and job.time_limit_s is not None and lacks_only_room(job):
            one = WaitingRun(job.qos, cost, cost * job.time_limit_s // 60)
            tasks = min(max(1, len(job.untouched)), FIRST_TASKS - counts[job.qos])
            waiting += [one] * tasks
            counts[job.qos] += tasks
    return Runs(+may_take, tuple(waiting))


def minutes_left(run: JobView, cost_millislices: int, now_s: float) -> int:
    """Millislice-minutes that a run may still take; 0 if it has no time limit."""
    left_s = 0 if run.end_s is None else max(0, int(run.end_s - now_s))
    return left_s * cost_millislices // 60


def drawn_on(
    policy: Policy, budgets: Collection[str], tenants: Iterable[str]
) -> Mapping[str, tuple[str, ...]]:
    """The budgets that bind each QOS of the tenants, the nearest first: all on the way up."""
    return {
        qos: above
        for name in tenants
        if (above := binding(policy, budgets, name))
        for qos in (qos_name(name), borrowed_qos(name))
    }


def binding(policy: Policy, budgets: Collection[str], tenant: str) -> tuple[str, ...]:
    """Which of the tenants with ``budgets`` are on a tenant's way up: itself first."""
    return tuple(name for name in (tenant, *ancestors(policy, tenant)) if name in budgets)


def as_budgets_let(
    policy: Policy,
    run_minutes: Mapping[str, int],
    jobs: Sequence[JobView],
    partitions: frozenset[str],
    *,
    costs: Mapping[str, Millislices],
    now_s: float,
) -> tuple[JobView, ...]:
    """The jobs, those of managed partitions with the reason to wait that their budgets give them;
    of an array on borrowed quota only the tasks for which the budgets have enough.

    Slurm names one limit of a job that is over several: slices before budgets. If loans went by
    that, one for a job that its budget does not let start would end as soon as it is made, since
    Slurm names the budget then; and would be made again, since it names the slices again.

    ``run_minutes``: millislice-minutes that each budget has left, running jobs' included. First
    jobs in their tenants' own QOS claim them, as far as the own parts pay for them, then the
    others, as far as their tenants and those above may hold more; both in Slurm's order, and none
    that wait for something else than slices, GPUs or a budget. Else jobs that nobody lends to would
    keep others from what their tenants are guaranteed.
    """
    if not run_minutes:
        return tuple(jobs)
    budgets = {name: binding(policy, run_minutes, name) for name in policy}
    # As ``parts`` counts them: in Slurm accounts without a quota may use the QOS of a tenant above.
    of_qos = {qos: name for name in policy for qos in (qos_name(name), borrowed_qos(name))}
    ours = [
        (job, name)
        for job in jobs
        if budgets.get(name := of_qos.get(job.qos, job.account)) and is_managed(job, partitions)
    ]
    left, room = Counter(run_minutes), QuotaRoom(policy, jobs, partitions, costs)
    for job, name in ours:
        if job.state in ALLOTTED:
            cost = run_cost(job.gpus, costs)
            left.subtract(dict.fromkeys(budgets[name], minutes_left(job, cost, now_s)))
    judged: dict[int, JobView] = {}
    waiting = {
        job.job_id: name
        for job, name in ours
        if is_ours(job.qos)
        and (waits_for_quota(job) or (job.reason == QOS_BUDGET and is_waiting(job)))
    }
    in_order = by_priority(job for job, _ in ours if job.job_id in waiting)
    for job in sorted(in_order, key=lambda job: job.qos != qos_name(waiting[job.job_id])):
        name = waiting[job.job_id]
        cost, bound = run_cost(job.gpus, costs), budgets[name]
        if not cost:
            continue
        minutes, most = cost * (job.time_limit_s or 0) // 60, min(left[one] for one in bound)
        able = min(max(1, len(job.untouched)), most // minutes) if minutes and most > 0 else 0
        claimed = min(able, room.most(name, job.qos) // cost)
        room.take(name, job.qos, claimed * cost)
        left.subtract(dict.fromkeys(bound, claimed * minutes))
        judged[job.job_id] = _judged(job, able)
    return tuple(judged.get(job.job_id, job) for job in jobs)


def _judged(job: JobView, able: int) -> JobView:
    """``able``: for how many of its tasks there is enough."""
    if not able:
        return job if job.reason == QOS_BUDGET else replace(job, reason=QOS_BUDGET)
    if not is_borrowed(job.qos):
        return job
    if able < len(job.untouched):
        job = replace(job, untouched=frozenset(sorted(job.untouched)[:able]))
    return replace(job, reason=QOS_SLICES) if job.reason == QOS_BUDGET else job


def parts(
    policy: Policy, run_minutes: Mapping[str, int], tenants: Iterable[str], claims: Claims
) -> Mapping[str, Part]:
    """The part of each QOS of the ``tenants`` that draws on a budget, of what budgets have left:
    ``run_minutes``, in millislice-minutes.

    First what its running jobs may still take. Then what waiting jobs need, in their order, for
    which it has slices: each all that it needs, or nothing. The rest is shared out evenly among the
    QOS in which a job could start, for those that come before limits are looked at again.
    """
    division = _Division(drawn_on(policy, run_minutes, tenants), run_minutes)
    for tenant, minutes in claims.elsewhere.items():
        division.take(binding(policy, run_minutes, tenant), minutes)
    for qos in sorted(division.draws):
        division.give(qos, min(claims.may_take.get(qos, 0), division.most(qos)))
    least: dict[str, int] = {}
    room = Counter(claims.limits)
    room.subtract(claims.held)
    for job in claims.waiting:
        qos = job.qos
        fits = qos in division.draws and job.minutes <= division.most(qos)
        if fits and job.cost_millislices <= room[qos]:
            room[qos] -= job.cost_millislices
            division.give(qos, job.minutes)
            least[qos] = division.given[qos]
    division.share_out({qos for qos in division.draws if claims.limits.get(qos, 0)})
    return {
        qos: Part(budgets, division.given[qos], least.get(qos, 0))
        for qos, budgets in division.draws.items()
    }


def larger_parts(
    draws: Mapping[str, tuple[str, ...]],
    left: Mapping[str, int],
    has: Mapping[str, int],
    needs: Iterable[tuple[str, int]],
    among: Collection[str],
) -> Mapping[str, int]:
    """The parts that QOS have, those ``among`` them larger by what budgets have left besides.

    First each gets what its jobs need, in this order, all or nothing; then all the same of the
    rest. No part is made smaller.
    """
    division = _Division(draws, left)
    for qos, part in has.items():
        division.give(qos, part)
    for qos, need in needs:
        lacks = need - division.given[qos]
        if qos in among and 0 < lacks <= division.most(qos):
            division.give(qos, lacks)
    division.share_out(among)
    return division.given


class _Division:
    """What was given to each QOS, and what that leaves of the budgets that it draws on."""

    def __init__(self, draws: Mapping[str, tuple[str, ...]], minutes: Mapping[str, int]) -> None:
        self.draws = draws
        self.given = Counter[str]()
        self._left = dict(minutes)

    def most(self, qos: str) -> int:
        """That much all of its budgets still have."""
        return min(self._left[name] for name in self.draws[qos])

    def give(self, qos: str, minutes: int) -> None:
        """At most ``most``."""
        self.given[qos] += minutes
        self.take(self.draws[qos], minutes)

    def take(self, budgets: Iterable[str], minutes: int) -> None:
        """Off each of these, as far as it has it."""
        for name in budgets:
            self._left[name] = max(0, self._left[name] - minutes)

    def share_out(self, among: Collection[str]) -> None:
        """All that is left: nobody gets more than another but where a budget has no more for that
        one. So the budget that has least for each goes first.
        """
        sharing: dict[str, set[str]] = {}
        for qos in among:
            for name in self.draws[qos]:
                sharing.setdefault(name, set()).add(qos)
        shares = [(self._share(name, of), name) for name, of in sharing.items()]
        heapify(shares)
        while shares:
            share, name = heappop(shares)
            of = sharing[name]
            if of and (now := self._share(name, of)) > share:
                heappush(shares, (now, name))  # Others have left it more for each.
                continue
            for number, qos in zip(range(len(of), 0, -1), sorted(of), strict=True):
                self.give(qos, self._left[name] // number)
                for budget in self.draws[qos]:
                    sharing[budget].discard(qos)

    def _share(self, name: str, of: Collection[str]) -> Fraction:
        return Fraction(self._left[name], len(of))
