"""The step that brings Slurm's limits to the ledger's."""

import asyncio
from collections.abc import Iterator

from slicewise.cluster.language.rebalances import StepOutcome
from slicewise.slurm_plugin.quota_cycle.compile import Compiled, compile_limits
from slicewise.slurm_plugin.quota_cycle.compile import look as look_at_limits
from slicewise.slurm_plugin.quota_cycle.uninstall import Undone, finish, plan
from slicewise.slurm_plugin.rebalance.site_look import RebalanceLook, Report, RunContext, one_line
from slicewise.slurm_plugin.rules.common.uninstalled import UNINSTALLED


async def compile_step(site: RunContext, look: RebalanceLook, *, apply: bool) -> Report:
    """Do ``slicewise compile``; if Slicewise was uninstalled, ``uninstall --finish``."""
    if look.is_uninstalled:
        return await _finish(site, apply=apply)
    if not apply:
        seen = await look_at_limits(site.slurm, site.ledger, site.settings)
        lines = tuple(difference.text for difference in seen.differences)
        return Report({"differences": len(lines)}, lines, one_line(seen.warnings))
    compiled = await compile_limits(site.slurm, site.ledger, site.settings)
    if not compiled.waits:
        await asyncio.to_thread(site.ledger.limits.mark_compiled, compiled.ledger_view.change_id)
    return Report(
        saw={"tenants": len(compiled.policy), "changed by hand": len(compiled.out_of_band)},
        lines=tuple(f"sacctmgr {' '.join(change)}" for change in compiled.changes),
        why=one_line((*compiled.warnings, *_left(compiled))),
    )


async def _finish(site: RunContext, *, apply: bool) -> Report:
    if apply:
        done = await finish(site.slurm, site.ledger, site.settings)
        lines = _lines(done) if done else ()
        outcome = StepOutcome.DONE if lines else StepOutcome.SKIPPED
        return Report(lines=lines, why=UNINSTALLED.text(), outcome=outcome)
    due = await plan(site.slurm, site.ledger, site.settings, finishes=True)
    lines = (*(difference.text for difference in due.all), *due.move_commands, *due.avoid_commands)
    return Report(lines=lines, why=UNINSTALLED.text(), outcome=StepOutcome.SKIPPED)


def _lines(done: Undone) -> tuple[str, ...]:
    moves = (f"moved {where} to QOS {qos}" for where, qos in done.moved.items())
    return (*(f"sacctmgr {' '.join(change)}" for change in done.changes), *moves, *done.given_back)


def _left(compiled: Compiled) -> Iterator[str]:
    for change, words in compiled.refused.items():
        yield f"refused: sacctmgr {' '.join(change)}: {words}"
    for wait in compiled.waits:
        yield f"waits for the next compilation: {wait.text}"
