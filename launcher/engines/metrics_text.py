"""Reads single figures of an engine's metrics, in Prometheus' text format."""

from collections.abc import Collection, Mapping, Sequence

from launcher.engines.engine import TokenCounts

_MOST_LINES = 20_000
"""Lines that are read at most: a tenant controls what its replicas say."""
_MOST = 1e15
"""No server counts so far; what is added up of such figures stays a finite number."""


def figures(said: bytes, names: Collection[str]) -> Mapping[str, float]:
    """Return these metrics by name; those of several labels are added up.

    A metric that is missing, negative, no number or beyond all that is counted is left out.
    """
    found: dict[str, float] = {}
    for line in said.decode(errors="replace").split("\n", _MOST_LINES)[:_MOST_LINES]:
        name, _, rest = line.partition(" ")
        name, _, labels = name.partition("{")
        if name not in names:
            continue
        text = line.rpartition("} ")[2] if labels else rest
        try:
            value = float(text.split()[0])
        except (ValueError, IndexError):
            continue
        if 0 <= value <= _MOST:
            found[name] = found.get(name, 0.0) + value
    return {name: value for name, value in found.items() if value <= _MOST}


def counters(said: bytes, names: Sequence[str]) -> list[float]:
    """Return these metrics in their order; raises ValueError if one is missing."""
    found = figures(said, names)
    try:
        return [found[name] for name in names]
    except KeyError as error:
        raise ValueError(f"no {error}") from None


def token_counts(said: bytes, prefix: str) -> TokenCounts:
    """Read the histograms that vLLM and SGLang have of the same names, behind their own prefix.

    Raises ValueError if one is missing. They appear with the first request.
    """
    first, between = (
        f"{prefix}:{one}" for one in ("time_to_first_token_seconds", "inter_token_latency_seconds")
    )
    names = (f"{first}_sum", f"{between}_count", f"{between}_sum", f"{first}_count")
    return TokenCounts(*counters(said, names))
