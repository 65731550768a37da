"""What a run of ``slicewise rebalance`` works on: the site, and one look at all of it."""

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from cluster.errors import OutsideError, SlicewiseError
from cluster.jobs import JobView
from cluster.settings import Settings
from cluster.slurm.interface import Slurm
from cluster.wire import StatusAnswer
from slurm_plugin.decide.policy import Policy
from slurm_plugin.decide.rebalance_steps import StepOutcome
from slurm_plugin.decide.services import Observation, services
from slurm_plugin.decide.world import Seen
from slurm_plugin.sight import Sight
from slurm_plugin.uninstall import has_begun

if TYPE_CHECKING:
    from slurm_plugin.ledger.store import Ledger


class Daemon(Protocol):
    """As much of ``DaemonClient`` as is asked."""

    async def status(self) -> StatusAnswer:
        """How it is; raises SlicewiseError if none answers."""
        ...


@dataclass(frozen=True)
class Site:
    """What there is to work with.

    Attributes:
        author: who runs it.
        host: where.
        is_root: only root may cut GPUs.
        now_s: Unix seconds.
    """

    settings: Settings
    slurm: Slurm
    ledger: "Ledger"
    daemon: Daemon
    author: str
    host: str
    is_root: bool
    now_s: Callable[[], float] = time.time

    @property
    def who(self) -> str:
        """For others who find a lock taken."""
        return f"{self.host}, process {os.getpid()}"

    @property
    def enforces(self) -> bool:
        """Whether Slurm may be changed."""
        return self.settings.daemon.mode == "enforce"


@dataclass(frozen=True)
class Look:
    """Everything at one moment.

    Attributes:
        at_s: Unix seconds when it began.
        policy: in force then.
        slurm: empty if it did not answer.
        trouble: what Slurm's failure was.
        leader: the host of a daemon that acts each second; "" if none does.
        is_uninstalled: whether Slicewise was taken out of Slurm.
    """

    at_s: float
    policy: Policy = field(hash=False)
    slurm: Seen
    trouble: SlicewiseError | None
    leader: str
    is_uninstalled: bool = False

    @property
    def jobs(self) -> tuple[JobView, ...]:
        """All of Slurm's."""
        return self.slurm.jobs


@dataclass(frozen=True)
class Report:
    """What became of a step.

    Attributes:
        saw: what it decided on; fit for JSON.
        lines: what it changed, or would change.
        why: in one line.
    """

    saw: Mapping[str, object] = field(default_factory=dict, hash=False)
    lines: tuple[str, ...] = ()
    why: str = ""
    outcome: StepOutcome = StepOutcome.DONE


async def looked(site: Site) -> Look:
    """Raises what ``Ledger`` raises; a Slurm that does not answer is part of what is seen."""
    at_s, zone = site.now_s(), site.settings.ledger.time_zone
    policy = await asyncio.to_thread(site.ledger.tenants.policy_in_force, at_s, zone)
    leader = await _leader(site)
    try:
        seen = replace(await _seen(site.slurm), at_s=at_s)
        is_out = await has_begun(site.slurm, site.ledger, site.settings)
    except SlicewiseError as error:
        return Look(at_s, policy, Seen((), (), ()), error, leader)
    found = services(seen, site.settings.costs)
    return Look(at_s, policy, Seen(seen.jobs, seen.nodes, found), None, leader, is_out)


async def _seen(slurm: Slurm) -> Observation:
    """An array that ends between two questions is gone at the second look."""
    sight = Sight(slurm)
    try:
        return await sight.look()
    except OutsideError:
        return await sight.look()


async def _leader(site: Site) -> str:
    """One that does not see all of Slurm does nothing; nor does one that does not enforce."""
    try:
        status = await site.daemon.status()
    except SlicewiseError:
        return ""
    if status.leads:
        return status.host if status.complete and status.mode == "enforce" else ""
    return await asyncio.to_thread(_holder, site)


def _holder(site: Site) -> str:
    """Of a pair the other one; its own status is not asked."""
    lock = site.ledger.locks.leader(site.host)
    try:
        return lock.holder()
    finally:
        lock.give_up()
