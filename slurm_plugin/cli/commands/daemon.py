"""``slicewise daemon``: checks the user and starts the daemon."""

import asyncio
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.runtime.user_names import uid_of
from slicewise.cluster.settings.file import DaemonSettings, Settings
from slicewise.cluster.settings.read import database_url, load_settings
from slicewise.cluster.slurm.open import open_lasting_slurm
from slicewise.cluster.slurm.unread_log import UnreadLog
from slicewise.slurm_plugin.common.log import configure_logging, report, warn

if TYPE_CHECKING:
    from slicewise.slurm_plugin.ledger.store import Ledger


def run_daemon(
    config: Annotated[
        Path | None,
        typer.Option(
            help="Settings file; by default $SLICEWISE_CONFIG or /etc/slicewise/slicewise.toml."
        ),
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(help="DEBUG, INFO, WARNING or ERROR; by default log.level.")
    ] = None,
) -> None:
    """Run beside slurmctld, as SlurmUser: decide submissions, follow Slurm, keep the ledger.

    It logs to stderr, one line per event. SIGTERM ends it. Everything that must last is in Slurm
    and PostgreSQL, so killing it loses nothing.
    """
    settings = load_settings(config)
    settings = settings.model_copy(update={"log": settings.log.at_level(log_level)})
    _require_slurm_user(settings.daemon)
    configure_logging("daemon", settings.log)
    from slicewise.cluster.runtime.database import database_place  # noqa: PLC0415 -- not for --help
    from slicewise.slurm_plugin.ledger.store import Ledger  # noqa: PLC0415 -- as above

    url = database_url(settings.database)
    report("ledger_database", **asdict(database_place(url)))
    with Ledger(url, settings.cluster.name) as ledger:
        asyncio.run(_serve(settings, ledger))


async def _serve(settings: Settings, ledger: "Ledger") -> None:
    from slicewise.slurm_plugin.daemon.main import serve  # noqa: PLC0415 -- not for --help

    unread = UnreadLog(warn)
    async with open_lasting_slurm(settings, report, warn, unread) as slurm:
        await serve(settings, slurm, ledger, unread)


def _require_slurm_user(settings: DaemonSettings) -> None:
    """Refuse to run as another user than SlurmUser.

    Slurm lets only SlurmUser hold jobs as an administrator, and slurmctld must reach the socket.
    Raises InvalidInputError (SW-USER).
    """
    if (wanted := uid_of(settings.slurm_user)) is None:
        raise InvalidInputError(
            Code.USER, f"daemon.slurm_user: there is no user {settings.slurm_user!r}."
        )
    if os.geteuid() != wanted:
        raise InvalidInputError(
            Code.USER,
            f"The daemon must run as {settings.slurm_user!r} (daemon.slurm_user, uid {wanted}), "
            f"not as uid {os.geteuid()}.",
            f"Run: runuser -u {settings.slurm_user} -- slicewise daemon",
        )
