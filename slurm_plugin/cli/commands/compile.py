"""``slicewise compile``: has the ledger's limits written into Slurm."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.text import Text

from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.runtime.console import console, print_json
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.settings.read import load_settings
from slicewise.slurm_plugin.cli.views.limits import (
    differences_table,
    out_of_band_text,
)
from slicewise.slurm_plugin.common.compile_requests import (
    CompiledLimits,
    CompileOutcomeRequest,
    CompileRequest,
    LimitsPlanAnswer,
    LimitsPlanRequest,
)
from slicewise.slurm_plugin.rules.limits.changes import LimitChange
from slicewise.slurm_plugin.rules.limits.desired import Difference
from slicewise.slurm_plugin.rules.limits.drift import OutOfBandChange
from slicewise.slurm_plugin.rules.slurm_config.slurm_conf import conf_lines


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


DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would change; change nothing.")]


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

    Amounts are in millislices, budgets in millislice-minutes, as Slurm counts them. After slicewise
    uninstall it is refused without --again.
    """
    settings = load_settings()
    if slurm_conf:
        _print_conf(settings, as_json)
        return
    daemon = DaemonClient(settings.daemon)
    if dry_run:
        _print_planned(daemon.call(LimitsPlanRequest()), as_json)
        return
    answer = daemon.call(CompileRequest(again=again))
    while answer.compiled is None:
        answer = daemon.call(CompileOutcomeRequest(errand=answer.errand))
    _print_compiled(answer.compiled, as_json)


def _print_conf(settings: Settings, as_json: bool) -> None:
    lines = conf_lines(settings.cluster.partitions, settings.costs, settings.billing)
    if as_json:
        print_json(lines)
    else:
        sys.stdout.writelines(f"{line}\n" for line in lines)


def limits_set(compiled: CompiledLimits) -> LimitsSet:
    """Return what is told of a compilation as JSON."""
    return LimitsSet(
        compiled.changes,
        [RefusedLimit(change, why) for change, why in compiled.refused],
        compiled.waits,
        compiled.changed_by_hand,
        compiled.warnings,
    )


def _print_planned(planned: LimitsPlanAnswer, as_json: bool) -> None:
    if as_json:
        print_json(LimitsPlanned(planned.differences, planned.changed_by_hand, planned.warnings))
        return
    if planned.differences:
        console().print(differences_table(planned.differences))
    else:
        console().print("Slurm has every limit as the ledger says.")
    print_notes((*map(out_of_band_text, planned.changed_by_hand), *planned.warnings))


def _print_compiled(compiled: CompiledLimits, as_json: bool) -> None:
    if as_json:
        print_json(limits_set(compiled))
        return
    print_notes(tuple(map(out_of_band_text, compiled.changed_by_hand)))
    print_changes(compiled.changes)
    for change, why in compiled.refused:
        print_notes((f"Refused: sacctmgr {' '.join(change)}: {why}",))
    for limit in compiled.waits:
        print_notes((f"Waits until compiled again: {limit.text}",))
    if not (compiled.changes or compiled.refused or compiled.waits):
        console().print("Slurm has every limit as the ledger says.")
    print_notes(compiled.warnings)


def print_command(command: str) -> None:
    """Print a command of Slurm."""
    console().print(Text(command), soft_wrap=True)


def print_changes(changes: tuple[LimitChange, ...]) -> None:
    """Print the commands that changed limits."""
    for change in changes:
        print_command(f"sacctmgr {' '.join(change)}")


def print_notes(notes: tuple[str, ...]) -> None:
    """Print what else is to be known, one line each."""
    for note in notes:
        console().print(Text(note, style="yellow"), soft_wrap=True)
