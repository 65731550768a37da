"""Computes what a tenant may still start of each GPU type, and which limit allows no more."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from slicewise.cluster.language.units import Millislices, slices_text
from slicewise.slurm_plugin.rules.common.costs import run_cost
from slicewise.slurm_plugin.rules.common.free_instances import free_instances
from slicewise.slurm_plugin.rules.quota.demand import Held, held
from slicewise.slurm_plugin.rules.quota.standings import Standing, less_elsewhere
from slicewise.slurm_plugin.rules.quota.tenants import (
    ancestors,
    effective_nominal,
    subtree,
)
from slicewise.slurm_plugin.rules.quota.type_limits import own_type_limits
from slicewise.slurm_plugin.rules.quota.types import Policy
from slicewise.slurm_plugin.rules.round.world import World

BUDGET_RUN_S = 3600
"""Seconds: a budget allows as many instances as could run for that long on what is left of it."""

_NOTHING = Held()


class Cause(StrEnum):
    """The kinds of limits. If several allow equally few, the first of this list is reported.

    Slurm checks the QOS before the account, so this is what squeue shows.
    """

    OWN_QOS = "own-qos"
    """The limit of the tenant's own QOS."""
    BORROWED_QOS = "borrowed-qos"
    """The limit of the tenant's borrowed QOS."""
    GUARANTEED_TYPE = "guaranteed-type"
    """The instances of a type that the tenant's guaranteed quota covers."""
    BUDGET = "budget"
    TYPE_LIMIT = "type-limit"
    MODEL_LIMIT = "model-limit"
    NONE_FREE = "none-free"
    """No more GPUs are free."""
    BORROWING = "borrowing-limit"
    """The tenant may not borrow at all."""


SLURM_REASONS: Mapping[Cause, str] = {
    Cause.BORROWED_QOS: "QOSGrpBilling",
    Cause.OWN_QOS: "QOSGrpBilling",
    Cause.GUARANTEED_TYPE: "QOSGrpGRES",
    Cause.BUDGET: "QOSGrpBillingRunMinutes",
    Cause.TYPE_LIMIT: "AssocGrpGRES",
    Cause.MODEL_LIMIT: "AssocGrpGRES",
    Cause.NONE_FREE: "Resources",
    Cause.BORROWING: "",
}
"""The reason that squeue shows for a job that waits for this limit; "" if no job is admitted."""


@dataclass(frozen=True)
class Bound:
    """How many more instances of a type one limit allows.

    Attributes:
        words: a description with the limit's owner and numbers.
    """

    cause: Cause
    instances: int
    words: str


@dataclass(frozen=True)
class TypeRoom:
    """What may start now of one GRES type without preemption.

    Attributes:
        guaranteed: instances in the tenant's own QOS.
        guaranteed_bound: the limit that allows no more of these.
        borrowed: further instances in the borrowed QOS.
        borrowed_bound: the limit that allows no more of these.
        longest_run_s: seconds that one instance could run on the budget; None without a budget.
    """

    gres_type: str
    cost_millislices: Millislices
    guaranteed: int
    guaranteed_bound: Bound
    borrowed: int
    borrowed_bound: Bound
    longest_run_s: int | None


@dataclass(frozen=True, kw_only=True)
class Explanation(Standing):
    """One tenant's situation.

    Attributes:
        nominal_millislices: the effective nominal of the tenant and the tenants below it.
        in_use_millislices: what running jobs of the tenant and of the tenants below it hold, in any
            QOS.
        guaranteed_in_use_millislices: what the tenant's own jobs hold in its own QOS.
        payer: the tenant with the budget that leaves the least, among this tenant and those above;
            "" if no budget limits its runs.
        startable_millislice_s: what that budget leaves for new runs, with its overdraft; or None.
        types: the cheapest first.
    """

    tenant: str
    nominal_millislices: Millislices
    in_use_millislices: Millislices
    guaranteed_in_use_millislices: Millislices
    payer: str
    startable_millislice_s: int | None
    types: tuple[TypeRoom, ...]


