"""The demo's picture: one time axis, on which a stranger sees quota lent and given back."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from slicewise.sandbox.demo.record import (
    BatchJob,
    Chat,
    LoanChange,
    Recording,
    Repartition,
    RequestRecord,
    Sample,
    TaskRun,
    by_service,
    tasks_over_time,
)

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
"""Colours of Okabe and Ito's palette, which readers with any colour vision can tell apart."""
_QUOTA_COLOUR = "#000000"
_GREY = "#6e6e6e"
_STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "hatch.linewidth": 1.4,
}
_WAITS_COLOUR, _RUNS_COLOUR, _CUT_COLOUR = "#d9d9d9", "#8fd0b9", "#e3b3cf"
_LENT_COLOUR = "#d9d9d9"
_OWN: Any = {"alpha": 0.85, "linewidth": 0}
_BORROWED: Any = {"alpha": 0.6, "linewidth": 0, "hatch": "////", "facecolor": "#ffffff"}
_PALE: Any = {"alpha": 0.3, "linewidth": 0}
_BIN_S = 1.0
_SHORTEST_S = 4.0
"""Shorter bars have no room for a word."""
_MILLISLICES = 1000
_FILLER_COLOUR = _COLOURS[3]
_GAVE_WAY_LINE = 7.6
"""The height at which it is drawn that tasks gave way, above all slices that they may have."""
_CHAT_LINE = 1.4
"""The height at which chats are drawn, above the one replica of their service."""


@dataclass(frozen=True)
class _Service:
    """What is drawn of one service, and in which colour."""

    name: str
    colour: str
    samples: Sequence[Sample]
    requests: Sequence[RequestRecord]

    @property
    def tenant(self) -> str:
        return self.name.partition("/")[0]

    @property
    def times(self) -> Sequence[float]:
        return [sample.t_s for sample in self.samples]


