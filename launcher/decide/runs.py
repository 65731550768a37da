"""Runs of a slot's replica: where they listen, who they are, whether they are fit for requests."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from cluster.wire import SlotView
from launcher.decide.gateway import Endpoint
from launcher.decide.slots import Phase, Slot

UNHEALTHY_S = 60.0
"""A replica whose health checks fail for this long gives its slot back."""
START_DEADLINE_S = 1800.0
"""So does one that is not ready after this launcher (or the one whose state it has) has seen it on
its slice for so long: how long before that it was ready nobody knows."""
_HTTP_AND_GRPC = 2
_NOWHERE = Endpoint("", 0, 0, "")


class Probe(StrEnum):
    """What a replica said when it was asked who it is."""

    OURS = "ours"
    SILENT = "silent"
    """No answer, or not ready yet."""
    STRANGER = "stranger"
    """Another server has the port."""


@dataclass(frozen=True)
class Answer:
    """A replica's answer.

    Attributes:
        said: why it is not ready, for people, if that is odd.
        is_costly: more than a few words were read and sent for it.
        too_old: the version of its Triton, if that is older than it should be.
    """

    probe: Probe
    said: str = ""
    is_costly: bool = field(default=False, compare=False)
    too_old: str = field(default="", compare=False)


@dataclass(frozen=True)
class Run:
    """One run of a slot's replica, and where it listens."""

    job_id: int
    start_s: int
    endpoint: Endpoint


@dataclass(frozen=True)
class Verified:
    """That run was found to be ours and ready at that time."""

    run: Run
    at_s: float


@dataclass(frozen=True)
class Down:
    """A run whose replica gets requests and fails its health checks, or is not ready yet.

    Attributes:
        starts: it is not ready yet.
        unfit: it is for too long; whatever it does now, its slot is given back.
    """

    run: Run
    since_s: float
    starts: bool
    unfit: bool


def run_of(slot: SlotView) -> Run | None:
    """The run that can be asked; None unless the slot runs, and ports and certificate are known."""
    return _run(slot) if slot.state == "running" else None


def last_run(slot: SlotView, verified: Verified | None) -> Run | None:
    """Where the slot's last requests are in flight; also of a run that Slurm is ending."""
    if slot.state not in {"running", "ending"}:
        return None
    return _run(slot) or (verified.run if verified is not None else None)


def _run(slot: SlotView) -> Run | None:
    if len(slot.ports) < _HTTP_AND_GRPC or not slot.address or not slot.certificate:
        return None
    endpoint = Endpoint(slot.address, slot.ports[0], slot.ports[1], slot.certificate)
    return Run(slot.job_id or 0, slot.start_s or 0, endpoint)


def down_run(
    seen: SlotView, slot: Slot, run: Run | None, before: Down | None, now_s: float
) -> Down | None:
    """What is wrong with the slot's run now; one that comes up again in time is forgotten.

    One whose ports are not known (its step does not start) holds a slice as well.
    """
    if seen.state not in {"starting", "running"}:
        return None
    run = run or Run(seen.job_id or 0, seen.start_s or 0, _NOWHERE)
    starts = slot.phase is Phase.STARTING
    down = (
        before
        if before is not None and before.run == run
        else Down(run, now_s, starts, unfit=False)
    )
    if down.unfit:
        return down
    fails = slot.phase in {Phase.SERVING, Phase.DRAINING} and not slot.up
    if not (starts or fails):
        return None
    since_s = down.since_s if down.starts == starts else now_s
    longest_s = START_DEADLINE_S if starts else UNHEALTHY_S
    return Down(run, since_s, starts, unfit=now_s - since_s >= longest_s)


def unfit(down: Mapping[int, Down]) -> frozenset[int]:
    """Slots to give back."""
    return frozenset(index for index, found in down.items() if found.unfit)
