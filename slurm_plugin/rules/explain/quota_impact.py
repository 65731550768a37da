"""Finds the impact that a change of quotas would have, beyond what is so already.

A change never ends anything that runs on a tenant's guaranteed quota.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from slicewise.cluster.language.jobs import JobState, JobTag, JobView, is_of_service
from slicewise.cluster.language.service import whole_number
from slicewise.cluster.language.units import slices_text, slices_words
from slicewise.cluster.rpc.messages import ServiceView
from slicewise.slurm_plugin.rules.accounting.overview import with_those_below
from slicewise.slurm_plugin.rules.common.costs import job_cost, run_cost
from slicewise.slurm_plugin.rules.common.qos_names import holder_of, is_borrowed, is_own
from slicewise.slurm_plugin.rules.explain.budget_impact import hours, in_debt, used_up
from slicewise.slurm_plugin.rules.explain.change_report import Impact, ImpactKind
from slicewise.slurm_plugin.rules.explain.quota_plan import QuotaPlan, Side
from slicewise.slurm_plugin.rules.explain.type_impact import beyond_type_limits
from slicewise.slurm_plugin.rules.quota.attainable import highest_limits, period_budgets
from slicewise.slurm_plugin.rules.quota.demand import Held, held
from slicewise.slurm_plugin.rules.quota.jobs import is_managed
from slicewise.slurm_plugin.rules.quota.nodes import instances_of
from slicewise.slurm_plugin.rules.quota.quota_texts import types_beyond_text
from slicewise.slurm_plugin.rules.quota.tenants import (
    guaranteed_quota,
    newly_overcommitted_types,
    overcommitted_millislices,
)
from slicewise.slurm_plugin.rules.quota.type_limits import (
    binding_type_limits,
    own_type_limits,
    type_limits,
)
from slicewise.slurm_plugin.rules.quota.types import Policy
from slicewise.slurm_plugin.rules.reclaim.recalls import over_entitlement
from slicewise.slurm_plugin.rules.round.world import World
from slicewise.slurm_plugin.rules.services.state import used_by_tenant

_WAITS = frozenset({JobState.PENDING, JobState.SPECIAL_EXIT})
_UNASKED = "they run on until Slurm needs their GPUs, and are preempted then"


def impacts(inputs: World, plan: QuotaPlan, period_ends_s: Mapping[str, int]) -> tuple[Impact, ...]:
    """What the change makes worse, by kind.

    ``period_ends_s`` are the ends of the running periods of budgets that have periods, by tenant.
    """
    above_guaranteed = tuple(_above_guaranteed(inputs, plan))
    called_back = tuple(_called_back(inputs, plan))
    told = {impact.tenant for impact in (*above_guaranteed, *called_back)}
    return (
        *_removed(inputs, plan),
        *_overcommitted(inputs, plan),
        *above_guaranteed,
        *_above_limits(inputs, plan, told),
        *_above_types(inputs, plan),
        *_above_guaranteed_types(inputs, plan),
        *beyond_type_limits(inputs, plan),
        *called_back,
        *_replicas(inputs, plan),
        *_never_start(inputs, plan),
        *_min_replicas(inputs, plan),
        *_min_replicas_of_type(inputs, plan),
        *in_debt(plan),
        *used_up(inputs, plan, period_ends_s),
    )


def _removed(inputs: World, plan: QuotaPlan) -> Iterator[Impact]:
    used = inputs.held
    for name in sorted(plan.before.policy.keys() - plan.after.policy.keys()):
        if has := used.get(name, 0):
            words = (
                f"its jobs hold {slices_words(has)}: they run on, borrowed ones until their GPUs"
                " are needed, and are charged; nothing new starts"
            )
            yield Impact(ImpactKind.REMOVED, name, "", has, words)


def _overcommitted(inputs: World, plan: QuotaPlan) -> Iterator[Impact]:
    whole = inputs.capacity_millislices
    if whole is None:
        return
    was = overcommitted_millislices(plan.before.policy, whole)
    above = overcommitted_millislices(plan.after.policy, whole)
    if above > was:
        words = (
            f"the quotas at the top would be {slices_words(above)} above the cluster's"
            f" {slices_text(whole)}: jobs within their guarantee may wait for each other"
        )
        yield Impact(ImpactKind.OVERCOMMITTED, "", "", above, words)
    instances = instances_of(inputs.slurm_view.nodes, inputs.rules.partitions)
    if types := newly_overcommitted_types(plan.before.policy, plan.after.policy, instances):
        words = (
            f"quotas would guarantee {types_beyond_text(types, instances)}: jobs within their"
            " guarantee may wait for each other"
        )
        yield Impact(ImpactKind.OVERCOMMITTED, "", "", 0, words)


def _above_guaranteed(inputs: World, plan: QuotaPlan) -> Iterator[Impact]:
    for name, hold in _holds(inputs).items():
        has, after = run_cost(hold.guaranteed, inputs.rules.costs), plan.after.standings.get(name)
        if after is not None and has > (part := after.guaranteed_millislices):
            before = plan.before.standings.get(name, after)
            if part < before.guaranteed_millislices:
                share = _of(has, part)
                words = f"its guaranteed jobs hold {share} of its guaranteed quota{_WAITS_WORDS}"
                yield Impact(ImpactKind.OVER_GUARANTEED, name, "", has - part, words)


def _above_limits(inputs: World, plan: QuotaPlan, told: Collection[str]) -> Iterator[Impact]:
    """Tenants beyond their new limits.

    Tenants with an impact already (``told``) are left out, and so are the tenants above them.
    """
    after = plan.after
    used = with_those_below(after.policy, inputs.held)
    told_above = with_those_below(after.policy, dict.fromkeys(told, 1))
    for name, standing in after.standings.items():
        most, before = standing.limit_millislices, plan.before.standings.get(name, standing)
        if used[name] > most < before.limit_millislices and not told_above[name]:
            words = f"it and those below it hold {_of(used[name], most)} of its limit"
            amount = used[name] - most
            yield Impact(ImpactKind.OVER_LIMIT, name, "", amount, words + _WAITS_WORDS)


def _above_types(inputs: World, plan: QuotaPlan) -> Iterator[Impact]:
    """Tenants beyond a new limit on a type, which binds a tenant with all tenants below it."""
    was, then = plan.before.policy, plan.after.policy
    costs, models = inputs.rules.costs, plan.allowed.models
    running = _holds(inputs)
    for gres_type in sorted(costs):
        used = with_those_below(
            then, {name: held.instances.get(gres_type, 0) for name, held in running.items()}
        )
        for name, tenant in then.items():
            most = type_limits(tenant.quota, costs, models).get(gres_type, used[name])
            before = type_limits(was[name].quota, costs, models) if name in was else {}
            if used[name] > most < before.get(gres_type, used[name]):
                words = f"it and those below it hold {used[name]} × {gres_type}, {most} at most"
                yield Impact(ImpactKind.TYPE, name, "", 0, words + _WAITS_WORDS)


def _above_guaranteed_types(inputs: World, plan: QuotaPlan) -> Iterator[Impact]:
    """Tenants whose own QOS holds more of a type than would be guaranteed, and was before."""
    was, then = (_own_types(inputs, plan, side.policy) for side in (plan.before, plan.after))
    for name, hold in _holds(inputs).items():
        for gres_type, most in then.get(name, {}).items():
            has = hold.guaranteed.get(gres_type, 0)
            if has > most < was.get(name, {}).get(gres_type, has):
                words = f"its guaranteed jobs hold {has} × {gres_type}, {most} guaranteed"
                yield Impact(ImpactKind.TYPE, name, "", 0, words + _WAITS_WORDS)


def _holds(inputs: World) -> Mapping[str, Held]:
    return held(inputs.slurm_view.jobs, inputs.rules.partitions)


def _own_types(inputs: World, plan: QuotaPlan, policy: Policy) -> Mapping[str, Mapping[str, int]]:
    return own_type_limits(policy, inputs.rules.costs, plan.allowed.models)


_WAITS_WORDS = "; nothing is ended, new starts wait until less is held"


def _of(has: int, most: int) -> str:
    return f"{slices_words(has)}, {slices_text(has - most)} beyond the {slices_text(most)}"


def _called_back(inputs: World, plan: QuotaPlan) -> Iterator[Impact]:
    """Borrowers that hold more than what would be lent to them.

    Nothing is recalled for a lender that has no quota of its own left.
    """
    used = inputs.held
    borrowed = _borrowed(inputs)
    was = over_entitlement(plan.before.policy, plan.before.loans, used)
    above = over_entitlement(plan.after.policy, plan.after.loans, used)
    for name in sorted(above):
        amount = min(above[name] - was.get(name, 0), borrowed.get(name, 0))
        if amount > 0:
            yield Impact(
                ImpactKind.CALLED_BACK,
                name,
                "",
                amount,
                f"its borrowed jobs hold {_of(borrowed[name], borrowed[name] - amount)} that it"
                " could go on borrowing"
                f"{_lenders(plan, name)}; {_when(inputs) if name in plan.asked else _UNASKED}",
            )


def _when(inputs: World) -> str:
    return f"replicas go within {inputs.rules.grace_s} s, jobs when Slurm needs their GPUs"


def _borrowed(inputs: World) -> Mapping[str, int]:
    """Millislices that each tenant's jobs hold on borrowed quota."""
    jobs = [job for job in inputs.slurm_view.jobs if is_borrowed(job.qos)]
    return used_by_tenant(jobs, inputs.rules.partitions, inputs.rules.costs)


