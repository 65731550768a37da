"""The traces of the replay as series, with the days before where a trace has them."""

from pathlib import Path

import numpy as np

from studies.autoscale import servegen, traces
from studies.autoscale.workload import Floats, Workload
from studies.forecasters.series import LoadSeries, after_past, counted, series_of

_HOUR_S, _DAY_S = 3600, 86_400
_DAYS = {"servegen-large": 6, "servegen-small": 1}
"""Days before what is replayed that are learnt from, too, so that a season of a day can show."""


def with_history(name: str, folder: Path, seed: int) -> tuple[Workload, LoadSeries]:
    """Return a stored trace and its series. A season is a day, or an hour where no day came before.

    Raises:
        TraceError: the trace is not there.
    """
    workload = traces.stored(name, folder, seed)
    series = series_of(workload, _HOUR_S)
    if name not in _DAYS:
        return workload, series
    load, arrived = _past(folder / traces.STORED[name][0], name, np.random.default_rng([seed, 1]))
    return workload, after_past(series, load, arrived, _DAY_S)


def _past(path: Path, name: str, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Draw the days before, with rates scaled by the factor of the part that is replayed."""
    mean_s, first_s, span_s = traces.SERVEGEN_SPANS[name]
    past_s = _DAYS[name] * _DAY_S
    before = servegen.clients(path, first_s - past_s, past_s)
    replayed = servegen.busiest_rate(servegen.clients(path, first_s, span_s), span_s)
    share = servegen.busiest_rate(before, past_s) / replayed
    busiest = share * servegen.BUSIEST_PLACES / mean_s
    arrivals = np.sort(np.concatenate(servegen.arrivals_by_client(before, past_s, busiest, rng)))
    return counted(arrivals, servegen.service_times(arrivals.size, mean_s, rng), past_s)