def save(recording: Recording, path: Path) -> None:
    """Draw a recording that has samples into a PNG file."""
    services = [
        _Service(
            service,
            _COLOURS[index % len(_COLOURS)],
            samples,
            [request for request in recording.requests if request.service == service],
        )
        for index, (service, samples) in enumerate(_in_order(recording))
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    chat = recording.chats[0].request.service if recording.chats else ""
    sharing = [service for service in services if service.name != chat]
    heights = (1.3, 1.0, *(1.7 if service in sharing else 0.8 for service in services), 1.3, 1.2)
    with mpl.rc_context(_STYLE):
        figure, axes = plt.subplots(
            len(heights), 1, figsize=(11, 1.4 + 1.1 * sum(heights)), sharex=True,
            height_ratios=heights,
        )  # fmt: skip
        _draw_arrivals(axes[0], services)
        _draw_backlog(axes[1], services)
        for axis, service in zip(axes[2:-2], services, strict=True):
            if service in sharing:
                _draw_replicas(axis, service, recording.loans)
            else:
                _draw_chats(axis, service, recording.chats)
        _draw_filler(axes[-2], recording.acts.filler_runs)
        _mark_wakes(axes[0], recording)
        _draw_acts(axes[-1], recording)
        axes[-1].set_xlim(0, max(sample.t_s for sample in recording.samples))
        axes[-1].set_xlabel("seconds")
        figure.align_ylabels(axes)
        figure.suptitle(
            "Two tenants in turn: each runs on what the other leaves idle, a batch job fills the "
            "rest, and gives way",
            x=0.01, ha="left", fontsize=13, fontweight="bold",
        )  # fmt: skip
        figure.tight_layout()
        figure.savefig(path, dpi=130)
        plt.close(figure)


def _in_order(recording: Recording) -> Sequence[tuple[str, Sequence[Sample]]]:
    """Return each service's samples; the service whose requests began first comes first."""
    latest_first = sorted(recording.requests, key=lambda request: -request.due_s)
    begins = {request.service: request.due_s for request in latest_first}
    samples = by_service(recording.samples).items()
    return sorted(samples, key=lambda pair: begins.get(pair[0], float("inf")))


def _draw_arrivals(axis: Axes, services: Iterable[_Service]) -> None:
    for service in services:
        counts = Counter(int(request.due_s // _BIN_S) for request in service.requests)
        seconds = range(int(max(service.times)) + 1)
        axis.bar(
            [second + _BIN_S / 2 for second in seconds],
            [counts[second] / _BIN_S for second in seconds],
            width=_BIN_S,
            color=service.colour,
            alpha=0.6,
            label=service.name,
        )
    axis.set_ylabel("arrivals\nper s")
    axis.legend(loc="upper right", ncols=3, fontsize=9)


def _mark_wakes(axis: Axes, recording: Recording) -> None:
    """Point at the requests that woke a service: one alone is not seen among thousands."""
    for wake in recording.wakes:
        axis.annotate(
            "one request\nwakes it",
            (wake.request.due_s, 1.0),
            xytext=(3, 36),
            textcoords="offset points",
            fontsize=8,
            arrowprops={"arrowstyle": "->", "color": _GREY},
        )


def _draw_backlog(axis: Axes, services: Iterable[_Service]) -> None:
    most = 1
    for service in services:
        backlog = [sample.state.backlog for sample in service.samples]
        axis.fill_between(
            service.times, backlog, step="post", color=service.colour, alpha=0.75, linewidth=0
        )
        most = max(most, *backlog)
    axis.set_ylim(0, most * 1.05)
    axis.set_ylabel("requests\nwaiting")
    axis.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=3))


def _draw_replicas(axis: Axes, service: _Service, loans: Sequence[LoanChange]) -> None:
    """Draw what holds GPUs, own quota below and borrowed above, and the tenant's limit."""
    replicas = [sample.state.replicas for sample in service.samples]
    nominal = [sample.state.nominal_millislices / _MILLISLICES for sample in service.samples]
    allowed = [
        slices + lent_to(service.tenant, loans, t_s) / _MILLISLICES
        for slices, t_s in zip(nominal, service.times, strict=True)
    ]
    layers: Sequence[tuple[str, Sequence[int], Any]] = (
        (
            "on its own quota",
            [replica.ready - replica.borrowed_ready for replica in replicas],
            _OWN,
        ),
        ("starting or ending", [replica.own_not_ready for replica in replicas], _PALE),
        ("on quota of others", [replica.borrowed_ready for replica in replicas], _BORROWED),
        (
            "",
            [replica.borrowed - replica.borrowed_ready for replica in replicas],
            _BORROWED | _PALE,
        ),
    )
    top = [0] * len(replicas)
    for label, counts, style in layers:
        below, top = top, [low + count for low, count in zip(top, counts, strict=True)]
        drawn = {"facecolor": service.colour, "edgecolor": service.colour, **style}
        axis.fill_between(service.times, below, top, step="post", label=label or None, **drawn)
    axis.fill_between(
        service.times, allowed, nominal, step="post", label="lent to others",
        where=[now < slices for now, slices in zip(allowed, nominal, strict=True)],
        facecolor=_LENT_COLOUR, linewidth=0,
    )  # fmt: skip
    line: Any = {"color": _QUOTA_COLOUR, "linewidth": 1.2}
    axis.plot(service.times, nominal, linestyle="--", label="its quota", **line)
    axis.step(service.times, allowed, where="post", label="its limit with loans", **line)
    axis.set_ylabel(f"replicas of\n{service.name}")
    axis.set_ylim(0, max(*top, *allowed, 1) * 1.4)
    axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    axis.legend(loc="upper right", ncols=6, fontsize=8, columnspacing=1.2, handlelength=1.6)


def _draw_chats(axis: Axes, service: _Service, chats: Sequence[Chat]) -> None:
    """Draw what holds GPUs, and above it each chat from its question to its last token."""
    replicas = [sample.state.replicas for sample in service.samples]
    colours: Any = {"facecolor": service.colour, "edgecolor": service.colour}
    ready = [replica.ready for replica in replicas]
    held = [max(replica.ready, replica.own) for replica in replicas]
    axis.fill_between(
        service.times, 0, ready, step="post", label="on its own quota", **colours, **_OWN
    )
    axis.fill_between(
        service.times, ready, held, step="post", label="starting or ending", **colours, **_PALE
    )
    asked = [chat.request.due_s for chat in chats]
    ended = [chat.request.due_s + chat.request.latency_s for chat in chats]
    axis.hlines([_CHAT_LINE] * len(chats), asked, ended, color=_GREY)
    axis.plot(
        asked, [_CHAT_LINE] * len(chats), linestyle="", marker="|", markersize=9,
        color=_QUOTA_COLOUR, label="a chat of the openai client",
    )  # fmt: skip
    if (first_s := chats[0].first_token_s) is not None:
        axis.annotate(
            f"first token\nafter {first_s:.1f} s", (asked[0], _CHAT_LINE), xytext=(-6, -4),
            textcoords="offset points", fontsize=8, ha="right", va="center",
        )  # fmt: skip
    axis.set_ylabel(f"replicas of\n{service.name}")
    axis.set_ylim(0, max(*held, 1) * 2.4)
    axis.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=3))
    axis.legend(loc="upper right", ncols=3, fontsize=8, columnspacing=1.2, handlelength=1.6)


