"""Reads single figures of an engine's metrics, in Prometheus' text format."""

import re
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from math import inf

from slicewise.launcher.rules.engines.engine import FIRST_TOKEN_S, TokenCounts

_MOST_LINES = 20_000
"""Lines that are read at most: a tenant controls what its replicas say."""
_LEAST, _MOST = 1e-9, 1e15
"""No server counts so far, nor so finely; what such figures, or 0, are added up, multiplied and
divided to stays a finite number."""
_MOST_BUCKETS = 100
"""Bounds that a histogram has at most."""
_BOUND = re.compile(r'(?:^|,)le="([0-9.eE+-]{1,24}|\+Inf)"')


def figures(text: bytes, names: Collection[str]) -> Mapping[str, float]:
    """Return these metrics by name; those of several labels are added up.

    A metric that is missing, negative, no number, nearly 0 or beyond all that is counted is left
    out.
    """
    sums: dict[str, float] = {}
    for name, _, value in _samples(text, names):
        sums[name] = sums.get(name, 0.0) + value
    return {name: value for name, value in sums.items() if value <= _MOST}


def _samples(said: bytes, names: Collection[str]) -> Iterator[tuple[str, str, float]]:
    """Yield name, labels and figure of these metrics."""
    for line in said.decode(errors="replace").split("\n", _MOST_LINES)[:_MOST_LINES]:
        name, _, rest = line.partition(" ")
        name, has_labels, _ = name.partition("{")
        if name not in names:
            continue
        head, _, text = line.rpartition("} ") if has_labels else ("", "", rest)
        try:
            value = float(text.split()[0])
        except (ValueError, IndexError):
            continue
        if value == 0 or _LEAST <= value <= _MOST:
            yield name, head[len(name) + 1 :], value


def counters(text: bytes, names: Sequence[str]) -> list[float]:
    """Return these metrics in their order; raises ValueError if one is missing."""
    by_name = figures(text, names)
    try:
        return [by_name[name] for name in names]
    except KeyError as error:
        raise ValueError(f"no {error}") from None


def share(text: bytes, name: str) -> float | None:
    """Return the largest of a metric's figures of several labels, if all are shares; else None."""
    shares = [value for _, _, value in _samples(text, {name})]
    return max(shares, default=None) if all(value <= 1 for value in shares) else None


def token_counts(text: bytes, prefix: str) -> TokenCounts:
    """Read the histograms that vLLM and SGLang have of the same names, behind their own prefix.

    Raises ValueError if one is missing. They appear with the first request.
    """
    first, between = (
        f"{prefix}:{name}"
        for name in ("time_to_first_token_seconds", "inter_token_latency_seconds")
    )
    names = (f"{first}_sum", f"{between}_count", f"{between}_sum", f"{first}_count")
    first_s, tokens, token_s, requests = counters(text, names)
    firsts = histogram(text, first, FIRST_TOKEN_S)
    return TokenCounts(first_s, tokens, token_s, requests, firsts)


def histogram(text: bytes, name: str, edges: Sequence[float]) -> tuple[float, ...]:
    """Return how many values of a histogram lie below, between and above ``edges``.

    Within a bucket values are taken to be spread evenly; those above its last bound count directly
    above that. Returns nothing if it is missing or contradicts itself.
    """
    upto: dict[float, float] = {}
    for _, labels, value in _samples(text, {f"{name}_bucket"}):
        if (bound := _bound(labels)) is not None:
            upto[bound] = upto.get(bound, 0.0) + value
            if len(upto) > _MOST_BUCKETS:
                return ()
    bounds = sorted(upto)
    counts = [upto[bound] for bound in bounds]
    is_one = len(bounds) > 1 and bounds[-1] == inf and counts[-1] <= _MOST
    if not is_one or any(low > high for low, high in pairwise(counts)):
        return ()
    below = (0.0, *(_below(bounds, counts, edge) for edge in edges), counts[-1])
    return tuple(high - low for low, high in pairwise(below))


def _bound(labels: str) -> float | None:
    match = _BOUND.search(labels)
    try:
        bound = float(match[1]) if match else -1.0
    except ValueError:
        return None
    return bound if bound >= 0 else None


def _below(bounds: Sequence[float], counts: Sequence[float], edge: float) -> float:
    """Return how many values lie up to ``edge``."""
    at = bisect_left(bounds, edge)
    low, low_count = (bounds[at - 1], counts[at - 1]) if at else (0.0, 0.0)
    if bounds[at] == inf:
        return counts[at]
    return low_count + (counts[at] - low_count) * (edge - low) / (bounds[at] - low)
