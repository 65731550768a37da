"""Commands of ``slicewise profile``: measure a model on slices, show what was measured."""

import asyncio
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from rich.live import Live
from rich.text import Text

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, OutsideError
from slicewise.cluster.language.measurements import (
    Measurement,
    merged,
    require_one_load,
    shown_loads,
)
from slicewise.cluster.language.service import ServiceSpec, service_spec
from slicewise.cluster.language.token_cost import TokenObjective, cheapest
from slicewise.cluster.rpc.own_tenant import own_tenant
from slicewise.cluster.runtime.console import console, print_json, terminal_console
from slicewise.cluster.runtime.measurement_file import read_measurements, update_measurements
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.settings.read import load_settings
from slicewise.cluster.slurm.open import open_slurm
from slicewise.cluster.slurm.sbatch import submit
from slicewise.launcher.cli.profile_options import (
    Account,
    Batches,
    Concurrency,
    Cpus,
    Data,
    EngineOption,
    Environment,
    Image,
    MemoryMib,
    ModelFile,
    Output,
    OutputTokens,
    P95Ms,
    Partition,
    Processes,
    ProfileChoice,
    PromptTokens,
    Repository,
    Runtime,
    Seconds,
    TpotMs,
    TtftMs,
    Types,
)
from slicewise.launcher.cli.show_profile import (
    cheapest_lines,
    measurements_shown,
    progress_table,
    progress_text,
)
from slicewise.launcher.profiling.jobs import (
    JOB_NAME,
    ProfileJob,
    Progress,
    cancel,
    follow,
    last_words,
    look,
    output_file,
)
from slicewise.launcher.rules.engines.engine import MeasuredEngine, PromptedEngine
from slicewise.launcher.rules.engines.registry import engine_named, start_settings
from slicewise.launcher.rules.profiling.figures import ProfileTask
from slicewise.launcher.rules.profiling.token_figures import TokenTask
from slicewise.launcher.scripts.render import profile_script
from slicewise.launcher.services.lookup import SkipModelCheck
from slicewise.launcher.services.model_repository import engine_name_of, model_needs, require_choice
from slicewise.launcher.services.service_file import require_image, require_model, require_writable

_INTERRUPTED = 130


profile_app = typer.Typer(
    no_args_is_help=True,
    help="How fast a model is on the cluster's GPU types.",
    epilog="Examples: slicewise profile measure bert --model-repository /models/bert"
    " | slicewise profile show bert.profile.json",
)


@profile_app.command(
    epilog="Examples: slicewise profile measure bert --model-repository /models/bert"
    " --account vision"
    " | slicewise profile measure bert --model-repository /models/bert --account vision"
    " --types 1g.10gb,2g.20gb --batches 1,8,32 --processes 1,2,3 --data request.json"
    " | slicewise profile measure llama --model-repository /models/llm --engine vllm"
    " --concurrency 1,8,64 --prompt-tokens 2000 --output-tokens 200 --ttft-ms 1000 --tpot-ms 50"
)
def measure(
    model: Annotated[
        str, typer.Argument(help="Model in the model repository.", show_default=False)
    ],
    *,
    model_repository: Repository,
    model_file: ModelFile = None,
    account: Account = None,
    engine: EngineOption = None,
    types: Types = None,
    batches: Batches = None,
    processes: Processes = None,
    concurrency: Concurrency = None,
    prompt_tokens: PromptTokens = None,
    output_tokens: OutputTokens = None,
    seconds: Seconds = None,
    data: Data = None,
    output: Output = None,
    ttft_ms: TtftMs = None,
    tpot_ms: TpotMs = None,
    p95_ms: P95Ms = None,
    runtime: Runtime = "bare",
    image: Image = None,
    cpus: Cpus = 1,
    memory_mib: MemoryMib = 4096,
    environment: Environment = None,
    partition: Partition = None,
    skip_model_check: SkipModelCheck = False,
    as_json: Json = False,
) -> None:
    """Measure a model's throughput and latency on GPU types, with jobs of yours that serve it.

    Submits one ordinary job for each type, within your quota, and adds the figures to those already
    in the output. Ctrl-C cancels the jobs and keeps what was measured.
    """
    values = {
        "name": JOB_NAME,
        "tenant": own_tenant(account),
        "model_repository": str(model_repository.absolute()),
        "model": model,
        "model_file": model_file,
        "engine": engine or engine_name_of(model_repository / model) or "triton",
        "runtime": runtime,
        "image": image,
        "cpus": cpus,
        "memory_mib": memory_mib,
        "environment": dict(environment or ()),
        "partition": partition,
    }
    settings = load_settings()
    asked = ProfileChoice(
        batches, processes, concurrency, prompt_tokens, output_tokens, seconds, data
    )
    wanted = _types(settings, types, partition)
    specs = [service_spec({**values, "profile": name}) for name in wanted]
    measured_model = _measurable(specs[0])
    file = output or Path(f"{model}.profile.json")
    objective = TokenObjective(ttft_ms, tpot_ms, p95_ms)
    work = _Work(settings, measured_model, asked.task(model, measured_model), file, objective)
    work.require_files()
    if not skip_model_check:
        require_model(specs[0])
        require_choice(model_needs(specs[0]))
        require_image(specs[0])
    require_writable(Path.cwd())
    _measure(work, specs, as_json=as_json)


