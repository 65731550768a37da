"""``slicewise rebalance``: one run of rebalancing, and what earlier runs did."""

import asyncio
import gc
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import computed_field
from rich.text import Text

from slicewise.cluster.language.documents import HIDDEN
from slicewise.cluster.language.rebalances import (
    RebalanceRun,
    RunOutcome,
    StepOutcome,
    StepRecord,
)
from slicewise.cluster.runtime.console import console, print_json
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.settings.read import load_settings
from slicewise.slurm_plugin.cli.common.options import HistoryLines, author_name, opened_ledger
from slicewise.slurm_plugin.cli.views import rebalances as present
from slicewise.slurm_plugin.common.log import configure_logging

if TYPE_CHECKING:
    from slicewise.slurm_plugin.ledger.store import Ledger
    from slicewise.slurm_plugin.rebalance.site_look import RunContext


@dataclass(frozen=True)
class PlannedStep(StepRecord):
    """A step that a run would take."""

    did: Annotated[tuple[str, ...], HIDDEN] = ()

    @computed_field
    @property
    def would(self) -> tuple[str, ...]:
        """What the step would change, one line each."""
        return self.did


@dataclass(frozen=True)
class PlannedRun:
    """What a run would do."""

    steps: tuple[PlannedStep, ...]
    outcome: None = None


@dataclass(frozen=True)
class BusyRun:
    """Another run is under way."""

    busy: str
    outcome: None = None


rebalance_app = typer.Typer(
    help="Bring everything to what is wanted now: ledger, loans, limits, priorities, GPUs; "
    "for cron.\n\n"
    "One run looks once and takes its steps in order, beside a daemon or without one. Each is "
    "written down before it begins, with what it saw, did, and why. The next run repeats one that"
    " was killed. Exits 0 if all was done, 1 if something was not, 75 if another run is "
    "under way.",
    epilog="Examples: slicewise rebalance --dry-run | slicewise rebalance --quiet"
    " | slicewise rebalance history",
)

GARBAGE_AFTER = 5_000_000
"""New objects after which Python collects garbage. Nearly all objects of a run live until its end;
on a large site, with over a million of them, collecting took as long as the run itself."""

_LONG_S = 3600.0
"""Longer than any run takes, although a run that cuts GPUs waits for jobs to end."""

RunId = Annotated[int, typer.Argument(help="The id that slicewise rebalance history shows.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print what each step would do; write nothing.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print only what was not done, for cron.")]


@rebalance_app.callback(invoke_without_command=True)
def rebalance(
    context: typer.Context, dry_run: DryRun = False, quiet: Quiet = False, as_json: Json = False
) -> None:
    """Run once, unless a subcommand is named."""
    if context.invoked_subcommand is not None:
        return
    gc.set_threshold(GARBAGE_AFTER)
    settings = load_settings()
    configure_logging("rebalance", settings.log)
    with opened_ledger(settings) as ledger:
        site = _site(settings, ledger)
        if dry_run:
            _print_dry_run(site, as_json)
        else:
            _run(site, quiet=quiet, as_json=as_json)


@rebalance_app.command(
    "history", epilog="Examples: slicewise rebalance history | slicewise rebalance history --json"
)
def history(
    lines: HistoryLines = 20,
    as_json: Json = False,
) -> None:
    """List runs, newest first."""
    with opened_ledger(load_settings()) as ledger:
        runs = ledger.rebalances.history(lines)
    if as_json:
        print_json(runs)
    else:
        console().print(present.history_table(runs).or_say("There were no runs yet."))


@rebalance_app.command(
    "show", epilog="Examples: slicewise rebalance show 7 | slicewise rebalance show 7 --json"
)
def show(run_id: RunId, as_json: Json = False) -> None:
    """Show one run: what each step saw, did, and why."""
    with opened_ledger(load_settings()) as ledger:
        run = ledger.rebalances.find(run_id)
    if as_json:
        print_json(run)
        return
    console().print(present.run_facts(run))
    _print_steps(run.steps, most=None)


def _site(settings: Settings, ledger: "Ledger") -> "RunContext":
    # Imported here: the history does not need them.
    from slicewise.cluster.rpc.client import DaemonClient  # noqa: PLC0415
    from slicewise.cluster.slurm.open import open_slurm  # noqa: PLC0415
    from slicewise.slurm_plugin.rebalance.site_look import RunContext  # noqa: PLC0415

    return RunContext(
        settings=settings,
        slurm=open_slurm(settings),
        ledger=ledger,
        daemon=DaemonClient(settings.daemon),
        author=author_name(),
        host=socket.gethostname(),
        is_root=os.geteuid() == 0,
    )


def _run(site: "RunContext", *, quiet: bool, as_json: bool) -> None:
    from slicewise.slurm_plugin.rebalance.run import run  # noqa: PLC0415 -- not for the history

    lock = site.ledger.locks.rebalancing(site.who)
    try:
        if not lock.hold():
            _print_busy(site, lock.holder(), quiet=quiet, as_json=as_json)
            raise typer.Exit(os.EX_TEMPFAIL)
        ended = asyncio.run(run(site, lock.hold))
    finally:
        lock.give_up()
    if as_json:
        print_json(ended)
    elif not quiet or ended.outcome is not RunOutcome.DONE:
        _print_run(ended, quiet=quiet)
    if ended.outcome is not RunOutcome.DONE:
        raise typer.Exit(1)


def _print_run(ended: RebalanceRun, *, quiet: bool) -> None:
    records = [step for step in ended.steps if not quiet or step.outcome is not StepOutcome.DONE]
    _print_steps(records)


def _print_steps(records: Sequence[StepRecord], did: str = "did", most: int | None = 3) -> None:
    console().print(present.steps_table(records, did, most))
    for note in present.step_notes(records):
        console().print(Text(note))


def _print_busy(site: "RunContext", holder: str, *, quiet: bool, as_json: bool) -> None:
    if as_json:
        print_json(BusyRun(holder))
    elif not quiet or _is_long(site):
        sys.stderr.write(f"Another run is under way ({holder}): nothing was done.\n")


def _is_long(site: "RunContext") -> bool:
    """Whether the run under way may hang, so that cron should report it."""
    newest = site.ledger.rebalances.history(1)
    return any(site.now_s() - run.started_s > _LONG_S for run in newest)


def _print_dry_run(site: "RunContext", as_json: bool) -> None:
    from slicewise.slurm_plugin.rebalance.run import dry_run  # noqa: PLC0415 -- not for the history

    outcome, records = asyncio.run(dry_run(site))
    if as_json:
        print_json(PlannedRun(tuple(PlannedStep(**vars(record)) for record in records)))
    else:
        _print_steps(records, "would do", most=None)
        console().print("Nothing was done.")
    if outcome is not RunOutcome.DONE:
        raise typer.Exit(1)
