"""Runs of a slot's replica: where they listen, whether they are ours, whether they are fit."""

from collections.abc import Mapping
from dataclasses import dataclass

from slicewise.cluster.rpc.messages import SlotView
from slicewise.launcher.rules.gateway.types import Endpoint, Gateway, ServerMode
from slicewise.launcher.rules.turn.slots import Phase, Slot

UNHEALTHY_S = 60.0
"""Seconds of failed health checks after which a replica gives its slot back."""
REFUSED_S = 10.0
"""The same if nothing listens there any more, which no replica mends by itself: its door has died,
and Slurm has not noticed that its run is over."""
SHARE = 10
"""While more than half of the gateway's replicas fail their health checks, one in so many gives its
slot back in ``REFUSED_S``, and at least one does."""
SILENT_S = 3.0
"""Seconds of failed health checks, all without an answer in time, after which the requests that the
replica has in flight end with an error: it is stopped, or its node is gone."""
_NOWHERE = Endpoint("", 0, 0, "")


@dataclass(frozen=True)
class ReplicaRun:
    """One run of a slot's replica, and where it listens."""

    job_id: int
    start_s: int
    endpoint: Endpoint


@dataclass(frozen=True)
class Verified:
    """A run that was found to be ours and ready, and when."""

    run: ReplicaRun
    at_s: float


@dataclass(frozen=True)
class Down:
    """A run that fails its health checks while it gets requests, or is not ready yet.

    Attributes:
        since_s: when that was first seen, in Unix seconds.
        starts: whether it is not ready yet.
        unfit: whether that has lasted too long; its slot is given back, whatever it does now.
    """

    run: ReplicaRun
    since_s: float
    starts: bool
    unfit: bool


def run_of(slot: SlotView) -> ReplicaRun | None:
    """Return the run that can be asked; None unless it runs with known ports and certificate."""
    return _run(slot) if slot.state == "running" else None


def last_run(slot: SlotView, verified: Verified | None) -> ReplicaRun | None:
    """Return the run that has the slot's last requests in flight, also while Slurm is ending it."""
    if slot.state not in {"running", "ending"}:
        return None
    return _run(slot) or (verified.run if verified is not None else None)


def _run(slot: SlotView) -> ReplicaRun | None:
    if not slot.ports or not slot.address or not slot.certificate:
        return None
    http, *others = slot.ports
    grpc = others[0] if others else http
    endpoint = Endpoint(slot.address, http, grpc, slot.certificate)
    return ReplicaRun(slot.job_id or 0, slot.start_s or 0, endpoint)


def down_run(
    seen: SlotView,
    slot: Slot,
    run: ReplicaRun | None,
    before: Down | None,
    now_s: float,
    *,
    start_timeout_s: float,
    is_refused: bool = False,
) -> Down | None:
    """Return what is wrong with the slot's run now; a run that recovers in time is forgotten.

    A run with unknown ports (its step does not start) counts, too: it holds a slice.
    ``start_timeout_s`` counts from when this launcher (or the one that saved the state it has)
    first saw the replica not ready: whether it was ready before is not known. It does not count
    while its node boots, which Slurm bounds by ResumeTimeout. ``is_refused``: nothing listens where
    it was.
    """
    if seen.state not in {"starting", "running"} or seen.is_configuring:
        return None
    run = run or ReplicaRun(seen.job_id or 0, seen.start_s or 0, _NOWHERE)
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
    longest_s = start_timeout_s if starts else REFUSED_S if is_refused else UNHEALTHY_S
    return Down(run, since_s, starts, unfit=now_s - since_s >= longest_s)


def may_give_back(gateway: Gateway, lately: int) -> int:
    """Return how many replicas may give their slots back now since they fail health checks.

    Where most fail together, the way to them is broken rather than they are: all would load their
    models again, and be gone for minutes after a firewall's ten seconds. ``lately``: how many have
    done so in the last ``REFUSED_S``.
    """
    ups = [
        server.up
        for backend in gateway.backends.values()
        for server in backend.servers
        if server.mode is not ServerMode.MAINT
    ]
    if 2 * sum(ups) >= len(ups):
        return len(ups)
    return max(0, max(1, len(ups) // SHARE) - lately)


def unfit(down: Mapping[int, Down]) -> frozenset[int]:
    """Return the slots to give back."""
    return frozenset(index for index, mark in down.items() if mark.unfit)
