"""``slicewise sandbox``: a cluster to try things on."""

import os
import shutil
import signal
import time
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.table import Table

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.runtime.console import print_json, terminal_console
from slicewise.cluster.runtime.output_options import Json
from slicewise.sandbox import lifecycle
from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.host import process
from slicewise.sandbox.host.directory import default_directory
from slicewise.sandbox.host.status import NodeRow, SandboxStatus, ServerRow, node_rows, server_rows
from slicewise.sandbox.servers import gpus

app = typer.Typer(
    no_args_is_help=True,
    help="A whole cluster on this machine: Slurm with emulated MIG GPUs, PostgreSQL, HAProxy.",
    epilog="Examples: slicewise sandbox up | slicewise sandbox shell --user alice",
)

Directory = Annotated[
    Path,
    typer.Option(
        "--dir",
        default_factory=default_directory,
        help="The sandbox's directory.",
        envvar="SLICEWISE_SANDBOX_DIR",
        show_default="slicewise-sandbox-UID in /tmp",
    ),
]

_INTERRUPTED = 130
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
"""Exit codes as shells have them."""


def _fail(error: SlicewiseError, exit_code: int | None = None) -> NoReturn:
    terminal_console(stderr=True).print(
        str(error), style="red", markup=False, highlight=False, soft_wrap=True
    )
    code = error.refusal.code.exit_code if exit_code is None else exit_code
    raise typer.Exit(code) from None


def _interrupt_on_end_signals() -> None:
    def interrupt(_number: int, _frame: object) -> NoReturn:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)


@app.command(
    epilog="Examples: slicewise sandbox up | slicewise sandbox up --dir /tmp/second --no-services"
    " | slicewise sandbox up --anew"
)
def up(
    directory: Directory,
    services: Annotated[
        bool, typer.Option(help="Also start Slicewise's own daemon and launcher.")
    ] = True,
    anew: Annotated[
        bool, typer.Option("--anew", help="Discard a sandbox that is there, with all its data.")
    ] = False,
) -> None:
    """Start the cluster; it runs until `slicewise sandbox down`.

    If the sandbox is up already, servers that have ended are started again, with all data.
    """
    console = terminal_console()
    _interrupt_on_end_signals()
    begin = time.monotonic()
    try:
        with console.status("Starting the sandbox"):
            sandbox = Sandbox.up(
                directory,
                progress=lambda line: console.print(f"  {line}", highlight=False, markup=False),
                services=services,
                anew=anew,
            )
    except SlicewiseError as error:
        _fail(error)
    except KeyboardInterrupt:
        left = directory.exists()
        sentence = "the sandbox stays as it is" if left else "everything was taken down again"
        terminal_console(stderr=True).print(f"Interrupted: {sentence}.")
        raise typer.Exit(_INTERRUPTED) from None
    place = sandbox.layout.directory
    console.print(f"The sandbox is up in {place} ({time.monotonic() - begin:.1f} s).")
    where = "" if place == default_directory() else f"--dir {place} "
    console.print(f"Try: slicewise sandbox shell {where}--user alice -- sinfo", soft_wrap=True)


@app.command(epilog="Examples: slicewise sandbox down | slicewise sandbox down --keep")
def down(
    directory: Directory,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the directory and its logs.")] = False,
) -> None:
    """Stop the whole cluster, whatever state it is in, and remove its directory."""
    console = terminal_console()
    begin = time.monotonic()
    try:
        with console.status("Stopping the sandbox"):
            was_up = lifecycle.down(directory, keep=keep)
    except SlicewiseError as error:
        _fail(error)
    sentence = f"The sandbox is down ({time.monotonic() - begin:.1f} s)."
    console.print(sentence if was_up else f"There is no sandbox in {directory}.")


