"""``slicewise tenant-quota calendar``: quotas by hour and weekday, and for coming events."""

from collections.abc import Sequence
from itertools import islice
from typing import Annotated

import typer
from rich.text import Text

from slicewise.cluster.language.periods import clock_times_s
from slicewise.cluster.language.units import (
    Millislices,
    millislices_from_text,
)
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.own_tenant import complete_tenant, typed_account
from slicewise.cluster.runtime.console import console, print_json
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.settings.read import load_settings
from slicewise.slurm_plugin.cli.common.options import (
    AnyTenant,
    Overcommit,
    Reason,
    authored,
)
from slicewise.slurm_plugin.cli.common.window_words import (
    bound_from_text,
    spans_text,
    what_text,
    when_text,
    whose_text,
)
from slicewise.slurm_plugin.cli.views import calendar as present
from slicewise.slurm_plugin.common.calendar_requests import (
    WindowAnswer,
    WindowCreateRequest,
    WindowDeleteRequest,
    WindowHistoryRequest,
    WindowsRequest,
)
from slicewise.slurm_plugin.rules.quota.amounts import limit_from_text
from slicewise.slurm_plugin.rules.quota.calendar import (
    ALL,
    WEEK_DAYS,
    Window,
    WindowKind,
    in_force,
)
from slicewise.slurm_plugin.rules.quota.calendar_times import Span, moment, spans
from slicewise.slurm_plugin.rules.quota.clock_words import days_from_text, minute_from_text
from slicewise.slurm_plugin.rules.quota.tenants import effective_nominal, require_tenant
from slicewise.slurm_plugin.rules.quota.types import Policy

calendar_app = typer.Typer(
    no_args_is_help=True,
    help="Quotas by hour and weekday, and for coming events.",
    epilog="Examples: slicewise tenant-quota calendar create vision --nominal 12 --weekdays mon-fri"
    " --start-time 08:00 --end-time 18:00 | slicewise tenant-quota calendar list"
    " | slicewise tenant-quota calendar delete 3",
)

_SAMPLES = range(90, 24 * 60, 180)
"""Minutes of the day at which the week's bars show a nominal."""

_READERS = (
    (WindowKind.NOMINAL, "--nominal", millislices_from_text),
    (WindowKind.BORROWING, "--borrowing-limit", limit_from_text),
    (WindowKind.LENDING, "--lending-limit", limit_from_text),
    (WindowKind.CAP, "--cap", millislices_from_text),
)

Tenant = Annotated[
    str | None,
    typer.Argument(
        help="A Slurm account; or --all-tenants instead.",
        show_default=False,
        autocompletion=complete_tenant,
        callback=typed_account,
    ),
]
All = Annotated[bool, typer.Option("--all-tenants", help="All tenants together; needs --cap.")]
Nominal = Annotated[
    str | None, typer.Option(metavar="SLICES", help="Guaranteed to the tenant during the window.")
]
BorrowingLimit = Annotated[
    str | None,
    typer.Option(
        metavar="SLICES", help="Most idle slices of others that it may borrow, or unlimited."
    ),
]
LendingLimit = Annotated[
    str | None,
    typer.Option(
        metavar="SLICES", help="Most of its idle slices that others may borrow, or unlimited."
    ),
]
Cap = Annotated[
    str | None,
    typer.Option(
        metavar="SLICES", help="Most that it and the tenants below it hold during the window."
    ),
]
Days = Annotated[
    str | None,
    typer.Option(
        "--weekdays",
        metavar="DAYS",
        help="Days on which the window begins: mon-fri, or sat,sun; every day if left out.",
    ),
]
From = Annotated[
    str, typer.Option("--start-time", metavar="HH:MM", help="Time at which the window begins.")
]
To = Annotated[
    str,
    typer.Option(
        "--end-time",
        metavar="HH:MM",
        help="Time at which the window ends; on the next day if not later than --start-time.",
    ),
]
First = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="The first day, or the time from which the window applies."),
]
Last = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help="The last day, or the time from which the window no longer applies."
    ),
]


