"""``slicewise simulate``: what would have happened on a site, by its own past."""

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated
from zoneinfo import ZoneInfo

import typer
from rich.text import Text

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.runtime.console import console, print_json
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.runtime.time_options import local_time
from slicewise.slurm_plugin.cli.common.output import progress_bar, spinner, whole_file

if TYPE_CHECKING:
    from slicewise.simulation.cli.inputs import Demand, SiteInputs
    from slicewise.simulation.cli.services import AskedServices
    from slicewise.simulation.rules.runs.run_figures import SimulationResult
    from slicewise.slurm_plugin.rules.explain.planned_change import PlannedChange

_INTERRUPTED = 130
_MOST_OFFSETS, _MOST_PROCESSES, _MOST_DAYS = 64, 256, 3660
_MOST_CPUS = 1_000_000

Where = Annotated[
    Path,
    typer.Argument(
        help="What slicewise snapshot wrote of a site, or a cluster file.", show_default=False
    ),
]
JobsFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Jobs of the past: sacct's, Philly's, Helios', SWF; by default the snapshot's.",
        show_default=False,
    ),
]
CpusPerGpu = Annotated[
    int | None,
    typer.Option(
        "--cpus-per-gpu",
        metavar="N",
        min=1,
        max=_MOST_CPUS,
        help="Of a history in which no job asks for GPUs: let each ask for one for N of its CPUs.",
        show_default=False,
    ),
]
ChangeFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A file of quotas, as tenant-quota apply takes it: it is laid over the policy.",
        show_default=False,
    ),
]
Start = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="TIME",
        help="Jobs count from then on; by default as soon as the history has all that came.",
        show_default=False,
    ),
]
Days = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=_MOST_DAYS,
        help="For so many days; by default up to the last one.",
        show_default=False,
    ),
]
Offsets = Annotated[
    int,
    typer.Option(
        min=1,
        max=_MOST_OFFSETS,
        help="Cut the time into so many parts of two days at least, each from a start of its"
        " own: their spread gives intervals.",
    ),
]
MeanDays = Annotated[
    float | None,
    typer.Option(
        "--failures",
        metavar="DAYS",
        min=0.01,
        max=1e6,
        help="Let each node fail, once in so many days in the mean; by default the cluster file"
        " says it, or none fails.",
        show_default=False,
    ),
]
RepairHours = Annotated[
    float | None,
    typer.Option(
        "--repair",
        metavar="HOURS",
        min=0.01,
        max=8760,
        help="Hours until such a node is back; by default what the cluster file says, or 12.",
        show_default=False,
    ),
]
NoRepartitions = Annotated[
    bool,
    typer.Option(
        "--no-repartitions",
        help="Leave GPUs as they are cut, also where the settings allow to cut them again: for a"
        " site whose cron does not.",
    ),
]
OutputFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.html",
        help="Write all of it as one HTML file, with drawings.",
        show_default=False,
    ),
]
RequestFiles = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TENANT/SERVICE=FILE",
        help="Requests of a service, a trace as CSV or Mooncake's JSONL; several times for several"
        " services.",
        show_default=False,
    ),
]
ServiceFiles = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        help="A service's file, as service apply takes it, in place of the site's own service of"
        " that name; it may have a table for its engine. Several times for several.",
        show_default=False,
    ),
]
Pooled = Annotated[
    bool,
    typer.Option(
        "--pooled",
        help="What would be saved if these services shared replicas: each tenant's run alone by the"
        " present policy, and in one pool by the changed one.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=_MOST_PROCESSES,
        help="Processes at the same time; by default as many as there are CPUs.",
        show_default=False,
    ),
]


