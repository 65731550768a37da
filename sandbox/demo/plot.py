"""The demo's picture: arrivals, backlog and replicas over time, one column per service."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from sandbox.demo.record import Recording, RequestRecord, Sample, by_service

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
"""Colours of Okabe and Ito's palette, which readers with any colour vision can tell apart."""
_QUOTA_COLOUR = "#000000"
_STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "axes.axisbelow": True,
    "legend.frameon": False,
}
_BIN_S = 1.0
_LABELS = (
    "arrivals per s",
    "backlog\n(requests waiting)",
    "replicas\n(1 replica = 1 slice)",
)
"""Labels of the rows. Both services of the demo use a profile that costs one slice of quota."""


@dataclass(frozen=True)
class _Column:
    """What one service's column shows."""

    service: str
    colour: str
    samples: Sequence[Sample]
    requests: Sequence[RequestRecord]


def save(recording: Recording, path: Path) -> None:
    """Draw a recording that has samples into a PNG file."""
    columns = [
        _Column(
            service,
            _COLOURS[index % len(_COLOURS)],
            samples,
            [request for request in recording.requests if request.service == service],
        )
        for index, (service, samples) in enumerate(by_service(recording.samples).items())
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(_STYLE):
        figure, axes = plt.subplots(
            3, len(columns), figsize=(11, 6.4), sharex=True, sharey="row", squeeze=False
        )
        for index, column in enumerate(columns):
            _draw(tuple(axes[:, index]), column)
        for axis, label in zip(axes[:, 0], _LABELS, strict=True):
            axis.set_ylabel(label)
        backlog_max = max(sample.state.backlog for sample in recording.samples)
        axes[1, 0].set_ylim(0, max(backlog_max, 1) * 1.05)
        axes[2, 0].set_ylim(0, _replicas_top(recording.samples))
        axes[2, -1].legend(loc="upper right", ncols=4, fontsize=8)
        figure.align_ylabels(axes[:, 0])
        figure.tight_layout()
        figure.savefig(path, dpi=130)
        plt.close(figure)


def _draw(axes: Sequence[Axes], column: _Column) -> None:
    arrivals, backlog, replicas = axes
    times = [sample.t_s for sample in column.samples]
    counts = Counter(int(request.due_s // _BIN_S) for request in column.requests)
    seconds = range(int(max(times)) + 1)
    arrivals.set_title(column.service, loc="left", fontweight="bold")
    arrivals.bar(
        [second + 0.5 for second in seconds],
        [counts[second] / _BIN_S for second in seconds],
        width=_BIN_S,
        color=column.colour,
        alpha=0.55,
    )
    backlog.fill_between(
        times,
        [sample.state.backlog for sample in column.samples],
        step="post",
        color=column.colour,
        alpha=0.75,
        linewidth=0,
    )
    _draw_replicas(replicas, times, column)


def _draw_replicas(axis: Axes, times: Sequence[float], column: _Column) -> None:
    states = [sample.state.replicas for sample in column.samples]
    ready = [state.ready for state in states]
    with_draining = [state.ready + state.draining for state in states]
    costing = [state.costing for state in states]
    nominal = [sample.state.nominal_millislices / 1000 for sample in column.samples]
    layers: dict[str, Any] = {"step": "post", "color": column.colour, "linewidth": 0}
    axis.fill_between(times, 0, ready, label="ready", alpha=0.8, **layers)
    axis.fill_between(times, ready, with_draining, label="draining", alpha=0.4, **layers)
    axis.fill_between(times, with_draining, costing, label="starting", alpha=0.18, **layers)
    axis.plot(times, nominal, color=_QUOTA_COLOUR, linestyle="--", linewidth=1.2, label="quota")
    axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlabel("seconds")


def _replicas_top(samples: Sequence[Sample]) -> float:
    """High enough for the tallest replica count and quota, with room for the legend above."""
    states = [sample.state for sample in samples]
    tallest = max(max(s.replicas.costing, s.nominal_millislices / 1000) for s in states)
    return tallest * 1.3 + 0.5
