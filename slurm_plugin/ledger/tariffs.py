"""Keeps tariffs, and reads what else is billed beside runs: shares by the hour, and requests."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import groupby
from operator import attrgetter
from typing import Any

from sqlalchemy import TextClause, insert, select, text

from slicewise.cluster.language.periods import Period, day_start_s, next_day_s, next_start_s
from slicewise.cluster.language.persons import NOBODY
from slicewise.cluster.runtime.database import reading, writing
from slicewise.slurm_plugin.ledger import reads, spent_queries
from slicewise.slurm_plugin.ledger.base import LedgerPart
from slicewise.slurm_plugin.ledger.energy import CHARGED_ENERGY
from slicewise.slurm_plugin.ledger.policy_rows import recorded_s
from slicewise.slurm_plugin.ledger.tables import quota_changes, tariffs
from slicewise.slurm_plugin.rules.accounting.charge_lines import (
    EnergyDay,
    PassedOn,
    PooledDay,
    RequestDay,
    energy_meter,
)
from slicewise.slurm_plugin.rules.accounting.money_budgets import Spent
from slicewise.slurm_plugin.rules.accounting.tariff import (
    PriceBook,
    PriceSpan,
    Tariff,
    TariffRecord,
    document,
    prices_energy,
)
from slicewise.slurm_plugin.rules.accounting.tariff_file import EnteredTariff, check_entry
from slicewise.slurm_plugin.rules.accounting.usage_costs import Place, TypeMixes
from slicewise.slurm_plugin.rules.quota.tenants import check_words

_PASSED_ON = text("""
WITH entries AS (
    SELECT e.run_id, width_bucket(e.hour_s, CAST(:starts AS bigint[])) AS place, e.replica_of,
           e.tenant, coalesce(e.payer, e.tenant) AS payer, e.service, sum(e.amount) AS amount
      FROM slicewise.share_entries e
     WHERE e.hour_s >= :from_s AND e.hour_s < :until_s
     GROUP BY 1, 2, 3, 4, 5, 6
)
SELECT ARRAY(SELECT jsonb_object_keys(r.gres) ORDER BY 1), (CAST(:starts AS bigint[]))[e.place],
       r.tenant AS owner, coalesce(r.payer, r.tenant), e.replica_of, e.tenant, e.payer, e.service,
       sum(e.amount)::bigint
  FROM entries e
  JOIN slicewise.runs r ON r.id = e.run_id
 WHERE r.cluster = :cluster AND r.tenant <> e.tenant AND r.tenant > :after
   AND (CAST(:tenants AS text[]) IS NULL OR r.tenant = ANY (:tenants) OR e.tenant = ANY (:tenants))
   AND (CAST(:tenant AS text) IS NULL
        OR :tenant IN (r.tenant, coalesce(r.payer, r.tenant), e.tenant, e.payer))
 GROUP BY 1, 2, 3, 4, 5, 6, 7, 8
HAVING sum(e.amount) <> 0
 ORDER BY owner FETCH FIRST (:most) ROWS WITH TIES
""")
"""Parts of services' runs of a day that others than the owner are charged, by the price of their
hours: of owners after that one, each whole."""

_POOLED = text("""
SELECT to_char(day, 'YYYY-MM-DD'), tenant, payer, gpu_types, service, millislice_s
  FROM slicewise.pool_days
 WHERE cluster = :cluster AND day BETWEEN CAST(:first AS date) AND CAST(:last AS date)
   AND (day, tenant COLLATE "C") > (CAST(:after_day AS date), :after) AND millislice_s <> 0
   AND (CAST(:tenants AS text[]) IS NULL OR tenant = ANY (:tenants))
   AND (CAST(:tenant AS text) IS NULL OR :tenant IN (tenant, payer))
 ORDER BY day, tenant COLLATE "C" FETCH FIRST (:most) ROWS WITH TIES
""")
"""A page ends at the last row by Python's order of texts, so it is cut in that order, too."""

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

