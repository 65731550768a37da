"""``slicewise mig instances``: chooses instances for loads, by figures of ``slicewise profile``."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.gpus.mig_profiles import (
    Board,
    board,
    boards,
    cost_millislices,
    profile_of,
)
from slicewise.cluster.language.measurements import Measurement, require_one_load
from slicewise.cluster.language.token_cost import TokenObjective
from slicewise.cluster.runtime.console import console, print_json
from slicewise.cluster.runtime.measurement_file import read_measurements
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.settings.read import load_settings
from slicewise.slurm_plugin.cli.views.instances import ChosenInstances, report
from slicewise.slurm_plugin.rules.mig.instances import (
    Measured,
    ServiceLoad,
    fewest_gpus,
    fewest_slices,
)

_MOST = 10_000_000
"""Most requests per second, and most milliseconds: a larger number must be a typing error."""


@dataclass(frozen=True)
class ServiceDemand:
    """A service's name, its measurements, and the load that it has to serve."""

    name: str
    rows: Sequence[Measurement]
    rate_mrps: int
    slo_us: int


def _complete_board(incomplete: str) -> list[str]:
    return sorted(name for name in boards() if name.startswith(incomplete))


def _positive(text: str) -> Decimal:
    try:
        number = Decimal(text)
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite() or not 0 < number <= _MOST:
        raise typer.BadParameter(f"{text!r} is not a number above 0, up to {_MOST:,}.")
    return number


def _wanted(text: str) -> ServiceDemand:
    """Parse ``NAME=FILE,RATE,SLO_MS``, the value of an option."""
    name, _, rest = text.partition("=")
    parts = rest.rsplit(",", 2)
    if not name or len(parts) != 3:  # noqa: PLR2004
        raise typer.BadParameter(f"{text!r}: write NAME=FILE,RATE,SLO_MS.")
    rate_rps, slo_ms = _positive(parts[1]), _positive(parts[2])
    rows = read_measurements(Path(parts[0]))
    models = {row.model for row in rows}
    only = models if len(models) == 1 else {name}
    return _service(name, _of_model(rows, only), rate_rps, slo_ms)


def _service(
    name: str, rows: Sequence[Measurement], rate_rps: Decimal, slo_ms: Decimal
) -> ServiceDemand:
    return ServiceDemand(name, rows, math.ceil(rate_rps * 1000), math.floor(slo_ms * 1000))


def _of_model(rows: Sequence[Measurement], models: Collection[str]) -> Sequence[Measurement]:
    """Return the rows of ``models``.

    Raises InvalidInputError: SW-USAGE unless they are of one model, SW-INPUT-FILE unless of the
    same requests.
    """
    measurements = [row for row in rows if row.model in models]
    if len({row.model for row in measurements}) != 1:
        known = ", ".join(sorted({row.model for row in rows})) or "none"
        raise InvalidInputError(
            Code.USAGE,
            f"The measurements are of these models: {known}.",
            "Choose one: --model, or a --service with the model's name.",
        )
    require_one_load(measurements)
    return measurements


