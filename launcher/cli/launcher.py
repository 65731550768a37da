"""``slicewise launcher``, apart from the other commands, since it imports Triton's client."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from slicewise.cluster.runtime.log import configure_logging
from slicewise.cluster.settings.read import load_settings


def run_launcher(
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
    """Run the launcher, as daemon.launcher_user: it gives each service the replicas it needs.

    Logs to stderr, one line per event. SIGTERM ends it; killing it loses nothing.
    """
    # Triton's and HAProxy's clients are not imported for --help.
    from slicewise.launcher.process import loop  # noqa: PLC0415

    settings = load_settings(config)
    log = settings.log.at_level(log_level)
    configure_logging("launcher", log.format, log.level)
    asyncio.run(loop.serve(settings))
