"""Shows operators what the ledger has recorded, and has it forget whom they name."""

from functools import partial

from slicewise.slurm_plugin.api.access import Principal, ReaderHandlers
from slicewise.slurm_plugin.api.ledger_desk import LedgerDesk
from slicewise.slurm_plugin.api.reads import hiding_places
from slicewise.slurm_plugin.common.log import report
from slicewise.slurm_plugin.common.record_requests import (
    ExportAnswer,
    ExportCursor,
    ExportRequest,
    LedgerViewAnswer,
    LedgerViewRequest,
    ObservationsAnswer,
    ObservationsRequest,
    PolicyAnswer,
    PolicyRequest,
    RememberedLimitsAnswer,
    RememberedLimitsRequest,
)
from slicewise.slurm_plugin.common.usage_requests import ForgetPersonRequest, ForgottenAnswer
from slicewise.slurm_plugin.ledger.charges import MOST_SEALED
from slicewise.slurm_plugin.rules.snapshot.contents import ledger_values

_PAGE_ROWS = 5000
"""Transfers in one answer: about 2 MB."""


_DAYS_AT_ONCE = 31
"""Days in which one request has a person forgotten: a second or so, day by day."""


class RecordDesk(LedgerDesk):
    """Of what is long it tells a page at a time."""

    def handlers(self) -> ReaderHandlers:
        """What answers each request; they raise what those of ``TenantDesk`` do."""
        return hiding_places(
            {
                PolicyRequest: self._policy,
                RememberedLimitsRequest: self._remembered_limits,
                ObservationsRequest: self._observations,
                ExportRequest: self._export,
                LedgerViewRequest: self._ledger_view,
                ForgetPersonRequest: self._forget,
            }
        )

    async def _policy(self, _: PolicyRequest, principal: Principal) -> PolicyAnswer:
        return PolicyAnswer(policy=await self._read(principal, self._ledger.tenants.policy))

    async def _remembered_limits(
        self, _: RememberedLimitsRequest, principal: Principal
    ) -> RememberedLimitsAnswer:
        limits = await self._read(principal, self._ledger.limits.known)
        return RememberedLimitsAnswer(known=tuple(limits.items()))

    async def _forget(self, request: ForgetPersonRequest, principal: Principal) -> ForgottenAnswer:
        self._cluster_state.require_leader()
        answer = await self._read(principal, partial(self._forgotten, request))
        # Not whom: the log is kept, too.
        records = answer.records
        report("person_forgotten", records=records, tenant=request.tenant, user=principal.user)
        return answer

    def _forgotten(self, request: ForgetPersonRequest) -> ForgottenAnswer:
        usage, records, day = self._ledger.usage, 0, request.after
        if day is None:
            usage.bar_person(request.person, request.tenant)
        for _ in range(_DAYS_AT_ONCE):
            forgotten = usage.forget_person(request.person, request.tenant, day)
            if forgotten.day is None:
                return ForgottenAnswer(records=records)
            day, records = forgotten.day, records + forgotten.records
        return ForgottenAnswer(records=records, more=day)

    async def _observations(
        self, request: ObservationsRequest, principal: Principal
    ) -> ObservationsAnswer:
        def read() -> ObservationsAnswer:
            return ObservationsAnswer(
                recorded=self._ledger.observations.since(request.since_s),
                policy=self._ledger.tenants.policy(),
            )

        return await self._read(principal, read)

    async def _export(self, request: ExportRequest, principal: Principal) -> ExportAnswer:
        if request.after is None:
            self._cluster_state.require_leader()

        def read() -> ExportAnswer:
            place = request.after or self._end_of_export()
            since_s, ids = request.since_s, (place.after_id, place.until_id)
            rows = self._ledger.audit.export(since_s, *ids, _PAGE_ROWS)
            if len(rows) < _PAGE_ROWS:
                return ExportAnswer(rows=rows, more=None)
            return ExportAnswer(
                rows=rows,
                more=ExportCursor(after_id=int(str(rows[-1]["id"])), until_id=place.until_id),
            )

        return await self._read(principal, read)

    def _end_of_export(self) -> ExportCursor:
        """Seal what was booked, so that no transfer before the export's last one comes later."""
        while self._ledger.charges.seal() >= MOST_SEALED:
            pass
        return ExportCursor(after_id=0, until_id=self._ledger.audit.newest_sealed_id())

    async def _ledger_view(self, _: LedgerViewRequest, principal: Principal) -> LedgerViewAnswer:
        def read() -> LedgerViewAnswer:
            return LedgerViewAnswer(view=ledger_values(self._reads.ledger_view()))

        return await self._read(principal, read)
