"""``slicewise compile`` and ``uninstall``: write the ledger's limits into Slurm, remove them."""

import asyncio
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, OutsideError, UnreachableError
from slicewise.cluster.runtime.console import console, print_json
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.runtime.questions import confirm
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.settings.read import load_settings
from slicewise.cluster.slurm.open import open_slurm
from slicewise.slurm_plugin.cli.common.options import opened_ledger
from slicewise.slurm_plugin.cli.views.limits import (
    differences_table,
    out_of_band_text,
)
from slicewise.slurm_plugin.quota_cycle.compile import (
    Compiled,
    LimitComparison,
    compile_limits,
    look,
)
from slicewise.slurm_plugin.quota_cycle.uninstall import (
    Notify,
    Undone,
    WayBack,
    finish,
    no_daemon,
    plan,
    uninstall,
    want_again,
)
from slicewise.slurm_plugin.rules.limits.changes import LimitChange
from slicewise.slurm_plugin.rules.limits.desired import Difference
from slicewise.slurm_plugin.rules.limits.drift import OutOfBandChange
from slicewise.slurm_plugin.rules.slurm_config.slurm_conf import conf_lines

if TYPE_CHECKING:
    from slicewise.slurm_plugin.ledger.store import Ledger


DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would change; change nothing.")]

_REMAINS = """\
To do yourself:
- job_submit.lua: take out slicewise's lines;
- slurm.conf: what Slicewise needed (slicewise compile --slurm-conf), then scontrol reconfigure;
- the services slicewise-daemon and slicewise-launcher, cron's line, the timer: disable them.
The ledger keeps its data. No limits are set again before: slicewise compile --again"""


@dataclass(frozen=True)
class LimitsPlanned:
    """What ``compile --dry-run`` would change."""

    differences: Sequence[Difference]
    changed_by_hand: Sequence[OutOfBandChange]
    warnings: Sequence[str]


@dataclass(frozen=True)
class RefusedLimit:
    """A change that Slurm refused."""

    sacctmgr: Sequence[str]
    why: str


@dataclass(frozen=True)
class LimitsSet:
    """What ``compile`` changed in Slurm: the words of each sacctmgr command."""

    changes: Sequence[Sequence[str]]
    refused: Sequence[RefusedLimit]
    waits: Sequence[Difference]
    changed_by_hand: Sequence[OutOfBandChange]
    warnings: Sequence[str]


@dataclass(frozen=True)
class UninstallPlanned:
    """What ``uninstall --dry-run`` would do."""

    differences: Sequence[Difference]
    moves: Mapping[str, str]
    given_back: Sequence[str]
    waits: Sequence[str]


def compile_command(
    dry_run: DryRun = False,
    slurm_conf: Annotated[
        bool, typer.Option("--slurm-conf", help="Print the lines that slurm.conf needs.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Set limits again after an uninstall.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Bring Slurm's limits to what the ledger says, as the daemon does by itself.

    Amounts are in millislices, budgets in millislice-minutes, as Slurm counts them. It works
    whether the daemon runs or not. After slicewise uninstall it is refused without --again.
    """
    settings = load_settings()
    if slurm_conf:
        _print_conf(settings, as_json)
        return
    if not dry_run:
        _require_enforce(settings)
    with opened_ledger(settings) as ledger:
        if dry_run:
            _print_look(asyncio.run(look(open_slurm(settings), ledger, settings)), as_json)
            return
        compiled = asyncio.run(_compile(ledger, settings, again=again))
        if not compiled.waits:
            ledger.limits.mark_compiled(compiled.ledger_view.change_id)
    _print_compiled(compiled, as_json)


async def _compile(ledger: "Ledger", settings: Settings, *, again: bool) -> Compiled:
    slurm = open_slurm(settings)
    if again:
        await want_again(slurm, ledger, settings)
    return await compile_limits(slurm, ledger, settings)


def _require_enforce(settings: Settings) -> None:
    if settings.daemon.mode != "enforce":
        raise InvalidInputError(
            Code.MODE,
            f"daemon.mode is {settings.daemon.mode!r}: nothing was written into Slurm.",
            'Preview with --dry-run, or set daemon.mode = "enforce".',
        )


def _print_conf(settings: Settings, as_json: bool) -> None:
    lines = conf_lines(settings.cluster.partitions, settings.costs, settings.billing)
    if as_json:
        print_json(lines)
    else:
        sys.stdout.writelines(f"{line}\n" for line in lines)


def _print_look(seen: LimitComparison, as_json: bool) -> None:
    if as_json:
        print_json(LimitsPlanned(seen.differences, seen.out_of_band, seen.warnings))
        return
    if seen.differences:
        console().print(differences_table(seen.differences))
    else:
        console().print("Slurm has every limit as the ledger says.")
    _print_notes((*map(out_of_band_text, seen.out_of_band), *seen.warnings))


def _print_compiled(compiled: Compiled, as_json: bool) -> None:
    if as_json:
        refused = [RefusedLimit(change, why) for change, why in compiled.refused.items()]
        print_json(
            LimitsSet(
                compiled.changes,
                refused,
                compiled.waits,
                compiled.out_of_band,
                compiled.warnings,
            )
        )
        return
    _print_changes(compiled.changes)
    for change, why in compiled.refused.items():
        _print_notes((f"Refused: sacctmgr {' '.join(change)}: {why}",))
    for one in compiled.waits:
        _print_notes((f"Waits until compiled again: {one.text}",))
    if not (compiled.changes or compiled.refused or compiled.waits):
        console().print("Slurm has every limit as the ledger says.")
    _print_notes(compiled.warnings)


def uninstall_command(
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    finishing: Annotated[
        bool,
        typer.Option("--finish", help="Remove what had to stay, where no job uses it any more."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Put all of Slurm's limits back to what they were before Slicewise, and remove its QOS.

    Stop the daemon first. No part of Slicewise sets limits again before slicewise compile --again,
    whatever still runs. Jobs continue; jobs that wait on borrowed quota are moved to their tenant's
    own QOS if they can ever start there. A QOS stays while jobs are in it; --finish removes it
    later, and so does the daemon or slicewise rebalance when it runs. --finish exits 75 while
    something remains. The command works without PostgreSQL, by what is recorded in Slurm. The
    ledger keeps its data. After a crash, run it again.
    """
    settings = load_settings()
    tell: Notify = _tell_nobody if as_json else _tell
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
        _print_notes(done.waits)
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
def _ledger_or_none(settings: Settings) -> "Iterator[Ledger | None]":
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


def _finish(ledger: "Ledger | None", settings: Settings, tell: Notify) -> Undone:
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
    ledger: "Ledger | None", settings: Settings, tell: Notify, *, yes: bool, as_json: bool
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
        _tell(command)
    if not (differences or due.moves or due.avoid_commands or due.waits):
        console().print("Nothing of Slicewise is in Slurm.")
    _print_notes(due.waits)


def _tell(command: str) -> None:
    console().print(Text(command), soft_wrap=True)


def _tell_nobody(_: str) -> None: ...


def _print_changes(changes: tuple[LimitChange, ...]) -> None:
    for change in changes:
        _tell(f"sacctmgr {' '.join(change)}")


def _print_notes(notes: tuple[str, ...]) -> None:
    for note in notes:
        console().print(Text(note, style="yellow"), soft_wrap=True)
