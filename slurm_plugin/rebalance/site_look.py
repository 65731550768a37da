"""What a run of ``slicewise rebalance`` works on: the site, and one look at everything."""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from slicewise.cluster.language.errors import OutsideError, SlicewiseError
from slicewise.cluster.language.jobs import JobView
from slicewise.cluster.language.rebalances import StepOutcome
from slicewise.cluster.language.slurm.interface import Slurm, SlurmReader
from slicewise.cluster.rpc.message import Answered, Asks
from slicewise.cluster.rpc.messages import StatusRequest
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.quota_cycle.uninstall import has_begun
from slicewise.slurm_plugin.rules.quota.types import Policy
from slicewise.slurm_plugin.rules.round.world import SlurmView
from slicewise.slurm_plugin.rules.services.state import Observation, services
from slicewise.slurm_plugin.state.observer import SlurmObserver


class Daemon(Protocol):
    """The part of ``DaemonClient`` that is used."""

    async def ask(self, request: Asks[Answered]) -> Answered:
        """The daemon's answer; raises SlicewiseError if none answers."""
        ...


@dataclass(frozen=True)
class RunContext:
    """The site on which a run works.

    Attributes:
        author: the user who runs it.
        host: the host on which it runs.
        is_root: whether root runs it; only root may cut GPUs.
        now_s: returns the time in Unix seconds.
    """

    settings: Settings
    slurm: Slurm
    ledger: Ledger
    daemon: Daemon
    author: str
    host: str
    is_root: bool
    now_s: Callable[[], float] = wall_s

    @property
    def who(self) -> str:
        """Name of this process, for others that find a lock taken."""
        return f"{self.host}, process {os.getpid()}"

    @property
    def enforces(self) -> bool:
        """Whether Slurm may be changed."""
        return self.settings.daemon.mode == "enforce"


@dataclass(frozen=True)
class RebalanceLook:
    """Everything at one moment.

    Attributes:
        at_s: Unix seconds when the look began.
        policy: the policy in force then.
        change_id: of its newest change, read before it.
        slurm: what Slurm shows; empty if it did not answer.
        trouble: Slurm's failure; None if it answered.
        leader: the host of a daemon that acts each second; "" if none does.
        is_uninstalled: whether Slicewise was uninstalled from Slurm.
    """

    at_s: float
    policy: Policy = field(hash=False)
    change_id: int
    slurm: SlurmView
    trouble: SlicewiseError | None
    leader: str
    is_uninstalled: bool = False

    @property
    def jobs(self) -> tuple[JobView, ...]:
        """All of Slurm's jobs."""
        return self.slurm.jobs


@dataclass(frozen=True)
class Report:
    """The result of a step.

    Attributes:
        saw: what the step decided on; fit for JSON.
        lines: what it changed, or would change.
        why: the reason, in one line.
    """

    saw: Mapping[str, object] = field(default_factory=dict, hash=False)
    lines: tuple[str, ...] = ()
    why: str = ""
    outcome: StepOutcome = StepOutcome.DONE


def one_line(reasons: Iterable[str]) -> str:
    """Join reasons: a space after a sentence, else a semicolon."""
    return " ".join(reason if reason.endswith(".") else f"{reason};" for reason in reasons).rstrip(
        ";"
    )


async def looked(site: RunContext) -> RebalanceLook:
    """Look at the site once.

    Raises what ``Ledger`` raises; a Slurm that does not answer is part of the look.
    """
    at_s, zone = site.now_s(), site.settings.ledger.time_zone
    change_id = await asyncio.to_thread(site.ledger.tenants.change_id)
    policy = await asyncio.to_thread(site.ledger.tenants.policy_in_force, at_s, zone)
    leader = await _leader(site)
    try:
        seen = replace(await _seen(site.slurm), at_s=at_s)
        is_out = await has_begun(site.slurm, site.ledger, site.settings)
    except SlicewiseError as error:
        return RebalanceLook(at_s, policy, change_id, SlurmView((), (), ()), error, leader)
    views = services(seen, site.settings.costs)
    return RebalanceLook(
        at_s, policy, change_id, SlurmView(seen.jobs, seen.nodes, views), None, leader, is_out
    )


async def _seen(slurm: SlurmReader) -> Observation:
    """Look at Slurm, twice if the first look fails.

    An array that ends between two questions makes a look fail; at the second it is gone.
    """
    sight = SlurmObserver(slurm)
    try:
        return await sight.look()
    except OutsideError:
        return await sight.look()


async def _leader(site: RunContext) -> str:
    """The host of the daemon that acts; "" if none does.

    A daemon that does not see all of Slurm, or does not enforce, does not act.
    """
    try:
        status = await site.daemon.ask(StatusRequest())
    except SlicewiseError:
        return ""
    if status.is_leader:
        return status.host if status.complete and status.mode == "enforce" else ""
    return await asyncio.to_thread(_holder, site)


def _holder(site: RunContext) -> str:
    """The host of a pair's other daemon; its own status is not asked for."""
    lock = site.ledger.locks.leader(site.host)
    try:
        return lock.holder()
    finally:
        lock.give_up()
