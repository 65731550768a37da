"""``slicewise rebalance``: one run, as cron starts it, beside the daemon or without it."""

import asyncio
import gc
import os
import socket
import sys
from dataclasses import dataclass
from typing import Annotated

import typer
from pydantic import computed_field

from slicewise.cluster.language.documents import HIDDEN
from slicewise.cluster.language.rebalances import (
    RebalanceRun,
    RunOutcome,
    StepOutcome,
    StepRecord,
)
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.runtime.console import console, print_json
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.settings.read import load_settings
from slicewise.cluster.slurm.open import open_slurm
from slicewise.slurm_plugin.cli.common.opened_ledger import opened_ledger
from slicewise.slurm_plugin.cli.common.options import author_name
from slicewise.slurm_plugin.cli.views import rebalances as present
from slicewise.slurm_plugin.common.log import configure_logging
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rebalance.run import dry_run as planned_run
from slicewise.slurm_plugin.rebalance.run import run
from slicewise.slurm_plugin.rebalance.site_look import RunContext

GARBAGE_AFTER = 5_000_000
"""New objects after which Python collects garbage. Nearly all objects of a run live until its end;
on a large site, with over a million of them, collecting took as long as the run itself."""

_LONG_S = 3600.0
"""Longer than any run takes, although a run that cuts GPUs waits for jobs to end."""


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


def run_once(*, dry_run: bool, quiet: bool, as_json: bool) -> None:
    """Run ``slicewise rebalance``; raises typer.Exit with its exit code."""
    gc.set_threshold(GARBAGE_AFTER)
    settings = load_settings()
    configure_logging("rebalance", settings.log)
    with opened_ledger(settings) as ledger:
        site = _site(settings, ledger)
        if dry_run:
            _print_dry_run(site, as_json)
        else:
            _run(site, quiet=quiet, as_json=as_json)


def _site(settings: Settings, ledger: Ledger) -> RunContext:
    return RunContext(
        settings=settings,
        slurm=open_slurm(settings),
        ledger=ledger,
        daemon=DaemonClient(settings.daemon),
        author=author_name(),
        host=socket.gethostname(),
        is_root=os.geteuid() == 0,
    )


def _run(site: RunContext, *, quiet: bool, as_json: bool) -> None:
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
    present.print_steps(records)


def _print_busy(site: RunContext, holder: str, *, quiet: bool, as_json: bool) -> None:
    if as_json:
        print_json(BusyRun(holder))
    elif not quiet or _is_long(site):
        sys.stderr.write(f"Another run is under way ({holder}): nothing was done.\n")


def _is_long(site: RunContext) -> bool:
    """Whether the run under way may hang, so that cron should report it."""
    newest = site.ledger.rebalances.history(1)
    return any(site.now_s() - run.started_s > _LONG_S for run in newest)


def _print_dry_run(site: RunContext, as_json: bool) -> None:
    outcome, records = asyncio.run(planned_run(site))
    if as_json:
        print_json(PlannedRun(tuple(PlannedStep(**vars(record)) for record in records)))
    else:
        present.print_steps(records, "would do", most=None)
        console().print("Nothing was done.")
    if outcome is not RunOutcome.DONE:
        raise typer.Exit(1)
