"""Takes Slicewise out of Slurm, without a daemon, and says what was done."""

import asyncio
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import typer

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, OutsideError, UnreachableError
from slicewise.cluster.runtime.console import console, print_json
from slicewise.cluster.runtime.questions import confirm
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.settings.read import load_settings
from slicewise.cluster.slurm.open import open_slurm
from slicewise.slurm_plugin.cli.commands.compile import print_command, print_notes
from slicewise.slurm_plugin.cli.common.opened_ledger import opened_ledger
from slicewise.slurm_plugin.cli.views.limits import differences_table
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.quota_cycle.uninstall import (
    Notify,
    Undone,
    WayBack,
    finish,
    no_daemon,
    plan,
    uninstall,
)
from slicewise.slurm_plugin.rules.limits.desired import Difference

_REMAINS = """\
To do yourself:
- job_submit.lua: take out slicewise's lines;
- slurm.conf: what Slicewise needed (slicewise compile --slurm-conf), then scontrol reconfigure;
- the services slicewise-daemon and slicewise-launcher, cron's line, the timer: disable them.
The ledger keeps its data. No limits are set again before: slicewise compile --again"""


@dataclass(frozen=True)
class UninstallPlanned:
    """What ``uninstall --dry-run`` would do."""

    differences: Sequence[Difference]
    moves: Mapping[str, str]
    given_back: Sequence[str]
    waits: Sequence[str]


def run(*, dry_run: bool, yes: bool, finishing: bool, as_json: bool) -> None:
    """Run ``slicewise uninstall``; raises typer.Exit with its exit code."""
    settings = load_settings()
    tell: Notify = _tell_nobody if as_json else print_command
    with _ledger_or_none(settings) as ledger:
        if dry_run:
            due = asyncio.run(plan(open_slurm(settings), ledger, settings, finishes=finishing))
            _print_plan(due, as_json)
            return
        if finishing:
            done = _finish(ledger, settings, tell)
        else:
            with no_daemon(settings.daemon.run_dir):
                done = _uninstall(ledger, settings, tell, yes=yes, as_json=as_json)
    if as_json:
        print_json(done)
    else:
        print_notes(done.waits)
        sys.stdout.write(f"{_summary(done)}\n\n{_REMAINS}\n")
    if finishing and done.waits:
        raise typer.Exit(os.EX_TEMPFAIL)


def _summary(done: Undone) -> str:
    if not done.waits:
        return "Slurm is as it was before."
    if not done.in_use:
        return "Slurm is as it was before, but for this."
    total = sum(jobs.running + jobs.waiting + jobs.held for jobs in done.in_use.values())
    qos, jobs = _count(len(done.in_use), "QOS", "QOS"), _count(total, "job", "jobs")
    return (
        f"Slurm is as it was before, but for this. {jobs} in {qos} of Slicewise: run"
        " slicewise uninstall --finish again when they have ended. A running daemon, or slicewise"
        " rebalance from cron, does this by itself."
    )


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


@contextmanager
def _ledger_or_none(settings: Settings) -> Iterator[Ledger | None]:
    """Open the ledger; yield None if that fails, since Slicewise must be removable at any time.

    What Slurm itself says must be enough then.
    """
    with ExitStack() as stack:
        ledger = None
        try:
            ledger = stack.enter_context(opened_ledger(settings))
        except (UnreachableError, OutsideError) as error:
            sys.stderr.write(
                f"{error}\nContinuing without the ledger, by Slurm's settings alone.\n"
            )
        yield ledger


def _finish(ledger: Ledger | None, settings: Settings, tell: Notify) -> Undone:
    done = asyncio.run(finish(open_slurm(settings), ledger, settings, tell))
    if done is None:
        raise InvalidInputError(
            Code.NOTHING,
            "No uninstall is under way (none began, or compile --again ended it): nothing was"
            " changed.",
            "To take Slicewise out of Slurm: slicewise uninstall --dry-run",
        )
    return done


def _uninstall(
    ledger: Ledger | None, settings: Settings, tell: Notify, *, yes: bool, as_json: bool
) -> Undone:
    slurm = open_slurm(settings)
    # Plan before anything is marked in Slurm: it may be another cluster's.
    due = asyncio.run(plan(slurm, ledger, settings))
    moves = f", {len(due.moves)} waiting jobs or arrays moved" if due.moves else ""
    freed = len(due.avoided.changes)
    avoided = f", {freed} arrays' slots let back onto nodes that they avoid" if freed else ""
    question = f"{len(due.all)} settings in Slurm will be put back{moves}{avoided}. Go on?"
    confirm(question, yes=yes, as_json=as_json)
    return asyncio.run(uninstall(slurm, ledger, settings, tell))


def _print_plan(due: WayBack, as_json: bool) -> None:
    differences = due.all
    if as_json:
        print_json(UninstallPlanned(differences, due.moves, due.avoid_commands, due.waits))
        return
    if differences:
        console().print(differences_table(differences))
    for command in (*due.move_commands, *due.avoid_commands):
        print_command(command)
    if not (differences or due.moves or due.avoid_commands or due.waits):
        console().print("Nothing of Slicewise is in Slurm.")
    print_notes(due.waits)


def _tell_nobody(_: str) -> None: ...
