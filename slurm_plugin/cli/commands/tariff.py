"""``slicewise tariff``: what use costs, from which day on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.periods import clock_text, weekday_and_minute
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.runtime.console import FittingTable, column, console, print_json
from slicewise.cluster.runtime.input_file import input_text
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.runtime.questions import confirm
from slicewise.cluster.settings.read import load_settings
from slicewise.slurm_plugin.cli.common.options import Reason, Yes, authored
from slicewise.slurm_plugin.cli.views.texts import times_column
from slicewise.slurm_plugin.common.tariff_requests import (
    MOST_BYTES,
    TariffAnswer,
    TariffApplyRequest,
    TariffPlanRequest,
    TariffsRequest,
)
from slicewise.slurm_plugin.rules.accounting.tariff import (
    PriceSpan,
    Tariff,
    TariffRecord,
    in_force,
    price_spans,
)
from slicewise.slurm_plugin.rules.accounting.tariff_file import (
    EXAMPLE,
    EnteredTariff,
    TariffChange,
    changes,
    flat,
)
from slicewise.slurm_plugin.rules.quota.calendar import DAYS

tariff_app = typer.Typer(
    no_args_is_help=True,
    help="What use costs, from which day on.",
    epilog="Examples: slicewise tariff apply --example > tariff.toml"
    " | slicewise tariff apply tariff.toml --dry-run | slicewise tariff show",
)

_WEEK_S = 7 * 86_400


@dataclass(frozen=True)
class TariffShown:
    """What ``tariff show --json`` prints.

    Attributes:
        in_force: what holds now; None before the first tariff.
        coming: what holds from later moments on, in order.
    """

    in_force: TariffRecord | None
    coming: tuple[TariffRecord, ...]


@tariff_app.command(
    "apply",
    epilog="Examples: slicewise tariff apply --example > tariff.toml"
    " | slicewise tariff apply tariff.toml --dry-run"
    " | slicewise tariff apply tariff.toml --reason 'prices of 2027' --yes",
)
def apply_tariff(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="A TOML file like that of --example; - for standard input.", show_default=False
        ),
    ] = None,
    *,
    example: Annotated[
        bool, typer.Option("--example", help="Print an example of such a file.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what it would change; enter nothing.")
    ] = False,
    reason: Reason = "",
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Enter a tariff, from a midnight on that is not past; show what it changes.

    Nothing that was used is priced anew, so only the first tariff may begin in the past, and none
    can be taken back. Until it holds, another one from the same day takes its place.
    """
    if example:
        typer.echo(EXAMPLE, nl=False)
        return
    if file is None:
        raise typer.BadParameter("Name a file, or say --example.")
    settings = load_settings()
    daemon = DaemonClient(settings.daemon)
    given = {"text": _text(file), "file": str(file)}
    plan = daemon.call(TariffPlanRequest.of(**given))
    if dry_run:
        if as_json:
            print_json(plan)
        else:
            _print(plan, settings.ledger.time_zone)
            console().print(Text("Nothing was entered."))
        return
    if not as_json:
        _print(plan, settings.ledger.time_zone)
    begin = clock_text(plan.valid_from_s, settings.ledger.time_zone)
    confirm(f"From {begin} on this tariff holds. Enter it?", yes=yes, as_json=as_json)
    answer = daemon.call(TariffApplyRequest.of(**given, **authored(reason)))
    if as_json:
        print_json(answer)
    else:
        console().print(Text(f"Entered: it holds from {begin} on."))


def _text(file: Path) -> str:
    text = input_text(file)
    if len(text.encode()) > MOST_BYTES:
        raise InvalidInputError(
            Code.INPUT_FILE,
            f"{file} is too long: {MOST_BYTES // 1024} KiB is the most.",
            "Name the file that you mean.",
        )
    return text


def _print(answer: TariffAnswer, zone: str) -> None:
    _print_changes(answer.valid_from_s, answer.changes, zone)
    if answer.unknown:
        names = ", ".join(answer.unknown)
        console().print(Text(f"The cluster has no such tenant, or GPU type: {names}"))
    if answer.replaces:
        console().print(Text("It takes the place of another tariff from that moment."))


def _print_changes(valid_from_s: int, changed: Sequence[TariffChange], zone: str) -> None:
    table = FittingTable(
        (
            column("key", (change.key for change in changed)),
            column("before", (change.before or "" for change in changed), folds=True),
            column("after", (change.after or "" for change in changed), folds=True),
        )
    )
    console().print(Text(f"From {clock_text(valid_from_s, zone)} on:"))
    console().print(table.or_say("It changes nothing."))


