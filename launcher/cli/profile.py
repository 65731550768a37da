"""Commands of ``slicewise profile``: measure a model on slices, show what was measured."""

import asyncio
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.text import Text
from typer.core import TyperGroup

from cluster.language.errors import InvalidInputError, OutsideError, SlicewiseError
from cluster.language.measurements import (
    Measurement,
    merged,
    read_measurements,
    update_measurements,
)
from cluster.language.service import ServiceSpec, service_spec
from cluster.rpc.own_tenant import complete_tenant, own_tenant
from cluster.runtime.console import console, print_json, terminal_console
from cluster.settings.file import Settings, load_settings
from cluster.slurm_client.open import open_slurm
from cluster.slurm_client.sbatch import submit
from launcher.cli.show_profile import measurements_table, progress_table, progress_text
from launcher.engines.engine import MeasuredEngine
from launcher.engines.registry import ENGINES
from launcher.profiling.figures import ProfileTask
from launcher.profiling.jobs import (
    JOB_NAME,
    ProfileJob,
    Progress,
    cancel,
    follow,
    last_words,
    look,
    output_file,
)
from launcher.scripts.render import profile_script
from launcher.services.lookup import Json, SkipModelCheck
from launcher.services.model_repository import engine_name_of
from launcher.services.service_file import require_image, require_model, require_writable

_MOST_BATCH, _MOST_PROCESSES = 4096, 64
_INTERRUPTED = 130