@dataclass(frozen=True)
class Situation:
    """The facts about all tenants on which an explanation is based.

    Attributes:
        standings: every tenant's amounts as Slurm has them: the QOS limits are reduced by what
            the tenant's jobs hold in neither of its QOS.
        held: what each tenant's own jobs hold.
        free: free instances, by GRES type that nodes have.
        costs: millislices of one instance, by GRES type.
        models: the GPU model of each GRES type.
        available_millislice_s: what is available of each budget that has begun: what was granted
            and is neither used nor reserved.
    """

    policy: Policy = field(hash=False)
    standings: Mapping[str, Standing] = field(hash=False)
    held: Mapping[str, Held] = field(hash=False)
    free: Mapping[str, int] = field(hash=False)
    costs: Mapping[str, Millislices] = field(hash=False)
    models: Mapping[str, str] = field(hash=False)
    available_millislice_s: Mapping[str, int] = field(hash=False)


def situation(inputs: World) -> Situation:
    """Collect the facts about all tenants."""
    rules, ledger_view, jobs = inputs.rules, inputs.ledger_view, inputs.slurm_view.jobs
    holds = held(jobs, rules.partitions)
    elsewhere = {name: run_cost(hold.elsewhere, rules.costs) for name, hold in holds.items()}
    return Situation(
        policy=inputs.policy,
        standings=less_elsewhere(inputs.allowed().standings, elsewhere),
        held=holds,
        free=free_instances(
            [node for node in inputs.slurm_view.nodes if node.is_in(rules.partitions)]
        ),
        costs=rules.costs,
        models=rules.models,
        available_millislice_s={
            # A payer without a balance was never granted anything.
            name: ledger_view.balances[name].available if name in ledger_view.balances else 0
            for name in ledger_view.rollovers
        },
    )


def explain(tenant: str, now: Situation) -> Explanation:
    """Explain what ``tenant``, which must be in the policy, may still start, and why not more."""
    payer, startable = startable_on_budgets(tenant, now)
    types = sorted(now.free.keys() & now.costs.keys(), key=lambda name: (now.costs[name], name))
    return Explanation(
        **vars(now.standings[tenant]),
        tenant=tenant,
        nominal_millislices=Millislices(effective_nominal(now.policy)[tenant]),
        in_use_millislices=_held(tenant, now),
        guaranteed_in_use_millislices=_guaranteed(tenant, now),
        payer=payer,
        startable_millislice_s=startable,
        types=tuple(_room(tenant, name, now) for name in types),
    )


def _room(tenant: str, gres_type: str, now: Situation) -> TypeRoom:
    cost = now.costs[gres_type]
    all_qos = tuple(_bounds(tenant, gres_type, now))
    of_type = tuple(_guaranteed_type(tenant, gres_type, now))
    own_qos = _fewest((*all_qos, _guarantee(tenant, cost, now), *of_type))
    taken = own_qos.instances
    left = (replace(bound, instances=max(0, bound.instances - taken)) for bound in all_qos)
    unused = (
        now.standings[tenant].own_qos_limit_millislices - _guaranteed(tenant, now) - taken * cost
    )
    # What its guarantee of the type leaves unused, the borrowed QOS gets for waiting jobs.
    borrowed = _fewest((*left, _borrowed(tenant, cost, now, unused if of_type else 0)))
    if not now.policy[tenant].quota.borrowing_limit_millislices:
        borrowed = Bound(
            Cause.BORROWING, 0, f"{tenant} may borrow nothing: its borrowing limit is 0"
        )
    _, startable = startable_on_budgets(tenant, now)
    return TypeRoom(
        gres_type=gres_type,
        cost_millislices=cost,
        guaranteed=own_qos.instances,
        guaranteed_bound=own_qos,
        borrowed=borrowed.instances,
        borrowed_bound=borrowed,
        longest_run_s=None if startable is None else startable // cost,
    )


def _fewest(bounds: Iterable[Bound]) -> Bound:
    causes = list(Cause)
    return min(bounds, key=lambda bound: (bound.instances, causes.index(bound.cause)))


def _bounds(tenant: str, gres_type: str, now: Situation) -> Iterator[Bound]:
    """Yield the limits that bind both QOS together; of tenants above, the nearest come first."""
    cost = now.costs[gres_type]
    for name in (tenant, *ancestors(now.policy, tenant)):
        yield from _instance_limits(name, gres_type, now)
    payer, startable = startable_on_budgets(tenant, now)
    if startable is not None:
        yield _budget_bound(payer, startable, cost)
    free = max(0, now.free[gres_type])
    yield Bound(Cause.NONE_FREE, free, f"{free} instances of {gres_type} are free")