def instances(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Files of slicewise profile, or ParvaGPU's CSV.")
    ] = None,
    *,
    rate: Annotated[
        Any, typer.Option(parser=_positive, metavar="R", help="Requests per second.")
    ] = None,
    slo_ms: Annotated[
        Any,
        typer.Option(parser=_positive, metavar="MS", help="Milliseconds that a request may take."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Which model, if the files have several.")
    ] = None,
    service: Annotated[
        list[Any] | None,
        typer.Option(
            parser=_wanted,
            metavar="NAME=FILE,RATE,SLO_MS",
            help="Instead of the above: one of several services that share GPUs.",
        ),
    ] = None,
    ttft_ms: Annotated[
        int | None,
        typer.Option(min=1, help="Of language models: 99 % had their first token within these ms."),
    ] = None,
    tpot_ms: Annotated[
        int | None,
        typer.Option(min=1, help="Of language models: ms from one token to the next, of 99 %."),
    ] = None,
    gpu_model: Annotated[
        str | None,
        typer.Option(
            "--board",
            help="The GPU model, if several were measured.",
            autocompletion=_complete_board,
        ),
    ] = None,
    as_json_: Json = False,
) -> None:
    """Show the cheapest instances that serve a load within its SLO, and how to cut GPUs for them.

    One service gets the instances that cost the fewest slices; several services get those that need
    the fewest GPUs together. Only measurements with a latency below 0.45 of the SLO are used: the
    rest of the time is for waiting.
    """
    services = list(service or ())
    if files and rate and slo_ms and not services:
        rows = [row for file in files for row in read_measurements(file)]
        models = {model} if model else {row.model for row in rows}
        measurements = _of_model(rows, models)
        services = [_service(measurements[0].model, measurements, rate, slo_ms)]
    elif files or not services:
        raise InvalidInputError(
            Code.USAGE,
            "No load is given.",
            "Give FILE with --rate and --slo-ms, or --service NAME=FILE,RATE,SLO_MS.",
        )
    objective = TokenObjective(ttft_ms, tpot_ms)
    services = [_keeping(service, objective) for service in services]
    on = _board(services, gpu_model)
    chosen = _choose(services, on, _costs(on))
    if as_json_:
        print_json(chosen)
    else:
        console().print(report(chosen))


def _keeping(demand: ServiceDemand, objective: TokenObjective) -> ServiceDemand:
    """Leave out what does not keep the objective.

    Raises InvalidInputError (SW-SLO-UNREACHABLE) if that is everything.
    """
    if not objective.keys:
        return demand
    rows = [row for row in demand.rows if objective.is_kept(row)]
    if not rows:
        bounds = ", ".join(f"{name} {bound}" for name, bound in objective.keys.items())
        raise InvalidInputError(
            Code.SLO_UNREACHABLE,
            f"No measured configuration of {demand.name!r} keeps {bounds}.",
            "Raise it, or measure the model with fewer requests at a time or on larger profiles.",
        )
    return replace(demand, rows=rows)


def _board(services: Sequence[ServiceDemand], named: str | None) -> Board:
    """Return the GPU model to choose on: the one named, else the only one measured.

    Raises InvalidInputError: SW-USAGE, SW-VALUE.
    """
    models = sorted({row.board for service in services for row in service.rows})
    if named is None and len(models) > 1:
        raise InvalidInputError(
            Code.USAGE,
            f"The measurements are of several GPU models: {', '.join(models)}.",
            "Choose one: --board",
        )
    return board(named or models[0])


def _costs(on: Board) -> Mapping[str, int]:
    """Return each profile's cost in millislices; a model not in slicewise.toml has weight 1."""
    gpu = load_settings().gpus.get(on.model)
    weight = gpu.weight if gpu is not None else Fraction(1)
    return {name: cost_millislices(on, name, weight) for name in on.profiles}


def _choose(
    services: Sequence[ServiceDemand], on: Board, costs: Mapping[str, int]
) -> ChosenInstances:
    names = [service.name for service in services]
    if len(set(names)) != len(names):
        raise InvalidInputError(Code.USAGE, "Two services have one name.", "Rename one.")
    loads = {service.name: _load(service, on) for service in services}
    if len(services) == 1:
        plan = fewest_slices(names[0], loads[names[0]], on, costs)
    else:
        plan = fewest_gpus(loads, on)
    types = {
        profile_of(on, row.type).name: row.type
        for service in services
        for row in service.rows
        if row.board == on.model
    }
    token_services = frozenset(
        service.name for service in services if any(row.tokens for row in service.rows)
    )
    return ChosenInstances(on, plan, loads, types, costs, token_services)


def _load(demand: ServiceDemand, on: Board) -> ServiceLoad:
    table = [
        Measured(
            profile_of(on, row.type).name,
            row.batch,
            row.processes,
            row.throughput_mrps,
            row.latency_us,
        )
        for row in demand.rows
        if row.board == on.model
    ]
    return ServiceLoad(demand.rate_mrps, demand.slo_us, table)
