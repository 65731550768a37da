"""A replica's start as a line of moments, and how long each phase between them took."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Annotated, Literal, get_args

from pydantic import Field

from slicewise.cluster.language.units import bytes_text, counted

Moment = Literal[
    "held",
    "seen",
    "desired",
    "released",
    "started",
    "booted",
    "script",
    "brought",
    "engine",
    "loaded",
    "ready",
    "routed",
    "answered",
    "ended",
]
"""held: the first request that waits came to the gateway. seen: a turn of the launcher saw it.
desired: the launcher decided that the slot runs, or told a replica of the pool to have the model.
released: the daemon had released it in Slurm.
started: Slurm gave it its slice. booted: its node, which power saving had ended, had booted.
script: its batch script began. brought: it had copied the model to the node, or found it there,
or knew why it can't. engine: the engine's process was started.
loaded: the engine said that its model is ready. ready: it had answered as it should, an inference
included. routed: the gateway leads requests to it. answered: the first byte of its answer to a
request that had waited. ended: it was over before it was ready."""

MOMENTS: tuple[Moment, ...] = get_args(Moment)

StartPhase = Literal[
    "notice",
    "decide",
    "grant",
    "queue",
    "boot",
    "launch",
    "copy",
    "step",
    "load",
    "check",
    "route",
    "answer",
    "ended",
]
PHASE_OF: Mapping[Moment, StartPhase] = MappingProxyType(
    dict(zip(MOMENTS[1:], get_args(StartPhase), strict=True))
)
"""The phase that a moment ends. It begins at the moment before that is known."""

PHASE_TEXTS: Mapping[StartPhase, str] = MappingProxyType(
    {
        "notice": "the launcher sees that a request waits",
        "decide": "it decides that this slot runs, or which replica of the pool loads the model",
        "grant": "the daemon checks quota, and releases the slot; Slurm delays what has just run",
        "queue": "Slurm finds a slice",
        "boot": "the node, which power saving had ended, boots",
        "launch": "Slurm starts the batch script: prolog, node",
        "copy": "the script copies the model to the node, or finds a copy there",
        "step": "the script starts the engine: srun, container",
        "load": "the engine starts, or a pool makes room, and reads the weights until it is ready",
        "check": "the launcher asks who it is, and its model an inference",
        "route": "the launcher's next turn leads requests to it",
        "answer": "the request that waited gets there, and its first byte comes back",
        "ended": "it ended without having been ready",
    }
)

StartClass = Literal["remote", "copied", "node", "pool", "pool_node"]
"""Where the weights were when the start began, as its script tells. remote: in the service's
``model_repository``, from which the engine read them. copied: there, and the script copied them to
the node first. node: on the node, by an earlier start. Whether the node had some in its page cache
is not known. pool: it is no replica that started, but a load of the service's model in a running
replica of another service of its pool. pool_node: such a load, which read the node's copy."""

Fallback = Literal[
    "files",
    "times",
    "memory",
    "limit",
    "room",
    "changes",
    "folder",
    "locked",
    "removed",
    "later",
    "failed",
]
FALLBACK_TEXTS: Mapping[Fallback, str] = MappingProxyType(
    {
        "files": "such a repository is not copied: it has no files, too many, or a loop of links",
        "times": "its file system has no times of changes, by which a newer file would be seen",
        "memory": "node_cache is memory, where a copy would take more than memory_mib allows",
        "limit": "the files are larger than node_cache_gib",
        "room": "the disk, or its quota, has no room beside what other replicas read",
        "changes": "the files changed while they were copied",
        "folder": "other users could change node_cache, or what is in it",
        "locked": "another job has locked the copy, and gets nowhere",
        "removed": "the copy was removed to make room",
        "later": "a pool's replica loads first, and copies the model once it is loaded",
        "failed": "the copy failed, as the replica's log says",
    }
)
"""Why a script with a node cache let the engine read ``model_repository``, by its word for it."""

StartState = Literal["starting", "ready", "ended"]

_GOES_ON: Mapping[Moment, StartPhase] = MappingProxyType(
    # What the node has done is heard of at the end: until then it counts as loading.
    dict(zip(MOMENTS, PHASE_OF.values(), strict=False))
    | dict.fromkeys(("started", "booted", "script", "brought"), "load")
)
"""The phase that goes on after a moment while the next one has not come."""

MOST_STARTS = 20
"""Starts that are kept of a service."""
LONGEST_NODE = 64
"""Characters of a node's name that a start keeps."""
_MOST_BYTES = 1 << 50
"""Bytes of a model's files at most: a PiB."""
_ELSEWHERE: frozenset[Moment] = frozenset({"started", "booted", "script", "brought", "engine"})
"""Moments that Slurm or the node has told; the launcher has seen all others itself."""


@dataclass(frozen=True)
class Weights:
    """Where a start found the model's files, as its script tells.

    Attributes:
        bytes: how large the files are; None without a node cache, or where they were not looked at.
        fallback: why the engine read them in ``model_repository`` although there is a node cache.
    """

    start_class: StartClass = "remote"
    bytes: Annotated[int, Field(ge=0, le=_MOST_BYTES)] | None = None
    fallback: Fallback | None = None


NOT_TOLD = Weights()


