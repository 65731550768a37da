"""Whom a change of quotas would hurt, as far as it is not so already. Nothing that runs on a
tenant's own part is ever ended by it.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cluster.jobs import JobState, JobTag, JobView
from cluster.units import slices_text, slices_words
from cluster.wire import ServiceView
from slurm_plugin.decide.bounds import highest_ceilings, period_budgets
from slurm_plugin.decide.budget_harms import hours, in_debt, used_up
from slurm_plugin.decide.charging import run_cost
from slurm_plugin.decide.demand import held, is_managed
from slurm_plugin.decide.limits import (
    binding_type_limits,
    type_limits,
)
from slurm_plugin.decide.policy import Policy, Recall
from slurm_plugin.decide.qos_names import is_borrowed, qos_name
from slurm_plugin.decide.quota_plan import Harm, HarmKind, Now, QuotaPlan, Side
from slurm_plugin.decide.reclaim.inputs import taking
from slurm_plugin.decide.reclaim.recalls import over_entitlement, recalled
from slurm_plugin.decide.reclaim.victims import reclaim
from slurm_plugin.decide.services import used_by_tenant
from slurm_plugin.decide.standing import overcommitted_millislices, with_those_below
from slurm_plugin.decide.tenants import own_part

_WAITS = frozenset({JobState.PENDING, JobState.SPECIAL_EXIT})
_UNASKED = "they run on until Slurm needs their GPUs, and are preempted then"


def harms(now: Now, plan: QuotaPlan, period_ends_s: Mapping[str, int]) -> tuple[Harm, ...]:
    """What the change makes worse, by kind. ``period_ends_s`` are those of the running periods of
    the budgets that have periods.
    """
    recalls = _recalls(now, plan)
    own_parts = tuple(_above_own_parts(now, plan))
    called_back = tuple(_called_back(now, plan, {one.borrower for one in recalls}))
    told = {one.tenant for one in (*own_parts, *called_back)}
    return (
        *_removed(now, plan),
        *_overcommitted(now, plan),
        *own_parts,
        *_above_ceilings(now, plan, told),
        *_above_types(now, plan),
        *called_back,
        *_replicas(now, plan, recalls),
        *_never_start(now, plan),
        *_min_replicas(now, plan),
        *in_debt(plan),
        *used_up(now, plan, period_ends_s),
    )


def _removed(now: Now, plan: QuotaPlan) -> Iterator[Harm]:
    used = used_by_tenant(now.jobs, now.partitions, now.costs)
    for name in sorted(plan.before.policy.keys() - plan.after.policy.keys()):
        if has := used.get(name, 0):
            words = (
                f"its jobs hold {slices_words(has)}: they run on, borrowed ones until their GPUs"
                " are needed, and are charged; nothing new starts"
            )
            yield Harm(HarmKind.REMOVED, name, "", has, words)


def _overcommitted(now: Now, plan: QuotaPlan) -> Iterator[Harm]:
    whole = now.capacity_millislices
    if whole is None:
        return
    was = overcommitted_millislices(plan.before.policy, whole)
    above = overcommitted_millislices(plan.after.policy, whole)
    if above > was:
        words = (
            f"the quotas at the top would be {slices_words(above)} above the cluster's"
            f" {slices_text(whole)}: every ceiling is squeezed, and nothing new is lent"
        )
        yield Harm(HarmKind.OVERCOMMITTED, "", "", above, words)


def _above_own_parts(now: Now, plan: QuotaPlan) -> Iterator[Harm]:
    for name, one in held(now.jobs, now.partitions).items():
        has, after = run_cost(one.guaranteed, now.costs), plan.after.ceilings.get(name)
        if after is not None and has > (part := after.guarantee_millislices):
            before = plan.before.ceilings.get(name, after)
            if part < before.guarantee_millislices:
                words = f"its guaranteed jobs hold {_of(has, part)} of its own part{_WAITS_WORDS}"
                yield Harm(HarmKind.OWN_PART, name, "", has - part, words)


def _above_ceilings(now: Now, plan: QuotaPlan, told: Collection[str]) -> Iterator[Harm]:
    """But for those, and those above them, of whom it is ``told`` already."""
    after = plan.after
    used = with_those_below(after.policy, used_by_tenant(now.jobs, now.partitions, now.costs))
    known = with_those_below(after.policy, dict.fromkeys(told, 1))
    for name, ceiling in after.ceilings.items():
        most, before = ceiling.ceiling_millislices, plan.before.ceilings.get(name, ceiling)
        if used[name] > most < before.ceiling_millislices and not known[name]:
            words = f"it and those below it hold {_of(used[name], most)} of its ceiling"
            amount = used[name] - most
            yield Harm(HarmKind.CEILING, name, "", amount, words + _WAITS_WORDS)


def _above_types(now: Now, plan: QuotaPlan) -> Iterator[Harm]:
    """A limit on a type binds a tenant with all below it."""
    was, then = plan.before.policy, plan.after.policy
    running = held(now.jobs, now.partitions)
    for kind in sorted(now.costs):
        used = with_those_below(
            then, {name: one.instances.get(kind, 0) for name, one in running.items()}
        )
        for name, tenant in then.items():
            most = type_limits(tenant.quota, now.costs, now.models).get(kind, used[name])
            before = type_limits(was[name].quota, now.costs, now.models) if name in was else {}
            if used[name] > most < before.get(kind, used[name]):
                words = f"it and those below it hold {used[name]} × {kind}, {most} at most"
                yield Harm(HarmKind.TYPE, name, "", 0, words + _WAITS_WORDS)


_WAITS_WORDS = "; nothing is ended, new starts wait until less is held"


def _of(has: int, most: int) -> str:
    return f"{slices_words(has)}, {slices_text(has - most)} beyond the {slices_text(most)}"


def _called_back(now: Now, plan: QuotaPlan, asked: Collection[str]) -> Iterator[Harm]:
    """Borrowers that hold more than what would be lent to them. Replicas of those ``asked`` go in
    good order; nothing is recalled for a lender that has no more of its own.
    """
    used = used_by_tenant(now.jobs, now.partitions, now.costs)
    borrowed = _borrowed(now)
    was = over_entitlement(plan.before.policy, plan.before.loans, used)
    above = over_entitlement(plan.after.policy, plan.after.loans, used)
    for name in sorted(above):
        amount = min(above[name] - was.get(name, 0), borrowed.get(name, 0))
        if amount > 0:
            yield Harm(
                HarmKind.CALLED_BACK,
                name,
                "",
                amount,
                f"its borrowed jobs hold {_of(borrowed[name], borrowed[name] - amount)} that it"
                " could go on borrowing"
                f"{_lenders(plan, name)}; {_when(now) if name in asked else _UNASKED}",
            )


def _when(now: Now) -> str:
    return f"replicas go within {now.grace_s} s, jobs when Slurm needs their GPUs"


def _borrowed(now: Now) -> Mapping[str, int]:
    """Millislices that each account's jobs hold in the borrowed QOS."""
    jobs = [job for job in now.jobs if is_borrowed(job.qos)]
    return used_by_tenant(jobs, now.partitions, now.costs)