def _lenders(plan: QuotaPlan, borrower: str) -> str:
    back = [
        f"{slices_text(loan.before_millislices - loan.after_millislices)} to {loan.lender}"
        for loan in plan.loans
        if loan.borrower == borrower and loan.after_millislices < loan.before_millislices
    ]
    return f"; to give back: {', '.join(back)}" if back else ""


def _replicas(inputs: World, plan: QuotaPlan) -> Iterator[Impact]:
    jobs = {job.job_id: job for job in inputs.slurm_view.jobs}
    for job_id, why in plan.going.items():
        job = jobs[job_id]
        cost = job_cost(job, inputs.rules.costs)
        yield Impact(ImpactKind.REPLICA, job.account, _name(job), cost, f"it is drained: {why}")


def _name(job: JobView) -> str:
    tag = JobTag.find(job.admin_comment)
    if tag is not None and tag.service is not None:
        return f"{tag.service}, replica {job.task_index}"
    return f"job {job.task}"


@dataclass(frozen=True)
class _Rules:
    """The most that one task of each tenant can ever have.

    Attributes:
        own: millislices of the guaranteed quota.
        most: millislices with all that the tenant may borrow.
        types: instances by GRES type.
        own_types: instances by GRES type that the guaranteed quota covers.
        borrowers: tenants that may borrow.
        budgets: millislice-seconds in a period.
    """

    own: Mapping[str, int] = field(hash=False)
    most: Mapping[str, int] = field(hash=False)
    types: Mapping[str, Mapping[str, int]] = field(hash=False)
    own_types: Mapping[str, Mapping[str, int]] = field(hash=False)
    borrowers: frozenset[str]
    budgets: Mapping[str, int] = field(hash=False)


