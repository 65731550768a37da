"""Take Slicewise out of Slurm: put every setting back, remove its QOS, forget them."""

import asyncio
import fcntl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.errors import OutsideError, SlicewiseError
from cluster.jobs import JobState, JobView, NodeView
from cluster.settings import Settings
from cluster.slurm.interface import Slurm
from slurm_plugin.decide.drift import Known, our_qos, remember_way_back, way_back
from slurm_plugin.decide.limit_changes import Change, removal, stages_back
from slurm_plugin.decide.limits import Difference, Found, found_of, is_ours
from slurm_plugin.decide.mig.node_weights import own_weights
from slurm_plugin.decide.policy import LimitKey

if TYPE_CHECKING:
    from slurm_plugin.ledger.store import Ledger


_ROUNDS = 8
_SHOWN_JOBS = 10


@dataclass(frozen=True)
class WayBack:
    """What is still to be undone.

    Attributes:
        settings: accounts and users; qos: what is removed when those are done.
        weights: of nodes.
    """

    found: Found
    known: Known = field(hash=False)
    settings: tuple[Difference, ...]
    qos: tuple[Difference, ...]
    weights: tuple[Difference, ...]


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
    """What ``uninstall`` would do.

    Raises OutsideError (SW-UNINSTALL-JOBS) if jobs run or wait in a QOS of Slicewise.
    """
    associations, qos, elsewhere, config, jobs, known = await asyncio.gather(
        slurm.associations(),
        slurm.qos(),
        slurm.qos_elsewhere(),
        slurm.config(),
        slurm.jobs(),
        asyncio.to_thread(ledger.known_limits),
    )
    _require_no_jobs(jobs)
    found = found_of(settings.cluster.name, associations, qos, config)
    return WayBack(
        found=found,
        known=known,
        settings=way_back(known, found),
        qos=our_qos(known, found, elsewhere),
        weights=tuple(_weights_back(await slurm.nodes())),
    )


async def uninstall(slurm: Slurm, ledger: "Ledger", settings: Settings) -> tuple[Change, ...]:
    """Returns the sacctmgr commands that it took; nodes get their weights back beside them.

    The ledger keeps its tenants, quotas and charges.

    To be killed at any point and run again: what the settings were before is forgotten last.
    Raises as ``plan``, and OutsideError if Slurm refuses changes (SW-SLURM-FAILED; what it does
    not refuse is made), or does not take them (SW-LIMITS-UNSETTLED).
    """
    applied: tuple[Change, ...] = ()
    for _ in range(_ROUNDS):
        due = await plan(slurm, ledger, settings)
        await asyncio.to_thread(ledger.know_limits, remember_way_back(due.settings, due.known))
        if due.weights:
            await slurm.weigh_nodes({one.key.name: int(one.wanted) for one in due.weights})
        if due.settings:
            stages = stages_back(due.settings, due.found)
        elif due.qos:
            stages = ((removal(one.key.name for one in due.qos),),)
        else:
            await asyncio.to_thread(ledger.forget_limits)
            return applied
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


def _require_no_jobs(jobs: Iterable[JobView]) -> None:
    busy = sorted({job.job_id for job in jobs if is_ours(job.qos) and job.state != JobState.ENDED})
    if busy:
        shown = ", ".join(map(str, busy[:_SHOWN_JOBS])) + (", ..." if busy[_SHOWN_JOBS:] else "")
        raise OutsideError(
            "SW-UNINSTALL-JOBS",
            f"{len(busy)} jobs run or wait in Slicewise's QOS: {shown}; nothing more was changed.",
            "Cancel them, or move waiting ones: scontrol update JobId=N QOS=normal. Then again.",
        )
