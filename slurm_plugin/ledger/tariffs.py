"""Keeps tariffs, and reads what else is billed beside runs: shares by the hour, and requests."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import insert, select, text

from slicewise.cluster.language.periods import Period, next_start_s
from slicewise.cluster.language.persons import NOBODY
from slicewise.cluster.runtime.database import reading, writing
from slicewise.slurm_plugin.ledger import reads
from slicewise.slurm_plugin.ledger.base import LedgerPart
from slicewise.slurm_plugin.ledger.policy_rows import recorded_s
from slicewise.slurm_plugin.ledger.tables import quota_changes, tariffs
from slicewise.slurm_plugin.rules.accounting.charge_lines import PassedOn, PooledDay, RequestDay
from slicewise.slurm_plugin.rules.accounting.tariff import (
    PriceBook,
    PriceSpan,
    Tariff,
    TariffRecord,
    document,
)
from slicewise.slurm_plugin.rules.accounting.tariff_file import EnteredTariff, check_entry
from slicewise.slurm_plugin.rules.accounting.usage_costs import Place, TypeMixes
from slicewise.slurm_plugin.rules.quota.tenants import check_words

_DEADLINE = text("SET LOCAL statement_timeout = '8s'")

_PASSED_ON = text("""
WITH entries AS MATERIALIZED (
    SELECT e.run_id, e.hour_s, e.day, e.tenant, coalesce(e.payer, e.tenant) AS payer,
           e.part = 'tokens' AS asked, sum(e.amount) AS amount
      FROM slicewise.share_entries e
     WHERE e.day BETWEEN CAST(:first AS date) AND CAST(:last AS date)
       AND e.hour_s >= :from_s AND e.hour_s < :until_s
     GROUP BY 1, 2, 3, 4, 5, 6
), of_runs AS (
    SELECT e.*, r.tenant AS owner, coalesce(r.payer, r.tenant) AS owner_payer, r.start_s,
           substring(r.task, '^[0-9]{1,18}')::bigint AS array_job_id,
           substring(r.task, '_([0-9]{1,18})$')::bigint AS index,
           ARRAY(SELECT jsonb_object_keys(r.gres) ORDER BY 1) AS types, r.cluster
      FROM entries e
      JOIN slicewise.runs r ON r.id = e.run_id
     WHERE r.cluster = :cluster AND r.tenant <> e.tenant
       AND (CAST(:tenants AS text[]) IS NULL OR r.tenant = ANY (:tenants)
            OR e.tenant = ANY (:tenants))
       AND (CAST(:tenant AS text) IS NULL
            OR :tenant IN (r.tenant, coalesce(r.payer, r.tenant), e.tenant, e.payer))
), named AS (
    SELECT o.*, coalesce(
               (SELECT g.name FROM slicewise.service_generations g
                 WHERE (g.cluster, g.tenant, g.array_job_id) = (o.cluster, o.owner, o.array_job_id)
                 ORDER BY g.id DESC LIMIT 1),
               (SELECT max(split_part(u.service, '/', 2)) FROM slicewise.usage_hours u
                 WHERE (u.cluster, u.hour_s, u.array_job_id, u.index, u.run_start_s)
                       = (o.cluster, o.hour_s, o.array_job_id, o.index, o.start_s)), '-')
               AS replica_of,
           CASE WHEN o.asked THEN
               (SELECT max(split_part(u.service, '/', 2)) FROM slicewise.usage_hours u
                 WHERE (u.cluster, u.hour_s, u.day, u.payer, u.array_job_id, u.index, u.run_start_s)
                       = (o.cluster, o.hour_s, o.day, o.tenant, o.array_job_id, o.index, o.start_s)
                   AND split_part(u.service, '/', 1) = o.owner) END AS by_tenant
      FROM of_runs o
)
SELECT width_bucket(hour_s, CAST(:starts AS bigint[])) - 1 AS span, owner, owner_payer, replica_of,
       tenant, payer, coalesce(by_tenant, replica_of) AS service, types, sum(amount)::bigint
  FROM named
 GROUP BY 1, 2, 3, 4, 5, 6, 7, 8
HAVING sum(amount) <> 0
 ORDER BY 1, 2, 3, 4, 5, 6, 7, 8