@app.command(epilog="Examples: slicewise sandbox status | slicewise sandbox status --json")
def status(
    directory: Directory,
    as_json: Json = False,
) -> None:
    """Show the servers and nodes; exit 3 if no sandbox is up."""
    try:
        sandbox = Sandbox.attach(directory)
        servers = server_rows(sandbox.state, process.is_alive)
        nodes = node_rows(sandbox.layout, sandbox.node_states(), gpus.slices(sandbox.layout))
    except SlicewiseError as error:
        if as_json:
            raise
        _fail(error)
    if as_json:
        layout = sandbox.layout
        print_json(SandboxStatus(str(layout.directory), layout.gateway_url, servers, nodes))
        return
    console = terminal_console()
    console.print(f"Sandbox in {sandbox.layout.directory}", highlight=False, soft_wrap=True)
    console.print(f"Gateway {sandbox.layout.gateway_url}", highlight=False, soft_wrap=True)
    console.print(_server_table(servers), _node_table(nodes))


def _table(title: str) -> Table:
    """Make a table that fits into 80 columns."""
    return Table(box=None, padding=(0, 2, 0, 0), title=f"\n{title}", title_justify="left")


def _server_table(rows: tuple[ServerRow, ...]) -> Table:
    table = _table("Servers")
    table.add_column("server", no_wrap=True)
    table.add_column("user")
    table.add_column("pid", justify="right")
    table.add_column("listens on", overflow="fold")
    table.add_column("since")
    table.add_column("state")
    for row in rows:
        since = time.strftime("%H:%M:%S", time.localtime(row.since))
        style = "green" if row.state == "running" else "red"
        table.add_row(
            row.name, row.user, str(row.pid), row.place, since, f"[{style}]{row.state}[/]"
        )
    return table


def _node_table(rows: tuple[NodeRow, ...]) -> Table:
    table = _table("Nodes")
    for title in ("node", "GPU", "slices", "address", "state"):
        table.add_column(title)
    for row in rows:
        slices = ", ".join(f"{count} x {profile}" for profile, count in row.slices.items())
        table.add_row(row.name, row.gpu, slices, row.address, row.state)
    return table


@app.command(epilog="Examples: slicewise sandbox page | slicewise sandbox page --user alice")
def page(
    directory: Directory,
    user: Annotated[str, typer.Option(help="root, alice, bob or carol.")] = "root",
) -> None:
    """Print an address that logs a user in on the page in the browser, once, within two minutes.

    The page's server is started if it does not run.
    """
    try:
        address = Sandbox.attach(directory).page_login(user)
    except SlicewiseError as error:
        _fail(error)
    terminal_console().print(address, soft_wrap=True, highlight=False)


@app.command(
    epilog="Examples: slicewise sandbox shell --user alice"
    " | slicewise sandbox shell --user alice -- sbatch --gres=gpu:1g.10gb:1 job.sh"
)
def shell(
    directory: Directory,
    command: Annotated[
        list[str] | None, typer.Argument(help="A command and its arguments, after --.")
    ] = None,
    user: Annotated[
        str, typer.Option(help="root, slurm, slicewise, alice, bob or carol.")
    ] = "root",
) -> None:
    """Run a shell, or a command, in the cluster as one of its users."""
    argv = command or ["/bin/bash", "--norc", "-i"]
    try:
        sandbox = Sandbox.attach(directory)
        environment = sandbox.environment(user) | {"PS1": f"{user}@sandbox:\\w\\$ "}
        program = _program(argv[0], environment["PATH"])
        sandbox.become(user)
    except SlicewiseError as error:
        _fail(error)
    try:
        os.execve(program, argv, environment)  # noqa: S606 -- no shell, the words as given
    except OSError as error:
        # That user may be unable to read Python's libraries: nothing more can be imported.
        os.write(2, f"{argv[0]}: {error.strerror}. [{Code.PROGRAM}]\n".encode())
        os._exit(_NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE)


def _program(name: str, path: str) -> str:
    """Return the path of a command; exit with 127, as shells do, if it is not on ``path``."""
    found = name if "/" in name else shutil.which(name, path=path)
    if found is None:
        _fail(
            SlicewiseError(Code.PROGRAM, f"There is no command {name!r}.", f"PATH is {path}."),
            _NOT_FOUND,
        )
    return found