class _MeasureGroup(TyperGroup):
    """``profile MODEL`` is ``profile measure MODEL``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, *ctx.help_option_names}:
            args = ["measure", *args]
        return super().parse_args(ctx, args)


profile_app = typer.Typer(
    cls=_MeasureGroup,
    no_args_is_help=True,
    help="How fast a model is on the cluster's GPU types: slicewise profile MODEL measures it.",
    epilog="Which instances a load needs: slicewise mig instances",
)


def _counts(most: int) -> Callable[[str], tuple[int, ...]]:
    """Return a parser of options such as ``1,2,4``: numbers in order, none twice."""

    def parse(text: str) -> tuple[int, ...]:
        parts = text.split(",")
        if not all(part.isascii() and part.isdigit() and 0 < int(part) <= most for part in parts):
            raise typer.BadParameter(f"{text!r}: write numbers from 1 to {most} as 1,2,4.")
        return tuple(sorted({int(part) for part in parts}))

    return parse


def _complete_type(incomplete: str) -> list[str]:
    with suppress(SlicewiseError):
        return sorted(name for name in load_settings().models if name.startswith(incomplete))
    return []


Repository = Annotated[
    Path, typer.Option(help="Model repository in Triton's layout, which the nodes can read.")
]
Types = Annotated[
    str | None,
    typer.Option(
        help="GRES types; all types of the cluster if left out.",
        show_default=False,
        autocompletion=_complete_type,
    ),
]
Batches = Annotated[
    Any, typer.Option(parser=_counts(_MOST_BATCH), metavar="N,N,...", help="Batch sizes.")
]
Processes = Annotated[
    Any,
    typer.Option(
        parser=_counts(_MOST_PROCESSES),
        metavar="N,N,...",
        help="Numbers of processes that serve the model; as its configuration says if left out.",
        show_default=False,
    ),
]
Seconds = Annotated[
    float,
    typer.Option(min=1, max=600, help="Maximum seconds of one point; a steady one needs less."),
]
Data = Annotated[
    Path | None,
    typer.Option(help="File with a request as JSON, as curl would send it; zeros if left out."),
]
Output = Annotated[
    Path | None, typer.Option(help="File for the figures; MODEL.profile.json if left out.")
]


@profile_app.command(
    epilog="Examples: slicewise profile bert --model-repository /models/bert --account vision"
    " | slicewise profile bert --model-repository /models/bert --account vision"
    " --types 1g.10gb,2g.20gb --batches 1,8,32 --processes 1,2,3 --data request.json"
)
def measure(
    model: Annotated[
        str, typer.Argument(help="Model in the model repository.", show_default=False)
    ],
    *,
    model_repository: Repository,
    account: Annotated[
        str | None,
        typer.Option(
            help="Tenant that the jobs are charged to; if left out, the only one that you have.",
            show_default=False,
            autocompletion=complete_tenant,
        ),
    ] = None,
    types: Types = None,
    batches: Batches = "1,2,4,8,16,32",
    processes: Processes = None,
    seconds: Seconds = 10,
    data: Data = None,
    output: Output = None,
    runtime: Annotated[
        str, typer.Option(help="How Triton starts: bare, apptainer or pyxis.")
    ] = "bare",
    image: Annotated[
        str | None, typer.Option(help="Container image for apptainer or pyxis.")
    ] = None,
    cpus: Annotated[int, typer.Option(help="CPUs for Triton; the client gets one more.")] = 1,
    memory_mib: Annotated[int, typer.Option(help="Host memory of a job in MiB.")] = 4096,
    partition: Annotated[
        str | None, typer.Option(help="Slurm partition; Slurm's default if left out.")
    ] = None,
    skip_model_check: SkipModelCheck = False,
    as_json: Json = False,
) -> None:
    """Measure a model's throughput and latency on GPU types, with jobs of yours that run Triton.

    Submits one ordinary job for each type, within your quota, and adds the figures to those already
    in the output. Ctrl-C cancels the jobs and keeps what was measured.
    """
    settings = load_settings()
    values = {
        "name": JOB_NAME,
        "tenant": own_tenant(account),
        "model_repository": str(model_repository.absolute()),
        "model": model,
        "engine": engine_name_of(model_repository / model) or "triton",
        "runtime": runtime,
        "image": image,
        "cpus": cpus,
        "memory_mib": memory_mib,
        "partition": partition,
    }
    work = ProfileTask(
        model=model,
        batches=batches,
        processes=processes or (),
        seconds=seconds,
        data=None if data is None else str(data.absolute()),
    )
    wanted = _types(settings, types, partition)
    specs = [service_spec({**values, "profile": name}) for name in wanted]
    file = output or Path(f"{model}.profile.json")
    _require_files(file, data, _measured(specs[0].engine))
    if not skip_model_check:
        require_model(specs[0])
        require_image(specs[0])
    require_writable(Path.cwd())
    _measure(settings, specs, work, file, as_json=as_json)


def _measured(name: str) -> MeasuredEngine:
    """Return the engine; raises InvalidInputError (SW-PROFILE-ENGINE) if none of its models can be
    measured.
    """
    engine = ENGINES[name]
    if isinstance(engine, MeasuredEngine):
        return engine
    raise InvalidInputError(
        "SW-PROFILE-ENGINE",
        f"This is a model of {engine.title}, of which slicewise can't measure models.",
        "Give its service need_gib or profile, and measure the service by requests.",
    )


def _require_files(file: Path, data: Path | None, engine: MeasuredEngine) -> None:
    """Check files; raises InvalidInputError for what would be found only when the jobs have run."""
    if file.exists():
        read_measurements(file)
    if not os.access(file.absolute().parent, os.W_OK | os.X_OK):
        raise InvalidInputError(
            "SW-PROFILE-FILE", f"{file} could not be written.", "Name another file: --output"
        )
    if data is not None:
        try:
            engine.check_data(data.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInputError(
                "SW-PROFILE-DATA", f"{data} can't be read: {error}.", "Name a JSON file."
            ) from None


def _types(settings: Settings, text: str | None, partition: str | None) -> Sequence[str]:
    """Return the types asked for, else all types of slicewise.toml that the nodes have."""
    there = asyncio.run(_types_there(settings, partition))
    asked = there if text is None else list(dict.fromkeys(text.split(",")))
    missing = [name for name in asked if name not in there]
    if missing or not asked:
        raise InvalidInputError(
            "SW-PROFILE-UNKNOWN",
            f"No node has GPUs of type {', '.join(missing)}."
            if missing
            else "No node has GPUs of a type that slicewise.toml lists.",
            f"The nodes have: {', '.join(there) or 'none'}.",
        )
    return asked


async def _types_there(settings: Settings, partition: str | None) -> Sequence[str]:
    partitions = {partition} if partition else set(settings.cluster.partitions)
    nodes = [node for node in await open_slurm(settings).nodes() if node.is_in(partitions)]
    return [name for name in settings.models if any(node.gpus.get(name) for node in nodes)]


@dataclass
class _Jobs:
    """Jobs submitted so far, and the types that were refused, with sbatch's own message."""

    submitted: list[ProfileJob] = field(default_factory=list)
    refused: dict[str, OutsideError] = field(default_factory=dict)

    def submit(self, spec: ServiceSpec, settings: Settings, work: ProfileTask) -> None:
        """Submit one job; a refusal does not affect the other types."""
        kind = str(spec.profile)
        try:
            done = submit(profile_script(spec, settings.engines[spec.engine], work, sys.executable))
        except OutsideError as error:
            self.refused[kind] = error
            return
        output = output_file(Path.cwd(), done.job_id)
        board = settings.models[kind]
        self.submitted.append(ProfileJob(done.job_id, work.model, board, kind, work.points, output))
        for message in done.messages:
            typer.echo(f"{kind}: {message}", err=True)


