"""Interfaces that a repartition needs: Slurm, its files, the node, the journal."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from slicewise.cluster.language.gpus.inventory import Gpu, Inventory
from slicewise.cluster.language.gpus.repartitions import (
    Direction,
    Repartition,
    RepartitionState,
    RepartitionStepOutcome,
)
from slicewise.cluster.language.jobs import NodeView, RunOfJob
from slicewise.slurm_plugin.rules.mig.repartition_steps import (
    Next,
)
from slicewise.slurm_plugin.rules.slurm_config.gres import Device


class RepartitionPort(Protocol):
    """Slurm, its files and the node, as a repartition needs them."""

    async def reserve(self, name: str, node: str, minutes: int) -> None:
        """Reserve the node, so that nothing starts there for ``minutes`` from now."""
        ...

    async def release(self, name: str) -> None:
        """End the reservation; do nothing if there is none."""
        ...

    async def drain(self, node: str, reason: str) -> None:
        """Drain the node, until ``undrain`` or until an operator resumes it."""
        ...

    async def undrain(self, node: str, reasons: tuple[str, ...]) -> None:
        """Lift the node's drain, if its reason begins with one of these."""
        ...

    async def node(self, name: str) -> NodeView | None:
        """The node as slurmctld has it; None if slurmctld has none of that name."""
        ...

    async def holders(self, node: str, indices: Collection[int]) -> frozenset[RunOfJob]:
        """The runs of jobs that hold any of these devices of the node, or may while they end."""
        ...

    async def leave(self, runs: frozenset[RunOfJob], why: str) -> None:
        """Tell those runs that are replicas to move; must be repeated every few seconds."""
        ...

    async def end_loans(self, runs: frozenset[RunOfJob], names: Collection[str]) -> None:
        """End those of these runs on loan whose jobs have one of these names, as Slurm preempts.

        May be repeated.
        """
        ...

    async def inventory(self, node: str, reservation: str) -> Inventory:
        """The node's GPUs, as its driver shows them now."""
        ...

    async def cut(self, repartition: Repartition, direction: Direction) -> Gpu:
        """Cut the GPU on the node, unless it is cut so already; return the GPU as it is then."""
        ...

    def devices(self, node: str, inventory: Inventory) -> tuple[Device, ...]:
        """The devices that Slurm should be told about."""
        ...

    def texts(self) -> tuple[str, str]:
        """The texts of slurm.conf and gres.conf now."""
        ...

    def write(self, node: str, vendor: str, devices: Sequence[Device | None]) -> None:
        """Write the node's devices into both files; ``vendor`` is that of its GPUs."""
        ...

    def put_back(self, repartition: Repartition) -> None:
        """Put the node's lines in both files back as the repartition has kept them; Slurm is not
        told.

        The text that each file had instead is kept beside it.
        """
        ...

    def put_told(self, repartition: Repartition) -> None:
        """Undo ``put_back``, unless the node's lines were changed since."""
        ...

    def forget_told(self, repartition: Repartition) -> None:
        """Remove the texts that ``put_back`` has kept beside the files."""
        ...

    async def restart_node(self, node: str, reservation: str) -> None:
        """Restart slurmd and wait until it is back and has read both files.

        Until slurmctld has read them, too, it takes the node for invalid.
        """
        ...

    async def restart_controller(self, node: str) -> None:
        """Restart slurmctld and wait until it answers, has read both files and the node is
        registered.
        """
        ...

    async def wait(self, seconds: float) -> None:
        """Wait for this number of seconds."""
        ...

    def now_s(self) -> float:
        """Seconds of a clock that is never set."""
        ...


class Journal(Protocol):
    """The journal of repartitions on disk, as in ``ledger.repartitions``. Synchronous; called in
    threads.
    """

    def begin_step(self, repartition_id: int, step: Next) -> int:
        """Record that a step begins; return the record's id."""
        ...

    def end_step(self, record_id: int, outcome: RepartitionStepOutcome, words: str) -> None:
        """Record that a step is done or failed."""
        ...

    def keep_texts(self, repartition_id: int, slurm_conf: str, gres_conf: str) -> Repartition:
        """Keep both files' texts, unless texts are kept already."""
        ...

    def finish(self, repartition_id: int, state: RepartitionState, error: str) -> None:
        """Record the repartition's new state."""
        ...

    def find(self, repartition_id: int) -> Repartition:
        """The repartition as the journal has it now."""
        ...

    def save_inventory(self, node: str, inventory: Mapping[str, Any]) -> None:
        """Save the last look at a node."""
        ...
