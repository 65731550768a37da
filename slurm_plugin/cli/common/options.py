"""Shared by operators' commands: options, the ledger, the caller's name, waiting for the daemon."""

import os
import pwd
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, UnreachableError
from slicewise.cluster.language.periods import next_start_s
from slicewise.cluster.rpc.own_tenant import complete_tenant, typed_account
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.settings.read import database_url
from slicewise.slurm_plugin.cli.common.in_force import sets_no_limits
from slicewise.slurm_plugin.rules.common.known_names import names_text
from slicewise.slurm_plugin.rules.quota.types import Budget, Policy, Tenant

if TYPE_CHECKING:
    from slicewise.slurm_plugin.ledger.store import Ledger


_PATIENCE_S = 5.0
_POLL_S, _LONGEST_POLL_S = 0.05, 0.4


@contextmanager
def opened_ledger(settings: Settings) -> "Iterator[Ledger]":
    """Open the ledger; refuse one whose tables are not of the revision that this program needs."""
    # Imported here: SQLAlchemy takes longer to import than everything that a user's command does.
    from slicewise.slurm_plugin.ledger.store import Ledger  # noqa: PLC0415 -- only who asks the database

    with Ledger(database_url(settings.database), settings.cluster.name) as ledger:
        ledger.require_current()
        yield ledger


Reason = Annotated[str, typer.Option(help="Kept in the history.")]
TenantName = Annotated[
    str,
    typer.Argument(
        help="A Slurm account.",
        show_default=False,
        autocompletion=complete_tenant,
        callback=typed_account,
    ),
]
AnyTenant = Annotated[
    str | None,
    typer.Argument(
        help="A Slurm account; all if left out.",
        show_default=False,
        autocompletion=complete_tenant,
        callback=typed_account,
    ),
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
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
OPERATORS_PANEL = "For operators"
"""Heading of what only operators use, in the help of a tree that everybody has."""
HistoryLines = Annotated[
    int,
    typer.Option("--lines", "-n", min=1, max=10_000, help="Most lines to show, the newest ones."),
]
TimeoutS = Annotated[
    int | None,
    typer.Option(
        "--timeout",
        min=0,
        metavar="SECONDS",
        help="Exit 7 unless Slurm's limits have the change within these seconds. The change stays"
        " recorded either way. Without it: wait 5 s at most, and exit 0.",
        show_default=False,
    ),
]
Overcommit = Annotated[
    bool,
    typer.Option("--overcommit", help="Allow quotas that together exceed the cluster."),
]


def author_name() -> str:
    """Return the login name of the user who runs this command; under sudo, of its caller."""
    name = pwd.getpwuid(os.getuid()).pw_name
    return os.environ.get("SUDO_USER", name) if os.getuid() == 0 else name


def require_tenant(policy: Policy, name: str) -> Tenant:
    """Return the tenant; raises InvalidInputError (SW-TENANT-UNKNOWN) if ``name`` is none."""
    if name not in policy:
        raise InvalidInputError(
            Code.TENANT_UNKNOWN,
            f"{name!r} is not a tenant.",
            f"Tenants: {names_text(name, policy)}. Create it: slicewise tenant create NAME",
        )
    return policy[name]


def resets_s(budget: Budget | None, settings: Settings) -> int | None:
    """Return when the budget's next period begins, in Unix seconds; None if never."""
    zone, now_s = settings.ledger.time_zone, int(wall_s())
    return next_start_s(budget.period, now_s, zone) if budget else None


def wait_until_compiled(
    ledger: "Ledger",
    settings: Settings,
    change_id: int,
    began_s: float,
    wait_s: int | None = None,
) -> float | None:
    """Wait until Slurm's limits have the change; return the seconds since ``began_s`` (monotonic).

    None if they don't within ``wait_s`` (5 s if it is None). Where they never will, because
    Slicewise was taken out of Slurm or the daemon sets no limits, nothing is waited for.
    """
    if ledger.limits.is_uninstalled():
        return None
    if sets_no_limits(settings):
        wait_s = 0
    in_force = wait_until(lambda: ledger.limits.compiled(change_id), wait_s)
    return time.monotonic() - began_s if in_force else None


def require_in_force(took_s: float | None, wait_s: int | None) -> None:
    """Raise UnreachableError (SW-TIMEOUT) for a change that was waited for in vain.

    ``took_s`` is what ``wait_until_compiled`` returned.
    """
    if wait_s is not None and took_s is None:
        raise UnreachableError(
            Code.TIMEOUT,
            f"The change is recorded, and is not in force in Slurm after {wait_s} s.",
            "The daemon brings it into force: systemctl status slicewise-daemon",
        )


def wait_until(condition: Callable[[], bool], wait_s: float | None = None) -> bool:
    """Poll until the condition holds; return whether it did within ``wait_s``; None is 5 s.

    Conditions look at what the daemon writes into the ledger: the daemon itself is not asked.
    """
    patience_s = _PATIENCE_S if wait_s is None else wait_s
    until_s, pause_s = time.monotonic() + patience_s, _POLL_S
    while not condition():
        if time.monotonic() > until_s:
            return False
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_POLL_S)
    return True
