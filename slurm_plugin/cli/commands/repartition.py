"""``slicewise repartition``: run repartitions of GPUs or plan them, and show earlier ones."""

import asyncio
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.text import Text

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, OutsideError
from slicewise.cluster.language.exit_codes import ExitCode
from slicewise.cluster.language.gpus.repartitions import (
    PlannedRepartition,
    Repartition,
    RepartitionState,
    RepartitionStepRecord,
)
from slicewise.cluster.runtime.console import console, print_json
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.settings.read import load_settings
from slicewise.cluster.slurm.open import open_slurm
from slicewise.slurm_plugin.cli.common.options import HistoryLines, author_name, opened_ledger
from slicewise.slurm_plugin.cli.views import repartitions as present
from slicewise.slurm_plugin.cli.views.mig import SurveyedLayout, survey_table, surveyed_gpus
from slicewise.slurm_plugin.repartition.cluster_run import RepartitionRun, cut, silent, stuck_error
from slicewise.slurm_plugin.repartition.planner_inputs import gathered
from slicewise.slurm_plugin.repartition.survey import survey
from slicewise.slurm_plugin.rules.mig.cuts_due import DueRepartitions, barred_lines, cuts_due
from slicewise.slurm_plugin.rules.mig.problem import SitePlanInput

if TYPE_CHECKING:
    from slicewise.cluster.runtime.leader_lock import LeaderLock
    from slicewise.slurm_plugin.ledger.store import Ledger


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


repartition_app = typer.Typer(
    no_args_is_help=True,
    help="Give GPUs other MIG instances, so that waiting jobs find what they ask for.",
    epilog="Examples: slicewise repartition survey | slicewise repartition run --dry-run",
)

RepartitionId = Annotated[
    int, typer.Argument(help="The id that slicewise repartition history shows.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done; do nothing.")]


@repartition_app.command(
    "run", epilog="Examples: slicewise repartition run | slicewise repartition run --dry-run"
)
def run_repartitions(dry_run: DryRun = False, as_json: Json = False) -> None:
    """Repartition GPUs, one after the other; for cron, as root.

    Which GPUs, and for which demand, follows from waiting jobs, expected demand, and the last look
    at each node (slicewise repartition survey). A site that lets Slicewise repartition nothing
    (repartition.allowed) can carry out what --dry-run shows manually.

    Those that an earlier run left unfinished come first. Each step is recorded before it begins:
    if a run is killed, the next one continues it. A step that fails is undone. Exits 1 if a
    repartition was rolled back or is stuck.
    """
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


@repartition_app.command(
    "history",
    epilog="Examples: slicewise repartition history | slicewise repartition history --lines 100",
)
def history(
    lines: HistoryLines = 20,
    as_json: Json = False,
) -> None:
    """List repartitions, newest first."""
    with opened_ledger(load_settings()) as ledger:
        repartitions = ledger.repartitions.history(lines)
    if as_json:
        print_json(repartitions)
    else:
        console().print(present.history_table(repartitions).or_say("No GPU was repartitioned yet."))


@repartition_app.command(
    "show", epilog="Examples: slicewise repartition show 7 | slicewise repartition show 7 --json"
)
def show(repartition_id: RepartitionId, as_json: Json = False) -> None:
    """Show one repartition with its steps and how long each took."""
    with opened_ledger(load_settings()) as ledger:
        repartition = ledger.repartitions.find(repartition_id)
    if as_json:
        print_json(repartition)
        return
    console().print(present.repartition_facts(repartition))
    console().print(present.steps_table(repartition.steps))


@repartition_app.command("close", epilog="Example: slicewise repartition close 7")
def close(repartition_id: RepartitionId, as_json: Json = False) -> None:
    """Close a stuck repartition: later runs leave it alone.

    Use it for a GPU or node that is gone, or that you have repaired manually. Only the journal is
    changed: resume the node yourself.
    """
    settings = load_settings()
    with opened_ledger(settings) as ledger:
        lock = _lock(ledger)
        try:
            _close(ledger, lock, repartition_id)
        finally:
            lock.give_up()
        repartition = ledger.repartitions.find(repartition_id)
    if as_json:
        print_json(repartition)
    else:
        node = repartition.node
        console().print(f"Closed. Let jobs in: scontrol update NodeName={node} State=RESUME")


def _close(ledger: "Ledger", lock: "LeaderLock", repartition_id: int) -> None:
    """Close it in the journal, but not while a run is under way, which would overwrite that.

    Raises OutsideError (SW-LOCK) and InvalidInputError (SW-VALUE).
    """
    if not lock.hold():
        raise OutsideError(
            Code.LOCK,
            f"A run cuts GPUs now ({lock.holder()}): nothing was changed.",
            "Close it when that run has ended: slicewise repartition history",
        )
    if ledger.repartitions.find(repartition_id).state is not RepartitionState.STUCK:
        raise InvalidInputError(
            Code.NOTHING,
            f"Repartition {repartition_id} is not stuck: nothing was changed.",
            "One in state running is finished by: slicewise repartition run",
        )
    ledger.repartitions.finish(
        repartition_id, RepartitionState.CLOSED, f"closed by {author_name()}"
    )


def _lock(ledger: "Ledger") -> "LeaderLock":
    return ledger.locks.repartitioning(f"{socket.gethostname()}, process {os.getpid()}")


@repartition_app.command(
    "survey",
    epilog="Examples: slicewise repartition survey | slicewise repartition survey gpu07 gpu08",
)
def look(
    nodes: Annotated[
        list[str] | None,
        typer.Argument(help="Nodes to look at; all with GPUs if left out.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Look up and show how each node's GPUs are cut now, through short jobs of root; for cron.

    Memory slices in brackets form an instance; a dot is a free memory slice. The answers are kept
    for repartition run. Exits 8 if some nodes could not be looked at, 1 if none could.
    """
    settings = load_settings()
    _require_root("look at all nodes")
    with opened_ledger(settings) as ledger:
        found = asyncio.run(
            survey(settings, open_slurm(settings), ledger.repartitions, nodes or ())
        )
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


def _print_dry_run(settings: Settings, ledger: "Ledger", as_json: bool) -> None:
    unfinished = ledger.repartitions.unfinished()
    seen = asyncio.run(gathered(settings, open_slurm(settings), ledger))
    due = cuts_due(seen)
    if as_json:
        ids = [repartition.repartition_id for repartition in unfinished]
        guaranteed = {model: one.demand.guaranteed for model, one in seen.boards.items()}
        print_json(RepartitionsDry(ids, due.now, guaranteed, due.barred, seen.left_out))
        return
    _print_plan(due, seen)
    for line in (line for repartition in due.now for line in present.dry_run_lines(repartition)):
        console().print(Text(line), soft_wrap=True)
    for one in unfinished:
        console().print(f"Repartition {one.repartition_id} on {one.node} is {one.state}.")
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
        for one in ended:
            _print_end(one)
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
