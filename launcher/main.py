"""The one executable, ``slicewise``: mounts every command tree."""

import os
import sys
from importlib import metadata
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from cluster.errors import SlicewiseError
from launcher.cli import gateway_app, run_launcher, service_app
from sandbox.cli import app as sandbox_app
from slurm_plugin.cli.budget import budget_app
from slurm_plugin.cli.compile import compile_command, uninstall_command
from slurm_plugin.cli.daemon import run_daemon
from slurm_plugin.cli.db import db_app
from slurm_plugin.cli.explain import explain_tenant, print_costs
from slurm_plugin.cli.ledger import ledger_app
from slurm_plugin.cli.quota import tenant_quota_app
from slurm_plugin.cli.tenant import tenant_app

app = typer.Typer(
    name="slicewise",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
)
app.add_typer(service_app, name="service")
app.add_typer(tenant_app, name="tenant")
app.add_typer(tenant_quota_app, name="tenant-quota")
app.add_typer(budget_app, name="budget")
app.add_typer(ledger_app, name="ledger")
app.command(
    "explain",
    epilog="Examples: slicewise explain vision | slicewise explain vision --json",
)(explain_tenant)
app.command(
    "costs",
    epilog="Examples: slicewise costs | slicewise costs --all --json",
)(print_costs)
app.command(
    "compile",
    epilog="Examples: slicewise compile --dry-run | slicewise compile --slurm-conf",
)(compile_command)
app.command(
    "uninstall",
    epilog="Examples: slicewise uninstall --dry-run | slicewise uninstall --yes",
)(uninstall_command)
app.add_typer(gateway_app, name="gateway")
app.add_typer(db_app, name="db")
app.add_typer(sandbox_app, name="sandbox")
app.command(
    "daemon",
    epilog="Examples: slicewise daemon --config /etc/slicewise/slicewise.toml"
    " | systemctl start slicewise-daemon",
)(run_daemon)
app.command(
    "launcher",
    epilog="Examples: slicewise launcher --config /etc/slicewise/slicewise.toml"
    " | systemctl start slicewise-launcher",
)(run_launcher)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"slicewise {metadata.version('slicewise')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Elastic, multi-tenant Triton inference on Slurm."""


def main() -> None:
    """Run a command; an expected failure is one message and exit code 1, never a traceback."""
    try:
        # By this name also where it runs as ``python -m launcher.main``, as in the sandbox.
        app(prog_name="slicewise")
    except BrokenPipeError:
        # Whoever read has seen enough, such as ``head``.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except SlicewiseError as error:
        refusal, console = error.refusal, Console(stderr=True)
        # As Text: what others wrote (a log's "[Note]", a user's path) must not be read as markup.
        console.print(Text(refusal.message, style="red"), soft_wrap=True)
        if refusal.hint:
            console.print(Text(refusal.hint), soft_wrap=True)
        console.print(Text(refusal.code, style="dim"))
        sys.exit(1)


if __name__ == "__main__":
    main()
