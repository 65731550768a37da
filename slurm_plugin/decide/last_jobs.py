"""What becomes of the jobs in our QOS once nobody lends and moves any more.

A limit that stands at 0, of a borrowed QOS without loans or of an own one that had lent all, would
keep its jobs for ever. So own QOS get their tenants' own parts back, and what waits in a borrowed
one goes on in the own one, if it can ever start there.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from cluster.billing import BillingUnit
from cluster.jobs import JobState, JobView
from cluster.slurm.interface import Target
from cluster.units import Millislices
from slurm_plugin.decide.budget_parts import drawn_on
from slurm_plugin.decide.charging import run_cost
from slurm_plugin.decide.limits import BILLING, RUN_MINUTES, Difference, Found
from slurm_plugin.decide.moves import as_units, can_move
from slurm_plugin.decide.policy import LimitKey, Policy
from slurm_plugin.decide.qos_names import is_ours, own_of, qos_name
from slurm_plugin.decide.tenants import own_part


@dataclass(frozen=True)
class Amount:
    """Of Slurm's billing, None is without limit.

    Attributes:
        slices: at one time.
        minutes: billing-minutes that running jobs may still take.
    """

    slices: int | None
    minutes: int | None


@dataclass(frozen=True)
class Jobs:
    """Jobs in a QOS, each task of an array counted.

    Attributes:
        job_ids: of their records.
        waiting: those that are held are not among them.
    """

    job_ids: tuple[int, ...]
    running: int
    waiting: int
    held: int


@dataclass(frozen=True)
class Stuck:
    """Jobs each of which needs more than its QOS allows all of its jobs together.

    Attributes:
        job_ids: of their records.
        settings: what of the QOS would let each of them start: words for sacctmgr.
    """

    job_ids: tuple[int, ...]
    settings: tuple[str, ...]


@dataclass(frozen=True)
class LastJobs:
    """What becomes of them.

    Attributes:
        limits: those of own QOS that get their tenants' own parts back.
        moves: waiting jobs that go from a borrowed QOS to that own one.
        unmoved: those that Slurm has refused to move, and stay.
        in_use: what is in each QOS after that.
        stuck: those of them that would wait for ever, by QOS.
    """

    limits: tuple[Difference, ...]
    moves: Mapping[Target, str] = field(hash=False)
    unmoved: Mapping[Target, str] = field(hash=False)
    in_use: Mapping[str, Jobs] = field(hash=False)
    stuck: Mapping[str, Stuck] = field(hash=False)

    @property
    def staying(self) -> frozenset[str]:
        """QOS that have jobs, or may get them yet: a run on borrowed quota that is requeued waits
        again, and goes on in the own QOS, too.
        """
        own = (own_of(qos) for qos in self.in_use)
        return frozenset(self.in_use) | {name for name in own if name is not None}


def own_amounts(
    policy: Policy, run_minutes: Mapping[str, int], billing: BillingUnit
) -> Mapping[str, Amount]:
    """What each tenant's own QOS is due when nothing is lent: its own part, and of budgets, by
    ``run_minutes`` in millislice-minutes, all that the one with the least has left.
    """
    budgets = drawn_on(policy, run_minutes, policy)
    found = {}
    for name, part in own_part(policy).items():
        left = [run_minutes[budget] for budget in budgets.get(qos_name(name), ())]
        minutes = billing.limit(min(left)) if left else None
        found[qos_name(name)] = Amount(billing.limit(part), minutes)
    return found


def last_jobs(
    jobs: Sequence[JobView],
    found: Found,
    due: Mapping[str, Amount],
    costs: Mapping[str, Millislices],
    *,
    theirs: Collection[str] = (),
    refused: Collection[Target] = (),
) -> LastJobs:
    """What becomes of the ``jobs`` in our QOS.

    Limits only grow, up to what is ``due`` to an own QOS: what somebody has set higher by hand
    stays. Without the ledger nothing is known to be due, and what stands in Slurm must do. Limits
    of QOS that are ``theirs``, as another cluster on the same slurmdbd uses them, stay. So do
    jobs that Slurm has ``refused`` to move.
    """
    has = {
        name: Amount(row.grp_tres.get("billing"), row.grp_tres_run_mins.get("billing"))
        for name, row in found.qos.items()
        if is_ours(name)
    }
    own = due.keys() & has.keys() - set(theirs)
    limits = has | {name: _grown(has[name], due[name]) for name in own}
    need = partial(_need, found.billing, costs)
    homeward = (
        (job, home)
        for job in jobs
        if can_move(job) and (home := own_of(job.qos)) and home in limits
        if _fits(need(job), limits[home])
    )
    units = dict(as_units(homeward))
    moves = {target: home for target, home in units.items() if target not in refused}
    unmoved = {target: home for target, home in units.items() if target in refused}
    after = tuple(_after(jobs, moves))
    rest = LastJobs((), moves, unmoved, _in_use(after), _stuck(after, limits, need))
    grown = sorted(own & rest.staying)
    return replace(
        rest,
        limits=tuple(one for name in grown for one in _differences(name, has[name], limits[name])),
    )


def _grown(has: Amount, due: Amount) -> Amount:
    return Amount(_larger(has.slices, due.slices), _larger(has.minutes, due.minutes))


def _larger(has: int | None, due: int | None) -> int | None:
    """No limit that was taken away comes back; of what nothing is due stays what it has."""
    return has if has is None or due is None else max(has, due)


def _differences(qos: str, has: Amount, wanted: Amount) -> Iterator[Difference]:
    why = "its tenant's own part: nothing is lent any more"
    for word, now, then in (
        (BILLING, has.slices, wanted.slices),
        (RUN_MINUTES, has.minutes, wanted.minutes),
    ):
        if now != then:
            yield Difference(LimitKey("qos", qos, word), str(now), str(then), why)


def _need(billing: BillingUnit, costs: Mapping[str, Millislices], job: JobView) -> Amount:
    """Of one task; minutes are None without a time limit, which no limit of minutes lets start."""
    cost, limit_s = run_cost(job.gpus, costs), job.time_limit_s
    minutes = None if limit_s is None else billing.held(cost * -(-limit_s // 60))
    return Amount(billing.held(cost), minutes)


def _fits(need: Amount, limit: Amount) -> bool:
    return _is_within(need.slices, limit.slices) and _is_within(need.minutes, limit.minutes)


def _is_within(need: int | None, limit: int | None) -> bool:
    return limit is None or (need is not None and need <= limit)


def _after(jobs: Iterable[JobView], moves: Mapping[Target, str]) -> Iterator[JobView]:
    """What has not ended in our QOS, with the QOS that it shall have."""
    units = {
        target if isinstance(target, int) else target.array_job_id: qos
        for target, qos in moves.items()
    }
    for job in jobs:
        unit = job.array_job_id or job.job_id
        moves_on = can_move(job) and own_of(job.qos) == units.get(unit, "")
        if is_ours(job.qos) and job.state != JobState.ENDED:
            yield replace(job, qos=units[unit]) if moves_on else job


def _in_use(jobs: Iterable[JobView]) -> Mapping[str, Jobs]:
    ids: dict[str, list[int]] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for job in jobs:
        ids.setdefault(job.qos, []).append(job.job_id)
        kind = "running" if not can_move(job) else "held" if job.held else "waiting"
        counts[job.qos, kind] += max(1, len(job.untouched))
    kinds = ("running", "waiting", "held")
    return {
        qos: Jobs(tuple(sorted(found)), *(counts[qos, kind] for kind in kinds))
        for qos, found in sorted(ids.items())
    }


def _stuck(
    jobs: Iterable[JobView], limits: Mapping[str, Amount], need: Callable[[JobView], Amount]
) -> Mapping[str, Stuck]:
    found: dict[str, list[tuple[int, Amount]]] = {}
    for job in jobs:
        if can_move(job) and job.qos in limits and not _fits(one := need(job), limits[job.qos]):
            found.setdefault(job.qos, []).append((job.job_id, one))
    return {
        qos: Stuck(
            tuple(sorted(job_id for job_id, _ in those)),
            tuple(_enough([one for _, one in those], limits[qos])),
        )
        for qos, those in sorted(found.items())
    }


def _enough(needs: Sequence[Amount], limit: Amount) -> Iterator[str]:
    for word, of, most in (
        (BILLING, [need.slices for need in needs], limit.slices),
        (RUN_MINUTES, [need.minutes for need in needs], limit.minutes),
    ):
        if not all(_is_within(need, most) for need in of):
            # -1 is no limit.
            known = [need for need in of if need is not None]
            yield f"{word}={max(known) if len(known) == len(of) else -1}"
