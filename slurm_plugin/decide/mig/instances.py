"""Which MIG instances serve measured models on the fewest GPUs."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from cluster.errors import InvalidInputError
from cluster.mig.layouts import Layout, geometry
from cluster.mig_profiles import Board
from slurm_plugin.decide.mig.covers import Demand, cheapest_cover
from slurm_plugin.decide.mig.packing import pack

LATENCY_SHARE = Fraction(45, 100)
"""Of the SLO: a configuration counts when its latency is below. The rest is for waiting."""


@dataclass(frozen=True)
class Measured:
    """What one instance does that serves a model in one configuration.

    Attributes:
        batch: requests in a batch.
        processes: that serve the model in the instance.
        throughput_mrps: thousandths of a request per second, of the whole instance; 0 if it can't.
        latency_us: of a batch.
    """

    profile: str
    batch: int
    processes: int
    throughput_mrps: int
    latency_us: int


@dataclass(frozen=True)
class ServiceLoad:
    """What a service has to serve.

    Attributes:
        rate_mrps: thousandths of a request per second; 0 needs no instance.
        slo_us: how long a request may take.
        measured: its model's table.
    """

    rate_mrps: int
    slo_us: int
    measured: Sequence[Measured]


@dataclass(frozen=True)
class InstancePlan:
    """Instances for services, and GPUs that hold just these.

    Attributes:
        instances: by service: how many in which configuration.
        layouts: how many GPUs are cut so.
        at_least: fewer GPUs can't serve these loads.
        prices: of a profile's instance, in billionths of a GPU, so that no layout costs more than
            a GPU. What the services' cheapest instances cost at these prices, rounded up to whole
            GPUs, is ``at_least``; it is more only where the search of whole numbers says so.
    """

    instances: Mapping[str, Mapping[Measured, int]]
    layouts: Mapping[Layout, int]
    at_least: int
    prices: Mapping[str, int]

    @property
    def gpus(self) -> int:
        """How many there are in all."""
        return sum(self.layouts.values())


def fewest_gpus(
    services: Mapping[str, ServiceLoad], on: Board, latency_share: Fraction = LATENCY_SHARE
) -> InstancePlan:
    """Instances that serve every load within its SLO, on the fewest GPUs of that board.

    InvalidInputError (SW-SLO-UNREACHABLE) if no measured configuration meets a service's SLO.
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

    ``costs``: by profile. ``at_least`` is of these instances, not of the load. Raises as
    ``fewest_gpus``.
    """
    if load.rate_mrps == 0:
        return fewest_gpus({name: load}, on, latency_share)
    fastest = _fastest(name, load, on, latency_share)
    cover = cheapest_cover(_demand(load.rate_mrps, fastest), costs).cover
    # Each profile as a service of its own, that needs just so many.
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
    """By profile, the configuration with most throughput among those that answer in time."""
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
        message = f"The model of {name!r} was measured on no profile of {on.model}."
    else:
        least_ms = min(row.latency_us for row in usable) / 1000
        message = (
            f"No measured configuration of {name!r} meets its SLO of {load.slo_us / 1000:g} ms: "
            f"its latency has to be below {float(latency_share):g} of that, "
            f"and the least measured is {least_ms:g} ms."
        )
    return InvalidInputError(
        "SW-SLO-UNREACHABLE",
        message,
        "Raise the SLO, or measure the model with smaller batches or on larger profiles.",
    )


def _demand(rate_mrps: int, fastest: Mapping[str, Measured]) -> Demand:
    return Demand(rate_mrps, {p: row.throughput_mrps for p, row in fastest.items()})


def _fullest(on: Board, profiles: Collection[str]) -> Sequence[Layout]:
    """Of these profiles, one layout for each set of instances that fills a GPU."""
    kept = {name: profile for name, profile in on.profiles.items() if name in profiles}
    by_instances: dict[frozenset[tuple[str, int]], Layout] = {}
    for layout in geometry(replace(on, profiles=kept)).maximal:
        by_instances.setdefault(frozenset(_profiles(layout).items()), layout)
    return tuple(by_instances.values())


def _profiles(layout: Layout) -> Counter[str]:
    return Counter(one.profile for one in layout)


def _cut(gpus: Iterable[tuple[Layout, int]], needed: Counter[str]) -> Mapping[Layout, int]:
    """The GPUs without the instances that nobody needs."""
    cut = Counter(_held(layout, needed) for layout, count in gpus for _ in range(count))
    return {layout: count for layout, count in cut.items() if layout}


def _held(layout: Layout, needed: Counter[str]) -> Layout:
    """What of the layout is still needed; that is needed no more then."""
    held = []
    for one in sorted(layout):
        if needed[one.profile] > 0:
            needed[one.profile] -= 1
            held.append(one)
    return frozenset(held)
