"""Reads what a replica's door says of its start: how long ago its script has set each mark."""

import re
from collections.abc import Mapping
from types import MappingProxyType

from slicewise.cluster.language.starts import (
    FALLBACK_TEXTS,
    NOT_TOLD,
    Fallback,
    StartClass,
    Weights,
)

PROTOCOL = "slicewise-start"
"""The name by which ALPN calls what a door is asked for."""
MOST_BYTES = 4096
"""Bytes of an answer at most: its tenant's script writes the marks."""
_MARK = re.compile(r"([a-z]{1,16}) ([0-9]{1,8}\.[0-9]{1,3})(?: .{0,100})?")
_MOST_MARKS = 16
_BROUGHT = re.compile(
    rb"^brought [0-9.]{1,12} (hit|copied|source)(?: ([0-9]{1,15})(?: ([a-z]{1,16}))?)?$",
    re.MULTILINE,
)
_CLASSES: Mapping[bytes, StartClass] = MappingProxyType({b"hit": "node", b"copied": "copied"})
_FALLBACKS: Mapping[bytes, Fallback] = MappingProxyType(
    {word.encode("ascii"): word for word in FALLBACK_TEXTS}
)


def marks_s(text: bytes, now_s: float) -> Mapping[str, float]:
    """Return when each mark was set, in Unix seconds by the clock of ``now_s``.

    Of one that is set again the first time counts. What can't be read is left out.
    """
    set_s: dict[str, float] = {}
    for line in text.decode("ascii", "replace").splitlines()[:_MOST_MARKS]:
        if (match := _MARK.fullmatch(line)) is not None:
            set_s.setdefault(match[1], now_s - float(match[2]))
    return set_s


def weights(text: bytes) -> Weights:
    """Return where the weights were: its script marks how it has brought them to the node.

    Of a word that is not known nothing is said.
    """
    match = _BROUGHT.search(text)
    if match is None:
        return NOT_TOLD
    how, size, word = match.groups()
    start_class = _CLASSES.get(how, "remote")
    fallback = _FALLBACKS.get(word) if start_class == "remote" else None
    return Weights(start_class, int(size or 0) or None, fallback)