_REQUESTS = """
SELECT to_char(day, 'YYYY-MM-DD'), payer, person, service, sum(requests)::bigint,
       sum(prompt_tokens)::bigint, sum(cached_prompt_tokens)::bigint, sum(output_tokens)::bigint
  FROM slicewise.usage_days
 WHERE cluster = :cluster AND day BETWEEN CAST(:first AS date) AND CAST(:last AS date)
   AND {after}
   AND (CAST(:tenants AS text[]) IS NULL OR payer = ANY (:tenants))
   AND (CAST(:tenant AS text) IS NULL OR payer = :tenant)
 GROUP BY day, payer, person, service
 ORDER BY {order} FETCH FIRST (:most) ROWS WITH TIES
"""
_REQUESTS_BY_TENANT = text(
    _REQUESTS.format(after="(day, payer) > (CAST(:after_day AS date), :after)", order="day, payer")
)
_REQUESTS_BY_PERSON = text(
    _REQUESTS.format(
        after="(day, payer, person, service)"
        " > (CAST(:after_day AS date), :after, :after_person, :after_service)",
        order="day, payer, person, service",
    )
)
"""For who may see all persons' names: the place where a page ends has one."""

_SPENT_SETTING = text(
    "SELECT set_config('statement_timeout', '2min', true), set_config('jit', 'off', true)"
)
"""No user waits for it, but the next look comes ten minutes later. To compile the sums takes longer
than to add up a month."""