OFFSET :skip LIMIT :most
""")
"""Parts of services' runs that others than the owner are charged, by the price of their hours."""

_POOLED = text("""
SELECT to_char(day, 'YYYY-MM-DD'), tenant, payer, gpu_types, service, millislice_s
  FROM slicewise.pool_days
 WHERE cluster = :cluster AND day = ANY (CAST(:days AS date[])) AND millislice_s <> 0
   AND (CAST(:tenants AS text[]) IS NULL OR tenant = ANY (:tenants))
   AND (CAST(:tenant AS text) IS NULL OR :tenant IN (tenant, payer))
 ORDER BY day, tenant, payer, gpu_types, service
""")

_TYPE_MIXES = text("""
SELECT to_char(day, 'YYYY-MM-DD'), tenant, service, gpu_types, sum(abs(amount))::bigint
  FROM (SELECT cluster, day, tenant, service, gpu_types,
               token_millislice_s + idle_millislice_s AS amount
          FROM slicewise.share_days
         UNION ALL
        SELECT cluster, day, tenant, service, gpu_types, usage_millislice_s
          FROM slicewise.pool_days) AS booked
 WHERE cluster = :cluster AND amount <> 0
   AND (day, tenant, service) IN (
       SELECT * FROM unnest(CAST(:days AS date[]), CAST(:of_tenants AS text[]),
                            CAST(:services AS text[])))
 GROUP BY day, tenant, service, gpu_types
""")

_REQUESTS = text("""
SELECT to_char(day, 'YYYY-MM-DD'), payer, person, service, sum(requests)::bigint,
       sum(prompt_tokens)::bigint, sum(cached_prompt_tokens)::bigint, sum(output_tokens)::bigint
  FROM slicewise.usage_days
 WHERE cluster = :cluster AND day = ANY (CAST(:days AS date[]))
   AND (CAST(:tenants AS text[]) IS NULL OR payer = ANY (:tenants))
   AND (CAST(:tenant AS text) IS NULL OR payer = :tenant)
 GROUP BY day, payer, person, service
 ORDER BY day, payer, service, person
OFFSET :skip LIMIT :most
""")


@dataclass(frozen=True)
class WantedCharges:
    """Which charges a reader wants.

    Attributes:
        tenant: whose they are, or who pays for them; None: of all.
        tenants: those that the reader may see; None: all.
        reader: sees the requests of the person of that name; None: of all persons.
    """

    tenant: str | None = None
    tenants: Collection[str] | None = None
    reader: str | None = None


