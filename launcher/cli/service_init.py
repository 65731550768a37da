"""``slicewise service init``: writes a service's file from a model repository."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.token_cost import TokenObjective
from slicewise.cluster.rpc.own_tenant import own_tenant, typed_account
from slicewise.cluster.runtime.console import print_json
from slicewise.cluster.runtime.measurement_file import read_measurements
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.settings.read import load_settings
from slicewise.launcher.cli.profile_options import P95Ms, TpotMs, TtftMs
from slicewise.launcher.services.draft import DraftChoice, MeasuredModels, draft

init_app = typer.Typer()

_ANY_TENANT = "tenant"


Pool = Annotated[
    str,
    typer.Option(
        help="The pool whose services share replicas; --profile or --measured says which, since"
        " those of a pool are alike and hold several models."
    ),
]


@dataclass(frozen=True)
class DraftWritten:
    """The file that ``service init`` wrote, and why the engine could not load it."""

    file: str
    problems: tuple[str, ...]


@init_app.command(
    "init",
    epilog="Examples: slicewise service init /models/bert"
    " | slicewise service init /models --model bert --tenant vision --profile 1g.10gb"
    " | slicewise service init /models --model bert --pool small --profile 1g.10gb"
    " | slicewise service init /models --model llama --measured llama.profile.json --ttft-ms 500",
)
def init_service(
    repository: Annotated[Path, typer.Argument(help="A model repository.", show_default=False)],
    *,
    model: Annotated[str, typer.Option(help="The model, if there are several.")] = "",
    model_file: Annotated[
        str, typer.Option(help="The .gguf file, if the model's directory has several models.")
    ] = "",
    tenant: Annotated[
        str,
        typer.Option(
            help="The tenant, if you may see several; else yours.", callback=typed_account
        ),
    ] = "",
    name: Annotated[str, typer.Option(help="The service's name; unset: the model's.")] = "",
    profile: Annotated[
        str, typer.Option(help="GRES type of a replica; unset: need_gib, by the files' size.")
    ] = "",
    pool: Pool = "",
    measured: Annotated[
        Path | None,
        typer.Option(
            help="File of slicewise profile: the cheapest type for tokens, and how many "
            "requests at a time; with an objective that is where learning begins."
        ),
    ] = None,
    ttft_ms: TtftMs = None,
    tpot_ms: TpotMs = None,
    p95_ms: P95Ms = None,
    output: Annotated[
        Path | None, typer.Option(help="The file; unset: NAME.toml in this directory.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a service's file for a model of a repository; an existing file stays as it is.

    Its values follow from the model's files (of Triton config.pbtxt): look them over, then run
    apply with --dry-run, and apply.
    """
    objective = TokenObjective(ttft_ms, tpot_ms, p95_ms)
    if (objective.keys and measured is None) or (profile and measured is not None):
        raise typer.BadParameter(
            "give --ttft-ms, --tpot-ms, --p95-ms with --measured, and then no --profile."
        )
    if pool and not (profile or measured):
        raise typer.BadParameter("--pool: its replicas are alike: name their --profile.")
    figures = None
    settings = load_settings()
    if measured is not None:
        rows = read_measurements(measured)
        day = datetime.fromtimestamp(measured.stat().st_mtime, UTC).date().isoformat()
        figures = MeasuredModels(rows, settings.costs, objective, day)
    # Slurm's default partition may be one of the site's that gives no GPUs.
    partition = settings.cluster.partitions[0]
    chosen = DraftChoice(
        tenant or _ANY_TENANT, model, name, profile, figures, partition, model_file, pool
    )
    drafted = draft(repository, chosen)
    if not tenant:
        # The daemon is asked last: what was typed is judged without it.
        drafted = draft(repository, replace(chosen, tenant=own_tenant(None)))
    file = output or Path(f"{drafted.spec.name}.toml")
    _write(file, drafted.text)
    if as_json:
        print_json(DraftWritten(str(file), drafted.problems))
    else:
        typer.echo(f"{file} is written. What it would do: slicewise service apply {file} --dry-run")
    for problem in drafted.problems:
        typer.echo(f"{drafted.title} could not load the repository: {problem}", err=True)


def _write(file: Path, text: str) -> None:
    """Write a new file; raises InvalidInputError (SW-OUTPUT) if it is there already."""
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except OSError as error:
        raise InvalidInputError(
            Code.OUTPUT,
            f"{file} can't be written: {error.strerror}.",
            "Name another file: --output",
        ) from None
