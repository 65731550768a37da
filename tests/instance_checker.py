"""Checks the rules of a plan of instances, without the code that makes the plan."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cache
from itertools import product

from slicewise.cluster.language.gpus.layouts import Layout, geometry
from slicewise.cluster.language.gpus.mig_profiles import Board
from slicewise.slurm_plugin.rules.mig.covers import ServingNeed
from slicewise.slurm_plugin.rules.mig.instances import InstancePlan, Measured, ServiceLoad

Filling = Mapping[str, int]


def broken_rules(
    plan: InstancePlan, services: Mapping[str, ServiceLoad], on: Board, share: Fraction
) -> list[str]:
    """Broken rules, in words: loads not served, late answers, layouts that no board can have."""
    wrong = [f"{name} is missing" for name in services if name not in plan.instances]
    for name, rows in plan.instances.items():
        load = services[name]
        if sum(row.throughput_mrps * count for row, count in rows.items()) < load.rate_mrps:
            wrong.append(f"{name} does not serve its load")
        in_time = [row for row in load.measured if row.latency_us < share * load.slo_us]
        wrong += [f"{name} has {row}" for row in rows if row not in in_time]
    wrong += [f"{sorted(layout)} is illegal" for layout in plan.layouts if not legal(layout, on)]
    if _held(plan) != _chosen(plan):
        wrong.append(f"the GPUs hold {_held(plan)} for {_chosen(plan)}")
    return wrong


def legal(layout: Layout, on: Board) -> bool:
    """Whether each instance is at a start of its profile, none overlaps, and compute suffices."""
    taken: list[int] = []
    compute_slices = 0
    for one in layout:
        profile = on.profiles[one.profile]
        if one.start not in profile.starts or one.size != profile.memory_slices:
            return False
        taken += range(one.start, one.start + one.size)
        compute_slices += profile.compute_slices
    fits = compute_slices <= on.compute_slices and all(s < on.memory_slices for s in taken)
    return fits and len(set(taken)) == len(taken)


def _held(plan: InstancePlan) -> Counter[str]:
    held: Counter[str] = Counter()
    for layout, gpus in plan.layouts.items():
        for one in layout:
            held[one.profile] += gpus
    return held


def _chosen(plan: InstancePlan) -> Counter[str]:
    chosen: Counter[str] = Counter()
    for rows in plan.instances.values():
        for row, count in rows.items():
            chosen[row.profile] += count
    return chosen


def proven(demands: Iterable[ServingNeed], plan: InstancePlan, on: Board) -> int:
    """The GPUs needed at least: the price of all demands ÷ that of the dearest layout, rounded up.

    The prices are the plan's.
    """
    dearest = max(
        sum(plan.prices.get(one.profile, 0) for one in layout) for layout in geometry(on).maximal
    )
    total = sum(price_of(demand, plan.prices) for demand in demands)
    return -(-total // max(dearest, 1))


def price_of(demand: ServingNeed, prices: Mapping[str, int]) -> int:
    """The price of the cheapest instances that serve the load."""

    @cache
    def least(left_mrps: int) -> int:
        if left_mrps <= 0:
            return 0
        return min(prices[p] + least(left_mrps - rate) for p, rate in demand.rates_mrps.items())

    return least(demand.load_mrps)


def demand_of(load: ServiceLoad, share: Fraction) -> ServingNeed:
    """The demand of a service, with the highest throughput of each profile that is in time."""
    rates: dict[str, int] = {}
    for row in load.measured:
        if row.throughput_mrps and row.latency_us < share * load.slo_us:
            rates[row.profile] = max(rates.get(row.profile, 0), row.throughput_mrps)
    return ServingNeed(load.rate_mrps, rates)


def fewest(demands: Sequence[ServingNeed], fillings: Iterable[Filling]) -> int:
    """The fewest GPUs that serve the demands, found by trying all combinations."""
    known = [Counter(filling) for filling in fillings]
    options = [list(_covers(demand)) for demand in demands]
    totals = {_frozen(sum(choice, Counter[str]())) for choice in product(*options)}
    gpus, reached = 0, totals
    while frozenset() not in reached:
        gpus += 1
        reached = {_frozen(Counter(dict(one)) - filling) for one in reached for filling in known}
    return gpus


def _covers(demand: ServingNeed) -> Iterable[Counter[str]]:
    """All sets of instances that serve the load without an instance to spare."""
    most = [range(-(-demand.load_mrps // rate) + 1) for rate in demand.rates_mrps.values()]
    for counts in product(*most):
        cover = Counter(dict(zip(demand.rates_mrps, counts, strict=True)))
        spare = sum(demand.rates_mrps[p] * n for p, n in cover.items()) - demand.load_mrps
        if spare >= 0 and all(demand.rates_mrps[p] > spare for p, n in cover.items() if n):
            yield cover


def _frozen(counts: Counter[str]) -> frozenset[tuple[str, int]]:
    return frozenset((+counts).items())


def measured(profile: str, throughput_mrps: int, latency_us: int = 1_000) -> Measured:
    return Measured(profile, 1, 1, throughput_mrps, latency_us)
