"""Reads what a node's boards have taken, and who holds them, by whichever vendor's driver answers.

NVIDIA's boards count their millijoules; from Hopper on the driver also says how busy each instance
was (GPM). Of other boards only the power is known.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from slicewise.cluster.gpu import driver, nvml
from slicewise.cluster.gpu.node_files import ROOT
from slicewise.cluster.gpu.nvml_energy import Activity, counter_mj
from slicewise.cluster.language.gpus.energy import MOST_MW, NOBODY, BoardHolding, BoardReading
from slicewise.cluster.language.gpus.inventory import Gpu, GpuProcess, Instance
from slicewise.cluster.language.gpus.mig_profiles import model_of
from slicewise.cluster.language.gpus.power import POWERS


class BoardMeter:
    """Reads boards again and again, while the driver is open."""

    def __init__(self, on: driver.Driver, root: Path) -> None:
        self._driver = on
        self._root = root
        self._activity = Activity() if on is nvml else None

    def read(self) -> tuple[BoardReading, ...]:
        """All boards that answer, as they are now.

        Raises what the driver's ``read_inventory`` raises.
        """
        if self._activity is None:
            return tuple(_reading(gpu) for gpu in self._driver.read_inventory(self._root).gpus)
        gpus = nvml.read_inventory(self._root, with_xids=False).gpus
        self._activity.look(gpus)
        return tuple(_reading(gpu, counter_mj(gpu), self._activity) for gpu in gpus)


def _reading(
    gpu: Gpu, taken_mj: int | None = None, activity: Activity | None = None
) -> BoardReading:
    model = gpu.board.model if gpu.board is not None else model_of(gpu.pci_device_id) or gpu.name
    power = POWERS.get(model)
    return BoardReading(
        uuid=gpu.uuid,
        model=model,
        counter_mj=taken_mj,
        power_mw=gpu.power_mw if (gpu.power_mw or 0) <= MOST_MW else None,
        idle_mw=None if power is None else round(power.idle_w * 1000),
        holdings=tuple(_holdings(gpu, activity)),
    )


def _holdings(gpu: Gpu, activity: Activity | None) -> Iterator[BoardHolding]:
    if gpu.holders:
        yield BoardHolding(1, _jobs(gpu.holders))
    for instance in gpu.instances:
        if instance.holders:
            busy = activity.ppm(gpu.uuid, instance.gi_id) if activity is not None else None
            yield BoardHolding(_slices(gpu, instance), _jobs(instance.holders), busy)


def _slices(gpu: Gpu, instance: Instance) -> int:
    on = gpu.board
    profile = on.profiles.get(instance.placement.profile) if on is not None else None
    return profile.compute_slices if profile is not None else instance.placement.size


def _jobs(holders: Sequence[GpuProcess]) -> tuple[int, ...]:
    return tuple(sorted({holder.job_id or NOBODY for holder in holders}))


@contextmanager
def opened(root: Path = ROOT) -> Iterator[BoardMeter]:
    """Keep the first driver that answers on this host open, to read its boards again and again.

    Raises as ``driver.opened``.
    """
    with driver.opened() as on:
        yield BoardMeter(on, root)
