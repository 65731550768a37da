"""The demo as a command."""

import json
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.runtime.console import terminal_console
from slicewise.sandbox.demo import run as demo
from slicewise.sandbox.demo.summary import summary

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(
    epilog="Examples:  python -m slicewise.sandbox.demo   |   "
    "python -m slicewise.sandbox.demo --keep   |   "
    "python -m slicewise.sandbox.demo --json > report.json"
)
def main(
    directory: Annotated[
        Path, typer.Option("--dir", help="Where the cluster lives while the demo runs.")
    ] = demo.default_directory(),  # noqa: B008 -- a constant of this process
    keep: Annotated[bool, typer.Option("--keep", help="Leave the cluster up.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print demo.json to stdout.")] = False,
    report_dir: Annotated[
        Path, typer.Option("--report-dir", help="Where demo.json and demo.png go.")
    ] = Path("build/reports"),
) -> None:
    """Run Slicewise on a whole cluster on this machine, with real arrivals, and report.

    Exits with 1 if something that the demo promises was not shown.
    """
    console = terminal_console(stderr=as_json)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        report = demo.run(demo.Options(directory, report_dir, keep), console)
    except KeyboardInterrupt:
        console.print("Interrupted.")
        raise typer.Exit(INTERRUPTED) from None
    except SlicewiseError as error:
        console.print(Text(error.refusal.text(), style="red"), soft_wrap=True)
        raise typer.Exit(1) from None
    console.print(summary(report))
    console.print(f"Report: {report_dir / 'demo.json'}, {report_dir / 'demo.png'}")
    if keep:
        console.print(f"The cluster is up: slicewise sandbox shell --dir {directory}")
    if as_json:
        sys.stdout.write(json.dumps(report.as_json(), indent=2) + "\n")
    if report.shortfalls():
        raise typer.Exit(1)
