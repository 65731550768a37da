"""Take Slicewise out of Slurm: put every setting back, remove its QOS, forget them."""

import asyncio
import fcntl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.errors import OutsideError, SlicewiseError
from cluster.jobs import JobState, NodeView
from cluster.settings import Settings
from cluster.slurm.interface import Slurm
from slurm_plugin.compile import compile_turn, is_marked, is_uninstalled
from slurm_plugin.decide.drift import (
    Known,
    limits_by,
    opened_gate,
    our_qos,
    our_qos_by_name,
    remember_way_back,
    taken_out,
    way_back,
)
from slurm_plugin.decide.limit_changes import Change, Stage, removal, stages_back
from slurm_plugin.decide.limits import (
    NAME,
    TYPE,
    Difference,
    Found,
    found_of,
)
from slurm_plugin.decide.mig.node_weights import own_weights
from slurm_plugin.decide.policy import LimitKey
from slurm_plugin.decide.qos_names import GATE_QOS, is_ours, uninstalled_qos
from slurm_plugin.ledger_reads import books_now

if TYPE_CHECKING:
    from slurm_plugin.ledger.store import Ledger


_ROUNDS = 8
_SHOWN = 10


@dataclass(frozen=True)
class WayBack:
    """What is still to be undone, in this order, and what has to wait.

    Attributes:
        mark: what says in Slurm that it is taken out, where the ledger is away.
        gate: what opens it.
        settings: accounts and users; qos: what is removed when those are done.
        weights: of nodes.
        waits: what keeps something in Slurm, one sentence each.
    """

    found: Found
    known: Known = field(hash=False)
    mark: tuple[Difference, ...]
    gate: tuple[Difference, ...]
    settings: tuple[Difference, ...]
    qos: tuple[Difference, ...]
    weights: tuple[Difference, ...]
    waits: tuple[str, ...]

    @property
    def all(self) -> tuple[Difference, ...]:
        """What is to be undone."""
        return (*self.mark, *self.gate, *self.settings, *self.qos, *self.weights)


