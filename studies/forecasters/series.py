"""What forecasters learn from and are judged by: how many requests there are, second by second."""

from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from slicewise.launcher.rules.autoscale.forecasts import AFTER
from studies.autoscale.workload import Floats, Workload, enough

TRAINED = 2 / 3
"""The first part of a trace, which forecasters may learn from; they are judged by the rest."""
LEAD_S = 3600
"""Seconds before the part that counts with which a run begins: what is learnt of errors is that of
an hour or so."""
STEP_S = 4
"""Seconds between two forecasts that are judged: about an eighth of a start, as in the product."""
_WARM_S = 300
_HIGH = 0.75
"""Quantile of start delays that the product plans with."""


@dataclass(frozen=True)
class LoadSeries:
    """The load of one service if no request ever had to wait, one value a second.

    Attributes:
        load: requests in parallel at each second.
        arrived: requests that have come in the second before.
        horizon_s: seconds that a start takes: those that three of four don't exceed.
        season_s: seconds after which load may repeat.
        split_s: where the part that counts begins.
        unit: requests in parallel that one replica takes.
        past_s: seconds before the workload's own beginning.
    """

    load: Floats
    arrived: Floats
    horizon_s: float
    season_s: int
    split_s: int
    unit: int
    past_s: int = 0

    @property
    def begin_s(self) -> int:
        """Where a run begins whose part from ``split_s`` on counts."""
        return max(self.past_s, self.split_s - LEAD_S)

    @property
    def peaks(self) -> Floats:
        """The most requests from the end of a start that begins now until ``AFTER`` times that.

        The last values stand for what the series no longer shows.
        """
        return peaks_after(self.load, self.horizon_s)

    @property
    def trained(self) -> "LoadSeries":
        """The part before ``split_s``."""
        return replace(self, load=self.load[: self.split_s], arrived=self.arrived[: self.split_s])


def series_of(workload: Workload, season_s: int) -> LoadSeries:
    """Return the load of a workload, as if each request got its place immediately."""
    load, arrived = counted(workload.arrivals_s, workload.service_s, workload.duration_s)
    starts = workload.starts
    return LoadSeries(
        load=load,
        arrived=arrived,
        horizon_s=float(np.quantile(starts.queue_s, _HIGH) + np.quantile(starts.load_s, _HIGH)),
        season_s=season_s,
        split_s=int(TRAINED * workload.duration_s),
        unit=workload.concurrency,
    )


def counted(arrivals_s: Floats, service_s: Floats, duration_s: int) -> tuple[Floats, Floats]:
    """Return the requests in parallel at each second, and those that came in the one before."""
    seconds = np.arange(duration_s)
    come = np.searchsorted(arrivals_s, seconds, side="right")
    gone = np.searchsorted(np.sort(arrivals_s + service_s), seconds, side="right")
    return (come - gone).astype(float), np.diff(come, prepend=0).astype(float)


def after_past(series: LoadSeries, load: Floats, arrived: Floats, season_s: int) -> LoadSeries:
    """Return a series that begins with an earlier load of the same service."""
    return replace(
        series,
        load=np.concatenate((load, series.load)),
        arrived=np.concatenate((arrived, series.arrived)),
        season_s=season_s,
        split_s=series.split_s + load.size,
        past_s=load.size,
    )


def peaks_after(load: Floats, horizon_s: float) -> Floats:
    """Return for each second the most load from ``horizon_s`` later to ``AFTER`` times that."""
    first, last = ceil(horizon_s), int(AFTER * horizon_s)
    padded = np.concatenate((load, np.full(last, load[-1])))
    windows = np.lib.stride_tricks.sliding_window_view(padded[first:], last - first + 1)
    found: Floats = windows.max(axis=1)
    return found[: load.size]


def counted_part(workload: Workload, series: LoadSeries) -> Workload:
    """Return the workload from ``begin_s`` on, of which the part from ``split_s`` on counts."""
    begin_s, split_s = series.begin_s - series.past_s, series.split_s - series.past_s
    first = int(np.searchsorted(workload.arrivals_s, begin_s))
    arrivals, work = workload.arrivals_s[first:] - begin_s, workload.service_s[first:]
    return replace(
        workload,
        arrivals_s=arrivals,
        service_s=work,
        duration_s=workload.duration_s - begin_s,
        first_replicas=enough(arrivals, work, workload.concurrency, _WARM_S),
        warm_s=split_s - begin_s,
    )