def _lenders(plan: QuotaPlan, borrower: str) -> str:
    back = [
        f"{slices_text(one.before_millislices - one.after_millislices)} to {one.lender}"
        for one in plan.loans
        if one.borrower == borrower and one.after_millislices < one.before_millislices
    ]
    return f"; to give back: {', '.join(back)}" if back else ""


def _recalls(now: Now, plan: QuotaPlan) -> tuple[Recall, ...]:
    return recalled(
        plan.after.policy,
        plan.before.loans,
        plan.after.loans,
        (),
        used_by_tenant(now.jobs, now.partitions, now.costs),
        ready={},
        waiting={},
        now_s=now.now_s,
        grace_s=max(1, now.grace_s),
    )


def _replicas(now: Now, plan: QuotaPlan, recalls: Sequence[Recall]) -> Iterator[Harm]:
    after = plan.after
    if not recalls:
        return
    found = reclaim(
        taking(
            after.policy,
            recalls,
            now.jobs,
            now.nodes,
            services=now.services,
            partitions=now.partitions,
            costs=now.costs,
            leaving=frozenset(),
            now_s=now.now_s,
            term_s=now.term_s,
            excess={},
        )
    )
    jobs = {job.job_id: job for job in now.jobs}
    for job_id, why in found.victims.items():
        job = jobs[job_id]
        cost = run_cost(job.gpus, now.costs)
        yield Harm(HarmKind.REPLICA, job.account, _name(job), cost, f"it is drained: {why}")


