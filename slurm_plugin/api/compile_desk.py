"""Compiles the ledger into Slurm's limits when operators say so, beside the daemon's own rounds."""

import asyncio
from functools import partial

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.slurm.interface import Slurm
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.api.access import Principal, ReaderHandlers
from slicewise.slurm_plugin.api.errands import Errands
from slicewise.slurm_plugin.api.ledger_desk import LedgerDesk
from slicewise.slurm_plugin.api.reads import Reads, hiding_places
from slicewise.slurm_plugin.common.compile_requests import (
    CompileAnswer,
    CompiledLimits,
    CompileOutcomeRequest,
    CompileRequest,
    LimitsPlanAnswer,
    LimitsPlanRequest,
)
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.quota_cycle.compile import compared, compile_limits
from slicewise.slurm_plugin.quota_cycle.uninstall import want_again
from slicewise.slurm_plugin.rules.round.wanted import SlurmNow
from slicewise.slurm_plugin.state.cluster_state import ClusterState


class CompileDesk(LedgerDesk):
    """One compilation at a time: who asks meanwhile gets the outcome of the same."""

    def __init__(
        self,
        settings: Settings,
        slurm: Slurm,
        ledger: Ledger,
        cluster_state: ClusterState,
        reads: Reads,
    ) -> None:
        super().__init__(settings, ledger, cluster_state, reads)
        self._slurm = slurm
        self._errands = Errands[CompiledLimits]()

    def handlers(self) -> ReaderHandlers:
        """What answers each request.

        They raise what those of ``TenantDesk`` do, SW-MODE, SW-LIMITS-UNSETTLED, and
        SW-DAEMON-UNSURE for an errand of another daemon.
        """
        return hiding_places(
            {
                LimitsPlanRequest: self._plan,
                CompileRequest: self._compile,
                CompileOutcomeRequest: self._outcome,
            }
        )

    async def _plan(self, _: LimitsPlanRequest, principal: Principal) -> LimitsPlanAnswer:
        self._reads.require_complete_view()
        shown = await self._reads.slurm_limits(principal.uid)
        return await self._read(principal, partial(self._compared, shown))

    def _compared(self, shown: SlurmNow) -> LimitsPlanAnswer:
        seen = compared(self._reads.ledger_view(), shown, self._settings)
        return LimitsPlanAnswer(
            differences=seen.differences,
            changed_by_hand=seen.out_of_band,
            warnings=seen.warnings,
        )

    async def _compile(self, request: CompileRequest, _: Principal) -> CompileAnswer:
        mode = self._settings.daemon.mode
        if mode != "enforce":
            raise InvalidInputError(
                Code.MODE,
                f"daemon.mode is {mode!r}: nothing was written into Slurm.",
                'Preview with --dry-run, or set daemon.mode = "enforce".',
            )
        self._cluster_state.require_leader()
        work = partial(self._compiled, again=request.again)
        return await self._answer(self._errands.begin(request.again, work))

    async def _outcome(self, request: CompileOutcomeRequest, _: Principal) -> CompileAnswer:
        return await self._answer(request.errand)

    async def _answer(self, errand: str) -> CompileAnswer:
        return CompileAnswer(errand=errand, compiled=await self._errands.outcome(errand))

    async def _compiled(self, *, again: bool) -> CompiledLimits:
        done = await compile_now(self._slurm, self._ledger, self._settings, again=again)
        self._cluster_state.hurry()
        return done


async def compile_now(
    slurm: Slurm, ledger: Ledger, settings: Settings, *, again: bool
) -> CompiledLimits:
    """Compile, with ``again`` also after an uninstall; raises as ``compile_limits``."""
    if again:
        await want_again(slurm, ledger, settings)
    compiled = await compile_limits(slurm, ledger, settings)
    if not compiled.waits:
        await asyncio.to_thread(ledger.limits.mark_compiled, compiled.ledger_view.change_id)
    return CompiledLimits(
        changes=compiled.changes,
        refused=tuple(compiled.refused.items()),
        waits=compiled.waits,
        changed_by_hand=compiled.out_of_band,
        warnings=compiled.warnings,
    )
