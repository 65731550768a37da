"""Plans for the jobs in Slicewise's QOS after an uninstallation, when nothing lends or moves jobs.

A limit of 0 (of a borrowed QOS without loans, or of an own QOS that had lent everything) would keep
the QOS' jobs waiting forever. So own QOS get their tenants' guaranteed quotas back. A job that
waits in a borrowed QOS without room for it moves to the own QOS, if it can ever start there.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated

from slicewise.cluster.language.billing import BillingUnit
from slicewise.cluster.language.documents import HIDDEN
from slicewise.cluster.language.gres import tres_name
from slicewise.cluster.language.jobs import ALLOTTED, JobState, JobView, folded_tasks
from slicewise.cluster.language.slurm.interface import Target
from slicewise.cluster.language.slurm.values import numbers_text
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.admission.qos_switch import (
    as_units,
    can_move,
    is_pending,
    unit_of,
    unit_of_target,
)
from slicewise.slurm_plugin.rules.common.costs import job_cost
from slicewise.slurm_plugin.rules.common.qos_names import is_ours, own_of, qos_name
from slicewise.slurm_plugin.rules.limits.budget_parts import (
    binding,
    drawn_on,
    larger_parts,
    minutes_left,
)
from slicewise.slurm_plugin.rules.limits.desired import (
    BILLING,
    RUN_MINUTES,
    Difference,
    SlurmLimits,
)
from slicewise.slurm_plugin.rules.quota.jobs import FIRST_TASKS
from slicewise.slurm_plugin.rules.quota.tenants import guaranteed_quota, guaranteed_types
from slicewise.slurm_plugin.rules.quota.types import LimitKey, Policy
from slicewise.slurm_plugin.rules.quota.waits import waits_of


@dataclass(frozen=True)
class Amount:
    """An amount in Slurm's billing; None means without limit.

    Attributes:
        slices: the amount at one time.
        minutes: billing-minutes that running jobs may still take.
    """

    slices: int | None
    minutes: int | None


@dataclass(frozen=True)
class Due:
    """What own QOS are due when nothing is lent, in Slurm's billing.

    Attributes:
        slices: the limit at one time, by own QOS.
        budgets: the budgets on which each QOS, own or borrowed, draws.
        minutes: billing-minutes that each budget has left for jobs in these QOS.
        types: TRES of GPU types whose limits on an own QOS end, as more of them ran on loan.
    """

    slices: Mapping[str, int] = field(default_factory=dict, hash=False)
    budgets: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    minutes: Mapping[str, int] = field(default_factory=dict, hash=False)
    types: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Jobs:
    """The jobs in a QOS; each task of an array counts.

    Attributes:
        names: of Slurm's records of these jobs, as squeue shows them.
        waiting: how many wait without being held.
    """

    names: Annotated[tuple[str, ...], HIDDEN]
    running: int
    waiting: int
    held: int


@dataclass(frozen=True)
class Stuck:
    """Jobs that each need more than their QOS allows all of its jobs together.

    Attributes:
        names: of Slurm's records of these jobs, as squeue shows them.
        settings: the QOS' settings that would let each of the jobs start, in words for sacctmgr.
    """

    names: Annotated[tuple[str, ...], HIDDEN]
    settings: tuple[str, ...]


@dataclass(frozen=True)
class LastJobs:
    """The plan for the jobs in Slicewise's QOS.

    Attributes:
        limits: changes of limits by which own QOS get their tenants' guaranteed quotas back.
        reached: limits of own QOS that need no change.
        moves: waiting jobs that move from a borrowed QOS, with the own QOS to which they move.
        unmoved: jobs that should move but stay, because Slurm has refused to move them.
        folded: waiting array tasks that share one record, by array.
        in_use: the jobs in each QOS after the moves.
        stuck: the jobs that would then wait forever, by QOS.
    """

    limits: tuple[Difference, ...]
    reached: tuple[LimitKey, ...]
    moves: Mapping[Target, str] = field(hash=False)
    unmoved: Mapping[Target, str] = field(hash=False)
    folded: Mapping[int, frozenset[int]] = field(hash=False)
    in_use: Mapping[str, Jobs] = field(hash=False)
    stuck: Mapping[str, Stuck] = field(hash=False)

    @property
    def staying(self) -> frozenset[str]:
        """The QOS that have jobs or may still get some.

        A run on borrowed quota that is requeued waits again, and may then move to the own QOS.
        """
        return _staying(self.in_use)


def due_of(
    policy: Policy,
    run_minutes: Mapping[str, int],
    elsewhere: Mapping[tuple[str, str], int],
    billing: BillingUnit,
) -> Due:
    """Compute what each tenant's own QOS is due: its guaranteed quota, and a share of budgets.

    ``run_minutes`` are the millislice-minutes that each budget has left, including what running
    jobs may still take. ``elsewhere`` are those that jobs in QOS that are no tenant's may still
    take, by account and QOS.
    """
    left = Counter(run_minutes)
    for (account, _), minutes in elsewhere.items():
        if account in policy:
            left.subtract(dict.fromkeys(binding(policy, run_minutes, account), minutes))
    return Due(
        {qos_name(name): billing.limit(part) for name, part in guaranteed_quota(policy).items()},
        drawn_on(policy, run_minutes, policy),
        {name: billing.limit(max(0, minutes)) for name, minutes in left.items()},
        {
            qos_name(name): tuple(map(tres_name, types))
            for name, types in guaranteed_types(policy).items()
        },
    )


def own_limits(slurm_limits: SlurmLimits) -> Iterator[LimitKey]:
    """Yield the settings of Slicewise's QOS that ``last_jobs`` may raise."""
    for name in filter(is_ours, slurm_limits.qos):
        yield from _keys(name)