def _name(job: JobView) -> str:
    tag = JobTag.find(job.admin_comment)
    if tag is not None and tag.service is not None:
        return f"{tag.service}, replica {job.task_index}"
    return f"job {job.job_id}"


@dataclass(frozen=True)
class _Rules:
    """What one task of each tenant can ever have."""

    own: Mapping[str, int] = field(hash=False)
    most: Mapping[str, int] = field(hash=False)
    types: Mapping[str, Mapping[str, int]] = field(hash=False)
    budgets: Mapping[str, int] = field(hash=False)


def _rules(now: Now, policy: Policy) -> _Rules:
    most = highest_ceilings(policy, now.capacity_millislices)
    own = own_part(policy)
    return _Rules(
        {name: min(own[name], most[name]) for name in policy},
        most,
        binding_type_limits(policy, now.costs, now.models),
        period_budgets(policy),
    )


def _never_start(now: Now, plan: QuotaPlan) -> Iterator[Harm]:
    was, then = _rules(now, plan.before.policy), _rules(now, plan.after.policy)
    for job in now.jobs:
        is_slot = (tag := JobTag.find(job.admin_comment)) is not None and tag.service is not None
        if job.state not in _WAITS or is_slot or not is_managed(job, now.partitions):
            continue
        found = _obstacle(job, then, now)
        if found and job.account in was.own and not _obstacle(job, was, now):
            amount, words = found
            about = f"job {job.job_id} of {job.user}"
            yield Harm(HarmKind.NEVER_STARTS, job.account, about, amount, words)


def _obstacle(job: JobView, rules: _Rules, now: Now) -> tuple[int, str] | None:
    """What keeps one task of it from ever starting."""
    tenant, gpus = job.account, job.gpus
    cost = run_cost(gpus, now.costs)
    tag = JobTag.find(job.admin_comment)
    stays = job.qos == qos_name(tenant) and not (tag is not None and tag.is_flexible)
    most = (rules.own if stays else rules.most).get(tenant, 0)
    if cost > most:
        kind = "in its own QOS" if stays else "with all that it may borrow"
        return cost - most, f"needs {slices_words(cost)}; at most {slices_text(most)} {kind}"
    limits = rules.types.get(tenant, {})
    for name, count in gpus.items():
        if count > limits.get(name, count):
            return 0, f"needs {count} × {name}; at most {limits[name]}"
    budget = rules.budgets.get(tenant)
    if budget is not None and job.time_limit_s is not None and cost * job.time_limit_s > budget:
        needs, has = hours(cost * job.time_limit_s), hours(budget)
        return 0, f"may use {needs} slice-hours; the budget has {has} in a period at most"
    return None


def _min_replicas(now: Now, plan: QuotaPlan) -> Iterator[Harm]:
    """The oldest service first: what it keeps has taken its place already."""
    was, then = _room(plan.before), _room(plan.after)
    taken: Counter[str] = Counter()
    for service in _newest(now):
        tenant, count = service.tenant, _least(service)
        taken[tenant] += count * service.cost_millislices
        room = then.get(tenant, 0)
        is_gone = tenant in was and tenant not in then
        if is_gone or (count and room < taken[tenant] <= was.get(tenant, 0)):
            beyond = taken[tenant] - room
            words = (
                f"its least replicas ({count}) need"
                f" {slices_words(count * service.cost_millislices)}; {slices_text(beyond)} of that"
                f" beyond {tenant}'s own part of {slices_text(room)}: only on borrowed slices"
                if not is_gone
                else "its replicas can't start any more once they have ended"
            )
            yield Harm(HarmKind.MIN_REPLICAS, tenant, f"service {service.name}", beyond, words)


def _room(side: Side) -> Mapping[str, int]:
    return {name: int(one.guarantee_millislices) for name, one in side.ceilings.items()}


def _newest(now: Now) -> list[ServiceView]:
    """Of each service that is to go on."""
    newest = {(one.tenant, one.name): one for one in now.services if one.order.delete_s is None}
    return sorted(newest.values(), key=lambda one: one.submit_s)


def _least(service: ServiceView) -> int:
    ordered = service.order.min_replicas
    return int(service.directives.get("min_replicas", "0")) if ordered is None else ordered
