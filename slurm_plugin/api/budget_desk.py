"""Changes budgets for operators, and shows their history."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, SlicewiseError
from slicewise.cluster.language.meters import BUDGETED, SLICES
from slicewise.cluster.language.periods import period_start_s
from slicewise.slurm_plugin.api.access import Principal, ReaderHandlers
from slicewise.slurm_plugin.api.ledger_desk import LedgerDesk
from slicewise.slurm_plugin.api.reads import hiding_places
from slicewise.slurm_plugin.common.budget_requests import (
    BudgetDeleteAnswer,
    BudgetDeleteRequest,
    BudgetEnterAnswer,
    BudgetEnterRequest,
    BudgetHistoryAnswer,
    BudgetHistoryRequest,
    BudgetSetAnswer,
    BudgetSetRequest,
)
from slicewise.slurm_plugin.ledger.summaries import (
    ledger_view_now,
    left_millislice_s,
    left_tokens,
)
from slicewise.slurm_plugin.rules.accounting.budgets import amend_of, lost
from slicewise.slurm_plugin.rules.accounting.ledger_view import LedgerView
from slicewise.slurm_plugin.rules.accounting.types import BudgetEntry
from slicewise.slurm_plugin.rules.quota.amounts import BudgetWords, budget_from_words
from slicewise.slurm_plugin.rules.quota.tenants import check_words, payers, require_tenant
from slicewise.slurm_plugin.rules.quota.types import Budget, TenantUpdate

_PATIENCE_S = 5.0
_LOOK_AGAIN_S = 0.2
"""Seconds between two looks whether the charging loop has begun the period."""


class BudgetDesk(LedgerDesk):
    """Changes are each in one transaction of the ledger; an entry is booked once for its key."""

    def handlers(self) -> ReaderHandlers:
        """What answers each request; they raise what those of ``TenantDesk`` do."""
        return hiding_places(
            {
                BudgetSetRequest: self._set,
                BudgetDeleteRequest: self._delete,
                BudgetEnterRequest: self._enter,
                BudgetHistoryRequest: self._history,
            }
        )

    async def _set(self, request: BudgetSetRequest, principal: Principal) -> BudgetSetAnswer:
        tenant, ledger, zone = request.tenant, self._ledger, self._settings.ledger.time_zone
        meter = BUDGETED[request.meter]
        now_s = int(self._cluster_state.clock.shown_s)
        author = request.author or principal.user
        words = BudgetWords(request.period, request.amount, request.carry_over, request.overdraft)

        def change() -> tuple[Budget | None, Budget, int, int]:
            view = ledger_view_now(ledger, self._settings, now_s)
            before = require_tenant(view.tenants, tenant).budget_on(meter.name)
            after = budget_from_words(tenant, before, words, meter)
            begun_s = period_start_s(after.period, now_s, zone)
            gone = lost(
                before,
                after,
                period_start_s=begun_s,
                last_rollover_s=ledger.budgets.rollovers(meter.name).get(tenant),
                left_amount=self._left(meter.name, view).get(tenant, 0),
            )
            amend = amend_of(tenant, after, begun_s, author, request.reason)
            update = TenantUpdate.of_budget(tenant, meter.name, after)
            adjusted = ledger.tenants.set_budget(update, author, request.reason, amend, meter.name)
            return before, after, gone, adjusted

        before, after, gone, adjusted = await self._change(principal, change)
        return BudgetSetAnswer(
            before=before,
            after=after,
            adjusted=adjusted,
            lost=gone,
            has_started=await self._until_begun(principal, tenant, after),
        )

    async def _until_begun(self, principal: Principal, tenant: str, budget: Budget) -> bool:
        until_s = time.monotonic() + _PATIENCE_S
        # The budget is set, so a ledger that is away now fails nothing.
        with suppress(SlicewiseError):
            while not await self._read(principal, partial(self._has_begun, tenant, budget)):
                if time.monotonic() >= until_s:
                    return False
                await asyncio.sleep(_LOOK_AGAIN_S)
            return True
        return False

    def _has_begun(self, tenant: str, budget: Budget) -> bool:
        now_s = int(self._cluster_state.clock.shown_s)
        start_s = period_start_s(budget.period, now_s, self._settings.ledger.time_zone)
        return self._ledger.budgets.rollovers(budget.meter).get(tenant, -1) >= start_s

    def _left(self, meter: str, view: LedgerView) -> Mapping[str, int]:
        if meter == SLICES.name:
            return left_millislice_s(view)
        return left_tokens(self._ledger, view.tenants)

    async def _delete(
        self, request: BudgetDeleteRequest, principal: Principal
    ) -> BudgetDeleteAnswer:
        tenant, tenants = request.tenant, self._ledger.tenants

        def change() -> str:
            self._require_budget(tenant, request.meter)
            author, off = (
                request.author or principal.user,
                TenantUpdate.of_budget(tenant, request.meter, "off"),
            )
            tenants.change(off, author, request.reason)
            return payers(tenants.policy(), request.meter)[tenant]

        payer = await self._change(principal, change)
        return BudgetDeleteAnswer(payer=payer)

    def _require_budget(self, tenant: str, meter: str) -> Budget:
        budget = require_tenant(self._ledger.tenants.policy(), tenant).budget_on(meter)
        if budget is None:
            raise InvalidInputError(
                Code.BUDGET_NONE,
                f"Tenant {tenant!r} has no budget of {BUDGETED[meter].unit} of its own.",
                f"Operators set one: slicewise budget set NAME --meter {meter} --period month"
                " --amount AMOUNT",
            )
        return budget

    async def _enter(self, request: BudgetEnterRequest, principal: Principal) -> BudgetEnterAnswer:
        entry = BudgetEntry(
            request.tenant,
            request.kind,
            request.units,
            None,
            request.author or principal.user,
            request.reason,
            key=request.key,
            meter=request.meter,
        )

        def change() -> int | None:
            check_words(entry.author, entry.reason)
            if not self._has_begun(entry.tenant, self._require_budget(entry.tenant, entry.meter)):
                # Its roll would take the entry back.
                raise InvalidInputError(
                    Code.BUSY,
                    f"The running period of {entry.tenant}'s budget has not begun in the ledger"
                    " yet.",
                    "The daemon begins it within seconds. Then try again.",
                )
            self._ledger.budgets.enter(entry, None)
            return self._left(entry.meter, self._reads.ledger_view()).get(entry.tenant)

        left = await self._change(principal, change)
        return BudgetEnterAnswer(entry=entry, left=left)

    async def _history(
        self, request: BudgetHistoryRequest, principal: Principal
    ) -> BudgetHistoryAnswer:
        tenant, ledger = request.tenant, self._ledger

        def read() -> BudgetHistoryAnswer:
            changes = ledger.tenants.history(tenant)
            entries = ledger.budgets.entries(tenant, 0, request.meter)
            if not entries and not any(
                change.update.budget_on(request.meter) for change in changes
            ):
                self._require_budget(tenant, request.meter)
            return BudgetHistoryAnswer(changes=changes, entries=entries)

        return await self._read(principal, read)