def last_jobs(
    jobs: Sequence[JobView],
    slurm_limits: SlurmLimits,
    due: Due,
    costs: Mapping[str, Millislices],
    *,
    now_s: float,
    fixed: Collection[LimitKey] = (),
    theirs: Collection[str] = (),
    refused: Collection[int] = (),
) -> LastJobs:
    """Plan for the ``jobs`` in Slicewise's QOS.

    Limits only grow, up to what is ``due`` to an own QOS, and those of GPU types end there. Higher
    limits that an operator has set manually stay, and so do ``fixed`` limits. Without the ledger
    nothing is known to be due, so limits stay as Slurm has them. Limits of QOS that are ``theirs``,
    which another cluster on the same slurmdbd uses, also stay. Jobs that Slurm has ``refused`` to
    move are not moved. They are named by job, and arrays as a whole, because tasks of an array
    start from look to look.
    """
    has = {
        name: Amount(row.grp_tres.get("billing"), row.grp_tres_run_mins.get("billing"))
        for name, row in slurm_limits.qos.items()
        if is_ours(name)
    }
    inside = [job for job in jobs if is_ours(job.qos) and job.state != JobState.ENDED]
    need = partial(_need, slurm_limits.billing, costs)
    held = partial(_held, slurm_limits.billing, costs, now_s)
    waiting = _waiting_at_home(inside, has, need, held)
    fixed = {*fixed, *(key for name in theirs for key in _keys(name))}
    limits = _limits(inside, has, due, fixed, [(home, need(job)) for job, home in waiting])
    homeward = (
        (job, home)
        for job, home in waiting
        if job.qos != home and home in limits and _fits(need(job), limits[home])
    )
    units = dict(as_units(homeward))
    moves = {
        target: home for target, home in units.items() if unit_of_target(target) not in refused
    }
    unmoved = {target: home for target, home in units.items() if target not in moves}
    after = tuple(_after(inside, moves))
    rest = LastJobs(
        (),
        (),
        moves,
        unmoved,
        folded_tasks(filter(can_move, inside)),
        _in_use(after),
        _stuck(after, limits, need),
    )
    own = sorted(due.slices.keys() & has.keys() & rest.staying)
    grown = tuple(
        difference for name in own for difference in _differences(name, has[name], limits[name])
    )
    changing = {difference.key for difference in grown}
    ended = (
        Difference(key, str(now), "", "all of its tenant's jobs run in it")
        for name in own
        if name not in theirs
        for tres in due.types.get(name, ())
        if (now := slurm_limits.qos[name].grp_tres.get(tres)) is not None
        if (key := LimitKey("qos", name, f"grptres={tres}")) not in fixed
    )
    reached = (key for name in own for key in _keys(name) if key not in changing)
    return replace(rest, limits=(*grown, *ended), reached=tuple(reached))


