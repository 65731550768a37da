"""``slicewise web``: the page in the browser: logs in, and runs its server."""

import asyncio
import os
from typing import Annotated

import typer

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.printable import printable
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.web_messages import WebLoginRequest
from slicewise.cluster.runtime.console import console, print_json
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.runtime.user_names import uid_of
from slicewise.cluster.settings.file import WebSettings
from slicewise.cluster.settings.read import load_settings
from slicewise.slurm_plugin.cli.common.options import OPERATORS_PANEL
from slicewise.slurm_plugin.common.log import configure_logging

web_app = typer.Typer(
    no_args_is_help=True,
    help="The page in the browser: log in, or run its server.",
    epilog="Examples: slicewise web login | systemctl start slicewise-web",
)


@web_app.command(epilog="Examples: slicewise web login | slicewise web login --json")
def login(as_json: Json = False) -> None:
    """Print an address that logs you in on the page, once, within two minutes.

    Whoever opens it first is logged in as you: pass it to nobody. You see there what the commands
    show you; root and SlurmUser see everything.
    """
    answer = DaemonClient(load_settings().daemon).call(WebLoginRequest())
    if as_json:
        print_json(answer)
        return
    out = console()
    out.print(answer.url, soft_wrap=True, highlight=False)
    out.print(
        f"It logs in {printable(answer.user)}, once, within {answer.expires_s} s.",
        style="dim",
        markup=False,
        highlight=False,
    )


@web_app.command(rich_help_panel=OPERATORS_PANEL, epilog="Example: systemctl start slicewise-web")
def serve(
    log_level: Annotated[
        str | None, typer.Option(help="DEBUG, INFO, WARNING or ERROR; by default log.level.")
    ] = None,
) -> None:
    """Run the page's server, as the user that web.user names; slicewise-web.service does so.

    It asks the daemon of this host for each user, and keeps nothing but who is logged in.
    """
    settings = load_settings()
    settings = settings.model_copy(update={"log": settings.log.at_level(log_level)})
    _require_user(settings.web)
    configure_logging("web", settings.log)
    from slicewise.slurm_plugin.page.main import serve as serve_page  # noqa: PLC0415 -- not for --help

    asyncio.run(serve_page(settings))


def _require_user(settings: WebSettings) -> None:
    """Raise InvalidInputError: SW-WEB-OFF, SW-USER."""
    if not settings.listen:
        raise InvalidInputError(
            Code.WEB_OFF, "web.listen is not set.", 'Such as: [web] listen = "127.0.0.1:8690"'
        )
    if (wanted := uid_of(settings.user)) is None:
        raise InvalidInputError(
            Code.USER,
            f"web.user: there is no user {settings.user!r}.",
            f"Make one: useradd --system --no-create-home {settings.user}",
        )
    if os.geteuid() != wanted:
        raise InvalidInputError(
            Code.USER,
            f"The web server must run as {settings.user!r} (web.user, uid {wanted}), not as uid"
            f" {os.geteuid()}.",
            f"Run: runuser -u {settings.user} -- slicewise web serve",
        )
