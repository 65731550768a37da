"""Passes on in a service's file what ``slicewise profile`` has measured, as where learning begins.

The text has a day, and for each number of requests at a time milliseconds: of a request, of a token
in the median, and of a first token for all but one in a hundred.
"""

from collections.abc import Iterable
from statistics import median

from slicewise.cluster.language.measurements import Measurement
from slicewise.cluster.language.service import MOST_MEASURED
from slicewise.launcher.rules.autoscale.curve import Curve, Points, Prior


def measured_text(rows: Iterable[Measurement], day: str) -> str:
    """Return the figures of one model on one type of GPU; "" if there are none of its tokens.

    Of one number of requests the last row counts.
    """
    points = {
        row.batch: (1e6 * row.batch / row.throughput_mrps, made.tpot_p50_us, made.ttft_p99_us)
        for row in rows
        if (made := row.tokens) is not None and row.throughput_mrps and made.tpot_p50_us
    }
    said = (
        f"{many}:{took_ms:.1f}:{token_us / 1000:.3f}:{first_us / 1000:.1f}"
        for many, (took_ms, token_us, first_us) in sorted(points.items())[:MOST_MEASURED]
    )
    return ",".join((day, *said)) if points else ""


def measured_prior(text: str) -> Prior | None:
    """Read such a text; None of "", and of what nobody could have measured."""
    day, *said = text.split(",")
    try:
        points = [tuple(map(float, pair.split(":"))) for pair in said]
        rows = sorted((many, took, token, first) for many, took, token, first in points)
    except ValueError:
        return None
    if not rows or min(min(row) for row in rows) <= 0:
        return None
    curve = Curve(
        _ascending((many, took / 1000) for many, took, _, _ in rows),
        _ascending((many, token / 1000) for many, _, token, _ in rows),
        median(took / token for _, took, token, _ in rows),
        median(first / token for _, _, token, first in rows),
    )
    return Prior(curve, f"measured by slicewise profile on {day}")


def _ascending(points: Iterable[tuple[float, float]]) -> Points:
    found: dict[float, float] = {}
    for many, each_s in points:
        found[many] = max(each_s, *found.values(), 0.0)
    return tuple(found.items())
