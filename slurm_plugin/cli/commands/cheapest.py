"""``slicewise cheapest``: when a batch job that can wait costs least money, or least CO2."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.text import Text

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.slurm.submit_times import (
    DEADLINE_FORMS,
    TIME_FORMS,
    begin_text,
    limit_s,
    moment_s,
)
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.own_tenant import complete_tenant, own_tenant, typed_account
from slicewise.cluster.runtime.console import FittingTable, column, console, print_json, time_text
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.settings.read import load_settings
from slicewise.slurm_plugin.common.tariff_requests import CheapestAnswer, CheapestRequest
from slicewise.slurm_plugin.rules.accounting.begin_times import Begin
from slicewise.slurm_plugin.rules.accounting.invoice import money_text

cheapest_app = typer.Typer()
_MARGIN_S = 3600


@dataclass(frozen=True)
class CheapestShown:
    """What ``--json`` prints.

    Attributes:
        currency: "" without a tariff.
        now: what the job costs if it begins now.
        cheapest, greenest: when it costs least; None if nothing says what it costs.
    """

    currency: str
    now: Begin
    cheapest: Begin | None
    greenest: Begin | None


def _limit(text: str) -> int:
    seconds = limit_s(text)
    if seconds is None:
        raise typer.BadParameter(f"{text!r} is not a time limit. Write it as {TIME_FORMS}.")
    return seconds


def _margin(text: str) -> int:
    """As a time limit, but 0 is none."""
    return 0 if text == "0" else _limit(text)


def _moment(text: str) -> int:
    at_s = moment_s(text, wall_s())
    if at_s is None:
        raise typer.BadParameter(f"{text!r} is not a time. Write it as {DEADLINE_FORMS}.")
    return at_s


@cheapest_app.command(
    epilog="Examples: slicewise cheapest --time 4:00:00 --deadline 08:00 --gres gpu:1g.18gb:1"
    " | slicewise cheapest --time 1:30:00 --deadline now+8hours --gres gpu:1g.18gb:1 --begin"
    " | slicewise cheapest --time 1-0 --deadline 2026-12-04T18:00 --gres gpu:3g.71gb:1 --green",
)
def cheapest(
    *,
    lasts_s: Annotated[
        int,
        typer.Option(
            "--time", parser=_limit, metavar="LIMIT", help=f"The job's time limit: {TIME_FORMS}."
        ),
    ],
    deadline_s: Annotated[
        int,
        typer.Option(
            "--deadline",
            parser=_moment,
            metavar="TIME",
            help=f"When it must have ended: {DEADLINE_FORMS}.",
        ),
    ],
    gres: Annotated[str, typer.Option(help="GPUs of one node of the job, with their types.")],
    margin_s: Annotated[
        int | None,
        typer.Option(
            "--margin",
            parser=_margin,
            metavar="LIMIT",
            help="How long it may wait for GPUs after its begin, as --time; an hour if left out.",
        ),
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option(
            help="The job's account; if left out, your only one.",
            autocompletion=complete_tenant,
            callback=typed_account,
        ),
    ] = None,
    green: Annotated[
        bool, typer.Option("--green", help="Choose by grams of CO2, not by money.")
    ] = False,
    only_begin: Annotated[
        bool, typer.Option("--begin", help="Print only the best begin, for sbatch --begin.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Say when a job that can wait costs least money, or least CO2, and still ends in time.

    Money is by the tariff's windows of the days to come; grams are by the hours for which the
    site's series has values, and by the table of boards' watts. Both are of the whole time limit.
    Nothing is submitted or moved: give the answer to sbatch, with the same --time and --deadline.
    """
    if as_json and only_begin:
        raise typer.BadParameter("Choose --json or --begin.")
    _require_time(lasts_s, deadline_s)
    request = CheapestRequest.of(
        tenant=own_tenant(tenant),
        gres=gres,
        lasts_s=lasts_s,
        last_s=deadline_s - lasts_s - (_MARGIN_S if margin_s is None else margin_s),
    )
    answer = DaemonClient(load_settings().daemon).call(request)
    times = answer.times
    if as_json:
        print_json(CheapestShown(answer.currency, times.now, times.cheapest, times.greenest))
    elif only_begin:
        typer.echo(begin_text(_best(answer, is_green=green).at_s, answer.now_s))
    else:
        _print(answer, is_green=green)


def _require_time(lasts_s: int, deadline_s: int) -> None:
    """Raise InvalidInputError (SW-VALUE) for a job that would end too late if it began now."""
    ends_s = int(wall_s()) + lasts_s
    if ends_s > deadline_s:
        raise InvalidInputError(
            Code.VALUE,
            f"The job can't end in time: begun now, it may run until {time_text(ends_s)}.",
            "Give it a shorter --time, or a later --deadline.",
        )


def _best(answer: CheapestAnswer, *, is_green: bool) -> Begin:
    """The begin that was asked for; InvalidInputError (SW-VALUE) if nothing says what it costs."""
    best = answer.times.greenest if is_green else answer.times.cheapest
    if best is None:
        raise InvalidInputError(
            Code.VALUE,
            "Nothing says how green the hours until then are."
            if is_green
            else "No tariff holds: nothing costs anything.",
            "Leave --begin of sbatch out. Operators: [energy] carbon_file needs hours to come."
            if is_green
            else "Leave --begin of sbatch out.",
        )
    return best


def _print(answer: CheapestAnswer, *, is_green: bool) -> None:
    times = answer.times
    named = (("now", times.now), ("cheapest", times.cheapest), ("greenest", times.greenest))
    rows = [(name, begin) for name, begin in named if begin is not None]
    begins = [begin for _, begin in rows]
    columns = [
        column("", (name for name, _ in rows)),
        column("begin", (time_text(begin.at_s) for begin in begins)),
    ]
    if times.cheapest is not None:
        costs = ((begin.millionths, times.now.millionths) for begin in begins)
        shown = [(_money(cost), _saved(cost, now)) for cost, now in costs]
        columns.append(column(answer.currency, (cost for cost, _ in shown), right=True))
        columns.append(column("saved", (saved for _, saved in shown), right=True))
    if times.greenest is not None:
        grams = ((begin.carbon_g, times.now.carbon_g) for begin in begins)
        shown = [(_grams(cost), _saved(cost, now)) for cost, now in grams]
        columns.append(column("g CO2", (cost for cost, _ in shown), right=True))
        columns.append(column("saved", (saved for _, saved in shown), right=True))
    console().print(FittingTable(tuple(columns)))
    for note in _notes(answer, is_green=is_green):
        console().print(Text(note))


def _notes(answer: CheapestAnswer, *, is_green: bool) -> Iterator[str]:
    times = answer.times
    if times.cheapest is None:
        yield "No tariff holds: nothing costs anything."
    if times.greenest is None:
        yield "Nothing says how green these hours are."
    best = times.greenest if is_green else times.cheapest
    if best is not None and best.at_s > answer.now_s:
        yield f"For sbatch: --begin={begin_text(best.at_s, answer.now_s)}"


def _money(millionths: int | None) -> str:
    return "" if millionths is None else money_text(millionths)


def _grams(carbon_g: float | None) -> str:
    return "" if carbon_g is None else f"{carbon_g:,.1f}"


def _saved(cost: float | None, now: float | None) -> str:
    """The part of what it costs now, if both are known."""
    return "" if cost is None or not now else f"{(now - cost) / now:.0%}"
