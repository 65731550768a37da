"""``slicewise repartition run|survey``: root's work on GPUs, each step in the ledger's journal."""

import asyncio
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import typer
from rich.text import Text

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.exit_codes import ExitCode
from slicewise.cluster.language.gpus.repartitions import (
    PlannedRepartition,
    Repartition,
    RepartitionState,
    RepartitionStepRecord,
)
from slicewise.cluster.runtime.console import console, print_json
from slicewise.cluster.runtime.leader_lock import LeaderLock
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.settings.read import load_settings
from slicewise.cluster.slurm.open import open_slurm
from slicewise.slurm_plugin.cli.common.opened_ledger import opened_ledger
from slicewise.slurm_plugin.cli.common.options import author_name
from slicewise.slurm_plugin.cli.views import repartitions as present
from slicewise.slurm_plugin.cli.views.mig import SurveyedLayout, survey_table, surveyed_gpus
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.repartition.cluster_run import RepartitionRun, cut, silent, stuck_error
from slicewise.slurm_plugin.repartition.planner_inputs import gathered
from slicewise.slurm_plugin.repartition.survey import survey
from slicewise.slurm_plugin.rules.mig.cuts_due import DueRepartitions, barred_lines, cuts_due
from slicewise.slurm_plugin.rules.mig.problem import SitePlanInput

Barred = Mapping[str, Sequence[str]]
"""Types that Slurm's order of devices bars, with the nodes that were tried."""


@dataclass(frozen=True)
class RepartitionsDone:
    """What a run did."""

    repartitions: Sequence[Repartition]
    barred: Barred
    done: Literal[True] = True


@dataclass(frozen=True)
class RepartitionsDry:
    """What a run would do: those that it would take up, what would be cut, what stays by model for
    guarantees, and nodes left out with the reason.
    """

    unfinished: Sequence[int]
    plan: Sequence[PlannedRepartition]
    guaranteed: Mapping[str, Mapping[str, int]]
    barred: Barred
    left_out: Mapping[str, str]
    done: Literal[False] = False


@dataclass(frozen=True)
class RepartitionsBusy:
    """Another run is under way."""

    busy: str
    done: Literal[False] = False


@dataclass(frozen=True)
class SurveyedNodes:
    """Nodes that were looked at, why others were not, and how the GPUs are cut."""

    seen: Sequence[str]
    failed: Mapping[str, str]
    gpus: Sequence[SurveyedLayout]


def run(*, dry_run: bool, as_json: bool) -> None:
    """Run ``slicewise repartition run``; raises typer.Exit with its exit code."""
    settings = load_settings()
    with opened_ledger(settings) as ledger:
        if dry_run or not settings.repartition.allowed:
            _print_dry_run(settings, ledger, as_json)
            return
        _require_root("cut GPUs")
        lock = _lock(ledger)
        if not lock.hold():
            _print_busy(lock.holder(), as_json)
            return
        try:
            progress = silent if as_json else _print_step
            author = author_name()
            run = cut(
                settings,
                open_slurm(settings),
                ledger,
                lock,
                author=author,
                progress=progress,
                is_asked_for=True,
            )
            done = asyncio.run(run)
        finally:
            lock.give_up()
    _print_done(done, as_json)


def look(nodes: Sequence[str], *, as_json: bool) -> None:
    """Run ``slicewise repartition survey``; raises typer.Exit with its exit code."""
    settings = load_settings()
    _require_root("look at all nodes")
    with opened_ledger(settings) as ledger:
        found = asyncio.run(survey(settings, open_slurm(settings), ledger.repartitions, nodes))
    if as_json:
        print_json(SurveyedNodes(tuple(found.seen), found.failed, surveyed_gpus(found.seen)))
    else:
        if found.seen:
            console().print(survey_table(found.seen))
        console().print(f"Looked at {len(found.seen)} nodes.")
        for node, why in sorted(found.failed.items()):
            console().print(Text(f"{node}: {why}", style="yellow"), soft_wrap=True)
    if found.failed:
        raise typer.Exit(ExitCode.PARTLY_DONE if found.seen else ExitCode.FAILED)


def _lock(ledger: Ledger) -> LeaderLock:
    return ledger.locks.repartitioning(f"{socket.gethostname()}, process {os.getpid()}")


def _require_root(what: str) -> None:
    if os.geteuid() != 0:
        raise InvalidInputError(
            Code.ROOT,
            f"Only root may {what}: nothing was done.",
            "Run it with sudo or from cron.",
        )


def _print_step(repartition: Repartition, record: RepartitionStepRecord) -> None:
    out = console()
    if record.ended_s is not None or out.is_terminal:
        out.print(present.step_line(repartition, record), soft_wrap=True)


def _print_plan(due: DueRepartitions, seen: SitePlanInput) -> None:
    if due.now:
        console().print(present.plan_table(due.now))
    elif not due.barred:
        console().print("No GPU is to be repartitioned: no change would pay for itself.")
    for line in present.guaranteed_lines(seen.boards):
        console().print(line, markup=False, soft_wrap=True)
    _print_barred(due)
    for line in present.left_out_lines(seen.left_out):
        console().print(Text(line, style="yellow"), soft_wrap=True)


def _print_barred(due: DueRepartitions) -> None:
    for line in barred_lines(due):
        console().print(Text(line, style="yellow"), soft_wrap=True)


def _print_dry_run(settings: Settings, ledger: Ledger, as_json: bool) -> None:
    unfinished = ledger.repartitions.unfinished()
    seen = asyncio.run(gathered(settings, open_slurm(settings), ledger))
    due = cuts_due(seen)
    if as_json:
        ids = [repartition.repartition_id for repartition in unfinished]
        guaranteed = {model: board.demand.guaranteed for model, board in seen.boards.items()}
        print_json(RepartitionsDry(ids, due.now, guaranteed, due.barred, seen.left_out))
        return
    _print_plan(due, seen)
    for line in (line for repartition in due.now for line in present.dry_run_lines(repartition)):
        console().print(Text(line), soft_wrap=True)
    for open_ in unfinished:
        console().print(f"Repartition {open_.repartition_id} on {open_.node} is {open_.state}.")
    words = (
        "" if settings.repartition.allowed else ": repartition.allowed is false in slicewise.toml"
    )
    console().print(f"Nothing was done{words}.")


def _print_busy(holder: str, as_json: bool) -> None:
    if as_json:
        print_json(RepartitionsBusy(holder))
    else:
        console().print(f"Another run cuts GPUs now ({holder}): nothing was done.", markup=False)


def _print_done(done: RepartitionRun, as_json: bool) -> None:
    ended = done.ended
    if as_json:
        print_json(RepartitionsDone(ended, done.due.barred))
    else:
        for repartition in ended:
            _print_end(repartition)
        if not ended and not done.due.barred:
            console().print("No GPU is to be repartitioned.")
        _print_barred(done.due)
    if stuck := stuck_error(ended):
        raise stuck
    if any(repartition.state is not RepartitionState.DONE for repartition in ended):
        raise typer.Exit(1)


def _print_end(repartition: Repartition) -> None:
    where = f"{repartition.repartition_id} on {repartition.node}"
    words = f"Repartition {where}: {repartition.state}"
    style = "green" if repartition.state is RepartitionState.DONE else "red"
    text = f"{words}. {repartition.error}" if repartition.error else f"{words}."
    console().print(Text(text, style=style), soft_wrap=True)
