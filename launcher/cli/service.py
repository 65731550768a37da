"""Commands of ``slicewise service`` that take a service's file: apply, rollback, render, schema."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.text import Text

from slicewise.cluster.language.codes import known
from slicewise.cluster.language.errors import InvalidInputError, SlicewiseError
from slicewise.cluster.language.gres import parse_gpu_requests
from slicewise.cluster.language.replica_shape import ReplicaShape
from slicewise.cluster.language.service import ServiceSpec, service_spec
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.messages import CheckRequest, SubmitAnswer
from slicewise.cluster.rpc.order_messages import OrderRequest
from slicewise.cluster.rpc.read_messages import SlicePriceAnswer, SlicePriceRequest
from slicewise.cluster.runtime.console import console, print_json
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.runtime.user_names import user_name
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.settings.read import load_settings
from slicewise.cluster.slurm.sbatch import Submitted, submit_service, why_no_start
from slicewise.launcher.cli import show_file
from slicewise.launcher.cli.service_events import events_app
from slicewise.launcher.cli.service_history import HistoryName, earlier_generation, history_app
from slicewise.launcher.cli.service_init import init_app
from slicewise.launcher.cli.service_orders import order_app
from slicewise.launcher.cli.service_trace import trace_app
from slicewise.launcher.cli.service_view import view_app
from slicewise.launcher.cli.service_wait import Started, Timeout, start_once, wait_app, wait_for
from slicewise.launcher.gateway.identity import certificate
from slicewise.launcher.rules.engines.registry import engine_named, start_settings
from slicewise.launcher.rules.pools.notes import pool_notes
from slicewise.launcher.rules.services.apply_plan import (
    Action,
    ApplyPlan,
    ReplicaCost,
    plan_apply,
    with_needs,
)
from slicewise.launcher.rules.services.replica_gpus import require_split, require_usable
from slicewise.launcher.scripts.render import service_script
from slicewise.launcher.services.adapter_files import require_adapter_engine, require_adapters
from slicewise.launcher.services.lookup import SkipModelCheck, whole_view
from slicewise.launcher.services.model_repository import require_runnable, with_files
from slicewise.launcher.services.overview import Condition, service_url
from slicewise.launcher.services.service_file import (
    current_directory,
    made_logs,
    read_service_file,
    require_image,
    require_media,
    require_model,
    require_pool_engine,
    require_writable,
)
from slicewise.launcher.services.waiting import WaitGoal, Waiting

EXAMPLE = """\
# bert.toml
[service]
name = "bert"
tenant = "vision"                   # a Slurm account with a quota
model_repository = "/models/bert"   # Triton's layout: /models/bert/bert/config.pbtxt
model = "bert"
profile = "1g.10gb"
max_replicas = 8
concurrency = 2
max_queue_s = 0.5                   # objective: or p95_ms = 800, or neither
environment = { OMP_NUM_THREADS = "4" }
"""

service_app = typer.Typer(
    no_args_is_help=True,
    help="Inference services that scale with their requests.",
    epilog="Examples: slicewise service init /models/bert"
    " | slicewise service apply bert.toml"
    " | slicewise service status bert --watch",
)

File = Annotated[Path, typer.Argument(help="A service's TOML file.", show_default=False)]


@service_app.command(
    "apply",
    epilog="Examples: slicewise service apply bert.toml"
    " | slicewise service apply bert.toml --dry-run"
    " | slicewise service apply bert.toml --force",
)
def apply_service(
    file: File,
    *,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only check and show what would be done; submit nothing."),
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Roll over even if the file has not changed, such as for a new engine."
        ),
    ] = False,
    skip_model_check: SkipModelCheck = False,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait", help="Wait until it is ready; without min_replicas, until it can be woken."
        ),
    ] = False,
    start: Annotated[
        bool,
        typer.Option(
            "--start", help="Start one replica, let its model answer once, and give it back."
        ),
    ] = False,
    timeout_s: Timeout = 600.0,
    as_json: Json = False,
) -> None:
    """Check a service and submit it as a held job array; its replicas start with its requests.

    A service of this name that already runs rolls over: new replicas replace the old ones, one by
    one, and no request is lost. If nothing has changed, nothing is submitted.

    The file, the model repository and the job for Slurm are checked first; if anything is wrong,
    nothing is submitted. Then the command waits up to 5 s until the address answers. With --wait or
    --start it waits on, shows progress on stderr, and ends with exit code 7 if the service is not
    ready within --timeout, 1 if its starts fail.
    """
    settings, spec = load_settings(), read_service_file(file)
    spec, plan = _checked(settings, spec, force=force, skip_model_check=skip_model_check)
    if dry_run:
        _print_plan(settings, spec, plan, as_json=as_json)
    else:
        until = _Until(timeout_s, start=start) if wait or start else None
        _apply(settings, spec, plan, until, as_json=as_json, force=force)


@dataclass(frozen=True)
class Applied:
    """What ``service apply`` or ``service rollback`` did."""

    array_job_id: int | None
    url: str
    action: Action
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class AppliedAwaited(Applied):
    """What it did with ``--wait``, and how the service is now."""

    state: Condition | Literal["gone"]


@dataclass(frozen=True, kw_only=True)
class AppliedStarted(Applied):
    """What it did with ``--start``, and the replica that was started."""

    started: Started


@dataclass(frozen=True)
class _Until:
    """For how many seconds to wait until a service is ready, and whether to start a replica."""

    timeout_s: float
    start: bool = False


def _apply(
    settings: Settings,
    spec: ServiceSpec,
    plan: ApplyPlan,
    until: _Until | None,
    *,
    as_json: bool,
    force: bool = False,
) -> None:
    url = service_url(settings.gateway.url, spec.tenant, spec.name)
    idle = plan.action == "nothing"
    submitted = None
    if not idle:
        logs = made_logs(spec, plan.living)
        submitted = submit_service(_script(spec, settings), f"--output={logs}")
    job_id = submitted.job_id if submitted is not None else plan.array_job_id
    trouble = asyncio.run(_trouble(settings, submitted, url))
    has_adapters = bool(spec.adapters) or any(change.key == "adapters" for change in plan.changes)
    if force and has_adapters and plan.array_job_id is not None:
        # Where nothing but adapters differs, replicas would stay.
        restart = OrderRequest(array_job_id=plan.array_job_id, what="restart")
        DaemonClient(settings.daemon).call(restart)
    if not as_json:
        _print_applied(spec, plan, submitted, url)
    outcome = _Outcome()
    if until is not None:
        name = f"{spec.tenant}/{spec.name}"
        waiting = Waiting(name, WaitGoal.READY, job_id or 0, may_sleep=not until.start)
        outcome = _awaited(settings, waiting, until)
    if as_json:
        print_json(outcome.applied(job_id, url, plan.action, plan.notes))
    elif outcome.text:
        typer.echo(outcome.text)
    if outcome.failure is not None:
        raise outcome.failure
    if trouble and not outcome.text:
        typer.echo(f"The address can't be used yet: {trouble}", err=True)


@dataclass(frozen=True)
class _Outcome:
    """What --wait or --start have found: the JSON, in words, or why the service is not ready."""

    applied: Callable[..., Applied] = Applied
    text: str = ""
    failure: SlicewiseError | None = None


def _awaited(settings: Settings, waiting: Waiting, until: _Until) -> _Outcome:
    try:
        if until.start:
            started = start_once(settings, waiting, until.timeout_s)
            return _Outcome(partial(AppliedStarted, started=started), started.text(waiting.service))
        observation = asyncio.run(wait_for(settings, waiting, until.timeout_s))
    except SlicewiseError as error:
        return _Outcome(failure=error)
    state: Condition | Literal["gone"] = "gone" if observation is None else observation.state
    wakes = ": the first request wakes it" if state == "asleep" else ""
    return _Outcome(partial(AppliedAwaited, state=state), f"{waiting.service} is {state}{wakes}")


async def _trouble(settings: Settings, submitted: Submitted | None, url: str) -> str:
    """Return why the address can't be used yet; "" if it can."""
    # Imported here, since no other command asks the gateway by its address.
    from slicewise.launcher.services import address  # noqa: PLC0415

    trouble = await address.wait_for_route(url)
    if trouble or submitted is None:
        return trouble
    return await address.wait_until_followed(DaemonClient(settings.daemon), submitted.job_id)