def _keys(qos: str) -> tuple[LimitKey, ...]:
    return LimitKey("qos", qos, BILLING), LimitKey("qos", qos, RUN_MINUTES)


def _waiting_at_home(
    jobs: Iterable[JobView],
    has: Mapping[str, Amount],
    need: Callable[[JobView], Amount],
    held: Callable[[JobView], Amount],
) -> Sequence[tuple[JobView, str]]:
    """Return the jobs that wait in own QOS or should move there, each with its own QOS.

    A job should move if its borrowed QOS has no room for it beside running jobs and the jobs before
    it. The result is in Slurm's order, with held jobs last.

    An array stays if its next task has room and none of its tasks waits in the own QOS. In a cycle
    in which Slurm could not start one task of an array, it tries no other task of that array.
    """
    at_home = {
        unit_of(job) for job in jobs if own_of(job.qos) is None and waits_of(job).could_start
    }
    room = dict(has)
    for job in jobs:
        if job.state in ALLOTTED and job.qos in room:
            room[job.qos] = _less(room[job.qos], held(job))
    can_start: dict[int, bool] = {}
    needs = []
    # Held jobs come last, as it is not known when they are released.
    for job in sorted(filter(can_move, jobs), key=lambda job: (job.held, *_order(job))):
        home = own_of(job.qos)
        if home is None:
            needs.append((job, job.qos))
            continue
        needed, left = need(job), room.get(job.qos)
        has_room = left is not None and _fits(needed, left) and unit_of(job) not in at_home
        if not can_start.setdefault(unit_of(job), has_room):
            needs.append((job, home))
            continue
        for _ in range(min(job.tasks, FIRST_TASKS)):
            if _fits(needed, room[job.qos]):
                room[job.qos] = _less(room[job.qos], needed)
    return needs


def _order(job: JobView) -> tuple[int, int, int]:
    index = min(job.untouched) if job.untouched else job.task_index or 0
    return -job.priority, unit_of(job), index


def _less(limit: Amount, taken: Amount) -> Amount:
    def less(most: int | None, amount: int | None) -> int | None:
        return None if most is None else most - (amount or 0)

    return Amount(less(limit.slices, taken.slices), less(limit.minutes, taken.minutes))


def _limits(
    jobs: Sequence[JobView],
    has: Mapping[str, Amount],
    due: Due,
    fixed: Collection[LimitKey],
    needs: Sequence[tuple[str, Amount]],
) -> Mapping[str, Amount]:
    """Return the limits of each QOS after it got what is due to it.

    The parts of a budget that jobs can use add up to no more than it has left, or than before.
    """
    of_slices = {
        name: replace(room, slices=_larger(room.slices, due.slices[name]))
        if name in due.slices and LimitKey("qos", name, BILLING) not in fixed
        else room
        for name, room in has.items()
    }
    runs = {job.qos for job in jobs if job.state in ALLOTTED}
    staying = _staying({job.qos for job in jobs})
    parts = {
        name: part.minutes
        for name, part in of_slices.items()
        if name in due.budgets and part.minutes is not None
        if name in runs or (name in staying and part.slices != 0)
    }
    growing = {
        name
        for name in parts.keys() & due.slices.keys() & staying
        if of_slices[name].slices != 0 and LimitKey("qos", name, RUN_MINUTES) not in fixed
    }
    minutes = [
        (name, needed.minutes)
        for name, needed in needs
        if needed.minutes is not None and name in growing
        if _is_within(needed.slices, of_slices[name].slices)
    ]
    larger = larger_parts(due.budgets, due.minutes, parts, minutes, growing)
    return {
        name: replace(part, minutes=larger[name]) if name in growing else part
        for name, part in of_slices.items()
    }


def _staying(in_use: Collection[str]) -> frozenset[str]:
    """Return the QOS ``in_use``, and the own QOS of the borrowed ones among them."""
    own = (own_of(qos) for qos in in_use)
    return frozenset(in_use) | {name for name in own if name is not None}