@tariff_app.command("show", epilog="Examples: slicewise tariff show | slicewise tariff show --json")
def show_tariff(as_json: Json = False) -> None:
    """Show the tariff that holds now, key by key, and what those to come change.

    Between are the hours of the next seven days in which slice-hours cost another multiple.
    """
    settings = load_settings()
    answer = DaemonClient(settings.daemon).call(TariffsRequest())
    now_s, zone = answer.now_s, settings.ledger.time_zone
    moments = sorted({each.valid_from_s for each in answer.tariffs if each.valid_from_s > now_s})
    coming = (in_force(answer.tariffs, at_s) for at_s in moments)
    shown = TariffShown(
        in_force(answer.tariffs, now_s), tuple(each for each in coming if each is not None)
    )
    if as_json:
        print_json(shown)
        return
    if shown.in_force is None:
        console().print(Text("No tariff holds now: nothing costs anything."))
    else:
        begin = clock_text(shown.in_force.valid_from_s, zone)
        console().print(Text(f"Since {begin}:"))
        console().print(_keys_table(shown.in_force.tariff))
        spans = price_spans(answer.tariffs, now_s, now_s + _WEEK_S, zone)
        if any(span.window for span in spans):
            console().print(_spans_table(spans, zone))
    for each in shown.coming:
        before = [record for record in answer.tariffs if record.valid_from_s < each.valid_from_s]
        changed = changes(EnteredTariff(each.valid_from_s, each.tariff), before)
        _print_changes(each.valid_from_s, changed, zone)


def _keys_table(tariff: Tariff) -> FittingTable:
    keys = flat(tariff)
    return FittingTable((column("key", keys), column("value", keys.values(), folds=True)))


def _spans_table(spans: tuple[PriceSpan, ...], zone: str) -> FittingTable:
    held = _joined(spans)
    return FittingTable(
        (
            column("window", (span.window for span in held)),
            column("day", (_day_text(span, zone) for span in held)),
            column("from", (clock_text(span.start_s, zone) for span in held)),
            column("until", (clock_text(span.end_s, zone) for span in held)),
            column("factor", (f"{span.factor:f}" for span in held), right=True),
        )
    )


def _joined(spans: tuple[PriceSpan, ...]) -> list[PriceSpan]:
    """Those of windows; what goes on over midnight at the same price is one."""
    joined: list[PriceSpan] = []
    for span in spans:
        last = joined[-1] if joined else None
        if last and last.end_s == span.start_s and _price(last) == _price(span):
            joined[-1] = replace(last, end_s=span.end_s)
        elif span.window:
            joined.append(span)
    return joined


def _day_text(span: PriceSpan, zone: str) -> str:
    weekday, _ = weekday_and_minute(span.start_s, zone)
    return DAYS[weekday]


def _price(span: PriceSpan) -> tuple[Tariff | None, str, Decimal]:
    return span.tariff, span.window, span.factor


@tariff_app.command(
    "history", epilog="Examples: slicewise tariff history | slicewise tariff history --json"
)
def tariff_history(as_json: Json = False) -> None:
    """Show every tariff that was ever entered, the newest first, with who entered it and why."""
    settings = load_settings()
    answer = DaemonClient(settings.daemon).call(TariffsRequest())
    records = answer.tariffs[::-1]
    if as_json:
        print_json(records)
        return
    zone = settings.ledger.time_zone
    held = {
        record.tariff_id
        for at_s in {each.valid_from_s for each in records}
        if (record := in_force(records, at_s))
    }
    table = FittingTable(
        (
            column("id", (each.tariff_id for each in records), right=True, rank=2),
            column("valid from", (clock_text(each.valid_from_s, zone) for each in records)),
            column(
                "",
                ("" if each.tariff_id in held else "replaced before it held" for each in records),
            ),
            column("slice-hour", (_slice_hour_text(each.tariff) for each in records), right=True),
            times_column("entered", (each.recorded_s for each in records), rank=1),
            column("by", (each.author for each in records), rank=1),
            column("reason", (each.reason for each in records), folds=True),
        )
    )
    console().print(table.or_say("No tariff was entered yet."))


def _slice_hour_text(tariff: Tariff) -> str:
    price = tariff.prices.slice_hour
    return "" if price is None else f"{tariff.currency} {price:f}"