DayPlace = tuple[date, str, str, str]
"""Where a page ends: the day, tenant, person and service of its last rows, which are all of these.
Without a person they are all of that tenant's."""
_BEGIN: DayPlace = (date.min, "", "", "")


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

    def zone(self, ledger_zone: str) -> str:
        """The time zone of days that are priced: the tariffs', once there is one."""
        return _zone(self.records(), ledger_zone)

    def book(self, zone: str) -> PriceBook:
        """All by which use is priced: a tenant that is moved has another class from the next
        midnight on. The time zone is as of ``zone``.
        """
        with reading(self._engine) as connection:
            records = _records(connection, self._cluster)
            zone = _zone(records, zone)
            return PriceBook(records, _parents(connection, self._cluster, zone), zone)

    def passed_on(
        self, wanted: WantedCharges, spans: Sequence[PriceSpan], after: DayPlace | None, most: int
    ) -> tuple[PassedOn, ...]:
        """So many parts of services' runs that others were charged in these spans: each owner's of
        a day are on one page.
        """
        first, owner, *_ = after or _BEGIN
        parts: list[PassedOn] = []
        with self._reading() as connection:
            for day, of_day in groupby(spans, key=lambda span: date.fromisoformat(span.day)):
                if day < first:
                    continue
                starts, ends = zip(*((span.start_s, span.end_s) for span in of_day), strict=True)
                given = {
                    **self._given(wanted),
                    "starts": list(starts),
                    "from_s": starts[0],
                    "until_s": ends[-1],
                    "after": owner if day == first else "",
                    "most": most - len(parts),
                }
                parts += (
                    PassedOn(tuple(sorted(types)), str(day), *others)
                    for types, *others in connection.execute(_PASSED_ON, given)
                )
                if len(parts) >= most:
                    break
        return tuple(parts)

    def pooled(
        self, wanted: WantedCharges, days: Sequence[str], after: DayPlace | None, most: int
    ) -> tuple[PooledDay, ...]:
        """So many parts of what services used of their pools' other replicas on these days: each
        tenant's of a day are on one page.
        """
        rows = self._of_days(_POOLED, wanted, days, after, most)
        parts = (
            PooledDay(day, tenant, payer, tuple(types), *rest)
            for day, tenant, payer, types, *rest in rows
        )
        return tuple(
            sorted(parts, key=attrgetter("day", "tenant", "payer", "gpu_types", "service"))
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
        with self._reading() as connection:
            for day, tenant, service, types, amount in connection.execute(_TYPE_MIXES, given):
                mixes.setdefault((day, tenant, service), {})[tuple(types)] = amount
        return mixes

    def requests(
        self, wanted: WantedCharges, days: Sequence[str], after: DayPlace | None, most: int
    ) -> tuple[RequestDay, ...]:
        """So many sums of requests of these days, by tenant, person and service. Of a reader who
        may not see all persons, each tenant's of a day are on one page: where it ends names nobody.
        """
        query = _REQUESTS_BY_PERSON if wanted.reader is None else _REQUESTS_BY_TENANT
        return tuple(
            RequestDay(day, tenant, person if wanted.reader in {None, person} else NOBODY, *rest)
            for day, tenant, person, *rest in self._of_days(query, wanted, days, after, most)
        )

    def spent(
        self, spans: Sequence[PriceSpan], alike: Sequence[PriceSpan], zone: str, now_s: int
    ) -> Iterator[Spent]:
        """What tenants used in these spans, added up over those that are ``alike``: of each span
        the one that it is like. Running jobs count up to ``now_s``. Raises UnreachableError
        (SW-DATABASE-DOWN) for a statement that takes longer than two minutes.
        """
        days = [
            (span.day, like.start_s)
            for span, like in zip(spans, alike, strict=True)
            if span.begins_day
        ]
        since_s, until_s = spans[0].start_s, spans[-1].end_s
        given = {
            "cluster": self._cluster,
            "zone": zone,
            "now_s": now_s,
            "since_s": since_s,
            "until_s": until_s,
            "bounds": [*(span.start_s for span in spans), until_s],
            "alike": [span.start_s for span in alike],
            "days": [day for day, _ in days],
            "alike_days": [alike_s for _, alike_s in days],
        }
        with reading(self._engine) as connection:
            connection.execute(_SPENT_SETTING)
            rows = connection.execute(text(spent_queries.SLICES), given)
            for alike_s, tenant, owner, gres, amount in rows:
                yield Spent(alike_s, tenant, owner, tuple(sorted(gres)), "slice-seconds", amount)
            for alike_s, tenant, *rest in connection.execute(text(spent_queries.REQUESTS), given):
                used = RequestDay("", tenant, "", "", *rest)
                for meter, amount in used.by_meter().items():
                    yield Spent(alike_s, tenant, tenant, (), meter, amount)
            if prices_energy(spans):
                rows = connection.execute(text(spent_queries.ENERGY), given)
                for alike_s, tenant, is_shared, amount in rows:
                    yield Spent(alike_s, tenant, tenant, (), energy_meter(is_shared), amount)

    def energy(
        self,
        wanted: WantedCharges,
        days: Sequence[str],
        zone: str,
        after: DayPlace | None,
        most: int,
    ) -> tuple[EnergyDay, ...]:
        """So many sums of what meters measured of runs on these days of the zone: each user's of
        a day, tenant and service are on one page. Nothing that is nobody's, or of jobs that the
        ledger does not have.
        """
        days = [day for day in days if after is None or day >= str(after[0])]
        if not days:
            return ()
        span = {
            "zone": zone,
            "since_s": day_start_s(days[0], zone),
            "until_s": next_day_s(days[-1], zone),
        }
        rows = self._of_days(text(CHARGED_ENERGY), wanted, days, after, most, **span)
        return tuple(EnergyDay(*row) for row in rows)

    def _of_days(
        self,
        query: TextClause,
        wanted: WantedCharges,
        days: Sequence[str],
        after: DayPlace | None,
        most: int,
        **others: object,
    ) -> Sequence[Any]:
        if not days:
            return ()
        after_day, after_tenant, person, service = after or _BEGIN
        given = {
            **self._given(wanted),
            "first": days[0],
            "last": days[-1],
            "after_day": after_day,
            "after": after_tenant,
            "after_person": person,
            "after_service": service,
            "most": most,
            **others,
        }
        with self._reading() as connection:
            return connection.execute(query, given).all()

    def _given(self, wanted: WantedCharges) -> dict[str, Any]:
        return {
            "cluster": self._cluster,
            "tenant": wanted.tenant,
            "tenants": None if wanted.tenants is None else sorted(wanted.tenants),
        }


def _zone(records: Sequence[TariffRecord], ledger_zone: str) -> str:
    return (records[-1].tariff.time_zone if records else "") or ledger_zone


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
