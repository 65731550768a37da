"""Divides what is left of a budget into parts: what each QOS that draws on it may still take.

Slurm limits each QOS separately (``GrpTRESRunMins``), but jobs of several QOS use up one budget:
those of its tenant's two QOS, and of the QOS of the tenants below. A QOS' part is what its running
jobs may still take, plus what further jobs may immediately start with there. All parts of a budget
add up to no more than it has.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import NamedTuple

from slicewise.cluster.language.jobs import JobView
from slicewise.slurm_plugin.rules.common.costs import job_cost
from slicewise.slurm_plugin.rules.common.qos_names import (
    borrowed_qos,
    holder,
    holder_of,
    is_borrowed,
    is_ours,
    qos_name,
)
from slicewise.slurm_plugin.rules.quota.jobs import (
    FIRST_TASKS,
    JobsByHolder,
    QosQueue,
    place_in_order,
)
from slicewise.slurm_plugin.rules.quota.room import QuotaRoom
from slicewise.slurm_plugin.rules.quota.tenants import upward
from slicewise.slurm_plugin.rules.quota.types import Policy
from slicewise.slurm_plugin.rules.quota.waits import QOS_BUDGET, QOS_SLICES, waits_of


@dataclass(frozen=True)
class WaitingRun:
    """A waiting job, or one task of an array.

    Attributes:
        minutes: millislice-minutes that the run takes if it runs to its time limit.
    """

    qos: str
    cost_millislices: int
    minutes: int


@dataclass(frozen=True)
class Runs:
    """What jobs take of budgets.

    Attributes:
        may_take: millislice-minutes that running jobs may still take, by account and QOS.
        waiting: the first waiting runs of each QOS, in Slurm's order.
    """

    may_take: Mapping[tuple[str, str], int] = field(default_factory=dict, hash=False)
    waiting: tuple[WaitingRun, ...] = ()


@dataclass(frozen=True)
class Claims:
    """The claims on budgets by which budgets are divided.

    Attributes:
        may_take: millislice-minutes that running jobs may still take, as far as Slurm counts them,
            by QOS.
        elsewhere: millislice-minutes that each tenant's own jobs may still take in QOS that are no
            tenant's, or that Slurm does not count. Accounts without a quota below the tenant are
            not included: what jobs of a removed tenant may still take is subtracted from what
            budgets have left, and other accounts pay for themselves.
        waiting: waiting runs, in Slurm's order.
        limits: millislices that jobs of each QOS may hold together.
        held: millislices that jobs of each QOS hold together.
    """

    may_take: Mapping[str, int] = field(hash=False)
    elsewhere: Mapping[str, int] = field(hash=False)
    waiting: tuple[WaitingRun, ...]
    limits: Mapping[str, int] = field(hash=False)
    held: Mapping[str, int] = field(hash=False)


@dataclass(frozen=True)
class BudgetPart:
    """A QOS' part of budgets: what jobs that run in it may still take together.

    Attributes:
        budgets: the tenants that have the budgets on which the QOS draws, the nearest first.
        minutes: the part in millislice-minutes.
        least: the least millislice-minutes with which all waiting jobs that are to start can do
            so; 0 if none is to start.
    """

    budgets: tuple[str, ...]
    minutes: int
    least: int


def may_still_take(by_holder: JobsByHolder, now_s: float) -> Mapping[tuple[str, str], int]:
    """Sum up the millislice-minutes that runs may still take, by account and QOS."""
    minutes_by_place: dict[tuple[str, str], int] = {}
    for place, runs in by_holder.held.places.items():
        if minutes := sum(minutes_left(job, cost, now_s) for job, cost, _ in runs):
            minutes_by_place[place] = minutes
    return minutes_by_place


def runs_of(by_holder: JobsByHolder, may_take: Mapping[tuple[str, str], int]) -> Runs:
    """Sum up what jobs of managed partitions take of budgets.

    Waiting jobs without a time limit are left out, as no budget lets them start.
    """
    waiting = [first_run for queue in by_holder.queues.values() for first_run in _first_runs(queue)]
    waiting.sort(key=_IN_ORDER)
    return Runs(may_take, tuple([run for _, run in waiting]))


_IN_ORDER = itemgetter(0)


def _first_runs(queue: QosQueue) -> Sequence[tuple[tuple[int, int], WaitingRun]]:
    """The first runs of a QOS that lack nothing but room, each with its place in Slurm's order."""
    first_runs: list[tuple[tuple[int, int], WaitingRun]] = []
    for job in queue.jobs:
        if job.time_limit_s is None or not waits_of(job).for_room:
            continue
        if cost := job_cost(job, queue.costs):
            run = WaitingRun(job.qos, cost, cost * job.time_limit_s // 60)
            tasks = min(job.tasks, FIRST_TASKS - len(first_runs))
            first_runs += [(place_in_order(job), run)] * tasks
            if len(first_runs) == FIRST_TASKS:
                break
    return first_runs


def minutes_left(run: JobView, cost_millislices: int, now_s: float) -> int:
    """Return the millislice-minutes that a run may still take; 0 if it has no time limit."""
    left_s = 0 if run.end_s is None else max(0, int(run.end_s - now_s))
    return left_s * cost_millislices // 60


def drawn_on(
    policy: Policy, budgets: Collection[str], tenants: Iterable[str]
) -> Mapping[str, tuple[str, ...]]:
    """Return the budgets that bind each QOS of the tenants: all on the way up, the nearest first.

    QOS that no budget binds are left out.
    """
    of = bindings(policy, budgets)
    return {
        qos: above
        for name in tenants
        if (above := of[name])
        for qos in (qos_name(name), borrowed_qos(name))
    }


def bindings(policy: Policy, budgets: Collection[str]) -> Mapping[str, tuple[str, ...]]:
    """Return ``binding`` of every tenant."""
    return {
        tenant: tuple([name for name in above if name in budgets])
        for tenant, above in upward(policy).items()
    }


def binding(policy: Policy, budgets: Collection[str], tenant: str) -> tuple[str, ...]:
    """Return the tenants with ``budgets`` on a tenant's way up, the tenant itself first."""
    return tuple(name for name in upward(policy)[tenant] if name in budgets)


def as_budgets_let(
    policy: Policy, run_minutes: Mapping[str, int], by_holder: JobsByHolder, now_s: float
) -> Mapping[int, JobView]:
    """Return the jobs for which budgets allow something else than Slurm's reason says, by id.

    Each has the reason for which it waits adapted to that. An array on borrowed quota keeps only
    the tasks for which its budgets have enough.

    If a job is over several limits, Slurm names only one of them: slices before budgets. If loans
    followed Slurm's reason, a loan for a job that its budget does not let start would end as soon
    as it is made, since Slurm then names the budget. Then it would be made again, since Slurm names
    the slices again.

    ``run_minutes`` are the millislice-minutes that each budget has left, including what running
    jobs may still take. Waiting jobs claim them in Slurm's order. Jobs in their tenants' own QOS
    come first, up to what the guaranteed quotas pay for. Then come the others, up to what their
    tenants and the tenants above may still hold; else jobs to which no tenant lends would keep
    others from what their tenants are guaranteed. Jobs that wait for something other than slices,
    GPUs or a budget claim nothing.
    """
    if not run_minutes:
        return {}
    budgets = bindings(policy, run_minutes)
    claims = {qos: _claims(queue) for qos, queue in by_holder.queues.items() if is_ours(qos)}
    left = Counter(run_minutes)
    for (account, qos), minutes in may_still_take(by_holder, now_s).items():
        for budget in budgets.get(holder(account, qos), ()):
            left[budget] -= minutes
    short = _short_of(claims.values(), budgets, left, upward(policy))
    waiting = [
        (job.qos != qos_name(name), job, name)
        for of in claims.values()
        for job in of.jobs
        if (name := holder_of(job)) in short and budgets[name]
    ]
    if not waiting:
        return {}
    room, costs = QuotaRoom(policy, by_holder), by_holder.costs
    judged_jobs: dict[int, JobView] = {}
    waiting.sort(key=lambda pair: (pair[0], place_in_order(pair[1])))
    for _, job, name in waiting:
        cost, bound = job_cost(job, costs), budgets[name]
        minutes, most = cost * (job.time_limit_s or 0) // 60, min(left[budget] for budget in bound)
        able = min(job.tasks, most // minutes) if minutes and most > 0 else 0
        claimed = min(able, room.tasks(name, job.qos, cost, job.gpus))
        gpus = {gres_type: claimed * count for gres_type, count in job.gpus.items()}
        room.take(name, job.qos, claimed * cost, gpus)
        left.subtract(dict.fromkeys(bound, claimed * minutes))
        if (judged := _judged(job, able)) is not job:
            judged_jobs[job.job_id] = judged
    return judged_jobs


class _Claims(NamedTuple):
    """What waiting jobs of a QOS claim of budgets.

    Attributes:
        jobs: those that cost anything and wait for slices, GPUs or a budget, in Slurm's order.
        minutes: millislice-minutes of all of them together, by tenant.
        unclear: tenants with a job that has to be judged even if budgets have enough for all: it
            waits for a budget, or has no time limit.
    """

    jobs: Sequence[JobView]
    minutes: Mapping[str, int]
    unclear: frozenset[str]


def _claims(queue: QosQueue) -> _Claims:
    jobs, claimed, unclear = [], Counter[str](), set[str]()
    for job in queue.jobs:
        cost = job_cost(job, queue.costs)
        waits = waits_of(job)
        if not cost or not (waits.for_quota or waits.for_budget):
            continue
        jobs.append(job)
        tenant = holder_of(job)
        minutes = cost * (job.time_limit_s or 0) // 60
        claimed[tenant] += minutes * job.tasks
        if not minutes or job.reason == QOS_BUDGET:
            unclear.add(tenant)
    return _Claims(jobs, claimed, frozenset(unclear))


def _short_of(
    claims: Iterable[_Claims],
    budgets: Mapping[str, tuple[str, ...]],
    left: Mapping[str, int],
    above: Mapping[str, Sequence[str]],
) -> frozenset[str]:
    """The tenants of trees in which some budget has too little for all that waits.

    In one tree tenants share budgets and what they may borrow, so each claims in its turn.
    ``budgets`` are those that bind each tenant, ``left`` is what each has beside running jobs, and
    ``above`` are the tenants on each one's way up to the top of its tree.
    """
    needs, unclear = Counter[str](), set[str]()
    for claim in claims:
        for tenant, minutes in claim.minutes.items():
            needs.update(dict.fromkeys(budgets.get(tenant, ()), minutes))
        unclear.update(*(budgets.get(tenant, ()) for tenant in claim.unclear))
    lacking = unclear | {name for name, need in needs.items() if need > left[name]}
    tops = {above[name][-1] for name in lacking}
    return frozenset(name for name, of in above.items() if of[-1] in tops)


def _judged(job: JobView, able: int) -> JobView:
    """Return a job with its adapted reason; ``able`` tasks of it fit into its budgets."""
    if not able:
        return job if job.reason == QOS_BUDGET else replace(job, reason=QOS_BUDGET)
    if not is_borrowed(job.qos):
        return job
    if able < len(job.untouched):
        job = replace(job, untouched=frozenset(sorted(job.untouched)[:able]))
    return replace(job, reason=QOS_SLICES) if job.reason == QOS_BUDGET else job


def parts(
    policy: Policy, run_minutes: Mapping[str, int], tenants: Iterable[str], claims: Claims
) -> Mapping[str, BudgetPart]:
    """Divide budgets among the QOS of the ``tenants`` that draw on them.

    ``run_minutes`` are the millislice-minutes that each budget has left. A QOS first gets what its
    running jobs may still take. Then waiting jobs for which their QOS has slices get what they
    need, in their order: each gets all that it needs, or nothing. The rest is divided evenly among
    the QOS in which a job could start, for jobs that come before limits are updated again.
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
        qos: BudgetPart(budgets, division.given[qos], least.get(qos, 0))
        for qos, budgets in division.draws.items()
    }


def larger_parts(
    draws: Mapping[str, tuple[str, ...]],
    left: Mapping[str, int],
    has: Mapping[str, int],
    needs: Iterable[tuple[str, int]],
    among: Collection[str],
) -> Mapping[str, int]:
    """Enlarge the parts of the QOS ``among`` by what all parts leave of the budgets they draw on.

    ``has`` are the present parts, ``left`` is what each budget has for all parts together. First
    each QOS gets what its jobs need, in the order of ``needs``, all or nothing; then each gets the
    same of the rest. No part shrinks.
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
    """A division in progress: what each QOS was given, and what is left of the budgets."""

    def __init__(self, draws: Mapping[str, tuple[str, ...]], minutes: Mapping[str, int]) -> None:
        self.draws = draws
        self.given = Counter[str]()
        self._left = dict(minutes)

    def most(self, qos: str) -> int:
        """Return what all budgets on which the QOS draws still have."""
        return min(self._left[name] for name in self.draws[qos])

    def give(self, qos: str, minutes: int) -> None:
        """Give the QOS more minutes, at most ``most``."""
        self.given[qos] += minutes
        self.take(self.draws[qos], minutes)

    def take(self, budgets: Iterable[str], minutes: int) -> None:
        """Subtract minutes from each of the budgets, down to 0."""
        for name in budgets:
            self._left[name] = max(0, self._left[name] - minutes)

    def share_out(self, among: Collection[str]) -> None:
        """Divide all that is left evenly among the QOS.

        A QOS gets less than another one only where a budget has no more for it. So the budget with
        the smallest share for each QOS is divided first.
        """
        sharing: dict[str, set[str]] = {}
        for qos in among:
            for name in self.draws[qos]:
                sharing.setdefault(name, set()).add(qos)
        shares = [
            (self._share(name, of), name)
            for name, of in sharing.items()
            if not self._divides_alone(name, of)
        ]
        heapify(shares)
        while shares:
            share, name = heappop(shares)
            of = sharing[name]
            if of and (now := self._share(name, of)) > share:
                # QOS that also draw on tighter budgets took less, so that the others get more.
                heappush(shares, (now, name))
                continue
            takers = sorted(of, reverse=True)
            for qos in takers:
                self.give(qos, int(share))
            for qos in takers:
                # A tighter budget may have the whole minutes of the share, but no more.
                self.give(qos, min(1, self.most(qos)))
                for budget in self.draws[qos]:
                    sharing[budget].discard(qos)

    def _divides_alone(self, name: str, of: Collection[str]) -> bool:
        """Divide a budget whose QOS draw on no other one, as in a flat tree. False if any does."""
        if any(len(self.draws[qos]) > 1 for qos in of):
            return False
        share, rest = divmod(self._left[name], len(of))
        for nth, qos in enumerate(sorted(of, reverse=True)):
            self.given[qos] += share + (nth < rest)
        self._left[name] = 0
        return True

    def _share(self, name: str, of: Collection[str]) -> Fraction:
        return Fraction(self._left[name], len(of))
