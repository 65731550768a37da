"""What a re-cut needs of the world: Slurm, its files, the node, the journal."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from cluster.jobs import NodeView
from cluster.mig.inventory import Gpu, Inventory
from slurm_plugin.decide.mig.recut_steps import Direction, Next, Outcome, Recut, State
from slurm_plugin.decide.slurm_gres import Device


class Site(Protocol):
    """Slurm, its files and the node, as a re-cut needs them."""

    async def reserve(self, name: str, node: str, minutes: int) -> None:
        """Nothing starts on the node for so long from now."""
        ...

    async def release(self, name: str) -> None:
        """End the reservation; nothing if there is none."""
        ...

    async def drain(self, node: str, reason: str) -> None:
        """Until ``undrain``, or until somebody resumes it."""
        ...

    async def undrain(self, node: str, reasons: tuple[str, ...]) -> None:
        """Only if the reason of its drain begins with one of these."""
        ...

    async def node(self, name: str) -> NodeView | None:
        """As slurmctld has it; None if it has none of that name."""
        ...

    async def holders(self, node: str, indices: Collection[int]) -> frozenset[int]:
        """Ids of the jobs that have any of these devices of the node, or may while they end."""
        ...

    async def leave(self, job_ids: frozenset[int], why: str) -> None:
        """Tell those that are replicas to go elsewhere; it must be said again every few seconds."""
        ...

    async def inventory(self, node: str, reservation: str) -> Inventory:
        """By its driver, now."""
        ...

    async def cut(self, recut: Recut, direction: Direction) -> Gpu:
        """On the node, nothing if it is cut so already; the GPU as it then is."""
        ...

    def devices(self, node: str, inventory: Inventory) -> tuple[Device, ...]:
        """What Slurm should be told of."""
        ...

    def texts(self) -> tuple[str, str]:
        """slurm.conf and gres.conf now."""
        ...

    def write(self, node: str, found: Sequence[Device | None]) -> None:
        """The node's devices into both files."""
        ...

    def put_back(self, recut: Recut) -> None:
        """The node's lines in both files as the re-cut has kept them; Slurm is not told.

        What the files had instead lies beside them.
        """
        ...

    def put_told(self, recut: Recut) -> None:
        """Undo ``put_back``, unless somebody has changed the node's lines since."""
        ...

    def forget_told(self, recut: Recut) -> None:
        """Remove what ``put_back`` has laid beside the files."""
        ...

    async def restart_node(self, node: str, reservation: str) -> None:
        """Until slurmd is there again, with both files read. slurmctld takes it for invalid then,
        until it has read them, too.
        """
        ...

    async def restart_controller(self, node: str) -> None:
        """Until it answers again, with both files read and that node registered."""
        ...

    async def wait(self, seconds: float) -> None:
        """And no longer."""
        ...

    def now_s(self) -> float:
        """By a clock that is never set."""
        ...


class Journal(Protocol):
    """What is on disk of re-cuts, as ``ledger.recuts`` has it. Synchronous; called in threads."""

    def begin_step(self, recut_id: int, step: Next) -> int:
        """The record's id."""
        ...

    def end_step(self, record_id: int, outcome: Outcome, words: str) -> None:
        """Done or failed."""
        ...

    def keep_texts(self, recut_id: int, slurm_conf: str, gres_conf: str) -> Recut:
        """The first texts stay."""
        ...

    def finish(self, recut_id: int, state: State, error: str) -> None:
        """Its new state."""
        ...

    def find(self, recut_id: int) -> Recut:
        """As it is now."""
        ...

    def save_inventory(self, node: str, inventory: Mapping[str, Any]) -> None:
        """The last look at a node."""
        ...
