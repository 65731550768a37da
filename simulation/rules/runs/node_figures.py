"""Counts what became of nodes during a run: GPUs that were cut again, and failures."""

from collections.abc import Iterable, Sequence

from slicewise.simulation.rules.runs.run_figures import FailureFigures, RepartitionFigures
from slicewise.simulation.rules.site.records import SiteRecord

_SLICE = 1000


def repartition_figures(
    record: SiteRecord, start_s: float, end_s: float
) -> RepartitionFigures | None:
    """What was cut again between two Unix seconds; None where nothing ever is.

    A repartition counts when it begins, with all that was lost for it.
    """
    if record.repartitions is None:
        return None
    those = [
        repartition for repartition in record.repartitions if start_s <= repartition.begin_s < end_s
    ]
    return RepartitionFigures(
        done=sum(repartition.is_done for repartition in those),
        in_vain=sum(not repartition.is_done for repartition in those),
        lost_slice_s=sum(repartition.lost_millislice_s for repartition in those) / _SLICE,
    )


def failure_figures(record: SiteRecord, start_s: float, end_s: float) -> FailureFigures | None:
    """What failed between two Unix seconds, and what that cost; None where no node ever fails."""
    if record.down is None:
        return None
    end_s = min(end_s, record.stopped_s)
    broken = [run for run in record.broken if start_s <= run.end_s < end_s]
    seconds = [(min(node.up_s, end_s) - max(node.down_s, start_s), node) for node in record.down]
    return FailureFigures(
        failures=sum(start_s <= node.down_s < end_s for node in record.down),
        runs_broken=len(broken),
        broken_slice_s=sum(run.lost_millislice_s for run in broken) / _SLICE,
        down_slice_s=sum(max(0.0, time_s) * run.cost_millislices for time_s, run in seconds)
        / _SLICE,
    )


def joined_repartitions(parts: Iterable[RepartitionFigures | None]) -> RepartitionFigures | None:
    """The sums of parts that follow one another; None without any."""
    those: Sequence[RepartitionFigures] = [part for part in parts if part is not None]
    if not those:
        return None
    return RepartitionFigures(
        done=sum(side.done for side in those),
        in_vain=sum(side.in_vain for side in those),
        lost_slice_s=sum(side.lost_slice_s for side in those),
    )


def joined_failures(parts: Iterable[FailureFigures | None]) -> FailureFigures | None:
    """The sums of parts that follow one another; None without any."""
    those: Sequence[FailureFigures] = [part for part in parts if part is not None]
    if not those:
        return None
    return FailureFigures(
        failures=sum(side.failures for side in those),
        runs_broken=sum(side.runs_broken for side in those),
        broken_slice_s=sum(side.broken_slice_s for side in those),
        down_slice_s=sum(side.down_slice_s for side in those),
    )