def _guarantee(tenant: str, cost: int, now: Situation) -> Bound:
    held, limit = _guaranteed(tenant, now), now.standings[tenant].own_qos_limit_millislices
    return Bound(
        Cause.OWN_QOS,
        _fitting(limit - held, cost),
        f"{tenant} holds {slices_text(held)} of {slices_text(limit)} guaranteed slices",
    )


def _guaranteed_type(tenant: str, gres_type: str, now: Situation) -> Iterator[Bound]:
    own = own_type_limits(now.policy, now.costs, now.models)
    most = own.get(tenant, {}).get(gres_type)
    if most is not None:
        held = now.held.get(tenant, _NOTHING).guaranteed.get(gres_type, 0)
        words = f"{tenant} holds {held} of {most} guaranteed instances of {gres_type}"
        yield Bound(Cause.GUARANTEED_TYPE, max(0, most - held), words)


def _borrowed(tenant: str, cost: int, now: Situation, unused: int) -> Bound:
    """Return the limit of the borrowed QOS, with ``unused`` millislices of the own one.

    What jobs hold in other QOS is left out, as the limits are already reduced by it.
    """
    here = now.held.get(tenant, _NOTHING)
    held = run_cost(here.instances, now.costs) - run_cost(here.elsewhere, now.costs)
    held, limit = (
        Millislices(held - _guaranteed(tenant, now)),
        Millislices(now.standings[tenant].borrowed_qos_limit_millislices + max(0, unused)),
    )
    return Bound(
        Cause.BORROWED_QOS,
        _fitting(limit - held, cost),
        f"{tenant} holds {slices_text(held)} of {slices_text(limit)} borrowed slices",
    )


def _instance_limits(name: str, gres_type: str, now: Situation) -> Iterator[Bound]:
    """Yield the limits on the type and on its model.

    Both bind the number of the type's instances, because Slurm can't limit several types together.
    """
    quota, model = now.policy[name].quota, now.models.get(gres_type, "")
    tenants = subtree(now.policy, name)
    held = sum(now.held.get(tenant, _NOTHING).instances.get(gres_type, 0) for tenant in tenants)
    if (limit := quota.type_limits.get(gres_type)) is not None:
        words = f"{name} holds {held} of at most {limit} instances of {gres_type}"
        yield Bound(Cause.TYPE_LIMIT, max(0, limit - held), words)
    if (slices := quota.model_limits.get(model)) is not None:
        limit = slices // now.costs[gres_type]
        words = (
            f"{name} holds {held} of at most {limit} instances of {gres_type}: "
            f"{slices_text(slices)} slices on {model}"
        )
        yield Bound(Cause.MODEL_LIMIT, max(0, limit - held), words)


def _budget_bound(payer: str, startable_millislice_s: int, cost: int) -> Bound:
    hours = slices_text(startable_millislice_s // BUDGET_RUN_S)
    return Bound(
        Cause.BUDGET,
        startable_millislice_s // (cost * BUDGET_RUN_S),
        f"the budget of {payer} has {hours} slice-hours left to start runs on",
    )


def startable_on_budgets(tenant: str, now: Situation) -> tuple[str, int | None]:
    """Return which tenant's budget on the way up leaves the least, and its millislice-seconds.

    The amount is never negative. ("", None) if no budget that has begun is on the way.
    """
    left = [
        (max(0, now.available_millislice_s[name] + budget.overdraft), name)
        for name in (tenant, *ancestors(now.policy, tenant))
        if (budget := now.policy[name].budget) and name in now.available_millislice_s
    ]
    startable, name = min(left, key=lambda pair: pair[0], default=(None, ""))
    return name, startable


def _fitting(room: int, cost: int) -> int:
    return max(0, room // cost)


def _held(name: str, now: Situation) -> Millislices:
    held = (now.held.get(tenant, _NOTHING).instances for tenant in subtree(now.policy, name))
    return Millislices(sum(run_cost(instances, now.costs) for instances in held))


def _guaranteed(tenant: str, now: Situation) -> Millislices:
    return run_cost(now.held.get(tenant, _NOTHING).guaranteed, now.costs)
