"""What ``slicewise simulate --json`` prints."""

from collections.abc import Sequence
from dataclasses import dataclass

from slicewise.simulation.rules.report.comparison import (
    FigureDifference,
    ServiceDifference,
    TenantDifference,
    differences,
    service_differences,
    tenant_differences,
    together,
)
from slicewise.simulation.rules.runs.run_figures import ReplayedService, SimulationResult


@dataclass(frozen=True)
class TogetherByPolicy:
    """The sums of all services by both policies; null for fewer than two."""

    present: ReplayedService | None
    changed: ReplayedService | None


@dataclass(frozen=True, kw_only=True)
class ComparedResult(SimulationResult):
    """The figures of all runs, and what follows from them.

    Attributes:
        changes: what the changed policy sets, a line for each tenant.
        services_together: the sums of all services by both policies.
    """

    changes: Sequence[str]
    differences: Sequence[FigureDifference]
    tenant_verdicts: Sequence[TenantDifference]
    service_verdicts: Sequence[ServiceDifference]
    services_together: TogetherByPolicy


def compared(result: SimulationResult, changes: Sequence[str]) -> ComparedResult:
    """Return the figures of all runs, and what follows from them."""
    return ComparedResult(
        **vars(result),
        changes=changes,
        differences=differences(result),
        tenant_verdicts=tenant_differences(result),
        service_verdicts=service_differences(result),
        services_together=TogetherByPolicy(together(result.present), together(result.changed)),
    )
