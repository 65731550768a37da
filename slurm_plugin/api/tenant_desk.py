"""Answers operators about tenants and quotas, and changes them in the ledger."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, SlicewiseError
from slicewise.cluster.language.periods import next_start_s
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.api.access import Principal, ReaderHandlers
from slicewise.slurm_plugin.api.ledger_desk import LedgerDesk
from slicewise.slurm_plugin.api.reads import hiding_places
from slicewise.slurm_plugin.common.tenant_requests import (
    AccountsAnswer,
    AccountsRequest,
    Authored,
    InForceAnswer,
    InForceRequest,
    LoansAnswer,
    LoansRequest,
    QuotaSetAnswer,
    QuotaSetRequest,
    TenantCreateRequest,
    TenantDeleteAnswer,
    TenantDeleteRequest,
    TenantDetailsAnswer,
    TenantDetailsRequest,
    TenantHistoryAnswer,
    TenantHistoryRequest,
    TenantImportAnswer,
    TenantImportRequest,
    TenantMoveRequest,
    TenantPlaceAnswer,
    TenantRemainsAnswer,
    TenantRemainsRequest,
    TenantStatusesAnswer,
    TenantStatusesRequest,
)
from slicewise.slurm_plugin.ledger.summaries import left_millislice_s, token_budget_statuses
from slicewise.slurm_plugin.rules.accounting.budgets import Amend
from slicewise.slurm_plugin.rules.accounting.ledger_view import LedgerView
from slicewise.slurm_plugin.rules.accounting.overview import (
    BudgetStatus,
    Details,
    OverviewInput,
    tenant_statuses,
)
from slicewise.slurm_plugin.rules.common.known_names import names_text
from slicewise.slurm_plugin.rules.common.uninstalled import require_installed
from slicewise.slurm_plugin.rules.limits.warnings import place_warning
from slicewise.slurm_plugin.rules.overview.types_in_use import types_in_use
from slicewise.slurm_plugin.rules.quota.accounts import (
    Accounts,
    differences,
    place_in_slurm,
    require_place,
    take_over,
    tenant_parent,
)
from slicewise.slurm_plugin.rules.quota.attributes import quota_values
from slicewise.slurm_plugin.rules.quota.capacity import overcommitment_warnings, require_capacity
from slicewise.slurm_plugin.rules.quota.loan_lines import loan_lines
from slicewise.slurm_plugin.rules.quota.nodes import instances_of
from slicewise.slurm_plugin.rules.quota.quota_texts import calendar_notes
from slicewise.slurm_plugin.rules.quota.tenants import changed, children, require_tenant
from slicewise.slurm_plugin.rules.quota.type_limits import TypeOfQuota
from slicewise.slurm_plugin.rules.quota.types import (
    ROOT_ACCOUNT,
    Budget,
    Policy,
    Quota,
    QuotaChange,
    TenantUpdate,
)
from slicewise.slurm_plugin.rules.quota.waiting_work import waiting_work

_PAGE_CHANGES = 2000
"""Changes of loans in one answer: about 0.5 MB."""
_LOOK_AGAIN_S = 1.0
"""Seconds after which the ledger is asked again, as another daemon may have compiled."""


@dataclass(frozen=True)
class SlurmSeen:
    """What Slurm has.

    Attributes:
        accounts: parents of its accounts, by account name.
        capacity_millislices: of all managed GPUs.
        instances: of managed GPUs by GRES type, as they are cut now.
    """

    accounts: Accounts = field(hash=False)
    capacity_millislices: int
    instances: Mapping[str, int] = field(hash=False)


class TenantDesk(LedgerDesk):
    """Reads and changes of the policy; only root and SlurmUser may ask for them.

    A change is in one transaction of the ledger, so it is whole or not at all, and says what it
    says also when it is asked for again. The daemon that leads makes it, and a round at once.
    """

    def handlers(self) -> ReaderHandlers:
        """What answers each request.

        A handler raises InvalidInputError for what is refused, and UnreachableError: SW-SLURM-DOWN,
        SW-DAEMON-STANDBY for changes, SW-BUSY and the ledger's own.
        """
        return hiding_places(
            {
                TenantStatusesRequest: self._statuses,
                TenantDetailsRequest: self._details,
                TenantHistoryRequest: self._history,
                LoansRequest: self._loans,
                AccountsRequest: self._accounts,
                TenantRemainsRequest: self._remains,
                InForceRequest: self._in_force,
                TenantCreateRequest: self._create,
                TenantMoveRequest: self._move,
                TenantImportRequest: self._import,
                TenantDeleteRequest: self._delete,
                QuotaSetRequest: self._set,
            }
        )

    # Reads

    async def _statuses(
        self, _: TenantStatusesRequest, principal: Principal
    ) -> TenantStatusesAnswer:
        seen, why_not = await self._try_to_look(principal)
        view = await self._read(principal, self._reads.ledger_view)
        return TenantStatusesAnswer(
            statuses=tenant_statuses(_gathered(view, seen)),
            calendar_notes=tuple(calendar_notes(view.tenants, view.policy)),
            without_slurm=why_not,
        )

    async def _details(
        self, request: TenantDetailsRequest, principal: Principal
    ) -> TenantDetailsAnswer:
        name = request.tenant
        seen, why_not = await self._try_to_look(principal)

        zone = self._settings.ledger.time_zone

        def read() -> tuple[LedgerView, QuotaChange, BudgetStatus | None]:
            view = self._reads.ledger_view()
            require_tenant(view.policy, name)
            of_tokens = token_budget_statuses(self._ledger, view, zone, name, None)
            return view, self._ledger.tenants.history(name)[0], next(iter(of_tokens), None)

        view, last, token_budget = await self._read(principal, read)
        budget = view.policy[name].budget
        statuses = tenant_statuses(_gathered(view, seen))
        details = Details(
            **vars(next(status for status in statuses if status.tenant == name)),
            children=children(view.policy, name),
            loans=tuple(loan for loan in view.loans if name in {loan.lender, loan.borrower}),
            resets_s=next_start_s(budget.period, view.now_s, zone) if budget else None,
            last_change=last,
            in_force=view.compiled_id >= last.change_id,
            types=None if seen is None else self._types(view.policy, name),
            token_budget=token_budget,
        )
        notes = calendar_notes({name: view.tenants[name]}, view.policy)
        return TenantDetailsAnswer(
            details=details, calendar_notes=tuple(notes), without_slurm=why_not
        )

    def _types(self, policy: Policy, name: str) -> tuple[TypeOfQuota, ...]:
        """What is used of limits and guarantees by type."""
        settings, state = self._settings, self._cluster_state
        found = types_in_use(
            policy,
            state.jobs,
            state.nodes,
            self._partitions,
            costs=settings.costs,
            models=settings.models,
        )
        return found.get(name, ())

    async def _history(
        self, request: TenantHistoryRequest, principal: Principal
    ) -> TenantHistoryAnswer:
        name, tenants = request.tenant, self._ledger.tenants

        def read() -> TenantHistoryAnswer:
            if changes := tenants.history(name):
                return TenantHistoryAnswer(changes=changes)
            raise InvalidInputError(
                Code.QUOTA_NONE,
                f"Tenant {name!r} has no quota.",
                f"Tenants with one: {names_text(name, tenants.policy())}. Set it: slicewise"
                " tenant-quota set NAME --nominal N",
            )

        return await self._read(principal, read)

    async def _loans(self, request: LoansRequest, principal: Principal) -> LoansAnswer:
        tenant, loans, lending = request.tenant, self._ledger.loans, self._settings.lending
        if request.past and tenant is not None:
            page = partial(loans.history, tenant, _PAGE_CHANGES, request.before)
            changes = await self._read(principal, page)
            is_last = len(changes) < _PAGE_CHANGES
            return LoansAnswer(changes=changes, more=None if is_last else changes[-1].change_id)

        def read() -> LoansAnswer:
            if tenant is not None:
                require_tenant(self._ledger.tenants.policy(), tenant)
            lines = loan_lines(
                loans.terms(),
                loans.recalls(),
                now_s=int(self._cluster_state.clock.shown_s),
                grace_s=lending.grace_s,
                term_s=lending.term_s,
            )
            return LoansAnswer(
                lines=tuple(ln for ln in lines if tenant in {None, ln.lender, ln.borrower})
            )

        return await self._read(principal, read)

    async def _accounts(self, _: AccountsRequest, principal: Principal) -> AccountsAnswer:
        accounts = await self._reads.accounts(principal.uid)
        policy = await self._read(principal, self._ledger.tenants.policy)
        rows = [row for row in take_over(policy, accounts) if row.difference.kind == "new"]
        refusals = (row.refusal for row in rows if row.refusal is not None)
        return AccountsAnswer(
            differences=differences(policy, accounts),
            others=tuple(sorted(accounts.keys() - policy.keys() - {ROOT_ACCOUNT})),
            refusals=tuple(f"{refusal.message} {refusal.hint}" for refusal in refusals),
        )

    async def _remains(
        self, request: TenantRemainsRequest, principal: Principal
    ) -> TenantRemainsAnswer:
        tenant, state = request.tenant, self._cluster_state

        def read() -> int:
            policy = self._ledger.tenants.policy()
            if tenant in policy:
                changed(policy, TenantUpdate(tenant, removed=True))
            else:
                self._deletion(tenant, policy)
            return self._running(tenant)

        running = await self._read(principal, read)
        waiting = waiting_work(state.jobs, tenant, self._partitions)
        return TenantRemainsAnswer(
            running=running, waiting=waiting if state.view.complete else None
        )

    def _deletion(self, tenant: str, policy: Policy) -> QuotaChange:
        """How a tenant that is not in the policy was deleted.

        Raises InvalidInputError: SW-TENANT-UNKNOWN if it never was, SW-VALUE for what is no name.
        """
        try:
            changed(policy, TenantUpdate(tenant, removed=True))
        except InvalidInputError as error:
            if error.refusal.code is not Code.TENANT_UNKNOWN:
                raise
        history = self._ledger.tenants.history(tenant)
        if not history:
            require_tenant(policy, tenant)
        return next(change for change in history if change.update.removed)

    def _running(self, tenant: str) -> int:
        return sum(run.tenant == tenant for run in self._ledger.charges.open_reservations())

    async def _in_force(self, request: InForceRequest, principal: Principal) -> InForceAnswer:
        until_s = time.monotonic() + request.wait_s
        while True:
            compiled = self._cluster_state.next_round()
            limits = self._ledger.limits
            if await self._read(principal, partial(limits.compiled, request.change_id)):
                return InForceAnswer(in_force=True)
            if why_not := self._sets_no_limits():
                return InForceAnswer(in_force=False, why_not=why_not, sets_no_limits=True)
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return InForceAnswer(in_force=False, why_not=self._why_late())
            await asyncio.wait((compiled,), timeout=min(left_s, _LOOK_AGAIN_S))

    def _sets_no_limits(self) -> str:
        """Why this daemon sets no limits; "" if it does."""
        state, mode = self._cluster_state, self._settings.daemon.mode
        if state.is_uninstalled:
            return "Slicewise was taken out of Slurm (slicewise compile --again)"
        if mode != "enforce":
            return (
                f"the daemon is in mode {mode}, in which Slurm's limits stay as they are, and"
                " quotas bound services alone"
            )
        return ""

    def _why_late(self) -> str:
        if not self._cluster_state.view.complete:
            return "the daemon has no complete look at Slurm: slicewise admission status"
        return "the daemon is busy; slicewise tenant show NAME says when"

    # Changes

    async def _create(
        self, request: TenantCreateRequest, principal: Principal
    ) -> TenantPlaceAnswer:
        tenant, asked = request.tenant, request.parent
        policy = await self._read(principal, self._ledger.tenants.policy)
        if tenant in policy:
            require_place(policy[tenant], asked)
            return TenantPlaceAnswer(parent=policy[tenant].parent, is_changed=False)
        accounts = await self._reads.accounts(principal.uid)
        place = place_in_slurm(policy, tenant, accounts) if asked is None else asked
        await self._update(TenantUpdate(tenant, parent=place), request, principal)
        warning = "" if asked is None else self._elsewhere(policy, tenant, place, accounts)
        return TenantPlaceAnswer(parent=place, is_changed=True, warning=warning)

    async def _move(self, request: TenantMoveRequest, principal: Principal) -> TenantPlaceAnswer:
        tenant, parent = request.tenant, request.parent
        policy = await self._read(principal, self._ledger.tenants.policy)
        if require_tenant(policy, tenant).parent == parent:
            return TenantPlaceAnswer(parent=parent, is_changed=False)
        await self._update(TenantUpdate(tenant, parent=parent), request, principal)
        try:
            accounts = await self._reads.accounts(principal.uid)
        except SlicewiseError as error:
            return TenantPlaceAnswer(
                parent=parent, is_changed=True, warning=f"Without Slurm: {error}"
            )
        warning = self._elsewhere(policy, tenant, parent, accounts)
        return TenantPlaceAnswer(parent=parent, is_changed=True, warning=warning)

    def _elsewhere(self, policy: Policy, tenant: str, place: str, accounts: Accounts) -> str:
        """Warn if Slurm has the account elsewhere: limits bind along Slurm's own tree."""
        slurms = tenant_parent(tenant, accounts, policy)
        cluster = self._settings.cluster.name
        return "" if slurms == place else place_warning(tenant, place, slurms, cluster)

    async def _update(
        self, update: TenantUpdate, request: Authored, principal: Principal
    ) -> QuotaChange:
        author = request.author or principal.user
        change = partial(self._ledger.tenants.change, update, author, request.reason)
        return await self._change(principal, change)

    async def _import(
        self, request: TenantImportRequest, principal: Principal
    ) -> TenantImportAnswer:
        accounts = await self._reads.accounts(principal.uid)
        policy = await self._read(principal, self._ledger.tenants.policy)
        rows = take_over(policy, accounts)
        places = [row.difference for row in rows if row.refusal is None]
        if places and not request.is_dry:
            updates = [TenantUpdate(place.account, parent=place.slurm_parent) for place in places]
            author = request.author or principal.user
            together = self._ledger.tenants.change_together
            change = partial(together, updates, author, request.reason, _no_budget)
            await self._change(principal, change)
        return TenantImportAnswer(rows=rows)

    async def _delete(
        self, request: TenantDeleteRequest, principal: Principal
    ) -> TenantDeleteAnswer:
        author = request.author or principal.user
        update = TenantUpdate(request.tenant, removed=True)

        def delete() -> TenantDeleteAnswer:
            # Counted first: what fails after the change would say that there was none.
            running = self._running(request.tenant)
            policy, change = self._ledger.tenants.change_by(
                lambda policy: update if update.tenant in policy else None, author, request.reason
            )
            change = change or self._deletion(update.tenant, policy)
            return TenantDeleteAnswer(change=change, running=running)

        return await self._change(principal, delete)

    async def _set(self, request: QuotaSetRequest, principal: Principal) -> QuotaSetAnswer:
        tenant, ledger = request.tenant, self._ledger
        require_installed(self._cluster_state.is_uninstalled)
        seen, why_not = await self._try_to_look(principal)

        def read() -> tuple[Policy, bool]:
            return ledger.tenants.policy(), ledger.limits.is_uninstalled()

        policy, is_uninstalled = await self._read(principal, read)
        require_installed(is_uninstalled)
        accounts = seen.accounts if seen is not None else None
        if accounts is None and tenant not in policy:
            accounts = await self._reads.accounts(principal.uid)

        def decide(policy: Policy) -> TenantUpdate | None:
            quota = policy[tenant].quota if tenant in policy else Quota(Millislices(0))
            update = TenantUpdate(tenant, **quota_values(request.quota, quota, self._settings))
            if accounts is None:
                # It was a tenant before the lock.
                require_tenant(policy, tenant)
            elif tenant not in policy:
                update = replace(update, parent=place_in_slurm(policy, tenant, accounts))
            after = changed(policy, update)
            if seen is not None and not request.overcommit:
                require_capacity(policy, after, seen.capacity_millislices, seen.instances)
            return None if policy == after else update

        def change() -> tuple[Policy, Policy, QuotaChange]:
            author = request.author or principal.user
            before, made = ledger.tenants.change_by(decide, author, request.reason)
            if made is None:
                return before, before, ledger.tenants.history(tenant)[0]
            return before, changed(before, made.update), made

        before, after, quota_change = await self._change(principal, change)
        warnings: tuple[str, ...] = (why_not,)
        if seen is not None:
            warnings = overcommitment_warnings(after, seen.capacity_millislices, seen.instances)
        return QuotaSetAnswer(
            before=before.get(tenant), after=after[tenant], change=quota_change, warnings=warnings
        )

    # Looks

    @property
    def _partitions(self) -> frozenset[str]:
        return frozenset(self._settings.cluster.partitions)

    async def _try_to_look(self, principal: Principal) -> tuple[SlurmSeen | None, str]:
        """What Slurm has, and ""; None and why not if it does not answer."""
        try:
            return await self._look(principal), ""
        except SlicewiseError as error:
            return None, f"Without Slurm: {error}"

    async def _look(self, principal: Principal) -> SlurmSeen:
        self._reads.require_complete_view()
        accounts = await self._reads.accounts(principal.uid)
        instances = instances_of(self._cluster_state.nodes, self._partitions)
        return SlurmSeen(accounts, self._reads.capacity_millislices(), instances)


def _no_budget(tenant: str, _: Budget) -> Amend:
    raise AssertionError(f"an import sets no budget of {tenant}")


def _gathered(view: LedgerView, seen: SlurmSeen | None) -> OverviewInput:
    """Join what the ledger has of tenants with Slurm's answer; None if there was none."""
    return OverviewInput(
        policy=view.policy,
        loans=view.loans,
        recalls=view.recalls,
        reservations=view.reservations,
        left_millislice_s=left_millislice_s(view),
        accounts=frozenset(seen.accounts) if seen else None,
    )
