"""Chooses the MIG instances that serve measured models on the fewest GPUs."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.gpus.layouts import Layout, geometry
from slicewise.cluster.language.gpus.mig_profiles import Board
from slicewise.slurm_plugin.rules.mig.covers import ServingNeed, cheapest_cover
from slicewise.slurm_plugin.rules.mig.packing import pack

LATENCY_SHARE = Fraction(45, 100)
"""Share of the SLO below which a configuration's latency must be. The rest is for waiting."""


@dataclass(frozen=True)
class Measured:
    """Measured performance of one instance that serves a model in one configuration.

    Attributes:
        batch: requests in a batch.
        processes: number of processes that serve the model in the instance.
        throughput_mrps: thousandths of a request per second of the whole instance; 0 if it can't
            serve the model.
        latency_us: latency of a batch, in microseconds.
    """

    profile: str
    batch: int
    processes: int
    throughput_mrps: int
    latency_us: int


@dataclass(frozen=True)
class ServiceLoad:
    """The load that a service has to serve.

    Attributes:
        rate_mrps: thousandths of a request per second; 0 needs no instance.
        slo_us: longest time that a request may take, in microseconds.
        measured: the measurements of its model.
    """

    rate_mrps: int
    slo_us: int
    measured: Sequence[Measured]


@dataclass(frozen=True)
class InstancePlan:
    """Instances for services, and GPUs that hold just these instances.

    Attributes:
        instances: number of instances by service and configuration.
        layouts: number of GPUs by layout.
        at_least: lower bound of the number of GPUs for these loads.
        prices: price of an instance by profile, in billionths of a GPU, such that no layout costs
            more than a GPU. ``at_least`` is what the services' cheapest instances cost at these
            prices, rounded up to whole GPUs; it is higher only where the search over whole numbers
            proves more.
    """

    instances: Mapping[str, Mapping[Measured, int]]
    layouts: Mapping[Layout, int]
    at_least: int
    prices: Mapping[str, int]

    @property
    def gpus(self) -> int:
        """Total number of GPUs."""
        return sum(self.layouts.values())


def fewest_gpus(
    services: Mapping[str, ServiceLoad], on: Board, latency_share: Fraction = LATENCY_SHARE
) -> InstancePlan:
    """Instances that serve every load within its SLO, on the fewest GPUs of that board.

    Raises InvalidInputError (SW-SLO-UNREACHABLE) if no measured configuration meets a service's
    SLO.
    """
    fastest = {
        name: _fastest(name, load, on, latency_share)
        for name, load in services.items()
        if load.rate_mrps > 0
    }
    if not fastest:
        return InstancePlan({name: {} for name in services}, {}, 0, {})
    layouts = _fullest(on, {profile for rows in fastest.values() for profile in rows})
    packing = pack(
        [_demand(services[name].rate_mrps, rows) for name, rows in fastest.items()],
        [_profiles(layout) for layout in layouts],
    )
    covers = dict(zip(fastest, packing.covers, strict=True))
    chosen = {
        name: {fastest[name][p]: count for p, count in covers.get(name, {}).items()}
        for name in services
    }
    cut = _cut(
        zip(layouts, packing.gpus, strict=True), sum(map(Counter, covers.values()), Counter())
    )
    return InstancePlan(chosen, cut, packing.at_least, packing.prices)


def fewest_slices(
    name: str,
    load: ServiceLoad,
    on: Board,
    costs: Mapping[str, int],
    latency_share: Fraction = LATENCY_SHARE,
) -> InstancePlan:
    """Instances that serve one load within its SLO at the lowest cost, and the GPUs to hold them.

    ``costs`` are by profile. ``at_least`` of the result is a bound for these instances, not for the
    load. Raises the errors of ``fewest_gpus``.
    """
    if load.rate_mrps == 0:
        return fewest_gpus({name: load}, on, latency_share)
    fastest = _fastest(name, load, on, latency_share)
    cover = cheapest_cover(_demand(load.rate_mrps, fastest), costs).cover
    # Each profile becomes a service of its own, which needs just that many instances.
    exact = {
        profile: ServiceLoad(
            count * fastest[profile].throughput_mrps, load.slo_us, (fastest[profile],)
        )
        for profile, count in cover.items()
    }
    plan = fewest_gpus(exact, on, latency_share)
    return replace(plan, instances={name: {fastest[p]: count for p, count in cover.items()}})


def _fastest(
    name: str, load: ServiceLoad, on: Board, latency_share: Fraction
) -> Mapping[str, Measured]:
    """By profile, the configuration with the highest throughput of those that answer in time."""
    usable = [
        row for row in load.measured if row.throughput_mrps > 0 and row.profile in on.profiles
    ]
    below_us = math.ceil(latency_share * load.slo_us)
    in_time = [row for row in usable if row.latency_us < below_us]
    if not in_time:
        raise _unreachable(name, load, on, latency_share, usable)
    in_time.sort(key=lambda row: (row.throughput_mrps, -row.latency_us))
    return {row.profile: row for row in in_time}


def _unreachable(
    name: str, load: ServiceLoad, on: Board, latency_share: Fraction, usable: Sequence[Measured]
) -> InvalidInputError:
    if not usable:
        message = f"The model of {name!r} was not measured on any profile of {on.model}."
    else:
        least_ms = min(row.latency_us for row in usable) / 1000
        message = (
            f"No measured configuration of {name!r} meets its SLO of {load.slo_us / 1000:g} ms: "
            f"its latency must be below {float(latency_share):g} of that, "
            f"and the least measured is {least_ms:g} ms."
        )
    return InvalidInputError(
        Code.SLO_UNREACHABLE,
        message,
        "Raise the SLO, or measure the model with smaller batches or on larger profiles.",
    )


def _demand(rate_mrps: int, fastest: Mapping[str, Measured]) -> ServingNeed:
    return ServingNeed(rate_mrps, {p: row.throughput_mrps for p, row in fastest.items()})


def _fullest(on: Board, profiles: Collection[str]) -> Sequence[Layout]:
    """One layout of these profiles for each set of instances that fills a GPU."""
    kept = {name: profile for name, profile in on.profiles.items() if name in profiles}
    by_instances: dict[frozenset[tuple[str, int]], Layout] = {}
    for layout in geometry(replace(on, profiles=kept)).maximal:
        by_instances.setdefault(frozenset(_profiles(layout).items()), layout)
    return tuple(by_instances.values())


def _profiles(layout: Layout) -> Counter[str]:
    return Counter(placement.profile for placement in layout)


def _cut(gpus: Iterable[tuple[Layout, int]], needed: Counter[str]) -> Mapping[Layout, int]:
    """Number of GPUs by layout, without the instances that no service needs."""
    cut = Counter(_held(layout, needed) for layout, count in gpus for _ in range(count))
    return {layout: count for layout, count in cut.items() if layout}


def _held(layout: Layout, needed: Counter[str]) -> Layout:
    """The instances of the layout that are still needed; takes these off ``needed``."""
    held = []
    for placement in sorted(layout):
        if needed[placement.profile] > 0:
            needed[placement.profile] -= 1
            held.append(placement)
    return frozenset(held)
