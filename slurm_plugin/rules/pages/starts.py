"""Draws a service's last starts: a bar for each, divided by its phases."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from slicewise.cluster.language.palette import START_PHASES
from slicewise.cluster.language.starts import (
    PHASE_TEXTS,
    StartPhase,
    StartTrace,
    class_sentences,
    fallback_sentences,
    longest_words,
    phases_of,
    total_s,
    weights_words,
)
from slicewise.cluster.rpc.read_messages import ServiceStarts

_WIDE, _HIGH = 1000, 18
"""The view box of a bar; the page stretches it."""


@dataclass(frozen=True)
class StartShown:
    """One start: when it began, what took longest, where its weights were, and its bar, to the
    scale of the longest one.
    """

    trace: StartTrace
    began_s: float
    total_s: float
    words: str
    weights: str
    bar: Markup


def starts_shown(services: Iterable[ServiceStarts], tenant: str) -> Sequence[StartShown]:
    """The last starts of the tenant's service, the newest first."""
    traces = [trace for service in services if service.tenant == tenant for trace in service.starts]
    longest_s = max(map(total_s, traces), default=0.0)
    return [
        StartShown(
            trace,
            min(trace.at_s.values()),
            total_s(trace),
            longest_words(trace),
            weights_words(trace),
            _bar(trace, longest_s),
        )
        for trace in reversed(traces)
    ]


def phases_shown(starts: Sequence[StartShown]) -> Sequence[tuple[StartPhase, str]]:
    """The phases that the starts have, in order, each with what happens in it."""
    had = {phase.phase for start in starts for phase in phases_of(start.trace)}
    return [(phase, text) for phase, text in PHASE_TEXTS.items() if phase in had]


def class_words(starts: Sequence[StartShown]) -> Sequence[str]:
    """How long the starts of each class took, and why some had no weights on their node."""
    traces = [start.trace for start in starts]
    return (*class_sentences(traces), *fallback_sentences(traces))


def _bar(trace: StartTrace, whole_s: float) -> Markup:
    phases, at_s, parts = phases_of(trace), 0.0, []
    for phase in phases:
        x = _WIDE * at_s / whole_s if whole_s else 0.0
        width = _WIDE * phase.seconds / whole_s if whole_s else 0.0
        at_s += phase.seconds
        if width:
            parts.append(
                Markup(
                    '<rect class="start-{}" x="{}" y="0" width="{}" height="{}">'
                    "<title>{}</title></rect>"
                ).format(
                    phase.phase,
                    f"{x:.1f}",
                    f"{width:.1f}",
                    _HIGH,
                    f"{START_PHASES[phase.phase].word} {phase.seconds:.2f} s",
                )
            )
    words = ", ".join(f"{START_PHASES[phase.phase].word} {phase.seconds:.2f} s" for phase in phases)
    return Markup(
        '<svg class="bar" role="img" aria-label="{}" viewBox="0 0 {} {}"'
        ' preserveAspectRatio="none">{}</svg>'
    ).format(words or "nothing", _WIDE, _HIGH, Markup("").join(parts))
