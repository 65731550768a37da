"""Commands of the operator: tenants' quotas, the ledger, its database."""

import asyncio
import os
import pwd
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import Annotated

import typer
from rich.text import Text

from cluster.console import console, print_json, slices_words
from cluster.errors import InvalidInputError, OutsideError
from cluster.settings import Settings, database_url, load_settings
from cluster.slurm.commands import CommandSlurm
from cluster.units import millislices_from_text, slices_text
from slurm_plugin import present
from slurm_plugin.decide.limits import ROOT_ACCOUNT
from slurm_plugin.decide.model import QuotaChange, Reservation
from slurm_plugin.ledger import schema
from slurm_plugin.ledger.store import Ledger

_COMPILE_PATIENCE_S = 5.0
_COMPILE_POLL_S = 0.05
_TIMES = ["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"]

tenant_quota_app = typer.Typer(help="Who may hold how many slices.", no_args_is_help=True)
ledger_app = typer.Typer(help="What was used: statements, checks.", no_args_is_help=True)
db_app = typer.Typer(help="The ledger's PostgreSQL schema.", no_args_is_help=True)

Tenant = Annotated[str, typer.Argument(help="A Slurm account.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@contextmanager
def _ledger(settings: Settings) -> Iterator[Ledger]:
    with Ledger(database_url(settings.database), settings.cluster.name) as ledger:
        ledger.require_current()
        yield ledger


@tenant_quota_app.command(
    "set",
    epilog="Examples: slicewise tenant-quota set vision --nominal 6"
    " | slicewise tenant-quota set nlp --nominal 3.5 --reason 'until the paper is out'",
)
def set_quota(
    tenant: Tenant,
    nominal: Annotated[
        str, typer.Option(help="Slices at one time, such as 6 or 3.5; a GPU of weight 1 has 7.")
    ],
    reason: Annotated[str, typer.Option(help="Kept in the history.")] = "",
    as_json: Json = False,
) -> None:
    """Set what a tenant may hold at one time.

    The change is recorded at once; the daemon brings it into Slurm's own limits within a moment.
    Lowering a quota stops new starts and harms no running job.
    """
    amount = millislices_from_text(nominal, "--nominal")
    with _ledger(load_settings()) as ledger:
        _require_account(tenant)
        before = ledger.quotas().get(tenant)
        began_s = time.monotonic()
        change = ledger.set_quota(tenant, amount, author_name(), reason)
        in_force = _wait_until_compiled(ledger, change.change_id, began_s)
    took_s = time.monotonic() - began_s if in_force else None
    if as_json:
        print_json(asdict(change) | {"in_force": in_force, "in_force_after_s": took_s})
        return
    was = f" (was {slices_text(before.nominal_millislices)})" if before else ""
    console().print(Text(f"{tenant}: {slices_words(amount)}{was}, {_force_text(took_s)}"))


def _require_account(tenant: str) -> None:
    rows = asyncio.run(CommandSlurm().associations())
    known = sorted({row.account for row in rows} - {ROOT_ACCOUNT})
    if tenant not in known:
        raise InvalidInputError(
            "SW-TENANT-UNKNOWN",
            f"{tenant!r} is not a tenant's Slurm account; nothing was changed.",
            f"Accounts: {', '.join(known) or 'none'}. Add one: sacctmgr add account NAME",
        )


def author_name() -> str:
    """Who runs this command; behind sudo, who called it."""
    name = pwd.getpwuid(os.getuid()).pw_name
    return os.environ.get("SUDO_USER", name) if os.getuid() == 0 else name


def _wait_until_compiled(ledger: Ledger, change_id: int, began_s: float) -> bool:
    while not ledger.compiled(change_id):
        if time.monotonic() - began_s > _COMPILE_PATIENCE_S:
            return False
        time.sleep(_COMPILE_POLL_S)
    return True


def _force_text(took_s: float | None) -> str:
    if took_s is not None:
        return f"in force in Slurm ({took_s:.1f} s)"
    return "recorded; the daemon is not running (or busy): it comes into force when it does"


@tenant_quota_app.command(
    "show",
    epilog="Examples: slicewise tenant-quota show vision"
    " | slicewise tenant-quota show vision --json",
)
def show_quota(tenant: Tenant, as_json: Json = False) -> None:
    """Show one tenant's quota, what it holds now, and whether Slurm enforces it already."""
    with _ledger(load_settings()) as ledger:
        line = _line(ledger, _history(ledger, tenant)[0], ledger.open_reservations())
    if as_json:
        print_json(present.tenant_json(line))
    else:
        console().print(present.tenants_table([line]))


@tenant_quota_app.command(
    "list",
    epilog="Examples: slicewise tenant-quota list | slicewise tenant-quota list --json",
)
def list_quotas(as_json: Json = False) -> None:
    """List every tenant's quota and what it holds now."""
    with _ledger(load_settings()) as ledger:
        running = ledger.open_reservations()
        tenants = sorted(ledger.quotas())
        lines = [_line(ledger, ledger.quota_history(name)[0], running) for name in tenants]
    if as_json:
        print_json([present.tenant_json(line) for line in lines])
    elif lines:
        console().print(present.tenants_table(lines))
    else:
        console().print("No quotas. Set one: slicewise tenant-quota set NAME --nominal N")


@tenant_quota_app.command(
    "history",
    epilog="Examples: slicewise tenant-quota history vision"
    " | slicewise tenant-quota history vision --json",
)
def quota_history(tenant: Tenant, as_json: Json = False) -> None:
    """Show every quota that a tenant ever had: when, by whom, why."""
    with _ledger(load_settings()) as ledger:
        changes = _history(ledger, tenant)
    if as_json:
        print_json([asdict(change) for change in changes])
    else:
        console().print(present.history_table(changes))


def _history(ledger: Ledger, tenant: str) -> Sequence[QuotaChange]:
    changes = ledger.quota_history(tenant)
    if not changes:
        known = ", ".join(sorted(ledger.quotas())) or "none"
        raise InvalidInputError(
            "SW-QUOTA-NONE",
            f"Tenant {tenant!r} has no quota.",
            f"Tenants with one: {known}. Set it: slicewise tenant-quota set NAME --nominal N",
        )
    return changes


def _line(ledger: Ledger, last: QuotaChange, running: Iterable[Reservation]) -> present.TenantLine:
    own = [one for one in running if one.tenant == last.tenant]
    in_use = sum(one.cost_millislices for one in own)
    return present.TenantLine(last, in_use, len(own), ledger.compiled(last.change_id))


@ledger_app.command(
    "statement",
    epilog="Examples: slicewise ledger statement"
    " | slicewise ledger statement vision --since 2026-01-01"
    " | slicewise ledger statement --json",
)
def statement(
    tenant: Annotated[
        str | None, typer.Argument(help="A Slurm account; all if left out.", show_default=False)
    ] = None,
    since: Annotated[
        datetime | None,
        typer.Option(formats=_TIMES, help="Runs that ended then or later, or still run."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what was used, run by run, in slice-seconds; running ones up to now.

    Each run counts whole, also if it started before --since. Times are local. JSON has integers
    in millislice-seconds.
    """
    now_s = int(time.time())
    with _ledger(load_settings()) as ledger:
        if tenant is not None:
            _require_tenant(ledger, tenant)
        found = ledger.statement(tenant, int(since.timestamp()) if since else 0, now_s)
    if as_json:
        print_json(present.statement_json(found, now_s))
    elif not found.rows:
        console().print("No runs.")
    else:
        console().print(present.runs_table(found.rows, now_s))
        console().print(present.totals_table(found.totals))


def _require_tenant(ledger: Ledger, tenant: str) -> None:
    """An account without a quota may still have runs."""
    known = sorted({*ledger.quotas(), *ledger.charged_tenants()})
    if tenant not in known:
        raise InvalidInputError(
            "SW-TENANT-UNKNOWN",
            f"The ledger knows no tenant {tenant!r}.",
            f"Known: {', '.join(known) or 'none'}.",
        )


@ledger_app.command("verify", epilog="Example: slicewise ledger verify")
def verify(as_json: Json = False) -> None:
    """Recompute every balance from the transfers; exit 1 if anything does not add up.

    Works on a live system: it looks at one consistent state.
    """
    with _ledger(load_settings()) as ledger:
        imbalance = ledger.imbalance()
    if as_json:
        print_json({"imbalance_millislice_s": imbalance})
    if imbalance:
        raise OutsideError(
            "SW-LEDGER-IMBALANCE",
            f"{present.slice_seconds_text(imbalance)} slice-seconds do not add up.",
            "Somebody wrote to the tables around the triggers: compare with a backup.",
        )
    if not as_json:
        console().print("The ledger is balanced.")


@db_app.command("upgrade", epilog="Example: slicewise db upgrade")
def upgrade() -> None:
    """Bring the ledger's tables up to date; does nothing if they are."""
    _print_step(schema.upgrade(_url()))


@db_app.command("current", epilog="Example: slicewise db current")
def current(as_json: Json = False) -> None:
    """Show which revision the database is at, and which one this version needs."""
    revisions = {"current": schema.current_of(_url()), "head": schema.head()}
    if as_json:
        print_json(revisions)
    else:
        console().print(_revision_text(revisions))


@db_app.command("downgrade", epilog="Example: slicewise db downgrade 0001")
def downgrade(
    revision: Annotated[str, typer.Argument(help="An older revision, or base for no tables.")],
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
) -> None:
    """Go back to an older revision; what it has no tables for is lost."""
    if not yes:
        typer.confirm("What the older revision has no tables for will be lost. Go on?", abort=True)
    _print_step(schema.downgrade(_url(), revision))


def _url() -> str:
    return database_url(load_settings().database)


def _revision_text(revisions: Mapping[str, str]) -> str:
    at, head = revisions["current"], revisions["head"]
    return f"{at}, up to date" if at == head else f"{at}; this version needs {head}"


def _print_step(step: tuple[str, str]) -> None:
    before, after = step
    text = f"{after}, nothing to do" if before == after else f"{before} → {after}"
    console().print(text)
