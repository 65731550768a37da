"""Shared by operators' commands: options, the caller's name, waiting for the daemon."""

import os
import pwd
from typing import Annotated

import typer

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import UnreachableError
from slicewise.cluster.rpc.own_tenant import complete_tenant, typed_account
from slicewise.slurm_plugin.rules.quota.tenants import check_words

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


def authored(reason: str) -> dict[str, str]:
    """Return who changes something and why, as requests have it.

    Raises InvalidInputError (SW-VALUE) for a reason that can't be shown as one line.
    """
    author = author_name()
    check_words(author, reason)
    return {"author": author, "reason": reason}


def require_in_force(took_s: float | None, wait_s: int | None) -> None:
    """Raise UnreachableError (SW-TIMEOUT) for a change that was waited for in vain.

    ``took_s`` is what ``until_in_force`` returned.
    """
    if wait_s is not None and took_s is None:
        raise UnreachableError(
            Code.TIMEOUT,
            f"The change is recorded, and is not in force in Slurm after {wait_s} s.",
            "The daemon brings it into force: systemctl status slicewise-daemon",
        )
