"""Answers users' questions about the ledger and their tenants, for the user socket.

The ledger is read in a few threads of its own and within a deadline, so that a slow PostgreSQL
holds up only the users who ask about the ledger.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future as Turn
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, SlicewiseError, UnreachableError
from slicewise.cluster.language.meters import SLICES
from slicewise.cluster.rpc.history_messages import HistoryAnswer, HistoryRequest
from slicewise.cluster.rpc.journal_messages import (
    RebalanceRequest,
    RebalancesRequest,
    RepartitionRequest,
    RepartitionsRequest,
)
from slicewise.cluster.rpc.message import Request
from slicewise.cluster.rpc.overview_messages import QueueAnswer, QueueRequest
from slicewise.cluster.rpc.read_messages import (
    PoolModelsAnswer,
    PoolModelsRequest,
    PriorityAnswer,
    PriorityRequest,
    ServiceEventsAnswer,
    ServiceEventsRequest,
    ServiceStartsAnswer,
    ServiceStartsRequest,
    SlicePriceAnswer,
    SlicePriceRequest,
    WhyAnswer,
    WhyRequest,
)
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.api import journal_reads
from slicewise.slurm_plugin.api.access import Principal, ReaderHandler, ReaderHandlers
from slicewise.slurm_plugin.api.charge_reads import charges, cheapest, slice_price
from slicewise.slurm_plugin.api.energy import energy_use
from slicewise.slurm_plugin.api.overview_reads import OverviewReads
from slicewise.slurm_plugin.api.priority_reads import explain_priority
from slicewise.slurm_plugin.api.queue_reads import queue
from slicewise.slurm_plugin.api.quota_plan_reads import plan_of_file
from slicewise.slurm_plugin.api.tenant_reads import tenants
from slicewise.slurm_plugin.api.usage_reads import token_usage
from slicewise.slurm_plugin.api.why_reads import why
from slicewise.slurm_plugin.common.energy_requests import EnergyAnswer, EnergyRequest
from slicewise.slurm_plugin.common.explain_requests import (
    HeadroomAnswer,
    HeadroomRequest,
    QuotaPlanAnswer,
    QuotaPlanRequest,
)
from slicewise.slurm_plugin.common.ledger_requests import (
    BalanceAnswer,
    BalanceRequest,
    BudgetsAnswer,
    BudgetsRequest,
    SharesAnswer,
    SharesRequest,
    StatementAnswer,
    StatementCursor,
    StatementRequest,
    TenantsAnswer,
    TenantsRequest,
)
from slicewise.slurm_plugin.common.tariff_requests import (
    ChargesAnswer,
    ChargesRequest,
    CheapestAnswer,
    CheapestRequest,
)
from slicewise.slurm_plugin.common.usage_requests import TokenUsageAnswer, TokenUsageRequest
from slicewise.slurm_plugin.ledger.history_answers import history_answer, history_subject
from slicewise.slurm_plugin.ledger.shares import WantedShares
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.ledger.summaries import (
    balance_lines,
    budget_statuses,
    ledger_view_now,
    token_budget_statuses,
)
from slicewise.slurm_plugin.quota_cycle.compile import LimitReader, slurm_now
from slicewise.slurm_plugin.rules.accounting.ledger_view import LedgerView
from slicewise.slurm_plugin.rules.accounting.money_budgets import MoneyBudgetStatus
from slicewise.slurm_plugin.rules.accounting.types import StatementRow
from slicewise.slurm_plugin.rules.explain.headroom import explain, situation
from slicewise.slurm_plugin.rules.quota.accounts import Accounts
from slicewise.slurm_plugin.rules.quota.nodes import capacity
from slicewise.slurm_plugin.rules.quota.tenants import subtree, upward
from slicewise.slurm_plugin.rules.round.wanted import SlurmNow
from slicewise.slurm_plugin.rules.round.world import SlurmView, world_of
from slicewise.slurm_plugin.rules.services.pool_models import pool_models
from slicewise.slurm_plugin.state.cluster_state import ClusterState

T = TypeVar("T")

_THREADS = 3
_WAITING = 32
"""Of users, and as much again of operators: slow reads of users keep no operator waiting."""
_WAITING_PER_UID = 2
_DEADLINE_S = 10.0
_LOOK_FIRST = "Try again later. A change may be made all the same: look before you repeat it."
_ASKS = 2
"""Questions to Slurm at a time, and one more of an operator."""
_PAGE_ROWS = 2000
"""Rows of a statement in one answer: about 1 MB."""

_TELL_PLACES = frozenset(
    {
        *(Code.DATABASE_DOWN, Code.DATABASE_BUSY, Code.DATABASE_CONNECTIONS),
        *(Code.DATABASE_RIGHTS, Code.DATABASE_FAILED),
    }
)
"""Codes of failures that say where the database is, and what PostgreSQL answered."""


class Reads:
    """Answers requests that only read, to each user for the user's own tenants."""

    def __init__(
        self, settings: Settings, slurm: LimitReader, ledger: Ledger, cluster_state: ClusterState
    ) -> None:
        self._settings = settings
        self._slurm = slurm
        self._ledger = ledger
        self._cluster_state = cluster_state
        self._operators = frozenset({0, os.geteuid()})
        self._waiting: Counter[int | str] = Counter()
        self._threads = {
            is_operator: ThreadPoolExecutor(_THREADS, "operators" if is_operator else "reads")
            for is_operator in (False, True)
        }
        self._slurm_turn = {False: asyncio.Semaphore(_ASKS), True: asyncio.Semaphore()}
        self._overview = OverviewReads(settings, slurm, ledger, cluster_state)

    def handlers(self) -> ReaderHandlers:
        """What answers each read.

        A handler raises InvalidInputError: SW-TENANT-UNKNOWN equally for a tenant that does not
        exist and for one that the reader may not read, SW-FORBIDDEN for jobs. It raises
        UnreachableError: SW-BUSY, SW-SLURM-DOWN and the ledger's own; only operators are told where
        its database is.
        """
        return hiding_places(
            {
                HeadroomRequest: self._explain,
                StatementRequest: self._of_own(self._page),
                SharesRequest: self._of_own(self._share_lines),
                ChargesRequest: self._of_own(self._charges),
                SlicePriceRequest: self._of_own(self._slice_price),
                CheapestRequest: self._of_own(self._cheapest),
                BalanceRequest: self._of_own(self._balances),
                BudgetsRequest: self._of_own(self._statuses),
                WhyRequest: self._why,
                PriorityRequest: self._priority,
                QueueRequest: self._queue,
                QuotaPlanRequest: self._quota_plan,
                RebalanceRequest: self._of_journal(journal_reads.rebalance),
                RebalancesRequest: self._of_journal(journal_reads.rebalances),
                RepartitionRequest: self._of_journal(journal_reads.repartition),
                RepartitionsRequest: self._of_journal(journal_reads.repartitions),
                TenantsRequest: self._tenants,
                HistoryRequest: self._history,
                ServiceEventsRequest: self._events,
                ServiceStartsRequest: self._starts,
                PoolModelsRequest: self._pool_models,
                TokenUsageRequest: self._token_usage,
                EnergyRequest: self._of_own(self._energy),
                **self._overview.handlers(),
            }
        )

    async def _events(
        self, request: ServiceEventsRequest, principal: Principal
    ) -> ServiceEventsAnswer:
        require_own(request.tenant, principal)
        tenants = tenants_asked(request.tenant, principal)
        return ServiceEventsAnswer(services=self._cluster_state.events.named(request.name, tenants))

    async def _starts(
        self, request: ServiceStartsRequest, principal: Principal
    ) -> ServiceStartsAnswer:
        require_own(request.tenant, principal)
        tenants = tenants_asked(request.tenant, principal)
        services = (
            view
            for view in self._cluster_state.view.services
            if view.name == request.name and (tenants is None or view.tenant in tenants)
        )
        return ServiceStartsAnswer(services=self._cluster_state.service_reports.starts(services))

    async def _pool_models(
        self, request: PoolModelsRequest, principal: Principal
    ) -> PoolModelsAnswer:
        require_own(request.tenant, principal)
        state = self._cluster_state
        views = [view for view in state.view.services if view.tenant == request.tenant]
        reports = state.service_reports.of(views)
        service = f"{request.tenant}/{request.name}"
        return PoolModelsAnswer(models=pool_models(service, views, reports))

    async def _token_usage(
        self, request: TokenUsageRequest, principal: Principal
    ) -> TokenUsageAnswer:
        return await self.from_ledger(principal.who, partial(self._tokens, request, principal))

    async def _explain(self, request: HeadroomRequest, principal: Principal) -> HeadroomAnswer:
        require_own(request.tenant, principal)
        self.require_complete_view()
        explanation = partial(self._explanation, request.tenant, principal)
        return await self.from_ledger(principal.uid, explanation)

    async def _history(self, request: HistoryRequest, principal: Principal) -> HistoryAnswer:
        tenant, _ = history_subject(request.about)
        require_own(tenant or None, principal)
        return await self.from_ledger(principal.uid, partial(self._past, request, principal))

    async def _why(self, request: WhyRequest, principal: Principal) -> WhyAnswer:
        self.require_complete_view()
        settings, ledger, cluster_state = self._settings, self._ledger, self._cluster_state
        read = partial(why, request.about, principal, ledger, settings, cluster_state)
        return await self.from_ledger(principal.uid, read)

    async def _priority(self, request: PriorityRequest, principal: Principal) -> PriorityAnswer:
        self.require_complete_view()
        settings, slurm, cluster_state = self._settings, self._slurm, self._cluster_state
        with self._in_line(principal.uid):
            async with self._slurm_turn[self._is_operator(principal.uid)]:
                return await explain_priority(
                    request.job, principal, slurm, settings, cluster_state
                )

    async def _queue(self, request: QueueRequest, principal: Principal) -> QueueAnswer:
        facts = await self._overview.facts()
        with self._in_line(principal.uid):
            return await asyncio.to_thread(queue, request, principal, facts)

    async def _quota_plan(self, request: QuotaPlanRequest, principal: Principal) -> QuotaPlanAnswer:
        self.require_complete_view()
        accounts = await self.accounts(principal.uid)
        settings, ledger, cluster_state = self._settings, self._ledger, self._cluster_state
        read = partial(plan_of_file, request.text, accounts, ledger, settings, cluster_state)
        return await self.from_ledger(principal.uid, read)

    def _of_own(self, read: Callable[[Any, Principal], BaseModel]) -> ReaderHandler:
        async def answered(request: Any, principal: Principal) -> BaseModel:
            require_own(request.tenant, principal)
            return await self.from_ledger(principal.uid, partial(read, request, principal))

        return answered

    def _of_journal(self, read: Callable[[Any, Ledger], BaseModel]) -> ReaderHandler:
        async def answered(request: Request, principal: Principal) -> BaseModel:
            return await self.from_ledger(principal.uid, partial(read, request, self._ledger))

        return answered

    async def _tenants(self, request: TenantsRequest, principal: Principal) -> TenantsAnswer:
        facts, at_s = await self._overview.facts(), self._cluster_state.clock.shown_s
        settings, ledger = self._settings, self._ledger
        read = partial(tenants, request, principal, ledger, settings, facts=facts, at_s=at_s)
        return await self.from_ledger(principal.uid, read)

    def _explanation(self, tenant: str, principal: Principal) -> HeadroomAnswer:
        cluster_state = self._cluster_state
        ledger_view = self.ledger_view()
        require_known(tenant, ledger_view.tenants.keys(), principal)
        inputs = world_of(
            ledger_view,
            self._settings,
            SlurmView(cluster_state.jobs, cluster_state.nodes, cluster_state.view.services),
        )
        return HeadroomAnswer(headroom=explain(tenant, situation(inputs)))

    def _tokens(self, request: TokenUsageRequest, principal: Principal) -> TokenUsageAnswer:
        zone = self._settings.ledger.time_zone
        answer = token_usage(request, principal, self._ledger, zone)
        # Who asked a service may be of any tenant: so a name is checked where nothing was found.
        if request.tenant is not None and not answer.lines and request.after is None:
            require_own(request.tenant, principal)
            self._require_known(request.tenant, principal)
        return answer

    def _require_known(self, tenant: str, principal: Principal) -> None:
        """Raise InvalidInputError (SW-TENANT-UNKNOWN) for who has no quota and never had a run."""
        policy, charged = self._ledger.tenants.policy(), self._ledger.charges.charged_tenants()
        require_known(tenant, policy.keys() | charged, principal)

    def _energy(self, request: EnergyRequest, principal: Principal) -> EnergyAnswer:
        if request.tenant is not None:
            self._require_known(request.tenant, principal)
        watts = self._cluster_state.node_power.watts()
        return energy_use(request, principal, self._ledger, self._settings, watts)

    def _page(self, request: StatementRequest, principal: Principal) -> StatementAnswer:
        below: tuple[str, ...] = ()
        if request.tenant is not None and request.after is None:
            policy = self._ledger.tenants.policy()
            charged = self._ledger.charges.charged_tenants()
            require_known(request.tenant, policy.keys() | charged, principal)
            if request.tenant in policy:
                readable = filter(principal.may_read, subtree(policy, request.tenant))
                below = tuple(sorted(charged & ({*readable} - {request.tenant})))
        place = request.after
        now_s = place.now_s if place else int(wall_s())
        rows = self._ledger.audit.statement_page(
            request.tenant,
            request.since_s,
            now_s,
            (place.tenant, place.start_s, place.job_id) if place else None,
            _PAGE_ROWS,
            until_s=request.until_s,
            accounts=principal.tenants,
        )
        return StatementAnswer(
            now_s=now_s,
            rows=rows,
            more=_place(rows[-1], now_s) if len(rows) == _PAGE_ROWS else None,
            charged_below=below,
        )

    def _share_lines(self, request: SharesRequest, principal: Principal) -> SharesAnswer:
        wanted = WantedShares(
            request.tenant, principal.tenants, request.since_s, request.until_s, request.after
        )
        zone = self._settings.ledger.time_zone
        lines = self._ledger.shares.lines(wanted, zone, _PAGE_ROWS)
        last = lines[-1] if len(lines) == _PAGE_ROWS else None
        more = last and (last.start_s, last.tenant, last.payer, last.service)
        return SharesAnswer(lines=lines, more=more)

    def _charges(self, request: ChargesRequest, principal: Principal) -> ChargesAnswer:
        if request.tenant is not None and request.after is None:
            self._require_known(request.tenant, principal)
        answer = charges(request, principal, self._ledger, self._settings.ledger.time_zone)
        if request.after is not None:
            return answer
        return answer.model_copy(update={"budgets": self._money_budgets(request.tenant, principal)})

    def _money_budgets(
        self, tenant: str | None, principal: Principal
    ) -> tuple[MoneyBudgetStatus, ...]:
        """Those that the reader may see: all, or of a tenant those of it and of tenants above."""
        policy = self._cluster_state.quotas.policy
        own = None if tenant is None else {tenant, *upward(policy).get(tenant, ())}
        return tuple(
            budget
            for budget in self._cluster_state.money_budgets
            if principal.may_read(budget.tenant) and (own is None or budget.tenant in own)
        )

    def _slice_price(self, request: SlicePriceRequest, _: Principal) -> SlicePriceAnswer:
        return slice_price(request, self._ledger, self._settings.ledger.time_zone)

    def _cheapest(self, request: CheapestRequest, _: Principal) -> CheapestAnswer:
        return cheapest(request, self._ledger, self._settings)

    def _balances(self, request: BalanceRequest, principal: Principal) -> BalanceAnswer:
        ledger_view = self.ledger_view()
        if request.tenant is not None:
            require_known(
                request.tenant, ledger_view.tenants.keys() | ledger_view.balances.keys(), principal
            )
        asked = tenants_asked(request.tenant, principal)
        return BalanceAnswer(balances=balance_lines(self._ledger, ledger_view, asked))

    def _statuses(self, request: BudgetsRequest, principal: Principal) -> BudgetsAnswer:
        ledger_view = self.ledger_view()
        if request.tenant is not None:
            require_known(request.tenant, ledger_view.tenants.keys(), principal)
        zone = self._settings.ledger.time_zone
        statuses = budget_statuses if request.meter == SLICES.name else token_budget_statuses
        args = self._ledger, ledger_view, zone, request.tenant, principal.tenants
        return BudgetsAnswer(budgets=statuses(*args))

    def _past(self, request: HistoryRequest, principal: Principal) -> HistoryAnswer:
        tenant, _ = history_subject(request.about)
        known = self._cluster_state.quotas.policy.keys()
        # Own accounts are known, with or without quota: of such an account all is gaps.
        is_own = principal.tenants is not None and tenant in principal.tenants
        if (
            tenant
            and tenant not in known
            and not is_own
            and not self._ledger.history.knows(tenant, "")
        ):
            require_known(tenant, known, principal)
        now_s = int(self._cluster_state.clock.shown_s)
        return history_answer(self._ledger, self._settings, request, now_s)

    async def accounts(self, uid: int) -> Accounts:
        """Return the parents of Slurm's accounts, by account; raises what Slurm does, SW-BUSY."""
        with self._in_line(uid):
            async with self._slurm_turn[self._is_operator(uid)]:
                rows = await self._slurm.associations()
        return {row.account: row.parent for row in rows if not row.user}

    async def slurm_limits(self, uid: int) -> SlurmNow:
        """Return what Slurm has of limits beside what was seen; raises what Slurm does, SW-BUSY."""
        cluster_state = self._cluster_state
        with self._in_line(uid):
            async with self._slurm_turn[self._is_operator(uid)]:
                return await slurm_now(self._slurm, cluster_state.jobs, cluster_state.nodes)

    def ledger_view(self) -> LedgerView:
        """Read all that the ledger says, at the moment that the daemon shows."""
        return ledger_view_now(self._ledger, self._settings, self._cluster_state.clock.shown_s)

    def capacity_millislices(self) -> int:
        """Return what the managed GPUs that were seen last come to."""
        settings = self._settings
        partitions = frozenset(settings.cluster.partitions)
        nodes = self._cluster_state.nodes
        return capacity(nodes, partitions, settings.costs, settings.whole_boards)

    def require_complete_view(self) -> None:
        """Raise UnreachableError (SW-SLURM-DOWN) if Slurm was not seen whole."""
        if not self._cluster_state.view.complete:
            raise UnreachableError(
                Code.SLURM_DOWN, "Slurm does not answer the daemon now.", "Try again."
            )

    async def from_ledger(self, uid: int | str, read: Callable[[], T]) -> T:
        """Call a function that reads the ledger, in a thread.

        Raises UnreachableError: SW-BUSY if too many reads are under way, in all or for this user;
        SW-DATABASE-DOWN at the deadline. What no thread has begun by then is never begun.
        """
        self._count(uid)
        turn = Turn[None]()

        def begin() -> T:
            if not turn.set_running_or_notify_cancel():
                raise asyncio.CancelledError
            return read()

        threads = self._threads[self._is_operator(uid)]
        reading = asyncio.get_running_loop().run_in_executor(threads, begin)
        reading.add_done_callback(partial(self._ended, uid))
        try:
            async with asyncio.timeout(_DEADLINE_S):
                # The thread itself can't be stopped: it counts until it ends.
                return await asyncio.shield(reading)
        except TimeoutError:
            is_given_up = turn.cancel()
            raise UnreachableError(
                Code.DATABASE_DOWN,
                f"The ledger's database did not answer within {_DEADLINE_S:.0f} s.",
                "Try again later." if is_given_up else _LOOK_FIRST,
            ) from None

    def _is_operator(self, uid: int | str) -> bool:
        return uid in self._operators

    def _count(self, uid: int | str) -> None:
        waiting, is_operator = self._waiting, self._is_operator(uid)
        alike = sum(
            n for waiting_uid, n in waiting.items() if self._is_operator(waiting_uid) is is_operator
        )
        if alike >= _WAITING or (not is_operator and waiting[uid] >= _WAITING_PER_UID):
            raise UnreachableError(
                Code.BUSY, "The daemon has as many reads in progress as it allows.", "Try again."
            )
        waiting[uid] += 1

    @contextmanager
    def _in_line(self, uid: int | str) -> Iterator[None]:
        """Count a user who waits for Slurm like one who waits for the ledger."""
        self._count(uid)
        try:
            yield
        finally:
            self._waiting -= Counter([uid])

    def _ended(self, uid: int | str, reading: "asyncio.Future[T]") -> None:
        self._waiting -= Counter([uid])
        if not reading.cancelled():
            # Take the error: if the caller has gone, asyncio would warn that it was never
            # retrieved.
            reading.exception()