@dataclass(frozen=True)
class Cheapest:
    """Where a million output tokens cost the least."""

    type: str
    concurrency: int
    millislice_s: int


@dataclass(frozen=True)
class MeasuredFile:
    """What ``profile`` has measured, the file that has it, and the cheapest of models of tokens."""

    file: str
    measurements: Sequence[Measurement]
    cheapest: Cheapest | None


@dataclass(frozen=True)
class _Work:
    """What is measured, and where the figures go."""

    settings: Settings
    engine: MeasuredEngine | PromptedEngine
    task: ProfileTask | TokenTask
    file: Path
    objective: TokenObjective

    def require_files(self) -> None:
        """Check files; raises InvalidInputError for what would be found when the jobs have run."""
        old = read_measurements(self.file) if self.file.exists() else ()
        if not os.access(self.file.absolute().parent, os.W_OK | os.X_OK):
            raise InvalidInputError(
                Code.OUTPUT,
                f"{self.file} could not be written.",
                "Name another file: --output",
            )
        data = _read_data(Path(self.task.data)) if self.task.data is not None else None
        if data is not None:
            _check_data(self.engine, data)
        load = self.task.load(data) if isinstance(self.task, TokenTask) else ""
        others = {row.load for row in old if row.model == self.task.model} - {load}
        if others:
            raise InvalidInputError(
                Code.OUTPUT,
                f"{self.file} has figures of {self.task.model} with other requests "
                f"({shown_loads(others)}), with which these can't be compared.",
                "Name another file: --output",
            )


def _measurable(spec: ServiceSpec) -> MeasuredEngine | PromptedEngine:
    """Return the engine.

    Raises InvalidInputError: SW-SERVICE-ENGINE if there is none, SW-SERVICE if none of its
    models can be measured.
    """
    engine = engine_named(spec.engine)
    if isinstance(engine, MeasuredEngine | PromptedEngine):
        with suppress(ValueError):
            engine.options(spec, is_measured=True)
            return engine
    raise InvalidInputError(
        Code.SERVICE,
        f"This is a model of {engine.title}, of which slicewise can't measure models.",
        "Give its service need_gib or profile, and measure the service by requests.",
    )


def _read_data(data: Path) -> str:
    try:
        return data.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(
            Code.INPUT_FILE, f"{data} can't be read: {error}.", "Name a JSON file."
        ) from None


def _check_data(engine: MeasuredEngine | PromptedEngine, data: str) -> None:
    if isinstance(engine, MeasuredEngine):
        engine.check_data(data)
    else:
        engine.parse_prompts(data)


