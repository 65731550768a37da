"""Sets tokens aside for gateways, of subjects that have a limit or a budget of tokens."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from types import MappingProxyType
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy import Connection, delete, func, or_, select
from sqlalchemy.dialects.postgresql import insert

from slicewise.cluster.language.meters import TOKENS
from slicewise.cluster.language.periods import Period, date_text, next_start_s
from slicewise.cluster.rpc.limit_messages import SubjectLimits
from slicewise.cluster.rpc.usage_messages import TokenAllowance, WantedAllowance
from slicewise.cluster.runtime.database import writing
from slicewise.slurm_plugin.ledger import reads
from slicewise.slurm_plugin.ledger.base import DEADLINE, LedgerPart
from slicewise.slurm_plugin.ledger.usage_tables import (
    allowances,
    usage_gateways,
    usage_months,
    usage_records,
)
from slicewise.slurm_plugin.rules.accounting.allowances import (
    MINUTE_S,
    Renewal,
    TokenLimits,
    TokenPool,
    TokenShare,
    TokenUse,
    held,
    less,
    pooled,
)
from slicewise.slurm_plugin.rules.accounting.budgets import unspent
from slicewise.slurm_plugin.rules.quota.tenants import payers as paid_by
from slicewise.slurm_plugin.rules.quota.types import Policy

Subject = tuple[str, str, str]
"""Tenant, person and key id, "" where the limit is not a person's or a key's."""


@dataclass(frozen=True)
class AllowanceTime:
    """When a gateway asks.

    Attributes:
        now_s: Unix seconds.
        zone: time zone of the calendar's months.
        expires_s: seconds for which an allowance lasts.
    """

    now_s: float
    zone: str
    expires_s: float

    @property
    def month(self) -> date:
        """The first day of this month."""
        return datetime.fromtimestamp(self.now_s, ZoneInfo(self.zone)).date().replace(day=1)

    def renewal(self, period: Period) -> Renewal:
        """When the next such period begins."""
        next_s = next_start_s(period, int(self.now_s), self.zone)
        if next_s is None:
            return Renewal()
        return Renewal(next_s - int(self.now_s), date_text(next_s, self.zone))


class Allowances(LedgerPart):
    """What gateways hold of limits; what has expired is nothing, whoever was killed."""

    def give(
        self,
        boot: str,
        wanted: Sequence[WantedAllowance],
        limits: Sequence[SubjectLimits],
        at: AllowanceTime,
        policy: Policy = MappingProxyType({}),
    ) -> tuple[TokenAllowance, ...]:
        """Set aside for a gateway what it may hold of each limit, and for each tenant for which a
        budget pays, from now on, in the place of what it held before. One gateway after the other
        is answered.
        """
        limited = {_subject(limit): limit for limit in limits if _limits(limit) is not None}
        wants = {_subject(wish): wish.tokens for wish in wanted}
        payers = {
            name: payer
            for name, payer in paid_by(policy, TOKENS.name).items()
            if policy[payer].token_budget is not None
        }
        if not limited and not payers:
            return ()
        with writing(self._engine) as connection:
            connection.execute(DEADLINE)
            connection.execute(select(func.slicewise.lock_policy(f"allowances of {self._cluster}")))
            gateway_id = self._gateway(connection, boot)
            # Set aside first, then posted: what is posted in between counts twice, not never.
            elsewhere = self._elsewhere(connection, gateway_id, at)
            uses = self._uses(connection, elsewhere, sorted(limited), at)
            paid = self._paid(
                connection, elsewhere, policy=policy, payers=payers, wants=wants, at=at
            )
            month = at.renewal(Period.MONTH)
            held_of = {
                subject: held(
                    _limits(limit) or TokenLimits(None, None),
                    uses[subject],
                    wants.get(subject, 0),
                    month=month,
                    expires_s=int(at.expires_s),
                )
                for subject, limit in limited.items()
            }
            given = {
                subject: less(held_of.get(subject), paid.get(subject))
                for subject in sorted(held_of.keys() | paid.keys())
            }
            self._keep(connection, gateway_id, given, at)
        # A payer with a budget is exact.
        exact = paid.keys() | {name for name, limit in limited.items() if limit.limits.is_exact}
        return tuple(
            _allowance(subject, share, is_exact=subject in exact)
            for subject, share in given.items()
        )

    def _paid(
        self,
        connection: Connection,
        elsewhere: Mapping[Subject, int],
        *,
        policy: Policy,
        payers: Mapping[str, str],
        wants: Mapping[Subject, int],
        at: AllowanceTime,
    ) -> Mapping[Subject, TokenShare]:
        """What may be held of budgets, by tenant. A budget begins with its first period."""
        if not payers:
            return {}
        rollovers = reads.rollovers(connection, self._cluster, TOKENS.name)
        balances = reads.balances(connection, self._cluster, TOKENS.name)
        shares: dict[Subject, TokenShare] = {}
        for payer in sorted(set(payers.values()) & rollovers.keys()):
            budget = policy[payer].token_budget
            names = [name for name in payers if payers[name] == payer]
            if budget is None:
                continue
            pool = TokenPool(
                payer,
                unspent(balances.get(payer)) + budget.overdraft,
                sum(elsewhere.get((name, "", ""), 0) for name in names),
                at.renewal(budget.period),
            )
            wanted = {name: wants.get((name, "", ""), 0) for name in sorted(names)}
            of_pool = pooled(pool, wanted, int(at.expires_s))
            shares |= {(name, "", ""): share for name, share in of_pool.items()}
        return shares

    def _gateway(self, connection: Connection, boot: str) -> int:
        query = select(usage_gateways.c.id).where(
            usage_gateways.c.cluster == self._cluster, usage_gateways.c.boot == boot
        )
        added = insert(usage_gateways).values(cluster=self._cluster, boot=boot)
        connection.execute(added.on_conflict_do_nothing())
        return int(connection.execute(query).scalar_one())

    def _uses(
        self,
        connection: Connection,
        elsewhere: Mapping[Subject, int],
        subjects: Sequence[Subject],
        at: AllowanceTime,
    ) -> Mapping[Subject, TokenUse]:
        if not subjects:
            return {}
        in_month = self._in_month(connection, subjects, at)
        in_minute = self._in_minute(connection, subjects, at)
        return {
            subject: TokenUse(in_minute[subject], in_month[subject], elsewhere.get(subject, 0))
            for subject in subjects
        }

    def _elsewhere(
        self, connection: Connection, gateway_id: int, at: AllowanceTime
    ) -> Mapping[Subject, int]:
        row = allowances.c
        query = (
            select(row.tenant, row.person, row.key_id, func.sum(row.tokens))
            .join(usage_gateways, usage_gateways.c.id == row.gateway_id)
            .where(usage_gateways.c.cluster == self._cluster)
            .where(row.gateway_id != gateway_id, row.expires_s > at.now_s)
            .group_by(row.tenant, row.person, row.key_id)
        )
        rows = connection.execute(query)
        return Counter({(tenant, person, key): int(tokens) for tenant, person, key, tokens in rows})

    def _in_month(
        self, connection: Connection, subjects: Sequence[Subject], at: AllowanceTime
    ) -> Mapping[Subject, int]:
        row = usage_months.c
        query = select(row.payer, row.person, row.key_id, row.tokens).where(
            row.cluster == self._cluster,
            row.month == at.month,
            row.payer.in_({tenant for tenant, *_ in subjects}),
        )
        return _by_subject(connection.execute(query))

    def _in_minute(
        self, connection: Connection, subjects: Sequence[Subject], at: AllowanceTime
    ) -> Mapping[Subject, int]:
        row = usage_records.c
        query = (
            select(
                row.payer,
                row.person,
                row.key_id,
                func.sum(row.prompt_tokens + row.output_tokens),
            )
            .join(usage_gateways, usage_gateways.c.id == row.gateway_id)
            .where(usage_gateways.c.cluster == self._cluster)
            .where(row.end_ms > int((at.now_s - MINUTE_S) * 1000))
            .where(row.payer.in_({tenant for tenant, *_ in subjects}))
            .group_by(row.payer, row.person, row.key_id)
        )
        return _by_subject(connection.execute(query))

    def _keep(
        self,
        connection: Connection,
        gateway_id: int,
        given: Mapping[Subject, TokenShare],
        at: AllowanceTime,
    ) -> None:
        are_replaced = or_(
            allowances.c.expires_s <= at.now_s, allowances.c.gateway_id == gateway_id
        )
        # In the order in which who posts locks them.
        keys = tuple(allowances.primary_key)
        connection.execute(select(*keys).where(are_replaced).order_by(*keys).with_for_update())
        connection.execute(delete(allowances).where(are_replaced))
        rows = [
            {
                "gateway_id": gateway_id,
                "tenant": tenant,
                "person": person,
                "key_id": key_id,
                "tokens": share.tokens,
                "expires_s": at.now_s + at.expires_s,
            }
            for (tenant, person, key_id), share in given.items()
            if share.tokens
        ]
        if rows:
            connection.execute(insert(allowances), rows)


def _by_subject(rows: Any) -> Mapping[Subject, int]:
    tokens_of = Counter[Subject]()
    for payer, person, key_id, tokens in rows:
        for subject in ((payer, "", ""), (payer, person, ""), (payer, "", key_id)):
            tokens_of[subject] += int(tokens)
    return tokens_of


def _subject(subject: SubjectLimits | WantedAllowance) -> Subject:
    return (subject.tenant, subject.person, subject.key_id)


def _limits(subject: SubjectLimits) -> TokenLimits | None:
    limits = TokenLimits(subject.limits.tokens_per_minute, subject.limits.tokens_per_month)
    return None if limits == TokenLimits(None, None) else limits


def _allowance(subject: Subject, share: TokenShare, *, is_exact: bool) -> TokenAllowance:
    tenant, person, key_id = subject
    return TokenAllowance(
        tenant=tenant,
        person=person,
        key_id=key_id,
        tokens=share.tokens,
        is_exact=is_exact,
        limit=share.limit,
        payer=share.payer,
        used_up_until=share.used_up_until,
        retry_s=share.retry_s,
    )