def _rules(inputs: World, policy: Policy, models: Mapping[str, str]) -> _Rules:
    most = highest_limits(policy, inputs.capacity_millislices)
    own = guaranteed_quota(policy)
    return _Rules(
        {name: min(own[name], most[name]) for name in policy},
        most,
        binding_type_limits(policy, inputs.rules.costs, models),
        own_type_limits(policy, inputs.rules.costs, models),
        frozenset(n for n, tenant in policy.items() if tenant.quota.borrowing_limit_millislices),
        period_budgets(policy),
    )


def _never_start(inputs: World, plan: QuotaPlan) -> Iterator[Impact]:
    models = plan.allowed.models
    was, then = (_rules(inputs, side.policy, models) for side in (plan.before, plan.after))
    for job in inputs.slurm_view.jobs:
        if job.state not in _WAITS or is_of_service(job):
            continue
        if not is_managed(job, inputs.rules.partitions):
            continue
        obstacle = _obstacle(job, then, inputs)
        if obstacle and holder_of(job) in was.own and not _obstacle(job, was, inputs):
            amount, words = obstacle
            about = f"job {job.task} of {job.user}"
            yield Impact(ImpactKind.NEVER_STARTS, holder_of(job), about, amount, words)


def _obstacle(job: JobView, rules: _Rules, inputs: World) -> tuple[int, str] | None:
    """What keeps one task of the job from ever starting: millislices too many, and words.

    The millislices are 0 for limits on types and budgets. None if it can start some day.
    """
    tenant, gpus = holder_of(job), job.gpus
    cost = job_cost(job, inputs.rules.costs)
    tag = JobTag.find(job.admin_comment)
    stays = is_own(job.qos) and not (tag is not None and tag.is_flexible)
    most = (rules.own if stays else rules.most).get(tenant, 0)
    if cost > most:
        kind = "in its own QOS" if stays else "with all that it may borrow"
        return cost - most, f"needs {slices_words(cost)}; at most {slices_text(most)} {kind}"
    limits = rules.types.get(tenant, {})
    for name, count in gpus.items():
        if count > limits.get(name, count):
            return 0, f"needs {count} × {name}; at most {limits[name]}"
        own = rules.own_types.get(tenant, {}).get(name, count)
        if count > own and (stays or tenant not in rules.borrowers):
            return 0, f"needs {count} × {name}; at most {own} in its own QOS"
    budget = rules.budgets.get(tenant)
    if budget is not None and job.time_limit_s is not None and cost * job.time_limit_s > budget:
        needs, has = hours(cost * job.time_limit_s), hours(budget)
        return 0, f"may use {needs} slice-hours; the budget has {has} in a period at most"
    return None