def _measure(
    settings: Settings,
    specs: Sequence[ServiceSpec],
    work: ProfileTask,
    file: Path,
    *,
    as_json: bool,
) -> None:
    slurm = open_slurm(settings)
    jobs = _Jobs()
    interrupted = False
    try:
        for spec in specs:
            jobs.submit(spec, settings, work)
        with _telling() as tell:
            asyncio.run(follow(slurm, jobs.submitted, tell))
    except KeyboardInterrupt:
        interrupted = True
    seen = [look(job, None) for job in jobs.submitted]
    found = merged((), (row for one in seen for row in one.measurements))
    if found:
        update_measurements(file, found)
        _print(file, found, as_json=as_json)
    if interrupted:
        asyncio.run(cancel(slurm, jobs.submitted))
        typer.echo("The jobs were cancelled; what they had measured is kept.", err=True)
        raise typer.Exit(_INTERRUPTED)
    _require_complete(seen, jobs.refused)


@contextmanager
def _telling() -> Iterator[Callable[[Sequence[Progress]], None]]:
    """Show progress on stderr: a table that changes on a terminal, else a line for each change."""
    out = terminal_console(stderr=True)
    if out.is_terminal:
        with Live(console=out, auto_refresh=False, transient=True) as live:
            yield lambda seen: live.update(progress_table(seen), refresh=True)
        return
    told: dict[int, str] = {}

    def tell(seen: Sequence[Progress]) -> None:
        for one in seen:
            text = progress_text(one).plain
            if told.get(one.job.job_id) != text:
                told[one.job.job_id] = text
                typer.echo(f"{one.job.gres_type} (job {one.job.job_id}): {text}", err=True)

    yield tell


def _print(file: Path, found: Sequence[Measurement], *, as_json: bool) -> None:
    if as_json:
        print_json({"file": str(file), "measurements": [row.model_dump() for row in found]})
    else:
        console().print(measurements_table(found))
        console().print(Text(str(file)))


def _require_complete(seen: Sequence[Progress], refused: Mapping[str, OutsideError]) -> None:
    """Check that all was measured.

    Raises OutsideError: what sbatch said (SW-SBATCH), or SW-PROFILE-ENDED.
    """
    for kind in refused:
        typer.echo(f"{kind} was not measured.", err=True)
    if refused:
        raise next(iter(refused.values()))
    for one in seen:
        if not one.is_complete:
            words = last_words(one.job) or "it printed nothing"
            raise OutsideError(
                "SW-PROFILE-ENDED",
                f"Job {one.job.job_id} on {one.job.gres_type} ended after {len(one.points)} of "
                f"{one.job.points} points: {words}",
                f"See its output: {one.job.output}. What was measured is kept.",
            )


@profile_app.command(
    epilog="Examples: slicewise profile show bert.profile.json | slicewise profile show bert.csv"
)
def show(
    files: Annotated[
        list[Path], typer.Argument(help="Files of slicewise profile, or CSV files of ParvaGPU.")
    ],
    as_json: Json = False,
) -> None:
    """Show what was measured, as a table."""
    rows = merged((), (row for file in files for row in read_measurements(file)))
    if as_json:
        print_json([row.model_dump() for row in rows])
    else:
        console().print(measurements_table(rows))
