"""One run: looks once, then takes each step in order, in the journal before and after."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import OutsideError, SlicewiseError
from slicewise.cluster.language.rebalances import (
    RebalanceRun,
    RunOutcome,
    StepName,
    StepOutcome,
    StepRecord,
)
from slicewise.slurm_plugin.rebalance.site_look import RebalanceLook, Report, RunContext, looked
from slicewise.slurm_plugin.rebalance.steps import STEPS, Step, reason_to_skip

_MOST_LINES = 200
"""Most lines kept of what one step did."""


async def run(site: RunContext, is_ours: Callable[[], bool]) -> RebalanceRun:
    """Do everything that is due and can be done.

    Nothing of an earlier run is continued: a run that was killed is marked abandoned, and
    everything is decided again on a fresh look. A step that fails is in the journal, and steps that
    don't need it go on. ``is_ours`` says whether this process still has the lock.

    Raises what ``Ledger`` raises where the journal can't be written, and OutsideError
    (SW-LOCK) once another process has the lock: the run stops where it is.
    """
    ledger = site.ledger
    run_id = await asyncio.to_thread(ledger.rebalances.open, site.author, site.host)
    look = await looked(site)
    outcomes: dict[StepName, StepOutcome] = {}
    for step in STEPS:
        await asyncio.to_thread(_require, is_ours)
        record_id = await asyncio.to_thread(ledger.rebalances.begin_step, run_id, step.name)
        report = await _reported(step, site, look, outcomes, apply=True)
        outcomes[step.name] = report.outcome
        args = (record_id, report.outcome, report.saw, report.lines, report.why)
        await asyncio.to_thread(ledger.rebalances.end_step, *args)
    await asyncio.to_thread(ledger.rebalances.finish, run_id, _outcome(look, outcomes.values()))
    return await asyncio.to_thread(ledger.rebalances.find, run_id)


async def dry_run(site: RunContext) -> tuple[RunOutcome, tuple[StepRecord, ...]]:
    """What a run would do now, step by step; nothing is written, not even that.

    A step does not see what an earlier one would have changed. The outcome says whether every step
    could be decided.
    """
    look = await looked(site)
    ended: list[StepRecord] = []
    for step in STEPS:
        began_s = site.now_s()
        outcomes = {step_record.step: step_record.outcome for step_record in ended}
        report = await _reported(step, site, look, outcomes, apply=False)
        words = (report.saw, report.lines, report.why)
        ended.append(StepRecord(step.name, report.outcome, began_s, site.now_s(), *words))
    return _outcome(look, [step_record.outcome for step_record in ended]), tuple(ended)


async def _reported(
    step: Step,
    site: RunContext,
    look: RebalanceLook,
    outcomes: Mapping[StepName, StepOutcome],
    *,
    apply: bool,
) -> Report:
    """Take a step and return its report; only failures of the journal itself end the run."""
    failed = {name for name, outcome in outcomes.items() if outcome is StepOutcome.FAILED}
    if why := reason_to_skip(step, site, look, failed):
        return Report(why=why, outcome=StepOutcome.SKIPPED)
    is_allowed = site.enforces or not step.in_slurm
    try:
        report = await step.act(site, look, apply=apply and is_allowed)
    except SlicewiseError as error:
        return Report(why=str(error), outcome=StepOutcome.FAILED)
    except Exception as error:  # noqa: BLE001 -- the steps after it must not wait for its cause
        return Report(why=f"{type(error).__name__}: {error}", outcome=StepOutcome.FAILED)
    report = replace(report, lines=_some(report.lines))
    if not is_allowed:
        why = f"daemon.mode is {site.settings.daemon.mode!r}: nothing is changed in Slurm."
        report = replace(report, why=why, outcome=StepOutcome.SKIPPED)
    if apply and report.outcome is StepOutcome.SKIPPED and report.lines:
        return replace(report, saw={**report.saw, "planned": list(report.lines)}, lines=())
    return report


def _some(lines: tuple[str, ...]) -> tuple[str, ...]:
    more = len(lines) - _MOST_LINES
    return (*lines[:_MOST_LINES], f"... and {more} more") if more > 0 else lines


def _outcome(look: RebalanceLook, outcomes: Collection[StepOutcome]) -> RunOutcome:
    is_done = look.trouble is None and StepOutcome.FAILED not in outcomes
    return RunOutcome.DONE if is_done else RunOutcome.FAILED


def _require(is_ours: Callable[[], bool]) -> None:
    if not is_ours():
        raise OutsideError(
            Code.LOCK,
            "PostgreSQL has given the lock to another run: this one stopped where it was.",
            "Nothing is lost: the other run does all steps. See: slicewise rebalance history",
        )