@dataclass(frozen=True)
class StartTrace:
    """One start of a replica, or of a model in a running replica of its pool.

    Attributes:
        array_job_id, slot: the replica; of a pool that of another service.
        node: where it started, cut to ``LONGEST_NODE``; "" while Slurm has given it no node.
        at_s: Unix seconds of the moments that are known, by the clock of the launcher's host.
        seen_s: when the launcher saw it last, of one under way; else None.
        is_configuring: whether Slurm got its node ready then.
    """

    array_job_id: int
    slot: int
    at_s: Mapping[Moment, float] = field(hash=False)
    state: StartState = "starting"
    weights: Weights = NOT_TOLD
    node: Annotated[str, Field(max_length=LONGEST_NODE)] = ""
    seen_s: float | None = None
    is_configuring: bool = False

    @property
    def start_class(self) -> StartClass:
        """Where the weights were."""
        return self.weights.start_class

    @property
    def is_load(self) -> bool:
        """Whether it is a load in a running replica."""
        return self.start_class in {"pool", "pool_node"}


@dataclass(frozen=True)
class PhaseTime:
    """How long a phase of a start took."""

    phase: StartPhase
    seconds: float


@dataclass(frozen=True)
class ClassTimes:
    """How long the starts of one class took until they were over, of those that became ready."""

    start_class: StartClass
    starts: int
    p50_s: float
    p95_s: float


def in_order(at_s: Mapping[Moment, float]) -> Mapping[Moment, float]:
    """Return the moments in order, none before the one before it.

    What Slurm or the node has told is moved between the moments that the launcher has seen: a user
    owns the script, and Slurm counts in whole seconds.
    """
    latest_s, until_s = dict[Moment, float](), float("inf")
    for moment in reversed(MOMENTS):
        if moment in at_s:
            told_s = min(at_s[moment], until_s) if moment in _ELSEWHERE else at_s[moment]
            until_s = latest_s[moment] = told_s
    ordered, before_s = dict[Moment, float](), float("-inf")
    for moment in MOMENTS:
        if moment in latest_s:
            before_s = ordered[moment] = max(before_s, round(latest_s[moment], 3))
    return ordered


def phases_of(trace: StartTrace) -> tuple[PhaseTime, ...]:
    """Return the phases in order; one whose beginning is not known has those before it, too.

    Of a start under way the last one goes on.
    """
    moments = [moment for moment in MOMENTS if moment in trace.at_s]
    phases = [
        PhaseTime(PHASE_OF[end], round(trace.at_s[end] - trace.at_s[begin], 3))
        for begin, end in pairwise(moments)
    ]
    if trace.seen_s is not None:
        passed_s = max(0.0, round(trace.seen_s - trace.at_s[moments[-1]], 3))
        goes_on = "boot" if trace.is_configuring else _GOES_ON[moments[-1]]
        phases.append(PhaseTime(goes_on, passed_s))
    return tuple(phases)


def longest_words(trace: StartTrace, most: int = 3) -> str:
    """Say where most of the seconds went: ``load 3.14 s, queue 0.41 s``."""
    longest = sorted(phases_of(trace), key=lambda phase: -phase.seconds)[:most]
    return ", ".join(f"{phase.phase} {phase.seconds:.2f} s" for phase in longest)


def total_s(trace: StartTrace) -> float:
    """Return the seconds from the first moment that is known to the last one."""
    return round(sum(phase.seconds for phase in phases_of(trace)), 3)


def bytes_per_s(trace: StartTrace) -> float | None:
    """Return how fast the model's files were read, in bytes per second; None is not known.

    In the phase in which that was: the copy, if the script copied them, else the load. The engine
    starts within it, too, so its disk is faster than that.
    """
    size = trace.weights.bytes
    if size is None or trace.state != "ready":
        return None
    phase = "copy" if trace.start_class == "copied" else "load"
    seconds = sum(each.seconds for each in phases_of(trace) if each.phase == phase)
    return size / seconds if seconds else None


def weights_words(trace: StartTrace) -> str:
    """Say where the files were, how large they are and how fast they were read.

    ``copied 4.4 GiB, 1.1 GiB/s``, or ``remote (room) 4.4 GiB, 300.0 MiB/s``.
    """
    weights, speed = trace.weights, bytes_per_s(trace)
    words = weights.start_class + (f" ({weights.fallback})" if weights.fallback else "")
    size = "" if weights.bytes is None else f" {bytes_text(weights.bytes)}"
    return words + size + ("" if speed is None else f", {bytes_text(speed)}/s")


def fallback_sentences(traces: Iterable[StartTrace]) -> tuple[str, ...]:
    """Say what each word means by which a start read the repository; without a full stop."""
    had = {trace.weights.fallback for trace in traces}
    return tuple(f"{word}: {text}" for word, text in FALLBACK_TEXTS.items() if word in had)


def class_times(traces: Iterable[StartTrace]) -> tuple[ClassTimes, ...]:
    """Return how long starts took, by their class."""
    taken_s: dict[StartClass, list[float]] = {}
    for trace in traces:
        if trace.state == "ready":
            taken_s.setdefault(trace.start_class, []).append(total_s(trace))
    return tuple(
        ClassTimes(start_class, len(times), _rank(times, 0.5), _rank(times, 0.95))
        for start_class, times in taken_s.items()
    )


def class_sentences(traces: Iterable[StartTrace]) -> tuple[str, ...]:
    """Say for each class how long its starts took; without a full stop."""
    return tuple(
        f"{times.start_class}: of {counted(times.starts, 'start')} that became ready half took"
        f" {times.p50_s:.2f} s at most, 95 % {times.p95_s:.2f} s"
        for times in class_times(traces)
    )


def _rank(times: Sequence[float], share: float) -> float:
    """Return the smallest of the times that at least this share of them does not exceed."""
    ordered = sorted(times)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]
