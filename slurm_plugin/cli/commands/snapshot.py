"""``slicewise snapshot``: a site's state for the simulator, in one archive."""

import asyncio
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal

import typer

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.jobs import JobView, PastRun
from slicewise.cluster.language.service import directives_of_script, head_lines
from slicewise.cluster.language.slurm.interface import Slurm
from slicewise.cluster.language.slurm.job_history import history_lines
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.runtime.console import print_json
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.settings.read import load_settings
from slicewise.cluster.slurm.open import open_slurm
from slicewise.slurm_plugin.cli.common.output import spinner, whole_binary_file
from slicewise.slurm_plugin.common.record_requests import LedgerViewRequest
from slicewise.slurm_plugin.rules.accounting.ledger_view import LedgerView
from slicewise.slurm_plugin.rules.services.state import service_arrays
from slicewise.slurm_plugin.rules.snapshot.archive import write_archive
from slicewise.slurm_plugin.rules.snapshot.contents import (
    FORMAT,
    SiteSnapshot,
    SnapshotService,
    association_values,
    partition_values,
    qos_values,
    scheduling_values,
    service_values,
    settings_values,
    without_addresses,
    without_words,
)
from slicewise.slurm_plugin.rules.snapshot.pseudonyms import (
    Pseudonyms,
    other_qos,
    run_under_other_names,
    under_other_names,
)

_DAY_S = 86_400
_MOST_DAYS = 400
_KEY_BYTES = 32

Names = Literal["none", "names", "all"]


@dataclass(frozen=True)
class WrittenSnapshot:
    """What ``slicewise snapshot`` wrote; ``runs`` are those of its history."""

    file: str
    format: int
    taken_s: int
    pseudonyms: Literal["none", "names", "all"]
    nodes: int
    tenants: int
    jobs: int
    services: int
    runs: int


def snapshot_command(
    file: Annotated[Path, typer.Argument(metavar="FILE.zip", help="Where to write it.")],
    *,
    days: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=_MOST_DAYS,
            help="Also what accounting has of the jobs of the last so many days.",
            show_default=False,
        ),
    ] = None,
    pseudonyms: Annotated[
        Names,
        typer.Option(
            help="Whose names are replaced: of users, jobs and services (names), of accounts and"
            " tenants, too (all), or of nobody (none)."
        ),
    ] = "names",
    as_json: Json = False,
) -> None:
    """Write what the simulator needs of this site into one archive: Slurm, ledger, settings.

    It has nodes, partitions, accounts with shares, limits, the queue, the policy with windows,
    loans and budgets, what of services decides how many replicas they have, and the keys of
    slurm.conf and slicewise.toml that decide. No secret, address, path, script, comment or licence
    is in it. Replaced names are the same within one archive, and in no other. Only the caller can
    read the file. Nothing is changed.
    """
    settings = load_settings()
    taken_s = int(wall_s())
    names = None
    if pseudonyms != "none":
        names = Pseudonyms(secrets.token_bytes(_KEY_BYTES), accounts=pseudonyms == "all")
    # Opened first: what can't be written is not gathered for minutes.
    with whole_binary_file(file) as out:
        with spinner("Reading the site"):
            view = DaemonClient(settings.daemon).call(LedgerViewRequest()).view
            snapshot, runs = asyncio.run(_gather(settings, view, taken_s, days))
        lines = None if days is None else _lines(runs, names)
        snapshot = snapshot if names is None else under_other_names(snapshot, names)
        write_archive(out, snapshot, lines)
    _say(file, snapshot, len(runs), as_json)


async def _gather(
    settings: Settings, view: LedgerView, taken_s: int, days: int | None
) -> tuple[SiteSnapshot, tuple[PastRun, ...]]:
    """Ask Slurm. Raises what ``Slurm`` raises."""
    slurm = open_slurm(settings)
    config, slurm_version = await asyncio.gather(slurm.config(), slurm.version())
    nodes, partitions, associations, qos, jobs = await asyncio.gather(
        slurm.nodes(), slurm.partitions(), slurm.associations(), slurm.qos(), slurm.jobs()
    )
    services = await _services(slurm, jobs)
    # Accounting leaves out what became eligible in the last second of a window.
    until_s = taken_s + 1
    snapshot = SiteSnapshot(
        format=FORMAT,
        taken_s=taken_s,
        slicewise_version=version("slicewise"),
        slurm_version=slurm_version,
        config=scheduling_values(config),
        nodes=without_addresses(nodes),
        partitions=partition_values(partitions),
        associations=association_values(associations),
        qos=qos_values(qos),
        jobs=without_words(jobs),
        settings=settings_values(settings),
        ledger=view,
        services=services,
        history_since_s=None if days is None else until_s - days * _DAY_S,
    )
    return snapshot, await _history(slurm, until_s, days or 0)


async def _services(slurm: Slurm, jobs: tuple[JobView, ...]) -> tuple[SnapshotService, ...]:
    """Services that have not ended, by their scripts; one without a readable script is left out."""
    arrays = service_arrays(jobs)
    scripts = await slurm.submissions(arrays) if arrays else {}
    found: list[SnapshotService] = []
    for array, script in sorted(scripts.items()):
        try:
            values = directives_of_script(head_lines(script.script))
        except InvalidInputError:
            continue
        tag = arrays[array]
        found.append(SnapshotService(array, tag.tenant, tag.service or "", service_values(values)))
    return tuple(found)


async def _history(slurm: Slurm, until_s: int, days: int) -> tuple[PastRun, ...]:
    """Runs of the last days, asked for day by day: accounting answers for a day in time.

    A run that goes over midnight comes with each of its days.
    """
    found: dict[tuple[str, int, int | None], PastRun] = {}
    for day in range(days, 0, -1):
        since_s = until_s - day * _DAY_S
        for run in await slurm.job_history(since_s, since_s + _DAY_S):
            found[run.task, run.submit_s, run.start_s] = run
    return tuple(sorted(found.values(), key=lambda run: (run.submit_s, run.job_id, run.task)))


def _lines(runs: tuple[PastRun, ...], names: Pseudonyms | None) -> Iterator[str]:
    if names is None:
        return history_lines(runs)
    qos = other_qos((run.qos for run in runs), names)
    return history_lines(run_under_other_names(run, names, qos) for run in runs)


def _say(file: Path, snapshot: SiteSnapshot, runs: int, as_json: bool) -> None:
    said = WrittenSnapshot(
        file=str(file),
        format=snapshot.format,
        taken_s=snapshot.taken_s,
        pseudonyms=snapshot.pseudonyms,
        nodes=len(snapshot.nodes),
        tenants=len(snapshot.ledger.tenants),
        jobs=len(snapshot.jobs),
        services=len(snapshot.services),
        runs=runs,
    )
    if as_json:
        print_json(said)
        return
    typer.echo(
        f"{file}: written, with {said.nodes} nodes, {said.tenants} tenants, {said.jobs} "
        f"jobs in the queue, {said.services} services, {runs} runs of the past.",
        err=True,
    )
