"""Runs of ``slicewise rebalance``, for people and as JSON."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from slicewise.cluster.language.rebalances import (
    RebalanceRun,
    RunOutcome,
    StepOutcome,
    StepRecord,
)
from slicewise.cluster.runtime.console import Facts, FittingTable, column, console, time_text, toned
from slicewise.slurm_plugin.cli.views.texts import NOTHING, times_column, took_text

_LONGEST_WHY = 80
"""Most characters of a reason in a column: longer ones filled screens, a word on each line."""


def steps_table(records: Sequence[StepRecord], did: str = "did", most: int | None = 3) -> Any:
    """A row per step, with at most ``most`` lines of what it did; ``did`` heads that column.

    Reasons too long for a column are in ``step_notes``.
    """
    return FittingTable(
        (
            column("step", (record.step for record in records)),
            column("outcome", (toned(record.outcome) for record in records)),
            column("saw", (_saw(record.saw) for record in records), folds=True),
            column(did, (_lines(record.did, most) for record in records), folds=True),
            column("s", (took_text(record.took_s, 2) for record in records), right=True, rank=1),
            column("why", _whys(records), folds=True),
        )
    )


def _whys(records: Sequence[StepRecord]) -> Iterator[object]:
    """Reasons; a repeated one is ``as above``, since one cause often holds up all later steps."""
    before = ""
    for record in records:
        if record.why and record.why == before:
            yield "as above"
        elif _is_long(record.why):
            yield "below"
        else:
            yield record.why or NOTHING
        before = record.why


def _is_long(why: str) -> bool:
    return len(why) > _LONGEST_WHY


def step_notes(records: Sequence[StepRecord]) -> Iterator[str]:
    """``compile: TaskPlugin has no task/cgroup ...``: the reasons too long for the table."""
    before = ""
    for record in records:
        if _is_long(record.why) and record.why != before:
            yield f"{record.step}: {record.why}"
        before = record.why


def _saw(saw: Mapping[str, object]) -> object:
    """What a step saw: ``loans 2, recalls 0``; a list, what it only planned, shows its length."""
    counts = (
        (name, len(value) if isinstance(value, list) else value) for name, value in saw.items()
    )
    return ", ".join(f"{name} {value}" for name, value in counts) or NOTHING


def _lines(did: Sequence[str], most: int | None) -> object:
    shown = did[:most]
    more = [f"and {len(did) - len(shown)} more"] if len(shown) < len(did) else []
    return "; ".join((*shown, *more)) or NOTHING


def history_table(runs: Sequence[RebalanceRun]) -> FittingTable:
    """One line per run, newest first."""
    return FittingTable(
        (
            column("id", (run.run_id for run in runs), right=True),
            times_column("started", (int(run.started_s) for run in runs)),
            column("by", (f"{run.author} on {run.host}" for run in runs), rank=2),
            column("outcome", (toned(run.outcome) for run in runs)),
            column("s", (took_text(run.took_s) for run in runs), right=True, rank=1),
            column("did", (_done(run) for run in runs), folds=True),
            column("not done", (_not_done(run) for run in runs), folds=True),
        )
    )


def _done(run: RebalanceRun) -> object:
    """``lend 2, compile 5``: the number of lines of each step that changed something."""
    counts = (f"{step.step} {len(step.did) + step.left_out}" for step in run.steps if step.did)
    return ", ".join(counts) or NOTHING


def _not_done(run: RebalanceRun) -> object:
    """The steps that were not done; ``all`` if no step was tried because Slurm was not seen."""
    missing = {StepOutcome.FAILED, StepOutcome.RUNNING}
    names = [step.step for step in run.steps if step.outcome in missing]
    return ", ".join(names) or ("all" if run.outcome is RunOutcome.FAILED else NOTHING)


def run_facts(run: RebalanceRun) -> Facts:
    """One run; its steps are in ``steps_table``."""
    rows = {
        "started": Text(f"{time_text(int(run.started_s))} by {run.author} on {run.host}"),
        "outcome": toned(run.outcome),
        "took": NOTHING if run.took_s is None else Text(f"{run.took_s:.1f} s"),
    }
    return Facts(tuple(rows.items()))


def print_steps(records: Sequence[StepRecord], did: str = "did", most: int | None = 3) -> None:
    """Print the table of the steps, and what is too long for it."""
    console().print(steps_table(records, did, most))
    for note in step_notes(records):
        console().print(Text(note))