class Tariffs(LedgerPart):
    """Tariffs, of which none is ever changed, and what is billed by them beside runs."""

    def enter(self, entered: EnteredTariff, author: str, reason: str, zone: str) -> TariffRecord:
        """Enter a tariff; raises InvalidInputError as ``check_entry`` does, and SW-VALUE for bad
        words.
        """
        check_words(author, reason)
        with writing(self._engine) as connection:
            reads.lock_policy(connection, self._cluster)
            records = _records(connection, self._cluster)
            check_entry(entered, records, reads.now_s(connection), zone)
            values = {
                "cluster": self._cluster,
                "valid_from_s": entered.valid_from_s,
                "document": document(entered.tariff),
                "author": author,
                "reason": reason,
            }
            connection.execute(insert(tariffs).values(values))
            return _records(connection, self._cluster)[-1]

    def records(self) -> tuple[TariffRecord, ...]:
        """Every tariff that was ever entered, the oldest first."""
        with reading(self._engine) as connection:
            return _records(connection, self._cluster)

    def book(self, zone: str) -> PriceBook:
        """All by which use is priced: a tenant that is moved has another class from the next
        midnight on. The time zone is that of the tariffs, once there is one.
        """
        with reading(self._engine) as connection:
            records = _records(connection, self._cluster)
            zone = records[-1].tariff.time_zone or zone if records else zone
            return PriceBook(records, _parents(connection, self._cluster, zone), zone)

    def passed_on(
        self, wanted: WantedCharges, spans: Sequence[PriceSpan], skip: int, most: int
    ) -> tuple[PassedOn, ...]:
        """So many parts of services' runs that others were charged in these spans."""
        given = {
            **self._given(wanted),
            "first": spans[0].day,
            "last": spans[-1].day,
            "from_s": spans[0].start_s,
            "until_s": spans[-1].end_s,
            "starts": [span.start_s for span in spans],
            "skip": skip,
            "most": most,
        }
        with reading(self._engine) as connection:
            connection.execute(_DEADLINE)
            rows = connection.execute(_PASSED_ON, given)
            return tuple(_passed_on(row) for row in rows)

    def pooled(self, wanted: WantedCharges, days: Sequence[str]) -> tuple[PooledDay, ...]:
        """What services used of their pools' other replicas on these days."""
        given = {**self._given(wanted), "days": list(days)}
        with reading(self._engine) as connection:
            connection.execute(_DEADLINE)
            return tuple(
                PooledDay(day, tenant, payer, tuple(types), *rest)
                for day, tenant, payer, types, *rest in connection.execute(_POOLED, given)
            )

    def type_mixes(self, places: Collection[Place]) -> TypeMixes:
        """Of which GPU types the time was that tenants were charged for services on days."""
        days, tenants, services = zip(*places, strict=True) if places else ((), (), ())
        given = {
            "cluster": self._cluster,
            "days": list(days),
            "of_tenants": list(tenants),
            "services": list(services),
        }
        mixes: dict[Place, dict[tuple[str, ...], int]] = {}
        with reading(self._engine) as connection:
            connection.execute(_DEADLINE)
            for day, tenant, service, types, amount in connection.execute(_TYPE_MIXES, given):
                mixes.setdefault((day, tenant, service), {})[tuple(types)] = amount
        return mixes

    def requests(
        self, wanted: WantedCharges, days: Sequence[str], skip: int, most: int
    ) -> tuple[RequestDay, ...]:
        """So many sums of requests of these days, by tenant, person and service."""
        given = {**self._given(wanted), "days": list(days), "skip": skip, "most": most}
        with reading(self._engine) as connection:
            connection.execute(_DEADLINE)
            return tuple(
                RequestDay(
                    *(day, tenant, person),
                    person if wanted.reader in {None, person} else NOBODY,
                    *rest,
                )
                for day, tenant, person, *rest in connection.execute(_REQUESTS, given)
            )

    def _given(self, wanted: WantedCharges) -> dict[str, Any]:
        return {
            "cluster": self._cluster,
            "tenant": wanted.tenant,
            "tenants": None if wanted.tenants is None else sorted(wanted.tenants),
        }


def _passed_on(row: Any) -> PassedOn:
    span, owner, owner_payer, replica_of, tenant, payer, service, types, amount = row
    return PassedOn(
        span=span,
        owner=owner,
        owner_payer=owner_payer,
        replica_of=replica_of,
        tenant=tenant,
        payer=payer,
        service=service,
        gpu_types=tuple(sorted(types)),
        amount=amount,
    )


def _records(connection: Any, cluster: str) -> tuple[TariffRecord, ...]:
    columns = tariffs.c
    query = (
        select(tariffs, recorded_s(columns.recorded_at).label("recorded_s"))
        .where(columns.cluster == cluster)
        .order_by(columns.id)
    )
    return tuple(
        TariffRecord(
            *(row.id, row.valid_from_s, Tariff.model_validate(row.document)),
            *(row.author, row.reason, row.recorded_s),
        )
        for row in connection.execute(query)
    )


def _parents(connection: Any, cluster: str, zone: str) -> Mapping[str, Sequence[tuple[int, str]]]:
    """Of each tenant, whose child it was from which midnight on."""
    columns = quota_changes.c
    query = (
        select(columns.tenant, columns.parent, columns.removed, recorded_s(columns.recorded_at))
        .where(columns.cluster == cluster)
        .order_by(columns.id)
    )
    parents: dict[str, list[tuple[int, str]]] = {}
    removed: set[str] = set()
    for tenant, parent, is_removed, at_s in connection.execute(query):
        if is_removed:
            removed.add(tenant)
            continue
        # A removed tenant that is set again starts afresh.
        is_new = tenant not in parents or tenant in removed
        removed.discard(tenant)
        if is_new or parent is not None:
            # Nothing of the day in which it is moved is priced anew.
            day_s = next_start_s(Period.DAY, at_s, zone) or 0
            parents.setdefault(tenant, []).append((day_s, parent or ""))
    return parents
