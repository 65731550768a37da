"""The last step: cuts GPUs again where the site allows it."""

import asyncio
from collections.abc import Sequence

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.gpus.repartitions import (
    Repartition,
    RepartitionState,
)
from slicewise.cluster.language.rebalances import StepOutcome
from slicewise.slurm_plugin.rebalance.site_look import RebalanceLook, Report, RunContext
from slicewise.slurm_plugin.repartition import cluster_run
from slicewise.slurm_plugin.repartition.planner_inputs import gathered
from slicewise.slurm_plugin.rules.mig.cuts_due import barred_lines, cuts_due
from slicewise.slurm_plugin.rules.mig.node_checks import change_text


async def cut(site: RunContext, _look: RebalanceLook, *, apply: bool) -> Report:
    """Do ``slicewise repartition run``; only plan where cutting is not allowed."""
    if not site.settings.repartition.allowed:
        return await _plan(site, "repartition.allowed is false in slicewise.toml.")
    if apply and not site.is_root:
        return await _plan(site, "Only root may cut GPUs.")
    return await (_cut(site) if apply else _plan(site, ""))


async def _plan(site: RunContext, why: str) -> Report:
    """Report the plan. Where nothing may be cut, unreadable files are no failure."""
    try:
        seen = await gathered(site.settings, site.slurm, site.ledger)
    except InvalidInputError as error:
        if not why:
            raise
        return Report(why=f"{why} {error}", outcome=StepOutcome.SKIPPED)
    due = cuts_due(seen)
    lines = [
        f"{cut.node} {cut.gpu}: {change_text(cut.before, cut.after)}: {cut.reason}"
        for cut in due.now
    ]
    lines += barred_lines(due)
    saw = {"boards": len(seen.boards), "left out": len(seen.left_out)}
    outcome = StepOutcome.SKIPPED if why else StepOutcome.DONE
    return Report(saw, tuple(lines), why, outcome)


async def _cut(site: RunContext) -> Report:
    lock = site.ledger.locks.repartitioning(site.who)
    try:
        if not await asyncio.to_thread(lock.hold):
            why = f"Another run cuts GPUs now ({lock.holder()})."
            return Report(why=why, outcome=StepOutcome.SKIPPED)
        done = await cluster_run.cut(
            site.settings,
            site.slurm,
            site.ledger,
            lock,
            author=site.author,
            progress=cluster_run.silent,
            is_asked_for=False,
        )
    finally:
        lock.give_up()
    return _ended(done, await asyncio.to_thread(site.ledger.repartitions.unfinished))


def _ended(done: cluster_run.RepartitionRun, unfinished: Sequence[Repartition]) -> Report:
    """Report the run; stuck repartitions are in each report, also if this run did not try them
    again.
    """
    ended = done.ended
    lines = (
        *(
            f"repartition {repartition.repartition_id} on {repartition.node}: {repartition.state}"
            for repartition in ended
        ),
        *barred_lines(done.due),
    )
    failed = [
        repartition for repartition in ended if repartition.state is not RepartitionState.DONE
    ]
    stuck = cluster_run.stuck_error(unfinished)
    whys = [str(stuck)] if stuck else []
    whys += [
        repartition.error
        for repartition in failed
        if repartition.state is not RepartitionState.STUCK
    ]
    return Report(
        saw={"repartitions": len(ended)},
        lines=lines,
        why="; ".join(whys),
        outcome=StepOutcome.FAILED if failed else StepOutcome.DONE,
    )