def _draw_filler(axis: Axes, runs: Sequence[TaskRun]) -> None:
    """Draw how many tasks of the job that fills run, and when some went back to the queue."""
    steps = tasks_over_time(runs)
    times, tasks = [at_s for at_s, _ in steps], [count for _, count in steps]
    colours: Any = {"facecolor": _FILLER_COLOUR, "edgecolor": _FILLER_COLOUR}
    axis.fill_between(
        times, tasks, step="post", label="tasks on quota of others", **{**colours, **_BORROWED}
    )
    gone = Counter(run.ended_s for run in runs if run.gave_way and run.ended_s is not None)
    axis.plot(
        list(gone), [_GAVE_WAY_LINE] * len(gone), linestyle="", marker="v", markersize=5,
        color=_QUOTA_COLOUR, label="some are sent back to the queue",
    )  # fmt: skip
    for at_s, count in gone.items():
        axis.annotate(
            str(count), (at_s, _GAVE_WAY_LINE), xytext=(0, 4), textcoords="offset points",
            fontsize=7.5, ha="center",
        )  # fmt: skip
    axis.set_ylabel("batch job of\nresearch")
    axis.set_ylim(0, max(*tasks, _GAVE_WAY_LINE, 1) * 1.45)
    axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    axis.legend(loc="upper right", ncols=2, fontsize=8, columnspacing=1.2, handlelength=1.6)


def lent_to(tenant: str, loans: Iterable[LoanChange], t_s: float) -> int:
    """Return the millislices lent to a tenant at a time, less what it lends to others."""
    amounts = {(loan.lender, loan.borrower): loan.millislices for loan in loans if loan.t_s <= t_s}
    return sum(
        amount * ((borrower == tenant) - (lender == tenant))
        for (lender, borrower), amount in amounts.items()
    )


@dataclass(frozen=True)
class _Bar:
    """One bar of the lowest panel, from ``begin_s`` to ``end_s``."""

    line: str
    begin_s: float
    end_s: float
    colour: str
    text: str


def _draw_acts(axis: Axes, recording: Recording) -> None:
    """Draw batch jobs as they wait and run, and repartitions."""
    last_s = max(sample.t_s for sample in recording.samples)
    jobs = sorted(recording.acts.batch_jobs, key=lambda job: (job.tenant, job.job_id))
    bars = [bar for job in jobs for bar in _job_bars(job, last_s)]
    bars += [_repartition_bar(repartition) for repartition in recording.acts.repartitions]
    lines = list(dict.fromkeys(bar.line for bar in bars))
    for bar in bars:
        place, begin_s = lines.index(bar.line), max(bar.begin_s, 0.0)
        axis.barh(place, bar.end_s - begin_s, left=begin_s, height=0.7, color=bar.colour)
        if bar.end_s - begin_s > _SHORTEST_S:
            axis.text(begin_s + 0.4, place, bar.text, fontsize=7.5, va="center")
    axis.set_yticks(range(len(lines)), lines, fontsize=8)
    axis.set_ylim(max(len(lines), 1) - 0.5, -0.5)
    axis.set_ylabel("beside\nthe load")
    axis.grid(visible=False, axis="y")


def _job_bars(job: BatchJob, last_s: float) -> Iterator[_Bar]:
    line = f"{job.user} ({job.tenant}), job {job.job_id}: {job.profile}"
    if job.submitted_s is None:
        return
    started_s = last_s if job.started_s is None else job.started_s
    if started_s > max(job.submitted_s, 0.0):
        yield _Bar(line, job.submitted_s, started_s, _WAITS_COLOUR, "waits")
    if job.started_s is not None:
        ended_s = last_s if job.ended_s is None else job.ended_s
        yield _Bar(line, job.started_s, ended_s, _RUNS_COLOUR, "runs")


def _repartition_bar(repartition: Repartition) -> _Bar:
    line = f"GPU of {repartition.node}"
    return _Bar(line, repartition.begun_s, repartition.ended_s, _CUT_COLOUR, "is repartitioned")
