"""The work of each step of a repartition. A step may be repeated: it finds what an earlier try
left.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import (
    InvalidInputError,
    OutsideError,
    SlicewiseError,
    UnreachableError,
)
from slicewise.cluster.language.gpus.inventory import Inventory
from slicewise.cluster.language.gpus.placement_text import placements_text
from slicewise.cluster.language.gpus.repartitions import (
    Direction,
    Repartition,
    RepartitionStep,
)
from slicewise.cluster.language.jobs import NodeView, RunOfJob
from slicewise.slurm_plugin.repartition.ports import Journal, RepartitionPort
from slicewise.slurm_plugin.rules.mig import node_checks
from slicewise.slurm_plugin.rules.mig.repartition_steps import (
    POLL_S,
    Next,
)
from slicewise.slurm_plugin.rules.slurm_config.node_lines import node_positions, positions

_RESERVED_MIN = 10
_CUT_MIN = 60
"""Minutes of the reservation from the cut on: while Slurm does not know the new cut, nothing may
start there."""
_PROLONGED_S = 120.0
_VERIFY_S = 30.0
_DRAINED_BY_SLURM = ("gres/gpu ",)
"""Beginning of a drain's reason where slurmd and slurmctld had different GPUs for a moment."""


@dataclass
class RepartitionActions:
    """The steps of a repartition on a site.

    Attributes:
        move_s: seconds to wait for jobs that hold what is destroyed.
        is_ours: whether this process still has the lock of repartitioning.
    """

    site: RepartitionPort
    journal: Journal
    move_s: float
    is_ours: Callable[[], bool]
    _last: tuple[int, Inventory] | None = None
    """The repartition's id and what this process has seen for it: no other process changes a GPU
    meanwhile."""
    _made_valid: set[int] = field(default_factory=set)
    """Ids of repartitions for which this process has restarted slurmctld, since the node was
    INVALID.
    """

    async def do(self, repartition: Repartition, due: Next) -> str:
        """Do that step; return what was done, in words.

        Raises SlicewiseError if it failed, and OSError if a file could not be written.
        """
        steps = {
            RepartitionStep.RESERVE: self._reserve,
            RepartitionStep.MOVE: self._move,
            RepartitionStep.CUT: self._cut,
            RepartitionStep.TELL: self._tell,
            RepartitionStep.VERIFY: self._verify,
            RepartitionStep.RESUME: self._resume,
        }
        return await steps[due.step](repartition, due.direction)

    async def _reserve(self, repartition: Repartition, direction: Direction) -> str:
        """Reserve the node, and check that the plan is still possible before any replica moves."""
        planned = repartition
        if _has_begun(repartition, RepartitionStep.CUT):
            await self._ready(repartition)
            return f"{repartition.reservation} holds {planned.node}"
        await self._prolong(repartition, _RESERVED_MIN)
        if direction is Direction.FORWARD:
            await self._check(repartition)
        return f"{repartition.reservation} holds {planned.node}"

    async def _ready(self, repartition: Repartition) -> None:
        """Ensure that nothing starts on the node but root's own jobs.

        A slurmd that was restarted without slurmctld has other GPUs than slurmctld knows. If the
        files were put back because the repartition was stuck, they get again what Slurm has read.
        """
        name = repartition.node
        self.site.put_told(repartition)
        await self._prolong(repartition, _CUT_MIN)
        node = await self.site.node(name)
        is_invalid = node is not None and node_checks.is_invalid(node)
        if is_invalid and repartition.repartition_id not in self._made_valid:
            # Only once: a node that is INVALID after that stays so.
            self._made_valid.add(repartition.repartition_id)
            await self.site.restart_controller(name)
        await self.site.undrain(name, (repartition.drain_reason, *_DRAINED_BY_SLURM))

    async def _check(self, repartition: Repartition) -> None:
        planned = repartition
        in_use = await self._held(planned.node)
        inventory = await self._probe(repartition)
        layout = node_checks.layout_of(inventory, planned.gpu)
        if layout != planned.before:
            raise OutsideError(
                Code.MIG_CHANGED,
                f"{planned.gpu} is cut as {placements_text(layout) or 'nothing'}, the plan was"
                f" made for {placements_text(planned.before) or 'nothing'}.",
                "The next run makes a new plan.",
            )
        before = node_positions(*self.site.texts(), planned.node)
        after = node_checks.with_layout(inventory, planned.gpu, planned.after)
        staying = in_use - self._going(repartition, inventory, Direction.FORWARD)
        positions(before, self.site.devices(planned.node, after), staying)

    async def _move(self, repartition: Repartition, _direction: Direction) -> str:
        """Wait until no job holds what is destroyed; replicas are told to move, jobs on loan that
        the plan names end, other jobs are waited for.
        """
        name = repartition.node
        going = self._going(repartition, await self._look(repartition), Direction.FORWARD)
        began_s = prolonged_s = self.site.now_s()
        told = frozenset[RunOfJob]()
        while (runs := await self._in_the_way(name, going)) is not None:
            now_s = self.site.now_s()
            if now_s - began_s >= self.move_s:
                raise _busy(name, runs, self.move_s)
            told |= runs
            if runs and (names := repartition.ends):
                with suppress(SlicewiseError):
                    await self.site.end_loans(runs, names)
            if runs:
                await self.site.leave(
                    runs,
                    f"a GPU of {name} is being repartitioned:"
                    f" repartition {repartition.repartition_id}",
                )
            if now_s - prolonged_s >= _PROLONGED_S:
                await self._prolong(repartition, _RESERVED_MIN)
                prolonged_s = now_s
            await self.site.wait(POLL_S)
            await self._stay()
        return f"left: jobs {_listed(told)}" if told else "no job held any of it"

    async def _in_the_way(self, name: str, going: frozenset[int]) -> frozenset[RunOfJob] | None:
        """Runs that hold what is destroyed, if Slurm names them; None if no job holds it.

        Slurm frees a job's devices as soon as it ends, before its processes have ended, so
        completing jobs count, too. A Slurm that does not answer for a while is no reason to turn
        back.
        """
        if not going:
            return None
        try:
            held = await self._held(name) & going
            runs = await self.site.holders(name, going)
        except UnreachableError:
            return frozenset()
        return runs if held or runs else None

    async def _cut(self, repartition: Repartition, direction: Direction) -> str:
        await self._ready(repartition)
        held = await self._held(repartition.node)
        inventory = await self._look(repartition)
        with suppress(InvalidInputError):
            # If only one of the files was written, Slurm has not read them, so no job has a new
            # device.
            if held & self._going(repartition, inventory, direction):
                raise _started(repartition.node)
        gpu = await self.site.cut(repartition, direction)
        await self._see(repartition, node_checks.with_gpu(inventory, gpu))
        return node_checks.change_text(*repartition.layouts(direction))

    async def _tell(self, repartition: Repartition, _direction: Direction) -> str:
        """Write the files and restart slurmd and slurmctld.

        What is written derives from the files as they were before, so every try tells the same.
        """
        name = repartition.node
        await self._ready(repartition)
        inventory = await self._look(repartition)
        kept = await asyncio.to_thread(
            self.journal.keep_texts, repartition.repartition_id, *self.site.texts()
        )
        before = node_positions(kept.slurm_conf or "", kept.gres_conf or "", name)
        held = await self._held(name)
        after = positions(before, self.site.devices(name, inventory), held)
        self.site.write(name, inventory.vendor, after)
        await self.site.restart_node(name, repartition.reservation)
        await self.site.restart_controller(name)
        await self.site.undrain(name, _DRAINED_BY_SLURM)
        return f"{name} and slurmctld have read the new lines"

    async def _verify(self, repartition: Repartition, direction: Direction) -> str:
        """Check slurmctld's node and the driver; a node just registered may need a moment."""
        node, (_, target) = repartition.node, repartition.layouts(direction)
        await self._ready(repartition)
        wanted = node_positions(*self.site.texts(), node)
        until_s = self.site.now_s() + _VERIFY_S
        while words := list(node_checks.differences(await self.site.node(node), wanted)):
            if self.site.now_s() >= until_s:
                raise _wrong(node, "; ".join(words))
            await self.site.wait(POLL_S)
        layout = node_checks.layout_of(await self._probe(repartition), repartition.gpu)
        if layout != target:
            raise _wrong(node, f"the GPU is cut as {placements_text(layout) or 'nothing'}")
        return f"{repartition.gpu} is cut as {placements_text(target) or 'nothing'}"

    async def _resume(self, repartition: Repartition, _direction: Direction) -> str:
        await self.site.release(repartition.reservation)
        return f"{repartition.node} takes jobs"

    def _going(
        self, repartition: Repartition, inventory: Inventory, direction: Direction
    ) -> frozenset[int]:
        """Slurm's indices of the instances that are destroyed in that direction."""
        planned, (old, new) = repartition, repartition.layouts(direction)
        gone = set(old) - set(new)
        alone = node_checks.only(inventory, planned.gpu, gone)
        current = node_positions(*self.site.texts(), planned.node)
        return node_checks.indices_of(current, self.site.devices(planned.node, alone))

    async def _held(self, name: str) -> frozenset[int]:
        """Slurm's indices that jobs hold; wait, since a restarted Slurm does not know them yet."""
        until_s = self.site.now_s() + _VERIFY_S
        while not node_checks.are_indices_known(node := await self._node(name)):
            if self.site.now_s() >= until_s:
                raise _wrong(name, "Slurm does not say which of its GPUs jobs hold")
            await self.site.wait(POLL_S)
        return node.gpus_held

    async def _node(self, name: str) -> NodeView:
        node = await self.site.node(name)
        if node is None or (words := node_checks.unfit(node)):
            raise OutsideError(
                Code.REPARTITION_NODE,
                f"Nothing can be done on {name}: {words if node else 'Slurm has no such node'}.",
                "See: scontrol show node, and the log of its slurmd.",
            )
        return node

    async def _look(self, repartition: Repartition) -> Inventory:
        if self._last is not None and self._last[0] == repartition.repartition_id:
            return self._last[1]
        return await self._probe(repartition)

    async def _probe(self, repartition: Repartition) -> Inventory:
        inventory = await self.site.inventory(repartition.node, repartition.reservation)
        await self._see(repartition, inventory)
        return inventory

    async def _see(self, repartition: Repartition, inventory: Inventory) -> None:
        """Remember the inventory, and save it as the journal's last look."""
        self._last = repartition.repartition_id, inventory
        await asyncio.to_thread(self.journal.save_inventory, repartition.node, asdict(inventory))

    async def _prolong(self, repartition: Repartition, minutes: int) -> None:
        await self._stay()
        await self.site.reserve(repartition.reservation, repartition.node, minutes)

    async def _stay(self) -> None:
        try:
            ours = await asyncio.to_thread(self.is_ours)
        except SlicewiseError as error:
            raise LostLockError from error
        if not ours:
            raise LostLockError


class LostLockError(Exception):
    """Another process repartitions now; this one leaves everything as it is."""


def _has_begun(repartition: Repartition, step: RepartitionStep) -> bool:
    return any(record.step is step for record in repartition.steps)


def _busy(node: str, runs: frozenset[RunOfJob], waited_s: float) -> UnreachableError:
    who = f"jobs {_listed(runs)}" if runs else "jobs that Slurm does not name"
    return UnreachableError(
        Code.REPARTITION_HELD,
        f"After {waited_s:g} s {who} still hold instances on {node} that must go.",
        "A longer repartition.move_s waits longer; the next run makes a new plan.",
    )


def _started(node: str) -> UnreachableError:
    return UnreachableError(
        Code.REPARTITION_HELD,
        f"A job on {node} holds instances that must go: it started after a reservation had ended.",
        "The next run tries again: slicewise repartition run",
    )


def _wrong(node: str, words: str) -> OutsideError:
    return OutsideError(
        Code.REPARTITION_NODE,
        f"{node} is not what it should be: {words}.",
        "See: scontrol show node, and the log of its slurmd.",
    )


def _listed(runs: frozenset[RunOfJob]) -> str:
    return ", ".join(map(str, sorted({job_id for job_id, _ in runs})))
