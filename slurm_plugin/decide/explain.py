"""What a tenant may still start of each GPU type, and what it is that allows no more."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from cluster.units import Millislices, slices_text
from slurm_plugin.decide.ceilings import Ceiling, less_elsewhere
from slurm_plugin.decide.charging import run_cost
from slurm_plugin.decide.demand import Held, held
from slurm_plugin.decide.free import free_instances
from slurm_plugin.decide.policy import Policy
from slurm_plugin.decide.tenants import ancestors, effective_nominal, subtree
from slurm_plugin.decide.world import World

BUDGET_RUN_S = 3600
"""A budget allows as many instances as could run so long on it."""

_NOTHING = Held()


class Cause(StrEnum):
    """What can bind. Of several that allow equally few, the first of these is told.

    Slurm looks at the QOS before the account, so that is what squeue shows.
    """

    GUARANTEE = "guarantee"
    """The limit of its own QOS."""
    CEILING = "ceiling"
    """The limit of its borrowed QOS."""
    BUDGET = "budget"
    TYPE_LIMIT = "type-limit"
    MODEL_LIMIT = "model-limit"
    NONE_FREE = "none-free"
    """The GPUs themselves."""
    BORROWING = "borrowing-limit"
    """It may not borrow at all."""


SLURM_REASONS: Mapping[Cause, str] = {
    Cause.CEILING: "QOSGrpBilling",
    Cause.GUARANTEE: "QOSGrpBilling",
    Cause.BUDGET: "QOSGrpBillingRunMinutes",
    Cause.TYPE_LIMIT: "AssocGrpGRES",
    Cause.MODEL_LIMIT: "AssocGrpGRES",
    Cause.NONE_FREE: "Resources",
    Cause.BORROWING: "",
}
"""What squeue shows of a job that waits for it; "" where none is admitted."""


@dataclass(frozen=True)
class Bound:
    """How many more instances of a type one limit allows.

    Attributes:
        words: whose limit, in numbers.
    """

    cause: Cause
    instances: int
    words: str


@dataclass(frozen=True)
class TypeRoom:
    """What may start now of one GRES type, with nobody preempted.

    Attributes:
        guaranteed: instances in the tenant's own QOS.
        guaranteed_bound: what allows no more of these.
        borrowed: further instances, in the borrowed QOS.
        borrowed_bound: what allows no more of these.
        longest_run_s: how long one instance could run on the budget; None without a budget.
    """

    gres_type: str
    cost_millislices: Millislices
    guaranteed: int
    guaranteed_bound: Bound
    borrowed: int
    borrowed_bound: Bound
    longest_run_s: int | None


@dataclass(frozen=True)
class Explanation:
    """One tenant's situation.

    Attributes:
        nominal_millislices: effective, of the tenant and those below it.
        held_millislices: what they hold, in any QOS.
        guaranteed_millislices: what the tenant's own jobs hold in its own QOS.
        payer: whose budget leaves the least, of that which its runs use up and those above; "" if
            none limits them.
        startable_millislice_s: what that leaves for new runs, with its overdraft; None likewise.
        types: the cheapest first.
    """

    tenant: str
    nominal_millislices: Millislices
    ceiling: Ceiling
    held_millislices: Millislices
    guaranteed_millislices: Millislices
    payer: str
    startable_millislice_s: int | None
    types: tuple[TypeRoom, ...]


@dataclass(frozen=True)
class Situation:
    """What is known.

    Attributes:
        ceilings: of every tenant, as they are in Slurm: less what is held in neither of its QOS.
        held: what each account's own jobs hold.
        free: instances of each GRES type that nodes have and nobody holds.
        costs: of one instance, by GRES type.
        models: the GPU model of each GRES type.
        available_millislice_s: what each budget that has begun has available: granted, neither used
            nor reserved.
    """

    policy: Policy = field(hash=False)
    ceilings: Mapping[str, Ceiling] = field(hash=False)
    held: Mapping[str, Held] = field(hash=False)
    free: Mapping[str, int] = field(hash=False)
    costs: Mapping[str, Millislices] = field(hash=False)
    models: Mapping[str, str] = field(hash=False)
    available_millislice_s: Mapping[str, int] = field(hash=False)


def situation(world: World) -> Situation:
    """What there is to know of every tenant."""
    rules, books, jobs = world.rules, world.books, world.seen.jobs
    holds = held(jobs, rules.partitions)
    elsewhere = {name: run_cost(one.elsewhere, rules.costs) for name, one in holds.items()}
    return Situation(
        policy=world.policy,
        ceilings=less_elsewhere(world.allowed().ceilings, elsewhere),
        held=holds,
        free=free_instances([node for node in world.seen.nodes if node.is_in(rules.partitions)]),
        costs=rules.costs,
        models=rules.models,
        available_millislice_s={
            # Nothing was ever granted where the balance is missing.
            name: books.balances[name].available_millislice_s if name in books.balances else 0
            for name in books.rolls
        },
    )


def explain(tenant: str, now: Situation) -> Explanation:
    """What ``tenant``, which is in the policy, may still start, and why not more."""
    payer, startable = startable_on_budgets(tenant, now)
    types = sorted(now.free.keys() & now.costs.keys(), key=lambda name: (now.costs[name], name))
    return Explanation(
        tenant=tenant,
        nominal_millislices=Millislices(effective_nominal(now.policy)[tenant]),
        ceiling=now.ceilings[tenant],
        held_millislices=_held(tenant, now),
        guaranteed_millislices=_guaranteed(tenant, now),
        payer=payer,
        startable_millislice_s=startable,
        types=tuple(_room(tenant, name, now) for name in types),
    )


def _room(tenant: str, gres_type: str, now: Situation) -> TypeRoom:
    cost = now.costs[gres_type]
    all_qos = tuple(_bounds(tenant, gres_type, now))
    own_qos = _fewest((*all_qos, _guarantee(tenant, cost, now)))
    taken = own_qos.instances
    left = (replace(one, instances=max(0, one.instances - taken)) for one in all_qos)
    borrowed = _fewest((*left, _borrowed(tenant, cost, now)))
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
    """Of both QOS together; those of tenants above it the nearest first."""
    cost = now.costs[gres_type]
    for name in (tenant, *ancestors(now.policy, tenant)):
        yield from _instance_limits(name, gres_type, now)
    payer, startable = startable_on_budgets(tenant, now)
    if startable is not None:
        yield _budget_bound(payer, startable, cost)
    free = max(0, now.free[gres_type])
    yield Bound(Cause.NONE_FREE, free, f"{free} instances of {gres_type} are free")


def _guarantee(tenant: str, cost: int, now: Situation) -> Bound:
    held, limit = _guaranteed(tenant, now), now.ceilings[tenant].own_limit_millislices
    return Bound(
        Cause.GUARANTEE,
        _fitting(limit - held, cost),
        f"{tenant} holds {slices_text(held)} of {slices_text(limit)} guaranteed slices",
    )


def _borrowed(tenant: str, cost: int, now: Situation) -> Bound:
    """What it holds in QOS of before is in the limits already."""
    here = now.held.get(tenant, _NOTHING)
    held = run_cost(here.instances, now.costs) - run_cost(here.elsewhere, now.costs)
    held, limit = (
        Millislices(held - _guaranteed(tenant, now)),
        now.ceilings[tenant].borrowed_limit_millislices,
    )
    return Bound(
        Cause.CEILING,
        _fitting(limit - held, cost),
        f"{tenant} holds {slices_text(held)} of {slices_text(limit)} borrowed slices",
    )


def _instance_limits(name: str, gres_type: str, now: Situation) -> Iterator[Bound]:
    """Both bind the number of instances: Slurm can't limit several types together."""
    quota, model = now.policy[name].quota, now.models.get(gres_type, "")
    tenants = subtree(now.policy, name)
    held = sum(now.held.get(one, _NOTHING).instances.get(gres_type, 0) for one in tenants)
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
    """Whose budget leaves the least on the way up, and what that is: never below zero."""
    found = [
        (max(0, now.available_millislice_s[name] + budget.overdraft_millislice_s), name)
        for name in (tenant, *ancestors(now.policy, tenant))
        if (budget := now.policy[name].budget) and name in now.available_millislice_s
    ]
    startable, name = min(found, key=lambda one: one[0], default=(None, ""))
    return name, startable


def _fitting(room: int, cost: int) -> int:
    return max(0, room // cost)


def _held(name: str, now: Situation) -> Millislices:
    held = (now.held.get(one, _NOTHING).instances for one in subtree(now.policy, name))
    return Millislices(sum(run_cost(instances, now.costs) for instances in held))


def _guaranteed(tenant: str, now: Situation) -> Millislices:
    return run_cost(now.held.get(tenant, _NOTHING).guaranteed, now.costs)
