"""Runs of a slot's replica: where they listen, and whether they are fit for requests."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cluster.wire import ServiceView, SlotView
from launcher.decide.slots import Phase, Slot

UNHEALTHY_S = 60.0
"""A replica whose health checks fail for this long gives its slot back."""


@dataclass(frozen=True)
class Run:
    """One run of a slot's replica, and where it listens."""

    job_id: int
    start_s: int
    address: str
    port: int


@dataclass(frozen=True)
class Down:
    """A run whose replica gets requests and fails its health checks.

    Attributes:
        unfit: it did for ``UNHEALTHY_S``; whatever it does now, its slot is given back.
    """

    run: Run
    since_s: float
    unfit: bool


def run_of(slot: SlotView) -> Run | None:
    """The run that can be asked; None unless the slot runs and its ports are known."""
    if slot.state != "running" or not slot.ports or not slot.address:
        return None
    return Run(slot.job_id or 0, slot.start_s or 0, slot.address, slot.ports[0])


def down_runs(
    view: ServiceView, slots: tuple[Slot, ...], known: Mapping[int, Down], now_s: float
) -> Mapping[int, Down]:
    """Those that fail their health checks now or are unfit, by slot index.

    A run that comes up again in time is forgotten.
    """
    found: dict[int, Down] = {}
    for seen, slot in zip(view.slots, slots, strict=True):
        run, before = run_of(seen), known.get(slot.index)
        if run is None:
            continue
        down = before if before is not None and before.run == run else Down(run, now_s, unfit=False)
        fails = slot.phase in {Phase.SERVING, Phase.DRAINING} and not slot.up
        if fails or down.unfit:
            long = now_s - down.since_s >= UNHEALTHY_S
            found[slot.index] = replace(down, unfit=down.unfit or long)
    return found


def unfit(down: Mapping[int, Down]) -> frozenset[int]:
    """Slots to give back."""
    return frozenset(index for index, found in down.items() if found.unfit)
