"""Implements ``Site`` on a real cluster: slurmctld, the files on its host, and the node by root's
jobs.
"""

import asyncio
import os
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.language.gpus.inventory import Gpu, Inventory
from slicewise.cluster.language.gpus.inventory_json import gpu_of
from slicewise.cluster.language.gpus.placement_text import placements_text
from slicewise.cluster.language.gpus.repartitions import (
    Direction,
    Repartition,
)
from slicewise.cluster.language.jobs import JobState, JobView, NodeView, RunOfJob
from slicewise.cluster.language.slurm.interface import Slurm, target_of
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.messages import EvictRequest
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.settings.read import devices_directory
from slicewise.cluster.slurm import maintenance, node_command
from slicewise.slurm_plugin.repartition.survey import probe
from slicewise.slurm_plugin.rules.common.qos_names import is_borrowed
from slicewise.slurm_plugin.rules.mig.gpu_state import holder_name
from slicewise.slurm_plugin.rules.slurm_config import gres as slurm_gres
from slicewise.slurm_plugin.rules.slurm_config import node_lines
from slicewise.slurm_plugin.rules.slurm_config.gres import Device

_PROBE_S, _CUT_S = 60.0, 180.0
_NO_REQUEUE = ("Requested operation is presently disabled", "Only batch jobs are accepted")
"""What Slurm says of a job with ``--no-requeue``, and of one of srun or salloc."""


