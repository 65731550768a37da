"""Asks Slurm what operators' commands need to know: accounts, GPUs, jobs."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import typer

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.language.jobs import WAITING, JobState, JobTag, JobView, NodeView, is_resting
from slicewise.cluster.runtime.together import together
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.slurm.open import open_slurm
from slicewise.slurm_plugin.rules.common.qos_names import is_marked, is_ours
from slicewise.slurm_plugin.rules.quota.accounts import Accounts
from slicewise.slurm_plugin.rules.quota.jobs import is_managed
from slicewise.slurm_plugin.rules.quota.nodes import capacity, instances_of


@dataclass(frozen=True)
class SlurmLook:
    """What Slurm has.

    Attributes:
        accounts: parents of its accounts, by account name.
        capacity_millislices: of all managed GPUs.
        instances: of managed GPUs by GRES type, as they are cut now.
        is_uninstalled: whether Slurm has the mark that Slicewise was taken out of it, which counts
            when the ledger could not be reached then.
    """

    accounts: Accounts = field(hash=False)
    capacity_millislices: int
    instances: Mapping[str, int] = field(hash=False)
    is_uninstalled: bool = False


def look_at_slurm(settings: Settings) -> SlurmLook:
    """Ask Slurm. Raises UnreachableError (SW-SLURM-DOWN) and OutsideError (SW-SLURM-FAILED)."""
    return asyncio.run(_look(settings))


def try_to_look_at_slurm(settings: Settings) -> SlurmLook | None:
    """Ask Slurm; if it does not answer, say so on stderr and return None."""
    try:
        return look_at_slurm(settings)
    except SlicewiseError as error:
        typer.echo(f"Without Slurm: {error}", err=True)
        return None


async def _look(settings: Settings) -> SlurmLook:
    slurm = open_slurm(settings)
    associations, qos, nodes = await together(slurm.associations(), slurm.qos(), slurm.nodes())
    accounts = {row.account: row.parent for row in associations if not row.user}
    partitions = frozenset(settings.cluster.partitions)
    whole = capacity(nodes, partitions, settings.costs, settings.whole_boards)
    there = instances_of(nodes, partitions)
    is_uninstalled = is_marked((one.name for one in qos), settings.cluster.name)
    return SlurmLook(accounts, whole, there, is_uninstalled)


def jobs_and_nodes(
    settings: Settings,
) -> tuple[tuple[JobView, ...], tuple[NodeView, ...]]:
    """Return Slurm's jobs and nodes; raises what ``look_at_slurm`` raises."""
    return asyncio.run(_jobs_and_nodes(settings))


async def _jobs_and_nodes(
    settings: Settings,
) -> tuple[tuple[JobView, ...], tuple[NodeView, ...]]:
    slurm = open_slurm(settings)
    return await together(slurm.jobs(), slurm.nodes())


@dataclass(frozen=True)
class WaitingWork:
    """What of an account waits for Slicewise's quota, and starts no more without one.

    Attributes:
        jobs: jobs and array tasks; slots of services that rest are left out.
        services: names of services that have slots which do not run.
    """

    jobs: int = 0
    services: tuple[str, ...] = ()


def try_to_find_waiting(settings: Settings, account: str) -> WaitingWork | None:
    """Return what of an account waits in managed partitions; None if Slurm is silent."""
    try:
        jobs, _ = jobs_and_nodes(settings)
    except SlicewiseError:
        return None
    partitions = frozenset(settings.cluster.partitions)
    ours = [
        one
        for one in jobs
        if one.account == account and is_ours(one.qos) and is_managed(one, partitions)
    ]
    pending = (one for one in ours if one.state is JobState.PENDING and not is_resting(one))
    tags = (JobTag.find(one.admin_comment) for one in ours if one.state in WAITING)
    services = {tag.service for tag in tags if tag is not None and tag.service is not None}
    return WaitingWork(sum(max(1, len(one.untouched)) for one in pending), tuple(sorted(services)))
