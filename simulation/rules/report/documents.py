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
)
from slicewise.simulation.rules.runs.run_figures import SimulationResult


@dataclass(frozen=True, kw_only=True)
class ComparedResult(SimulationResult):
    """The figures of all runs, and what follows from them.

    Attributes:
        changes: what the changed policy sets, a line for each tenant.
    """

    changes: Sequence[str]
    differences: Sequence[FigureDifference]
    tenant_verdicts: Sequence[TenantDifference]
    service_verdicts: Sequence[ServiceDifference]


def compared(result: SimulationResult, changes: Sequence[str]) -> ComparedResult:
    """Return the figures of all runs, and what follows from them."""
    return ComparedResult(
        **vars(result),
        changes=changes,
        differences=differences(result),
        tenant_verdicts=tenant_differences(result),
        service_verdicts=service_differences(result),
    )