class ClusterSite:
    """The real cluster. Must run as root on slurmctld's host."""

    def __init__(self, settings: Settings, slurm: Slurm, daemon: DaemonClient) -> None:
        self._repartition, self._slurm, self._daemon = settings.repartition, slurm, daemon
        self._types = slurm_gres.types_by_kind(settings.boards_by_type, settings.whole_types)

    async def reserve(self, name: str, node: str, minutes: int) -> None:
        """Reserve the node; for details of all methods see ``Site``."""
        await maintenance.reserve(name, node, minutes)

    async def release(self, name: str) -> None:
        """End the reservation."""
        await maintenance.release(name)

    async def drain(self, node: str, reason: str) -> None:
        """Drain the node."""
        await maintenance.drain(node, reason)

    async def undrain(self, node: str, reasons: tuple[str, ...]) -> None:
        """Lift a drain with such a reason."""
        await maintenance.undrain(node, reasons)

    async def node(self, name: str) -> NodeView | None:
        """The node as slurmctld has it."""
        return next((node for node in await self._slurm.nodes() if node.name == name), None)

    async def holders(self, node: str, indices: Collection[int]) -> frozenset[RunOfJob]:
        """Runs on these devices; a completing job counts with all, since Slurm no longer says which
        it holds.
        """
        here = [job for job in await self._slurm.jobs() if node in job.nodes]
        devices = await self._slurm.devices(here)
        return frozenset(
            (job.job_id, job.start_s)
            for job in here
            if devices[job.job_id].get(node, frozenset()) & set(indices) or _may_hold_some(job)
        )

    async def leave(self, runs: frozenset[RunOfJob], why: str) -> None:
        """Tell replicas to move; a daemon that does not answer now is told the next time."""
        with suppress(SlicewiseError):
            await self._daemon.ask(EvictRequest(runs=tuple(runs), why=why))

    async def end_loans(self, runs: frozenset[RunOfJob], names: Collection[str]) -> None:
        """Requeue those of these runs; cancel what may not be requeued, as preemption does.

        Components of heterogeneous jobs run on: with one of them all others would end, too. What
        Slurm refuses otherwise is tried again with the next call.
        """
        meant = {
            (job.job_id, job.start_s): target_of(job)
            for job in await self._slurm.jobs()
            if (job.job_id, job.start_s) in runs and holder_name(job) in names
            if job.state is JobState.RUNNING and is_borrowed(job.qos) and not job.het_job_id
        }
        with suppress(SlicewiseError):
            done = await self._slurm.requeue(meant)
            for run, words in done.refused.items():
                if any(word in words for word in _NO_REQUEUE):
                    await self._slurm.cancel(meant[run])

    async def inventory(self, node: str, reservation: str) -> Inventory:
        """The node's GPUs, by its driver."""
        return await probe(self._repartition, node, reservation, _PROBE_S)

    async def cut(self, repartition: Repartition, direction: Direction) -> Gpu:
        """Cut the GPU on the node."""
        planned = repartition
        before, after = map(placements_text, repartition.layouts(direction))
        command = ("slicewise", "node", "cut", planned.gpu, "--old", before, "--new", after)
        argv = (*self._repartition.on_node, *command)
        return gpu_of(
            await node_command.run_on(planned.node, repartition.reservation, argv, _CUT_S)
        )

    def devices(self, node: str, inventory: Inventory) -> tuple[Device, ...]:
        """The devices that Slurm should be told about."""
        return slurm_gres.devices(inventory, self._types, devices_directory(node))

    def texts(self) -> tuple[str, str]:
        """The texts of slurm.conf and gres.conf."""
        paths = self._repartition.slurm_conf, self._repartition.gres_conf
        slurm_conf, gres_conf = (path.read_text(encoding="utf-8") for path in paths)
        return slurm_conf, gres_conf

    def write(self, node: str, vendor: str, found: Sequence[Device | None]) -> None:
        """Write both files, or neither if one of them can't hold the devices."""
        slurm_conf, gres_conf = self.texts()
        devices = node_lines.padded(found, vendor, devices_directory(node))
        lines, gres = slurm_gres.gres_conf(node, devices), slurm_gres.node_gres(devices)
        gres_conf = node_lines.with_node_lines(gres_conf, node, lines)
        slurm_conf = node_lines.with_node_gres(slurm_conf, node, gres)
        _write(self._repartition.gres_conf, gres_conf)
        _write(self._repartition.slurm_conf, slurm_conf)

    def put_back(self, repartition: Repartition) -> None:
        """Put both files back; each one's text is saved beside it first."""
        for path, kept in self._kept(repartition):
            now, told = path.read_text(encoding="utf-8"), _told(path, repartition)
            if not told.exists():
                _write(path, now, told)
            _write(path, node_lines.as_kept(now, kept, repartition.node))

    def put_told(self, repartition: Repartition) -> None:
        """Undo ``put_back`` for each file by itself."""
        for path, kept in self._kept(repartition):
            now, told = path.read_text(encoding="utf-8"), _told(path, repartition)
            if told.exists() and node_lines.as_kept(now, kept, repartition.node) == now:
                text = told.read_text(encoding="utf-8")
                _write(path, node_lines.as_kept(now, text, repartition.node))
        self.forget_told(repartition)

    def forget_told(self, repartition: Repartition) -> None:
        """Remove the saved texts of both files."""
        for path, _ in self._kept(repartition):
            _told(path, repartition).unlink(missing_ok=True)

    def _kept(self, repartition: Repartition) -> tuple[tuple[Path, str], ...]:
        """Both files' paths and kept texts; () before Slurm was told."""
        if repartition.slurm_conf is None or repartition.gres_conf is None:
            return ()
        return (
            (self._repartition.slurm_conf, repartition.slurm_conf),
            (self._repartition.gres_conf, repartition.gres_conf),
        )

    async def restart_node(self, node: str, reservation: str) -> None:
        """Run the site's command on the node."""
        await maintenance.restart_node(node, reservation, self._repartition.restart_slurmd)

    async def restart_controller(self, node: str) -> None:
        """Run the site's command, or reconfigure."""
        version = await self._slurm.version()
        await maintenance.restart_controller(self._repartition.restart_slurmctld, version, node)

    async def wait(self, seconds: float) -> None:
        """Sleep."""
        await asyncio.sleep(seconds)

    def now_s(self) -> float:
        """Seconds of the monotonic clock."""
        return time.monotonic()


def _may_hold_some(job: JobView) -> bool:
    """Whether a completing job may still hold devices.

    Its processes live until it has completed, but Slurm frees its devices before.
    """
    return job.state is JobState.COMPLETING and bool(job.gpus)


def _told(path: Path, repartition: Repartition) -> Path:
    target = path.resolve()
    return target.with_name(f".{target.name}.slicewise-{repartition.repartition_id}")


def _write(path: Path, text: str, beside: Path | None = None) -> None:
    """Write the whole text or nothing, even if the power fails; with mode and owner of ``path``."""
    target = path.resolve()
    was = target.stat()
    target = beside or target
    draft = target.with_name(f".{target.name}.slicewise")
    draft.unlink(missing_ok=True)
    with draft.open("x", encoding="utf-8") as file:
        os.fchown(file.fileno(), was.st_uid, was.st_gid)
        os.fchmod(file.fileno(), was.st_mode & 0o7777)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(target)
