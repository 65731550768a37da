"""Take Slicewise out of Slurm: put every setting back, remove its QOS, forget them."""

import asyncio
import fcntl
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.errors import OutsideError, SlicewiseError
from cluster.jobs import JobState, NodeView
from cluster.settings import Settings
from cluster.slurm.interface import Slurm
from slurm_plugin.decide.drift import (
    Known,
    opened_gate,
    our_qos,
    remember_way_back,
    way_back,
)
from slurm_plugin.decide.limit_changes import Change, removal, stages_back
from slurm_plugin.decide.limits import (
    Difference,
    Found,
    found_of,
)
from slurm_plugin.decide.mig.node_weights import own_weights
from slurm_plugin.decide.policy import LimitKey
from slurm_plugin.decide.qos_names import GATE_QOS, is_ours

if TYPE_CHECKING:
    from slurm_plugin.ledger.store import Ledger


_ROUNDS = 8
_SHOWN_JOBS = 10


@dataclass(frozen=True)
class WayBack:
    """What is still to be undone, in this order, and what has to wait.

    Attributes:
        gate: what opens it.
        settings: accounts and users; qos: what is removed when those are done.
        weights: of nodes.
        waits: what keeps QOS in Slurm, one sentence each.
    """

    found: Found
    known: Known = field(hash=False)
    gate: tuple[Difference, ...]
    settings: tuple[Difference, ...]
    qos: tuple[Difference, ...]
    weights: tuple[Difference, ...]
    waits: tuple[str, ...]


@dataclass(frozen=True)
class Undone:
    """What was undone.

    Attributes:
        changes: the sacctmgr commands that Slurm took.
        waits: what keeps QOS in Slurm, one sentence each.
    """

    changes: tuple[Change, ...]
    waits: tuple[str, ...]


@contextmanager
def no_daemon(run_dir: Path) -> Iterator[None]:
    """Keep daemons from starting there; raises SlicewiseError (SW-DAEMON-RUNNING) if one runs.

    The lock is the daemon's own and its file is not made here: it belongs to SlurmUser.
    """
    try:
        file = (run_dir / "daemon.lock").open("rb")
    except FileNotFoundError:
        yield
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SlicewiseError(
                "SW-DAEMON-RUNNING",
                f"A daemon runs in {run_dir}; it would set all limits again.",
                "Stop it first: systemctl stop slicewise-daemon",
            ) from None
        yield


async def plan(slurm: Slurm, ledger: "Ledger", settings: Settings) -> WayBack:
    """What ``uninstall`` would do."""
    associations, qos, elsewhere, config, jobs, partitions = await asyncio.gather(
        slurm.associations(),
        slurm.qos(),
        slurm.qos_elsewhere(),
        slurm.config(),
        slurm.jobs(),
        slurm.partitions(),
    )
    known = await asyncio.to_thread(ledger.limits.known)
    found = found_of(settings.cluster.name, associations, qos, config)
    busy = {job.job_id: job.qos for job in jobs if is_ours(job.qos) and job.state != JobState.ENDED}
    gated = [view.name for view in partitions if view.qos == GATE_QOS]
    # QOS belong to slurmdbd, and no list says which other cluster has the gate.
    is_shared = any(map(is_ours, elsewhere))
    is_kept = gated or is_shared
    listed = frozenset(busy.values())
    return WayBack(
        found=found,
        known=known,
        gate=() if is_shared else opened_gate(found),
        settings=way_back(known, found, listed),
        qos=our_qos(known, found, listed | elsewhere | ({GATE_QOS} if is_kept else frozenset())),
        weights=tuple(_weights_back(await slurm.nodes())),
        waits=tuple(_waits(sorted(busy), gated, is_shared=is_shared)),
    )


async def uninstall(slurm: Slurm, ledger: "Ledger", settings: Settings) -> Undone:
    """Open the gate, put back what there was, remove the QOS; nodes get their weights back beside.

    Jobs in our QOS go on, within its limits; a QOS stays as long as there are some, and the gate as
    long as a partition has it, without which slurmctld would end: run it again then. The ledger
    keeps its tenants, quotas and charges.

    To be killed at any point and run again: what the settings were before is forgotten last. Raises
    OutsideError if Slurm refuses changes (SW-SLURM-FAILED; what it does not refuse is made), or
    does not take them (SW-LIMITS-UNSETTLED).
    """
    applied: tuple[Change, ...] = ()
    for _ in range(_ROUNDS):
        due = await plan(slurm, ledger, settings)
        await asyncio.to_thread(
            ledger.limits.know,
            remember_way_back((*due.gate, *due.settings) or due.qos, due.known),
        )
        if due.weights:
            await slurm.weigh_nodes({one.key.name: int(one.wanted) for one in due.weights})
        if due.gate or due.settings:
            stages = stages_back(due.gate or due.settings, due.found)
        elif due.qos:
            stages = ((removal(one.key.name for one in due.qos),),)
        else:
            if not due.waits:
                await asyncio.to_thread(ledger.limits.forget)
            return Undone(applied, due.waits)
        refused: dict[Change, str] = {}
        for stage in stages:
            refused |= await slurm.sacctmgr(stage)
            applied += tuple(change for change in stage if change not in refused)
        for change, words in refused.items():
            raise OutsideError(
                "SW-SLURM-FAILED",
                f"Slurm refused {len(refused)} changes, the first of them:"
                f" sacctmgr {' '.join(change)}: {words}",
                "All others were made. Run that by hand to see why, then uninstall again.",
            )
    raise OutsideError(
        "SW-LIMITS-UNSETTLED",
        f"Slurm did not take all of {len(applied)} changes, the last of them: "
        f"sacctmgr {' '.join(applied[-1])}.",
        "Run that by hand to see why, then uninstall again.",
    )


def _weights_back(nodes: Iterable[NodeView]) -> Iterator[Difference]:
    own = own_weights(nodes)
    for node in nodes:
        if node.name in own:
            key = LimitKey("node", node.name, "weight")
            yield Difference(key, str(node.weight), str(own[node.name]), "as it was before")


def _waits(busy: Sequence[int], gated: Iterable[str], *, is_shared: bool) -> Iterator[str]:
    if busy:
        shown = ", ".join(map(str, busy[:_SHOWN_JOBS])) + (", ..." if busy[_SHOWN_JOBS:] else "")
        yield (
            f"{len(busy)} jobs run or wait in Slicewise's QOS, and go on: {shown}. These QOS stay "
            "as long as they do: uninstall again then."
        )
    gate = "stays closed for another cluster of this slurmdbd" if is_shared else "is open now"
    for name in gated:
        yield (
            f"Partition {name} has QOS={GATE_QOS}, which {gate}: take it out of slurm.conf, "
            "scontrol reconfigure, then uninstall again. Without that QOS slurmctld would end."
        )