def _checked(
    settings: Settings, spec: ServiceSpec, *, force: bool, skip_model_check: bool
) -> tuple[ServiceSpec, ApplyPlan]:
    """Return what is submitted and what it would change; raises what apply would refuse.

    What is submitted has what the model's files say, where they were read.
    """
    needs = None
    if not skip_model_check:
        require_model(spec)
        needs = require_runnable(spec)
        needs = replace(needs, notes=(*needs.notes, *require_adapters(spec)))
        spec = with_files(spec)
        require_image(spec)
    require_writable(current_directory())
    plan = asyncio.run(_plan(settings, spec, force=force))
    return spec, plan if needs is None else with_needs(plan, spec, needs)


async def _plan(settings: Settings, spec: ServiceSpec, *, force: bool) -> ApplyPlan:
    daemon, script = DaemonClient(settings.daemon), _script(spec, settings)
    answer, view, against = await asyncio.gather(
        _admitted(daemon, spec),
        whole_view(daemon),
        asyncio.to_thread(why_no_start, script),
    )
    chosen = next((request.gres_type for request in parse_gpu_requests(answer.gres or "")), None)
    shape = replace(spec.replica_shape, gres_type=chosen)
    require_usable(engine_named(spec.engine), shape, settings)
    plan = plan_apply(spec, view, shape.cost_millislices(settings.costs), force=force)
    living = frozenset(service.array_job_id for service in view.services)
    shares = pool_notes(spec, user_name(os.getuid()), view.services)
    notes = (*plan.notes, *shares, *_no_start_note(against))
    replica = await _cost_of(daemon, spec.tenant, shape, settings)
    return replace(plan, notes=notes, living=living, replica=replica)


