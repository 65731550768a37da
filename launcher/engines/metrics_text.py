"""Reads single figures of an engine's metrics, in Prometheus' text format."""

from collections.abc import Collection, Mapping
from math import isfinite

_MOST_LINES = 20_000
"""Lines that are read at most: a tenant controls what its replicas say."""


def figures(said: bytes, names: Collection[str]) -> Mapping[str, float]:
    """Return these metrics by name; those of several labels are added up.

    A metric that is missing, negative or no number is left out.
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
        if isfinite(value) and value >= 0:
            found[name] = found.get(name, 0.0) + value
    return found
