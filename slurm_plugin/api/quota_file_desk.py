"""Says what a file of quotas does, and applies it."""

from functools import partial

from slicewise.cluster.language.periods import period_start_s
from slicewise.slurm_plugin.api.access import Principal, ReaderHandlers
from slicewise.slurm_plugin.api.ledger_desk import LedgerDesk
from slicewise.slurm_plugin.api.quota_plan_reads import planned_now, world_now
from slicewise.slurm_plugin.api.reads import hiding_places
from slicewise.slurm_plugin.common.quota_file_requests import (
    QuotaApplyRequest,
    QuotaFile,
    QuotaFileAnswer,
    QuotaFileRequest,
)
from slicewise.slurm_plugin.rules.accounting.budgets import Amend, amend_of
from slicewise.slurm_plugin.rules.explain.planned_change import PlannedChange
from slicewise.slurm_plugin.rules.limits.changes import stages
from slicewise.slurm_plugin.rules.limits.desired import desired_limits, differences
from slicewise.slurm_plugin.rules.quota.capacity import require_capacity
from slicewise.slurm_plugin.rules.quota.types import Budget, Policy
from slicewise.slurm_plugin.rules.round.wanted import SlurmNow, wanted_limits


class QuotaFileDesk(LedgerDesk):
    """A file is applied in one transaction; applied again, it changes nothing more."""

    def handlers(self) -> ReaderHandlers:
        """What answers each request.

        They raise what those of ``TenantDesk`` do; InvalidInputError (SW-INPUT-FILE) has the lines
        of all tables that are refused.
        """
        return hiding_places({QuotaFileRequest: self._plan, QuotaApplyRequest: self._apply})

    async def _plan(self, request: QuotaFileRequest, principal: Principal) -> QuotaFileAnswer:
        _, answer = await self._planned(request, principal)
        return answer

    async def _apply(self, request: QuotaApplyRequest, principal: Principal) -> QuotaFileAnswer:
        self._cluster_state.require_leader()
        change, answer = await self._planned(request, principal)
        author, reason = request.author or principal.user, request.reason
        now_s, zone = int(self._cluster_state.clock.shown_s), self._settings.ledger.time_zone

        def amend(tenant: str, budget: Budget) -> Amend:
            begun_s = period_start_s(budget.period, now_s, zone)
            return amend_of(tenant, budget, begun_s, author, reason)

        def judge(before: Policy, after: Policy) -> None:
            # Another operator may have changed quotas since the plan.
            if not request.overcommit and change.capacity_millislices is not None:
                require_capacity(before, after, change.capacity_millislices, change.instances)

        together = self._ledger.tenants.change_together
        write = partial(together, change.updates, author, reason, amend, judge)
        changes = await self._change(principal, write)
        return answer.model_copy(update={"change_id": changes[-1].change_id})

    async def _planned(
        self, request: QuotaFile, principal: Principal
    ) -> tuple[PlannedChange, QuotaFileAnswer]:
        self._reads.require_complete_view()
        shown = await self._reads.slurm_limits(principal.uid)
        return await self._read(principal, partial(self._decided, request, shown))

    def _decided(
        self, request: QuotaFile, shown: SlurmNow
    ) -> tuple[PlannedChange, QuotaFileAnswer]:
        ledger, settings, cluster_state = self._ledger, self._settings, self._cluster_state
        ledger_view = self._reads.ledger_view()
        inputs = world_now(ledger_view, ledger, settings, cluster_state)
        found = wanted_limits(inputs, shown, settings.cluster.name, settings.billing).found
        accounts = {name: row.parent for name, row in found.accounts.items()}
        change = planned_now(request.file, request.text, accounts, inputs, settings)
        limits = desired_limits(change.plan.allowed, found, ledger_view.known)
        differing = differences(limits, found)
        answer = QuotaFileAnswer(
            change=change.report(settings.cluster.name),
            differences=differing,
            commands=tuple(
                difference for stage in stages(differing, found) for difference in stage
            ),
        )
        return change, answer