def _larger(has: int | None, due: int) -> int | None:
    """Return the larger limit; a limit that was taken away (None) does not come back."""
    return has if has is None else max(has, due)


def _differences(qos: str, has: Amount, wanted: Amount) -> Iterator[Difference]:
    why = "its tenant's guaranteed quota: nothing is lent any more"
    for word, now, then in (
        (BILLING, has.slices, wanted.slices),
        (RUN_MINUTES, has.minutes, wanted.minutes),
    ):
        if now != then:
            yield Difference(LimitKey("qos", qos, word), str(now), str(then), why)


def _need(billing: BillingUnit, costs: Mapping[str, Millislices], job: JobView) -> Amount:
    """Return what one task needs.

    Minutes are None for a task without a time limit, which cannot start under a limit of minutes.
    """
    cost, limit_s = job_cost(job, costs), job.time_limit_s
    minutes = None if limit_s is None else billing.held(cost * -(-limit_s // 60))
    return Amount(billing.held(cost), minutes)


def _held(
    billing: BillingUnit, costs: Mapping[str, Millislices], now_s: float, run: JobView
) -> Amount:
    """Return what a running job takes of limits: its billing and the minutes it may still run."""
    cost = job_cost(run, costs)
    return Amount(billing.held(cost), billing.held(minutes_left(run, cost, now_s)))


def _fits(need: Amount, limit: Amount) -> bool:
    return _is_within(need.slices, limit.slices) and _is_within(need.minutes, limit.minutes)


def _is_within(need: int | None, limit: int | None) -> bool:
    return limit is None or (need is not None and need <= limit)


def _after(jobs: Iterable[JobView], moves: Mapping[Target, str]) -> Iterator[JobView]:
    """Yield the jobs with the QOS that they have after the moves."""
    units = {unit_of_target(target): qos for target, qos in moves.items()}
    for job in jobs:
        unit = unit_of(job)
        moves_on = can_move(job) and own_of(job.qos) == units.get(unit, "")
        yield replace(job, qos=units[unit]) if moves_on else job


def _in_use(jobs: Iterable[JobView]) -> Mapping[str, Jobs]:
    records: dict[str, list[JobView]] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for job in jobs:
        records.setdefault(job.qos, []).append(job)
        kind = "running" if not is_pending(job) else "held" if job.held else "waiting"
        counts[job.qos, kind] += job.tasks
    kinds = ("running", "waiting", "held")
    return {
        qos: Jobs(_names(record), *(counts[qos, kind] for kind in kinds))
        for qos, record in sorted(records.items())
    }


def _names(jobs: Iterable[JobView]) -> tuple[str, ...]:
    """Return the names of Slurm's records, such as ``814``, ``814_3`` or ``814_[4-9]``."""
    return tuple(
        f"{job.array_job_id}_[{numbers_text(job.untouched)}]" if job.untouched else job.task
        for job in sorted(jobs, key=lambda job: job.job_id)
    )


def _stuck(
    jobs: Iterable[JobView], limits: Mapping[str, Amount], need: Callable[[JobView], Amount]
) -> Mapping[str, Stuck]:
    moving: dict[str, list[tuple[JobView, Amount]]] = {}
    for job in jobs:
        if can_move(job) and job.qos in limits and not _fits(needed := need(job), limits[job.qos]):
            moving.setdefault(job.qos, []).append((job, needed))
    return {
        qos: Stuck(
            _names(job for job, _ in those),
            tuple(_enough([needed for _, needed in those], limits[qos])),
        )
        for qos, those in sorted(moving.items())
    }


def _enough(needs: Sequence[Amount], limit: Amount) -> Iterator[str]:
    for word, of, most in (
        (BILLING, [need.slices for need in needs], limit.slices),
        (RUN_MINUTES, [need.minutes for need in needs], limit.minutes),
    ):
        if not all(_is_within(need, most) for need in of):
            # sacctmgr takes -1 for no limit, which a job without a time limit needs.
            amounts = [need for need in of if need is not None]
            yield f"{word}={max(amounts) if len(amounts) == len(of) else -1}"