@dataclass(frozen=True)
class Undone:
    """What was undone.

    Attributes:
        changes: the sacctmgr commands that Slurm took.
        waits: what keeps something in Slurm, one sentence each.
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


async def plan(slurm: Slurm, ledger: "Ledger | None", settings: Settings) -> WayBack:
    """What ``uninstall`` would do; without a ``ledger`` by what stands in Slurm alone."""
    associations, qos, elsewhere, config, jobs, partitions = await asyncio.gather(
        slurm.associations(),
        slurm.qos(),
        slurm.qos_elsewhere(),
        slurm.config(),
        slurm.jobs(),
        slurm.partitions(),
    )
    known = await asyncio.to_thread(ledger.limits.known) if ledger else {}
    found = found_of(settings.cluster.name, associations, qos, config)
    busy = {job.job_id: job.qos for job in jobs if is_ours(job.qos) and job.state != JobState.ENDED}
    gated = [view.name for view in partitions if view.qos == GATE_QOS]
    # QOS belong to slurmdbd, and no list says which other cluster has the gate.
    is_shared = any(map(is_ours, elsewhere))
    is_kept = gated or is_shared
    listed = frozenset(busy.values())
    kept = listed | elsewhere | ({GATE_QOS} if is_kept else frozenset())
    return WayBack(
        found=found,
        known=known,
        mark=() if ledger else tuple(_mark(found)),
        gate=() if is_shared else opened_gate(found),
        settings=way_back(known, found, listed),
        qos=our_qos(known, found, kept) if ledger else our_qos_by_name(found, kept),
        weights=tuple(_weights_back(await slurm.nodes())),
        waits=(
            *_waits(sorted(busy), gated, is_shared=is_shared),
            *(() if ledger else _unknown(found)),
        ),
    )


async def has_begun(slurm: Slurm, ledger: "Ledger | None", settings: Settings) -> bool:
    """Whether Slicewise was taken out, and is not wanted again. Raises what both raise."""
    if ledger is not None and await asyncio.to_thread(ledger.limits.is_uninstalled):
        return True
    return is_marked(await slurm.qos(), settings)


async def uninstall(slurm: Slurm, ledger: "Ledger | None", settings: Settings) -> Undone:
    """Take Slicewise out of Slurm, and note first that no limits may be set again: in the ledger,
    or in Slurm where that is away.

    Open the gate, put back what there was, remove the QOS; nodes get their weights back beside.

    Jobs in our QOS go on, within its limits; a QOS stays as long as there are some, and the gate as
    long as a partition has it, without which slurmctld would end: run it again then. The ledger
    keeps its tenants, quotas and charges.

    To be killed at any point and run again: what the settings were before is forgotten last. Raises
    OutsideError if Slurm refuses changes (SW-SLURM-FAILED; what it does not refuse is made), or
    does not take them (SW-LIMITS-UNSETTLED).
    """
    if ledger is None:
        return await _undone(slurm, None, settings)
    await asyncio.to_thread(ledger.limits.mark_uninstalled)
    async with compile_turn(ledger):
        return await _undone(slurm, ledger, settings)


async def finish(slurm: Slurm, ledger: "Ledger | None", settings: Settings) -> Undone | None:
    """Go on with an uninstall that has begun; None, and nothing done, if none has, or limits are
    wanted again. Raises what ``uninstall`` does.
    """
    if ledger is None:
        begun = await has_begun(slurm, None, settings)
        return await _undone(slurm, None, settings) if begun else None
    async with compile_turn(ledger):
        if not await has_begun(slurm, ledger, settings):
            return None
        await asyncio.to_thread(ledger.limits.mark_uninstalled)
        return await _undone(slurm, ledger, settings)


async def _undone(slurm: Slurm, ledger: "Ledger | None", settings: Settings) -> Undone:
    applied: tuple[Change, ...] = ()
    for _ in range(_ROUNDS):
        due = await plan(slurm, ledger, settings)
        if ledger:
            changing = (*due.gate, *due.settings) or due.qos
            known = remember_way_back(changing, due.known)
            await asyncio.to_thread(ledger.limits.know, known)
        if due.weights:
            await slurm.weigh_nodes({one.key.name: int(one.wanted) for one in due.weights})
        if due.mark:
            stages: tuple[Stage, ...] = (tuple(("add", "qos", one.key.name) for one in due.mark),)
        elif due.gate or due.settings:
            stages = stages_back(due.gate or due.settings, due.found)
        elif due.qos:
            stages = ((removal(one.key.name for one in due.qos),),)
        else:
            if ledger and not due.waits:
                await asyncio.to_thread(ledger.limits.forget)
            return Undone(applied, due.waits)
        refused: dict[Change, str] = {}
        for stage in stages:
            refused |= await slurm.sacctmgr(stage)
            applied += tuple(change for change in stage if change not in refused)
        _require_taken(refused)
    raise OutsideError(
        "SW-LIMITS-UNSETTLED",
        f"Slurm did not take all of {len(applied)} changes, the last of them: "
        f"sacctmgr {' '.join(applied[-1])}.",
        "Run that by hand to see why, then uninstall again.",
    )


def _require_taken(refused: Mapping[Change, str]) -> None:
    for change, words in refused.items():
        raise OutsideError(
            "SW-SLURM-FAILED",
            f"Slurm refused {len(refused)} changes, the first of them:"
            f" sacctmgr {' '.join(change)}: {words}",
            "All others were made. Run that by hand to see why, then do this again.",
        )


async def want_again(slurm: Slurm, ledger: "Ledger", settings: Settings) -> None:
    """Let limits be set again after an uninstall. The ledger's word goes last: killed before that,
    none are set.

    Raises what both raise, and OutsideError (SW-SLURM-FAILED) if Slurm keeps its word.
    """
    async with compile_turn(ledger):
        associations, qos, config = await asyncio.gather(
            slurm.associations(), slurm.qos(), slurm.config()
        )
        books = await asyncio.to_thread(books_now, ledger, settings)
        if not is_uninstalled(books, qos, settings):
            return
        found = found_of(settings.cluster.name, associations, qos, config)
        await asyncio.to_thread(ledger.limits.know, taken_out(books.known, found))
        mark = uninstalled_qos(settings.cluster.name)
        if mark in found.qos:
            _require_taken(await slurm.sacctmgr((removal((mark,)),)))
        await asyncio.to_thread(ledger.limits.mark_wanted)


def _mark(found: Found) -> Iterator[Difference]:
    """Where nothing of ours is, there is nothing to be put back either."""
    name = uninstalled_qos(found.cluster)
    if name not in found.qos and any(map(limits_by, found.qos)):
        yield Difference(LimitKey("qos", name, NAME), "", name, "says that it was taken out")


def _unknown(found: Found) -> Iterator[str]:
    """What only the ledger knows."""
    limited = sorted(
        name
        for name, row in found.accounts.items()
        if any(f"grptres={tres}".startswith(TYPE) for tres in row.grp_tres)
    )
    if limited:
        shown = ", ".join(limited[:_SHOWN]) + (", ..." if limited[_SHOWN:] else "")
        yield (
            f"Limits on GPU types of accounts stay ({shown}): only the ledger knows which were "
            "Slicewise's, and what they were before."
        )
    name = uninstalled_qos(found.cluster)
    if name in found.qos or any(map(limits_by, found.qos)):
        yield (
            f"QOS {name} stays, so that nobody sets limits again when PostgreSQL answers: uninstall"
            f" again then. If it never will: sacctmgr remove qos {name}"
        )


def _weights_back(nodes: Iterable[NodeView]) -> Iterator[Difference]:
    own = own_weights(nodes)
    for node in nodes:
        if node.name in own:
            key = LimitKey("node", node.name, "weight")
            yield Difference(key, str(node.weight), str(own[node.name]), "as it was before")


def _waits(busy: Sequence[int], gated: Iterable[str], *, is_shared: bool) -> Iterator[str]:
    if busy:
        shown = ", ".join(map(str, busy[:_SHOWN])) + (", ..." if busy[_SHOWN:] else "")
        yield (
            f"{len(busy)} jobs run or wait in Slicewise's QOS, and go on: {shown}. These QOS stay "
            "as long as they do: slicewise uninstall --finish then."
        )
    gate = "stays closed for another cluster of this slurmdbd" if is_shared else "is open now"
    for name in gated:
        yield (
            f"Partition {name} has QOS={GATE_QOS}, which {gate}: take it out of slurm.conf, "
            "scontrol reconfigure, then slicewise uninstall --finish. Without that QOS slurmctld "
            "would end."
        )