def hiding_places(handlers: ReaderHandlers) -> ReaderHandlers:
    """The same handlers, each ``without_places``."""
    return {kind: partial(_hiding, handle) for kind, handle in handlers.items()}


async def _hiding(handle: ReaderHandler, request: Request, principal: Principal) -> BaseModel:
    with without_places(principal):
        return await handle(request, principal)


@contextmanager
def without_places(principal: Principal) -> Iterator[None]:
    """Hide from all but operators where the database is, and what PostgreSQL answered."""
    try:
        yield
    except SlicewiseError as error:
        if principal.tenants is None or error.refusal.code not in _TELL_PLACES:
            raise
        raise UnreachableError(
            error.refusal.code, "The ledger does not answer now.", "Try again later."
        ) from None


def require_own(tenant: str | None, principal: Principal) -> None:
    """Raise InvalidInputError (SW-TENANT-UNKNOWN) if the reader may not read that tenant."""
    if tenant is not None and not principal.may_read(tenant):
        raise _unknown(tenant, principal)


def _unknown(tenant: str, principal: Principal) -> InvalidInputError:
    """The same error for others' tenants and for none: asking must not reveal names."""
    own = ", ".join(sorted(principal.tenants or ())) or "none"
    hint = "All: slicewise tenant list" if principal.tenants is None else f"Yours: {own}."
    return InvalidInputError(Code.TENANT_UNKNOWN, f"You have no tenant {tenant!r}.", hint)


def require_known(tenant: str, known: Collection[str], principal: Principal) -> None:
    """Raise InvalidInputError (SW-TENANT-UNKNOWN) for a tenant that is not ``known``: it has no
    quota.

    An account that is no tenant any more may be known by its runs.
    """
    if tenant in known:
        return
    if principal.tenants is None:
        raise _unknown(tenant, principal)
    raise InvalidInputError(
        Code.TENANT_UNKNOWN,
        f"Your account {tenant!r} has no quota.",
        "The operator can give it one: slicewise tenant-quota set",
    )


def tenants_asked(tenant: str | None, principal: Principal) -> frozenset[str] | None:
    """The tenant that a request names, or else all that the reader may read; None is all."""
    return principal.tenants if tenant is None else frozenset({tenant})


def _place(last: StatementRow, now_s: int) -> StatementCursor:
    run = last.run
    return StatementCursor(
        tenant=run.tenant, start_s=run.key.start_s, job_id=run.key.job_id, now_s=now_s
    )
