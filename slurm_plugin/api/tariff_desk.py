"""Enters tariffs for operators, and shows them."""

from slicewise.slurm_plugin.api.access import Principal, ReaderHandlers
from slicewise.slurm_plugin.api.ledger_desk import LedgerDesk
from slicewise.slurm_plugin.api.reads import hiding_places
from slicewise.slurm_plugin.common.tariff_requests import (
    TariffAnswer,
    TariffApplyRequest,
    TariffPlanRequest,
    TariffsAnswer,
    TariffsRequest,
)
from slicewise.slurm_plugin.rules.accounting.tariff_file import (
    EnteredTariff,
    changes,
    check_entry,
    read_tariff,
    unknown_names,
)

_MOST_UNKNOWN = 50
"""Names that an answer has at most."""


class TariffDesk(LedgerDesk):
    """A tariff is entered in one transaction, and never changed."""

    def handlers(self) -> ReaderHandlers:
        """What answers each request.

        They raise what those of ``TenantDesk`` do; InvalidInputError: SW-INPUT-FILE for a file that
        is no tariff, SW-VALUE for one that may not be entered.
        """
        return hiding_places(
            {
                TariffPlanRequest: self._plan,
                TariffApplyRequest: self._apply,
                TariffsRequest: self._tariffs,
            }
        )

    async def _plan(self, request: TariffPlanRequest, principal: Principal) -> TariffAnswer:
        entered = self._entered(request)
        return await self._read(principal, lambda: self._answer(entered))

    async def _apply(self, request: TariffApplyRequest, principal: Principal) -> TariffAnswer:
        entered, author = self._entered(request), request.author or principal.user
        zone = self._settings.ledger.time_zone

        def change() -> TariffAnswer:
            answer = self._answer(entered)
            record = self._ledger.tariffs.enter(entered, author, request.reason, zone)
            return answer.model_copy(update={"tariff_id": record.tariff_id})

        return await self._change(principal, change)

    def _entered(self, request: TariffPlanRequest | TariffApplyRequest) -> EnteredTariff:
        return read_tariff(request.file, request.text, self._settings.ledger.time_zone)

    def _answer(self, entered: EnteredTariff) -> TariffAnswer:
        records = self._ledger.tariffs.records()
        now_s = self._cluster_state.clock.shown_s
        check_entry(entered, records, now_s, self._settings.ledger.time_zone)
        return TariffAnswer(
            valid_from_s=entered.valid_from_s,
            changes=changes(entered, records),
            replaces=any(record.valid_from_s == entered.valid_from_s for record in records),
            unknown=unknown_names(
                entered.tariff, self._cluster_state.quotas.policy, self._settings.models
            )[:_MOST_UNKNOWN],
        )

    async def _tariffs(self, _: TariffsRequest, principal: Principal) -> TariffsAnswer:
        records = await self._read(principal, self._ledger.tariffs.records)
        now_s = int(self._cluster_state.clock.shown_s)
        return TariffsAnswer(now_s=now_s, tariffs=records)