def _min_replicas(inputs: World, plan: QuotaPlan) -> Iterator[Impact]:
    """Services whose least replicas would need borrowed slices, the oldest service first.

    Older services have taken their room in the guaranteed quota already.
    """
    was, then = _room(plan.before), _room(plan.after)
    taken: Counter[str] = Counter()
    for service in _newest(inputs):
        tenant, count = service.tenant, _least(service)
        taken[tenant] += count * service.cost_millislices
        room = then.get(tenant, 0)
        is_gone = tenant in was and tenant not in then
        if is_gone or (count and room < taken[tenant] <= was.get(tenant, 0)):
            beyond = taken[tenant] - room
            words = (
                f"its least replicas ({count}) need"
                f" {slices_words(count * service.cost_millislices)}; {slices_text(beyond)} of that"
                f" beyond {tenant}'s guaranteed quota of {slices_text(room)}:"
                " only on borrowed slices"
                if not is_gone
                else "its replicas can't start any more once they have ended"
            )
            yield Impact(ImpactKind.MIN_REPLICAS, tenant, f"service {service.name}", beyond, words)


def _min_replicas_of_type(inputs: World, plan: QuotaPlan) -> Iterator[Impact]:
    """Services whose least replicas would need more of their type than is guaranteed."""
    was, then = (_own_types(inputs, plan, side.policy) for side in (plan.before, plan.after))
    taken: Counter[tuple[str, str]] = Counter()
    for service in _newest(inputs):
        tenant, gres_type, count = service.tenant, service.profile, _least(service)
        each = inputs.rules.costs.get(gres_type)
        if not each or not count:
            continue
        taken[tenant, gres_type] += count * service.cost_millislices // each
        needs = taken[tenant, gres_type]
        most = then.get(tenant, {}).get(gres_type, needs)
        if most < needs <= was.get(tenant, {}).get(gres_type, needs):
            words = (
                f"its least replicas ({count}) need {gres_type}, of which {tenant} is guaranteed"
                f" {most}: {needs - most} of that only on borrowed slices"
            )
            about, amount = f"service {service.name}", (needs - most) * each
            yield Impact(ImpactKind.MIN_REPLICAS, tenant, about, amount, words)


def _room(side: Side) -> Mapping[str, int]:
    return {name: int(standing.guaranteed_millislices) for name, standing in side.standings.items()}


def _newest(inputs: World) -> list[ServiceView]:
    """The newest generation of each service that is not ordered to end, the oldest first."""
    newest = {
        (service.tenant, service.name): service
        for service in inputs.slurm_view.services
        if service.order.delete_s is None
    }
    return sorted(newest.values(), key=lambda service: service.submit_s)


def _least(service: ServiceView) -> int:
    ordered = service.order.min_replicas
    return whole_number(service.directives, "min_replicas", 0) if ordered is None else ordered