@calendar_app.command(
    "create",
    epilog="Examples: slicewise tenant-quota calendar create vision --nominal 12 --weekdays mon-fri"
    " --start-time 08:00 --end-time 18:00"
    " | slicewise tenant-quota calendar create vision --nominal 20 --first 2026-12-01"
    " --last 2026-12-05T18:00 --reason 'deadline'"
    " | slicewise tenant-quota calendar create --all-tenants --cap 100"
    " --start-time 22:00 --end-time 06:00 --reason 'energy'",
)
def create_window(
    tenant: Tenant = None,
    *,
    all_together: All = False,
    nominal: Nominal = None,
    borrowing_limit: BorrowingLimit = None,
    lending_limit: LendingLimit = None,
    cap: Cap = None,
    days: Days = None,
    begins: From = "00:00",
    ends: To = "24:00",
    first: First = None,
    last: Last = None,
    overcommit: Overcommit = False,
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Give a tenant another quota at certain hours, or for a coming event.

    A window sets one value, which replaces that of tenant-quota while the window holds. Times are
    in the ledger's time_zone. If several windows hold at the same time, that of an event (with
    --first and --last) counts, then the newest; of several caps, the lowest counts.
    """
    settings = load_settings()
    zone = settings.ledger.time_zone
    kind, amount = _one_value((nominal, borrowing_limit, lending_limit, cap))
    if (tenant is not None) == all_together or (all_together and kind is not WindowKind.CAP):
        raise typer.BadParameter("Name one tenant, or give --all-tenants with --cap.")
    window = Window(
        window_id=0,
        tenant=tenant or ALL,
        kind=kind,
        amount_millislices=amount,
        days=frozenset() if days is None else days_from_text(days),
        begin_min=minute_from_text(begins, "--start-time", ends=False),
        end_min=minute_from_text(ends, "--end-time", ends=True),
        first_s=None if first is None else bound_from_text(first, "--first", zone, ends=False),
        last_s=None if last is None else bound_from_text(last, "--last", zone, ends=True),
    )
    request = WindowCreateRequest(window=window, overcommit=overcommit, **authored(reason))
    answer = DaemonClient(settings.daemon).call(request)
    _warn(answer)
    written = answer.window
    now_s = wall_s()
    shown, coming = _shown(written, now_s, zone), _coming(written, now_s, zone)
    if as_json:
        print_json(present.NewWindow(**vars(shown), spans=coming))
    else:
        _say(f"Window {written.window_id}: {_words(written, zone)}.")
        _say(spans_text(coming, zone, in_force=shown.in_force))


def _one_value(texts: Sequence[str | None]) -> tuple[WindowKind, Millislices]:
    """Return the window's kind and amount; ``texts`` are in the order of ``_READERS``."""
    given = [
        (reader, text) for reader, text in zip(_READERS, texts, strict=True) if text is not None
    ]
    if len(given) != 1:
        raise typer.BadParameter(f"Give one of {', '.join(option for _, option, _ in _READERS)}.")
    ((kind, option, reader), text) = given[0]
    return kind, reader(text, option)