async def _cost_of(
    daemon: DaemonClient, tenant: str, shape: ReplicaShape, settings: Settings
) -> ReplicaCost | None:
    """What a replica costs; without prices if the daemon can't say them now."""
    if shape.gres_type is None:
        return None
    price = SlicePriceAnswer()
    with suppress(SlicewiseError):
        price = await daemon.ask(SlicePriceRequest(tenant=tenant, gres_type=shape.gres_type))
    return ReplicaCost(
        shape,
        settings.models.get(shape.gres_type),
        shape.cost_millislices(settings.costs),
        price.hour,
        price.day,
        price.currency,
    )


async def _admitted(daemon: DaemonClient, spec: ServiceSpec) -> SubmitAnswer:
    """Return what the service would get; InvalidInputError with the reason if it is refused."""
    request = CheckRequest(tenant=spec.tenant, directives=spec.directives())
    answer = await daemon.ask(request)
    if answer.action == "refuse":
        raise InvalidInputError(known(answer.code), answer.message, answer.hint)
    return answer


def _no_start_note(against: str) -> tuple[str, ...]:
    if not against:
        return ()
    waits = "If nodes are down or drained (sinfo -R), it waits for them"
    never = "otherwise no node offers these cpus, memory_mib and GPU together"
    return (f"Slurm could not start a replica now: {against}. {waits}; {never}",)


def _print_applied(
    spec: ServiceSpec, plan: ApplyPlan, submitted: Submitted | None, url: str
) -> None:
    out = console()
    for message in submitted.messages if submitted is not None else ():
        out.print(Text(message))
    out.print(Text(show_file.applied(spec, plan, submitted, url)))
    for note in plan.notes:
        out.print(Text(note, style="yellow"))


def _print_plan(settings: Settings, spec: ServiceSpec, plan: ApplyPlan, *, as_json: bool) -> None:
    url = service_url(settings.gateway.url, spec.tenant, spec.name)
    if as_json:
        service = f"{spec.tenant}/{spec.name}"
        print_json(show_file.PlannedService(**vars(plan), service=service, url=url))
    else:
        console().print(show_file.plan_text(spec, plan, url))


@service_app.command(
    "rollback",
    epilog="Examples: slicewise service rollback bert --wait"
    " | slicewise service rollback bert --to 814 --dry-run",
)
def rollback_service(
    name: HistoryName,
    *,
    to: Annotated[
        int | None,
        typer.Option("--to", help="Array job of the generation; unset: the one before the newest."),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only check and show what would be done; submit nothing."),
    ] = False,
    skip_model_check: SkipModelCheck = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it is ready.")] = False,
    timeout_s: Timeout = 600.0,
    as_json: Json = False,
) -> None:
    """Apply an earlier generation of a service again, with the same checks as apply.

    It becomes a new generation, to which the service rolls over. slicewise service history shows
    them all. The service's file stays as it is: mend it before you apply it again.
    """
    settings = load_settings()
    spec = service_spec(asyncio.run(earlier_generation(settings, name, to)).directives)
    spec, plan = _checked(settings, spec, force=False, skip_model_check=skip_model_check)
    if dry_run:
        _print_plan(settings, spec, plan, as_json=as_json)
    else:
        _apply(settings, spec, plan, _Until(timeout_s) if wait else None, as_json=as_json)


@service_app.command("render", epilog="Example: slicewise service render bert.toml > bert.sbatch")
def render_service(file: File) -> None:
    """Print the batch script that apply would submit; submitting it with sbatch does the same."""
    typer.echo(_script(with_files(read_service_file(file)), load_settings()), nl=False)


def _script(spec: ServiceSpec, settings: Settings) -> str:
    started = start_settings(spec.engine, settings.engines)
    engine = engine_named(spec.engine)
    require_usable(engine, spec.replica_shape, settings)
    require_split(engine, spec)
    require_adapter_engine(spec)
    require_media(spec)
    require_pool_engine(spec)
    return service_script(spec, started, certificate(settings.gateway), settings.launcher)


@service_app.command("schema", epilog="Example: slicewise service schema --example > bert.toml")
def service_schema(
    example: Annotated[
        bool, typer.Option("--example", help="Print an example file instead.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the keys of a service file and what they mean."""
    if example:
        typer.echo(EXAMPLE, nl=False)
    elif as_json:
        print_json(show_file.schema_rows())
    else:
        console().print(show_file.schema_table())


# They have no name of their own, so their commands stand beside the ones above.
service_app.add_typer(init_app)
service_app.add_typer(view_app)
service_app.add_typer(order_app)
service_app.add_typer(wait_app)
service_app.add_typer(history_app)
service_app.add_typer(events_app)
service_app.add_typer(trace_app)