def simulate(
    where: Where,
    *,
    jobs: JobsFile = None,
    cpus_per_gpu: CpusPerGpu = None,
    change: ChangeFile = None,
    requests: RequestFiles = None,
    service: ServiceFiles = None,
    pooled: Pooled = False,
    start: Start = None,
    days: Days = None,
    offsets: Offsets = 4,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same figures.")] = 1,
    failures: MeanDays = None,
    repair: RepairHours = None,
    no_repartitions: NoRepartitions = False,
    output: OutputFile = None,
    workers: Workers = None,
    as_json: Json = False,
) -> None:
    """Replay a site's past with Slicewise's own decisions, and with other quotas beside it.

    Each job is submitted when it was, to a model of Slurm; admission, loans, recalls and limits are
    decided by the code of the daemon. First the present policy is compared with what really
    happened: how far off it is says how far to trust the rest. With --change the same jobs come
    once more under the changed quotas. With --requests services follow the load of a trace beside
    them, and with --pooled once more in a pool; a site without jobs of the past then has none, for
    a week. Nothing is asked of a cluster, and nothing is changed.
    """
    service_files, traces = service or (), requests or ()
    named = (Path(text.partition("=")[2]) for text in traces)
    _check_report(output, (where, jobs, change, *service_files, *named))
    # Imported here: a simulation takes longer to import than --help may take.
    from slicewise.simulation.cli import inputs  # noqa: PLC0415
    from slicewise.simulation.cli.services import asked_services  # noqa: PLC0415

    with spinner("Reading the site and its past"):
        site = inputs.read_site(where)
        zone = ZoneInfo(site.zone)
        start_s = None if start is None else local_time(start, zone=zone).timestamp()
        site = inputs.with_failures(site, failures, repair)
        site = inputs.without_repartitions(site) if no_repartitions else site
        if pooled and jobs is None and site.history is None:
            asked = inputs.no_jobs(start_s, days)
        else:
            asked = inputs.demand(
                site, jobs, start_s=start_s, days=days, seed=seed, cpus_per_gpu=cpus_per_gpu
            )
        services = asked_services(site, asked, service_files, traces, in_pools=pooled)
    if asked.without_gpus:
        typer.echo(asked.without_gpus, err=True)  # Before minutes, which it may spare.
    planned = _planned(change, site, asked, as_json=as_json)
    with ExitStack() as stack:
        # Opened first: what can't be written is not simulated for minutes.
        page = stack.enter_context(whole_file(output)) if output else None
        try:
            result = _run(
                site, asked, services, planned, offsets=offsets, seed=seed, processes=workers
            )
        except KeyboardInterrupt:
            typer.echo("Interrupted: nothing was written.", err=True)
            raise typer.Exit(_INTERRUPTED) from None
        changes = list(planned.words) if planned else []
        if page is not None:
            _write(page, result, changes, site.zone)
    if output is not None:
        typer.echo(f"{output}: written", err=True)
    _print(result, changes, as_json=as_json)


def _check_report(report: Path | None, given: Sequence[Path | None]) -> None:
    """Refuse a report that would take the place of a file that the command reads."""
    if report is None or not report.exists():
        return
    for file in given:
        if file is not None and file.exists() and report.samefile(file):
            raise InvalidInputError(
                Code.OUTPUT,
                f"{report} is read by this command; the report would take its place.",
                "Name another file.",
            )


def _planned(
    file: Path | None, site: "SiteInputs", asked: "Demand", *, as_json: bool
) -> "PlannedChange | None":
    """Return what the file changes, and show it."""
    if file is None:
        return None
    from slicewise.simulation.cli.change import planned  # noqa: PLC0415 -- not for --help
    from slicewise.slurm_plugin.cli.views.quota_plan import change_shown  # noqa: PLC0415 -- as above

    planned_change = planned(file, site, asked.start_s)
    if not as_json:
        console().print(Text("What changes", style="bold"))
        for shown in change_shown(planned_change.report(site.cluster.name)):
            console().print(shown)
        console().print()
    return planned_change


def _run(
    site: "SiteInputs",
    asked: "Demand",
    services: "AskedServices",
    change: "PlannedChange | None",
    *,
    offsets: int,
    seed: int,
    processes: int | None,
) -> "SimulationResult":
    from slicewise.simulation.cli.inputs import present_plan, slicewise_plan  # noqa: PLC0415 -- not for --help
    from slicewise.simulation.rules.runs.experiment import Experiment  # noqa: PLC0415 -- not for --help
    from slicewise.simulation.runs.simulate import simulate as run  # noqa: PLC0415 -- as above

    changed = None if change is None else slicewise_plan("changed", site, change.policy)
    present, changed, notes = services.of_plans(present_plan(site), changed)
    experiment = Experiment(
        cluster=site.cluster,
        costs=site.settings.costs,
        jobs=services.without_their_runs(asked.jobs),
        present=present,
        changed=changed,
        start_s=asked.start_s,
        end_s=asked.end_s,
        known_from_s=asked.known_from_s,
        offsets=offsets,
        seed=seed,
        grace_s=site.settings.lending.grace_s,
    )
    with progress_bar("Simulating") as tell:
        result = run(experiment, processes=processes or _cpus(), progress=tell)
    return replace(result, notes=(*asked.notes, *notes, *result.notes))


def _cpus() -> int:
    return len(os.sched_getaffinity(0))


def _write(page: IO[str], result: "SimulationResult", changes: Sequence[str], zone: str) -> None:
    from slicewise.simulation.report.page import simulation_html  # noqa: PLC0415 -- not for --help

    page.write(simulation_html(result, changes, zone, int(time.time())))


def _print(result: "SimulationResult", changes: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        from slicewise.simulation.rules.report.documents import compared  # noqa: PLC0415 -- not for --help

        print_json(compared(result, changes))
        return
    from slicewise.simulation.report.screen import result_shown  # noqa: PLC0415 -- as above

    for shown in result_shown(result):
        console().print(shown)
