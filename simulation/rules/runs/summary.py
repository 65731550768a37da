"""Makes figures of what was measured: means, percentiles, fairness, and intervals over parts."""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, sqrt

from slicewise.simulation.rules.runs.measure import RunSums, TenantSums
from slicewise.simulation.rules.runs.run_figures import (
    ESTIMATED,
    ESTIMATED_OF_SERVICES,
    Estimate,
    Figures,
    ReplayedService,
    ReplayedTenant,
)
from slicewise.simulation.rules.services.request_figures import ServiceOutcome

_T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Student's t, two-sided 95 %, for 1 to 30 degrees of freedom."""
_T_MANY = 1.96


def figures(
    name: str, of: RunSums, capacity_millislices: int, guarantees: Mapping[str, int]
) -> Figures:
    """The figures of a run; ``guarantees`` are the tenants' guarantees to be shown."""
    tenants = tuple(
        _tenant(tenant, sums, guarantees.get(tenant, 0)) for tenant, sums in of.tenants.items()
    )
    waits_s = sorted(wait for sums in of.tenants.values() for wait in sums.waits_s)
    return Figures(
        name=name,
        start_s=of.start_s,
        end_s=of.end_s,
        capacity_millislices=capacity_millislices,
        jobs=len(waits_s),
        started=sum(sums.started for sums in of.tenants.values()),
        utilisation=_share(of.held_millislice_s, of.capacity_millislice_s),
        idle_wanted_share=_share(of.idle_wanted_millislice_s, of.idle_millislice_s),
        wait_mean_s=mean(waits_s),
        wait_p50_s=percentile(waits_s, 50),
        wait_p99_s=percentile(waits_s, 99),
        jain=jain(mean(sums.slowdowns) for sums in of.tenants.values() if sums.slowdowns),
        late_jobs=sum(sums.late_jobs for sums in of.tenants.values()),
        tenants=tenants,
        steps=of.steps,
        services=tuple(map(_service, of.services)),
        repartitions=of.repartitions,
        failures=of.failures,
    )


def _service(of: ServiceOutcome) -> ReplayedService:
    return ReplayedService(
        service=of.service,
        requests=of.requests,
        attainment=of.attainment,
        wait_p99_s=of.wait_p99_s,
        slice_s=of.slice_s,
        changes=of.changes,
        lost=of.lost,
        loads=of.loads,
    )


def _tenant(name: str, sums: TenantSums, guaranteed_millislices: int) -> ReplayedTenant:
    waits_s = sorted(sums.waits_s)
    return ReplayedTenant(
        tenant=name,
        jobs=len(waits_s),
        started=sums.started,
        wait_mean_s=mean(waits_s),
        wait_p50_s=percentile(waits_s, 50),
        wait_p99_s=percentile(waits_s, 99),
        wait_longest_s=waits_s[-1] if waits_s else 0.0,
        held_millislice_s=sums.held_millislice_s,
        borrowed_millislice_s=sums.borrowed_millislice_s,
        lent_millislice_s=sums.lent_millislice_s,
        guaranteed_millislices=guaranteed_millislices,
        own_waited_s=sums.own_waited_s,
        late_jobs=sums.late_jobs,
    )


def estimates(parts: Sequence[Figures]) -> Mapping[str, Estimate]:
    """The mean over parts of each figure in ESTIMATED, and its 95 % interval by Student's t."""
    return {name: estimate([float(getattr(part, name)) for part in parts]) for name in ESTIMATED}


def difference_estimates(
    present: Sequence[Figures], changed: Sequence[Figures]
) -> Mapping[str, Estimate]:
    """The same of what the change adds to each figure, part by part."""
    pairs = list(zip(present, changed, strict=True))
    return {
        name: estimate(
            [float(getattr(then, name)) - float(getattr(now, name)) for now, then in pairs]
        )
        for name in ESTIMATED
    }


def service_estimates(parts: Sequence[Figures]) -> Mapping[str, Mapping[str, Estimate]]:
    """The same as ``estimates`` of each service, over the parts in which it had requests."""
    return _of_services((_asked(part), None) for part in parts)


def service_difference_estimates(
    present: Sequence[Figures], changed: Sequence[Figures]
) -> Mapping[str, Mapping[str, Estimate]]:
    """The same of what the change adds to each figure of a service that both policies run."""
    pairs = zip(present, changed, strict=True)
    return _of_services((_asked(then), _asked(now)) for now, then in pairs)


def _asked(of: Figures) -> Mapping[str, ReplayedService]:
    """The services that had requests: one without has neither waits nor a share in time."""
    return {service.service: service for service in of.services if service.requests}


def _of_services(
    parts: Iterable[tuple[Mapping[str, ReplayedService], Mapping[str, ReplayedService] | None]],
) -> Mapping[str, Mapping[str, Estimate]]:
    """Estimates by service, less what the second of each pair has; only of two parts or more."""
    values: dict[str, dict[str, list[float]]] = {}
    for part, less in parts:
        for name, figures in part.items():
            other = less.get(name) if less is not None else None
            if less is not None and other is None:
                continue
            of = values.setdefault(name, {})
            for figure in ESTIMATED_OF_SERVICES:
                step = float(getattr(figures, figure))
                step -= 0.0 if other is None else float(getattr(other, figure))
                of.setdefault(figure, []).append(step)
    return {
        name: {figure: estimate(each) for figure, each in of.items()}
        for name, of in values.items()
        if len(of[ESTIMATED_OF_SERVICES[0]]) > 1
    }


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of at least one value, and its 95 % interval."""
    middle, count = mean(values), len(values)
    if count == 1:
        return Estimate(middle, middle, middle)
    spread = sqrt(sum((value - middle) ** 2 for value in values) / (count - 1) / count)
    away = spread * (_T_95[count - 2] if count - 2 < len(_T_95) else _T_MANY)
    return Estimate(middle, middle - away, middle + away)


def mean(values: Sequence[float]) -> float:
    """The mean; 0 of nothing."""
    return sum(values) / len(values) if values else 0.0


def percentile(in_order: Sequence[float], percent: int) -> float:
    """The smallest value with that share of all values at or below it; 0 of nothing."""
    return in_order[ceil(len(in_order) * percent / 100) - 1] if in_order else 0.0


def jain(values: Iterable[float]) -> float:
    """Jain's index of fairness: 1 if all are equal, 1/n if one has everything; 1 of nothing."""
    each = tuple(values)
    squares = sum(value**2 for value in each)
    return sum(each) ** 2 / (len(each) * squares) if squares else 1.0


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