@calendar_app.command(
    "list",
    epilog="Examples: slicewise tenant-quota calendar list"
    " | slicewise tenant-quota calendar list vision --json"
    " | slicewise tenant-quota calendar list --all",
)
def list_windows(
    tenant: AnyTenant = None,
    *,
    with_past: Annotated[
        bool,
        typer.Option(
            "--all", help="Also show windows that are over or deleted, and by which user."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Show windows that hold now or later, and how nominals change over the next seven days."""
    settings = load_settings()
    daemon = DaemonClient(settings.daemon)
    if with_past:
        _print_history(daemon, tenant, settings, as_json=as_json)
        return
    answer = daemon.call(WindowsRequest())
    if tenant is not None:
        require_tenant(answer.policy, tenant)
    windows = answer.windows
    zone, now_s = settings.ledger.time_zone, wall_s()
    of_it = [window for window in windows if tenant is None or window.tenant in {ALL, tenant}]
    shown = [_shown(window, now_s, zone) for window in of_it]
    if as_json:
        print_json(shown)
        return
    console().print(
        present.windows_table(shown, zone).or_say(
            "No windows. Create one: slicewise tenant-quota calendar create NAME --nominal N"
            " --weekdays sat,sun"
        )
    )
    if shown and (weeks := _weeks(answer.policy, windows, tenant, now_s, zone)):
        console().print(present.weeks_table(weeks))
        _say("Each mark is three hours of the tenant's nominal; the highest is its most.")


def _shown(window: Window, now_s: float, zone: str) -> present.WindowNow:
    span = next(spans(window, now_s, zone), None)
    if span is None:
        return present.WindowNow(window, in_force=False, next_change_s=None)
    in_force = span.begin_s <= now_s
    return present.WindowNow(window, in_force, span.end_s if in_force else span.begin_s)


def _coming(window: Window, now_s: float, zone: str) -> tuple[Span, ...]:
    """Return the current or next span in which the window holds, and the one after it."""
    coming = list(islice(spans(window, now_s, zone), 1))
    if coming and (end_s := coming[0].end_s) is not None:
        coming += islice(spans(window, end_s, zone), 1)
    return tuple(coming)


def _weeks(
    policy: Policy, windows: tuple[Window, ...], tenant: str | None, now_s: float, zone: str
) -> list[present.Week]:
    """Sample the nominals of the next seven days, of tenants whose nominal changes.

    If ``tenant`` is given, only its nominal, even if it does not change.
    """
    samples = [moment(at_s, zone) for at_s in clock_times_s(_SAMPLES, now_s, WEEK_DAYS, zone)]
    samples = [sample for sample in samples if sample.minute in _SAMPLES]
    first = moment(now_s, zone).weekday
    order = [(first + number) % WEEK_DAYS for number in range(WEEK_DAYS)]
    found = [effective_nominal(in_force(policy, windows, sample)) for sample in samples]
    weeks = []
    for name in policy if tenant is None else [tenant]:
        amounts = [row[name] for row in found]
        if tenant is None and len(set(amounts)) == 1:
            continue
        pairs = list(zip(samples, amounts, strict=True))
        of_days = [[amount for when, amount in pairs if when.weekday == day] for day in order]
        weeks.append(present.Week(name, first, of_days))
    return weeks


def _print_history(
    daemon: DaemonClient, tenant: str | None, settings: Settings, *, as_json: bool
) -> None:
    """Print every window ever set, also those of accounts that are no longer tenants."""
    records = daemon.call(WindowHistoryRequest()).records
    records = tuple(
        record for record in records if tenant is None or record.window.tenant == tenant
    )
    if as_json:
        print_json(records)
    else:
        table = present.history_table(records, settings.ledger.time_zone)
        console().print(table.or_say("There were never any windows."))


@calendar_app.command(
    "delete",
    epilog="Examples: slicewise tenant-quota calendar delete 3 --reason 'the course is over'",
)
def delete_window(
    window_id: Annotated[
        int,
        typer.Argument(
            metavar="ID", help="The id that slicewise tenant-quota calendar list shows."
        ),
    ],
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Delete a window; the value of tenant-quota or an older window holds again immediately."""
    settings = load_settings()
    request = WindowDeleteRequest.of(window_id=window_id, **authored(reason))
    answer = DaemonClient(settings.daemon).call(request)
    _warn(answer)
    removed = answer.window
    if as_json:
        print_json(answer)
    else:
        _say(f"Deleted window {window_id}: {_words(removed, settings.ledger.time_zone)}.")


def _warn(answer: WindowAnswer) -> None:
    if answer.warning:
        typer.echo(answer.warning, err=True)


def _words(window: Window, zone: str) -> str:
    return f"{whose_text(window)}, {what_text(window)}, {when_text(window, zone)}"


def _say(text: str) -> None:
    console().print(Text(text))
