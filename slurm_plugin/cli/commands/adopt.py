"""``slicewise admission adopt``: the tenant's QOS for jobs that waited before the gate closed."""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.text import Text

from slicewise.cluster.language.exit_codes import ExitCode
from slicewise.cluster.language.jobs import JobView
from slicewise.cluster.language.slurm.interface import JobChange, Target, target_of
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.runtime.console import console, print_json
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.settings.read import load_settings
from slicewise.cluster.slurm.batch import address
from slicewise.cluster.slurm.open import open_slurm
from slicewise.slurm_plugin.common.record_requests import PolicyRequest
from slicewise.slurm_plugin.rules.admission.adoption import Adoption, adoption

_SHOWN = 5


@dataclass(frozen=True)
class AdoptedJobs:
    """Waiting jobs and tasks of arrays, as Slurm's commands name them.

    Attributes:
        moved: the QOS that each has now, or would have.
        refused: why Slurm left it where it was.
        no_tenant: accounts of jobs that the gate keeps.
        no_qos: tenants of jobs, which may not use their own QOS in this cluster yet.
        untyped: accounts of jobs whose GPUs have no type.
    """

    moved: Mapping[str, str]
    refused: Mapping[str, str]
    no_tenant: Mapping[str, str]
    no_qos: Mapping[str, str]
    untyped: Mapping[str, str]


def adopt(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would change; change nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Give waiting jobs that were submitted before mode enforce their tenant's own QOS.

    They ask for GPUs of managed partitions in a QOS of the site: once the gate is closed they would
    wait for ever. Run it as root or SlurmUser when daemon and slicewise.lua are in mode enforce,
    before you close the gate. Jobs that run, ask for no GPU, or are in a QOS of Slicewise are left
    alone. Exits 1 if Slurm refuses a change.
    """
    settings = load_settings()
    tenants = DaemonClient(settings.daemon).call(PolicyRequest()).policy.keys()
    found, refused = asyncio.run(_adopt(settings, tenants, dry_run=dry_run))
    moved = {address(target): qos for target, qos in found.moves.items() if target not in refused}
    if as_json:
        print_json(
            AdoptedJobs(
                moved,
                {address(target): why for target, why in refused.items()},
                *map(_accounts, (found.no_tenant, found.no_qos, found.untyped)),
            )
        )
    else:
        _print(found, moved, refused, dry_run=dry_run)
    if refused:
        raise typer.Exit(ExitCode.FAILED)


def _accounts(jobs: Iterable[JobView]) -> Mapping[str, str]:
    return {address(target_of(job)): job.account for job in jobs}


def _print(
    found: Adoption, moved: Mapping[str, str], refused: Mapping[Target, str], *, dry_run: bool
) -> None:
    verb = "would be moved" if dry_run else "moved"
    for qos, jobs in sorted(Counter(moved.values()).items()):
        _say(f"{qos}: {jobs} {verb}")
    for target, why in refused.items():
        _say(f"Slurm refused {address(target)}: {why}")
    _say_jobs("Of accounts that are no tenants, and never start", found.no_tenant)
    _say_jobs("Of tenants without a QOS yet (is the daemon in mode enforce?)", found.no_qos)
    _say_jobs(
        "They ask for GPUs of any type, and start above all limits (hold or cancel)", found.untyped
    )
    if not (moved or refused or found.no_tenant or found.no_qos or found.untyped):
        _say("No job waits for GPUs of managed partitions in a QOS of the site.")


async def _adopt(
    settings: Settings, tenants: Collection[str], *, dry_run: bool
) -> tuple[Adoption, Mapping[Target, str]]:
    slurm = open_slurm(settings)
    jobs, rows = await asyncio.gather(slurm.jobs(), slurm.associations())
    found = adoption(jobs, frozenset(settings.cluster.partitions), tenants, rows)
    if dry_run or not found.moves:
        return found, {}
    changes = {target: JobChange(qos=name) for target, name in found.moves.items()}
    return found, await slurm.update(changes)


def _say_jobs(what: str, jobs: Iterable[JobView]) -> None:
    names = [f"{job} ({account})" for job, account in _accounts(jobs).items()]
    if names:
        more = len(names) - _SHOWN
        others = f" and {more} more, which --json lists" if more > 0 else ""
        _say(f"{what}: {', '.join(names[:_SHOWN])}{others}.")


def _say(text: str) -> None:
    console().print(Text(text))
