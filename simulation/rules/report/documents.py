"""What ``slicewise simulate --json`` prints."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from typing_extensions import TypedDict

from slicewise.simulation.rules.report.comparison import (
    ChangeVerdict,
    differences,
    service_differences,
    tenant_differences,
)
from slicewise.simulation.rules.runs.figures import Estimate, SimulationResult


class FigureDifferenceJson(TypedDict):
    """A figure by both policies; null without a changed one, and an interval with one part.

    ``present``, ``changed`` and ``interval`` of a count are of the whole time, that of an estimate
    of one part.
    """

    figure: str
    present: float
    changed: float | None
    interval: Estimate | None
    verdict: ChangeVerdict | None


class TenantVerdictJson(TypedDict):
    """What the change does to a tenant; its figures are in ``present`` and ``changed``."""

    tenant: str
    verdict: ChangeVerdict | None
    waited_less_s: float


class ServiceVerdictJson(TypedDict):
    """What the change does to a service; its figures are in ``present`` and ``changed``.

    ``interval`` is of the share in time, or of what the change adds to it.
    """

    service: str
    interval: Estimate | None
    verdict: ChangeVerdict | None


class ComparedJson(TypedDict):
    """What follows from the figures of the runs."""

    changes: Sequence[str]
    differences: Sequence[FigureDifferenceJson]
    tenant_verdicts: Sequence[TenantVerdictJson]
    service_verdicts: Sequence[ServiceVerdictJson]


def result_json(result: SimulationResult, changes: Sequence[str]) -> Mapping[str, object]:
    """Return the figures of all runs, and what follows from them.

    ``changes`` says what the changed policy sets, a line for each tenant.
    """
    return {
        **asdict(result),
        "changes": list(changes),
        "differences": [asdict(one) for one in differences(result)],
        "tenant_verdicts": [
            {
                "tenant": one.tenant,
                "verdict": one.verdict,
                "waited_less_s": one.waited_less_s,
            }
            for one in tenant_differences(result)
        ],
        "service_verdicts": [
            {
                "service": one.service,
                "interval": asdict(one.interval) if one.interval else None,
                "verdict": one.verdict,
            }
            for one in service_differences(result)
        ],
    }