def _types(settings: Settings, text: str | None, partition: str | None) -> Sequence[str]:
    """Return the types asked for, else all types of slicewise.toml that the nodes have."""
    types_there = asyncio.run(_types_there(settings, partition))
    asked = types_there if text is None else list(dict.fromkeys(text.split(",")))
    missing = [name for name in asked if name not in types_there]
    if missing or not asked:
        raise InvalidInputError(
            Code.PROFILE_UNKNOWN,
            f"No node has GPUs of type {', '.join(missing)}."
            if missing
            else "No node has GPUs of a type that slicewise.toml lists.",
            f"The nodes have: {', '.join(types_there) or 'none'}.",
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

    def submit(self, spec: ServiceSpec, work: _Work) -> None:
        """Submit one job; a refusal does not affect the other types."""
        kind, task = str(spec.profile), work.task
        started = start_settings(spec.engine, work.settings.engines)
        try:
            done = submit(profile_script(spec, started, task, sys.executable))
        except OutsideError as error:
            self.refused[kind] = error
            return
        self.submitted.append(
            ProfileJob(
                done.job_id,
                task.model,
                work.settings.models[kind],
                kind,
                title=work.engine.title,
                makes_tokens=isinstance(task, TokenTask),
                points=task.points,
                output=output_file(Path.cwd(), done.job_id),
            )
        )
        for message in done.messages:
            typer.echo(f"{kind}: {message}", err=True)


def _measure(work: _Work, specs: Sequence[ServiceSpec], *, as_json: bool) -> None:
    slurm = open_slurm(work.settings)
    jobs = _Jobs()
    interrupted = False
    try:
        for spec in specs:
            jobs.submit(spec, work)
        with _telling() as tell:
            asyncio.run(follow(slurm, jobs.submitted, tell))
    except KeyboardInterrupt:
        interrupted = True
    seen = [look(job, None) for job in jobs.submitted]
    measurements = merged((), (row for progress in seen for row in progress.measurements))
    if measurements:
        update_measurements(work.file, measurements)
        _print(work, measurements, as_json=as_json)
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
        for task in seen:
            text = progress_text(task).plain
            if told.get(task.job.job_id) != text:
                told[task.job.job_id] = text
                typer.echo(f"{task.job.gres_type} (job {task.job.job_id}): {text}", err=True)

    yield tell


def _print(work: _Work, measurements: Sequence[Measurement], *, as_json: bool) -> None:
    costs = work.settings.costs
    if not as_json:
        console().print(measurements_shown(measurements, costs))
        for line in (*cheapest_lines(measurements, costs, work.objective), str(work.file)):
            console().print(Text(line))
        return
    best = cheapest(measurements, costs, work.objective)
    chosen = Cheapest(best.row.type, best.row.batch, best.millislice_s) if best else None
    print_json(MeasuredFile(str(work.file), measurements, chosen))


def _require_complete(seen: Sequence[Progress], refused: Mapping[str, OutsideError]) -> None:
    """Check that all was measured.

    Raises OutsideError: what sbatch said (SW-SLURM-FAILED), or SW-PROFILE-ENDED.
    """
    for kind in refused:
        typer.echo(f"{kind} was not measured.", err=True)
    if refused:
        raise next(iter(refused.values()))
    for task in seen:
        if not task.is_complete:
            words = last_words(task.job) or "it printed nothing"
            raise OutsideError(
                Code.PROFILE_ENDED,
                f"Job {task.job.job_id} on {task.job.gres_type} ended after {len(task.points)} of "
                f"{task.job.points} points: {words}",
                f"See its output: {task.job.output}. What was measured is kept.",
            )


@profile_app.command(
    epilog="Examples: slicewise profile show bert.profile.json | slicewise profile show bert.csv"
)
def show(
    files: Annotated[
        list[Path], typer.Argument(help="Files of slicewise profile, or CSV files of ParvaGPU.")
    ],
    *,
    ttft_ms: TtftMs = None,
    tpot_ms: TpotMs = None,
    p95_ms: P95Ms = None,
    as_json: Json = False,
) -> None:
    """Show what was measured, as a table; of language models also where tokens cost the least."""
    measurements = [row for file in files for row in read_measurements(file)]
    require_one_load(measurements)
    rows = merged((), measurements)
    if as_json:
        print_json(rows)
        return
    costs = load_settings().costs if any(row.tokens for row in rows) else {}
    console().print(measurements_shown(rows, costs))
    for model in sorted({row.model for row in rows if row.tokens}):
        own = [row for row in rows if row.model == model]
        objective = TokenObjective(ttft_ms, tpot_ms, p95_ms)
        for line in cheapest_lines(own, costs, objective):
            console().print(Text(line))
