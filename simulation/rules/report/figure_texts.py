"""Writes the figures of simulated runs for readers of terminals and of pages alike."""

from collections.abc import Callable, Mapping

from slicewise.cluster.language.periods import age_text
from slicewise.cluster.language.units import counted, slices_text
from slicewise.simulation.rules.report.comparison import Measure, is_far
from slicewise.simulation.rules.runs.run_figures import (
    Estimate,
    ReplayedTenant,
    SelfCheck,
    SimulationResult,
)

NOTHING = "–"
_DAY_S, _MILLISLICES = 86_400, 1000
_TENTHS_S = 9.95
_FEW = 30
"""Fewer jobs than that say little of how near a replay is."""


def span_text(result: SimulationResult) -> str:
    """What was simulated: ``30 days of lab, 101,234 jobs, 896 slices; seed 1, 3 parts``."""
    present = result.present
    return (
        f"{length_text(present.end_s - present.start_s)} of {result.cluster},"
        f" {counted(present.jobs, 'job')},"
        f" {slices_text(present.capacity_millislices)} slices; seed {result.seed},"
        f" {counted(result.offsets, 'part')}"
    )


def unread_text(count: int, of: str, first: str) -> str:
    """Say how many lines of a file could not be read, and where and why the first of them."""
    lines = f"{counted(count, 'line')} of {of} could not be read"
    return f"{lines}: {first}." if count == 1 else f"{lines}; the first is {first}."


def length_text(seconds: float) -> str:
    """``45 s``, ``12 min``, ``3.5 h``, ``1 day``, ``30.5 days``."""
    days = round(seconds / _DAY_S, 1)
    if days < 1:
        return age_text(seconds)
    return "1 day" if days == 1 else f"{days:,.1f}".removesuffix(".0") + " days"


def figure_text(measure: Measure, value: float | None) -> str:
    """A figure with its unit: ``71.2 %``, ``14 min``, ``0.82``, ``12``."""
    return NOTHING if value is None else _WRITERS[measure.kind](value)


def wait_text(seconds: float | None) -> str:
    """A wait: ``45 s``, ``12 min``, ``3.5 h``."""
    return NOTHING if seconds is None else age_text(seconds)


def request_wait_text(seconds: float) -> str:
    """The same of requests, for which tenths count below ten seconds: ``1.4 s``."""
    return f"{seconds:.1f} s" if seconds < _TENTHS_S else age_text(seconds)


def share_text(share: float) -> str:
    """``71.2 %``."""
    # No "-0.0 %" at the end of an interval.
    return f"{round(100 * share, 1) + 0.0:.1f} %"


def slice_hours_text(slice_s: float) -> str:
    """``1,234.5``."""
    return f"{slice_s / 3600:,.1f}"


_WRITERS: Mapping[str, Callable[[float], str]] = {
    "share": share_text,
    "wait": age_text,
    "index": lambda value: f"{value:.2f}",
    "count": lambda value: f"{value:,.0f}",
}


def difference_text(measure: Measure, before: float | None, after: float | None) -> str:
    """A step with its sign: ``+6.8 points``, ``-3 min (-27 %)``, ``+0.11``; ``0`` is none.

    Of a wait that nobody notices there is no share.
    """
    if before is None or after is None:
        return NOTHING
    text = step_text(measure, after - before)
    if measure.kind != "wait" or before < measure.noticed or text == "0":
        return text
    share = f"{100 * (after - before) / before:+,.0f}"
    return text if share in ("+0", "-0") else f"{text} ({share} %)"


def step_text(measure: Measure, step: float) -> str:
    """The same without what it is of the figure: ``-3 min``."""
    size = abs(step)
    text = f"{100 * size:.1f}{_POINTS}" if measure.kind == "share" else figure_text(measure, size)
    if text in _NONE:
        return "0"
    return f"{'+' if step > 0 else '-'}{text}"


def interval_text(measure: Measure, of: Estimate | None, *, is_step: bool) -> str:
    """``12 min to 15 min``, of a difference ``-0.2 to +0.3 points``; "" where there is none."""
    if of is None:
        return ""
    write = step_text if is_step else figure_text
    low, high = (write(measure, end) for end in (of.low, of.high))
    return f"{low.removesuffix(_POINTS) if high.endswith(_POINTS) else low} to {high}"


_POINTS = " points"
_NONE = ("0", "0 s", "0.00", "0.0 points")


def held_text(tenant: ReplayedTenant, length_s: float) -> str:
    """Slices that a tenant held in the mean of so many seconds: ``12.1``."""
    return f"{tenant.held_millislice_s / max(1.0, length_s) / _MILLISLICES:,.1f}"


def trust_text(check: SelfCheck | None, unchecked: str) -> str:
    """Say in a few sentences how far the simulation is to be trusted.

    ``unchecked`` says why there is no self-check.
    """
    if check is None:
        return (
            f"{unchecked}, so nothing shows how far the simulation is to be trusted on this site."
            " Compare policies by it; do not take its waits for a forecast."
        )
    error_s = abs(check.wait_mean_s - check.wait_mean_of_history_s)
    use = 100 * abs(check.utilisation - check.utilisation_of_history)
    verdict = (
        f"With the present policy, half of {counted(check.jobs, 'job')} waited in the simulation"
        f" within {age_text(check.wait_error_s)} of what they really waited, and"
        f" {_order_text(check.queue_order)}."
    )
    if check.jobs < _FEW:
        verdict += " So few jobs prove little: simulate a longer time."
    if never := check.never_started:
        verdict += (
            f" {never:,} more really started, and {'has' if never == 1 else 'have'} no start in the"
            " simulation: its own waits are longer than these."
        )
    if is_far(check):
        return (
            f"{verdict} That is far from what happened: take from the following at most whether a"
            " policy makes waits longer or shorter, and no amount."
        )
    return (
        f"{verdict} Its mean wait is wrong by {age_text(error_s)} and its use by {use:.1f} points:"
        " smaller differences say nothing."
    )


def _order_text(share: float | None) -> str:
    if share is None:
        return "no two of them ever waited at the same time"
    return f"{100 * share:.0f} of 100 pairs that waited at the same time started in the same order"


MEANINGS = (
    "Idle though wanted is the part of the idle slices for which jobs waited. Fairness is Jain's"
    " index of the tenants' slowdowns. Late are batch jobs within their tenant's guaranteed quota"
    " that waited longer than a recall of lent quota may take; replicas of services never count."
    " Refused jobs are in no other figure, so a policy that refuses some has shorter waits by that"
    " alone."
)
"""What the less common figures mean."""
SERVICE_MEANINGS = (
    "In time are requests that met their service's aim. Waits are those for a place in a replica."
    " Slice-hours are what its replicas held; in a pool, what it used of all their replicas, whose"
    " idle time is the service's whose slots they are. Loads are those of its model into replicas"
    " that ran. Lost are requests whose replica ended meanwhile. A replica that came late shows in"
    " its requests alone."
)
"""What the figures of services mean."""


def chance_text(result: SimulationResult) -> str:
    """Say what is known of how far differences are chance."""
    if result.offsets > 1:
        parts = f"{result.offsets} parts of the time, each simulated from a start of its own"
        if result.changed is None:
            return f"Intervals are those of 95 % over {parts}."
        return (
            f"Intervals are those of 95 % of the difference over {parts}; a difference whose"
            " interval has 0 in it is unclear."
        )
    if result.changed is None:
        return "All of the time was simulated from one start; --offsets 8 adds intervals."
    return (
        "All of the time was simulated from one start: a small difference may be chance;"
        " --offsets 8 tells."
    )
