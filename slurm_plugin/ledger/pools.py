"""Keeps which services have used a pool's replicas, and divides these hours among them."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Integer, func, literal, select, text
from sqlalchemy.dialects.postgresql import JSONB

from slicewise.cluster.rpc.usage_messages import PoolUse
from slicewise.cluster.runtime.database import reading, writing
from slicewise.slurm_plugin.ledger.base import DEADLINE, LedgerPart
from slicewise.slurm_plugin.rules.accounting.pool_hours import PoolHour, parts
from slicewise.slurm_plugin.rules.accounting.shared_runs import HOUR_S, USAGE_DELAY_S

_DUE = """
WITH used AS MATERIALIZED (
    SELECT split_part(h.service, '/', 1) AS tenant, h.array_job_id, h.index, h.run_start_s,
           h.hour_s, h.service, h.told_ms, h.divided_ms, h.hour_millislice_s, h.millislice_s,
           h.usage_millislice_s
      FROM slicewise.pool_hours h
     WHERE h.cluster = :cluster AND h.hour_s <= :until_s
), found AS MATERIALIZED (
    SELECT k.*, r.id AS run_id, coalesce(r.payer, r.tenant) AS payer, r.cost_millislices,
           CASE WHEN o.run_id IS NULL THEN b.end_s END AS end_s,
           o.run_id IS NULL AND b.used = 0 AS is_waived,
           (SELECT r.tenant || '/' || g.name FROM slicewise.service_generations g
             WHERE (g.cluster, g.tenant, g.array_job_id) = (r.cluster, r.tenant, k.array_job_id)
             ORDER BY g.id DESC LIMIT 1) AS owner
      FROM (SELECT DISTINCT tenant, array_job_id, index, run_start_s FROM used) AS k
      JOIN slicewise.runs r
        ON (r.cluster, r.meter, r.tenant, r.start_s, r.task)
           = (:cluster, 'slice-seconds', k.tenant, k.run_start_s, k.array_job_id || '_' || k.index)
      LEFT JOIN slicewise.open_reservations o ON o.run_id = r.id
     CROSS JOIN LATERAL (
           SELECT coalesce(sum(CASE t.kind WHEN 'post' THEN t.amount
                                           WHEN 'reverse' THEN -t.amount END), 0) AS used,
                  (max(ARRAY[t.number, t.until_s]))[2] AS end_s
             FROM slicewise.transfers t WHERE t.run_id = r.id) AS b
), others AS MATERIALIZED (
    SELECT e.run_id, e.hour_s, sum(e.amount) AS amount
      FROM found f JOIN slicewise.share_entries e ON e.run_id = f.run_id AND e.tenant <> f.tenant
     GROUP BY 1, 2
), due AS MATERIALIZED (
    SELECT DISTINCT u.hour_s, f.array_job_id, f.index, f.run_start_s, f.tenant, f.payer, f.owner,
           a.amount, l.length_s, s.run_id IS NOT NULL AS is_shared
      FROM found f
      JOIN used u USING (tenant, array_job_id, index, run_start_s)
      LEFT JOIN others o USING (run_id, hour_s)
      LEFT JOIN slicewise.shared_hours s USING (run_id, hour_s)
     CROSS JOIN LATERAL (
           SELECT greatest(0, least(u.hour_s + 3600, f.end_s) - greatest(u.hour_s, f.run_start_s))
                  AS length_s) AS l
     CROSS JOIN LATERAL (
           SELECT CASE WHEN f.is_waived THEN 0
                       ELSE greatest(0, f.cost_millislices * l.length_s - coalesce(o.amount, 0))
                       END::bigint AS amount) AS a
     WHERE u.service <> f.owner
       AND (u.told_ms <> u.divided_ms OR u.hour_millislice_s <> a.amount
            OR u.usage_millislice_s <> CASE WHEN s.run_id IS NULL THEN 0 ELSE u.millislice_s END)
     ORDER BY 1, 2, 3, 4 LIMIT :most
)
SELECT array_job_id, index, run_start_s, hour_s, d.tenant, payer, owner, amount,
       greatest(0, 1000 * length_s - sum(u.told_ms - o.own_ms))::bigint AS length_ms,
       jsonb_object_agg(u.service, o.own_ms) AS used_ms,
       jsonb_object_agg(u.service, u.told_ms) AS told_ms,
       jsonb_object_agg(u.service, u.millislice_s) AS booked, is_shared
  FROM due d JOIN used u USING (hour_s, array_job_id, index, run_start_s, tenant)
 CROSS JOIN LATERAL (
       SELECT coalesce(div(u.told_ms * sum(w.weight) FILTER (WHERE w.payer = u.tenant),
                           nullif(sum(w.weight), 0)),
                       CASE WHEN sum(w.weight) > 0 THEN 0 ELSE u.told_ms END)::bigint AS own_ms
         FROM (SELECT h.payer, (h.prompt_tokens - h.cached_prompt_tokens) * 10::numeric
                               + h.cached_prompt_tokens + h.output_tokens * 20 AS weight
                 FROM slicewise.usage_hours h
                WHERE (h.cluster, h.hour_s, h.service, h.array_job_id, h.index, h.run_start_s)
                      = (:cluster, u.hour_s, u.service, u.array_job_id, u.index, u.run_start_s)
              ) AS w) AS o
 WHERE u.service <> d.owner
 GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, length_s, is_shared
 ORDER BY hour_s, array_job_id, index, run_start_s
"""
"""Hours that are over and not divided, or not as what is known now says: of a run that goes on all
of the hour, of one that has ended up to its end, without what other tenants bear of it. Of a
service's moments the tenant's own are as many as of its tokens."""


_SETTING = text("SELECT set_config('jit', 'off', true)")
"""To compile ``_DUE`` takes longer than to run it."""


class Pools(LedgerPart):
    """Which services have used a pool's replicas. No tenant is charged more or less by it."""

    def note(self, seen_by: str, uses: Sequence[PoolUse]) -> None:
        """Keep what a process of the launcher has seen; the same again changes nothing."""
        noted = func.slicewise.note_pool_uses(
            self._cluster, seen_by, literal([use.model_dump() for use in uses], JSONB)
        )
        with writing(self._engine) as connection:
            connection.execute(DEADLINE)
            connection.execute(select(noted))

    def due(self, now_s: int, most: int) -> tuple[PoolHour, ...]:
        """So many hours that are to be divided at ``now_s`` (Unix seconds)."""
        until_s = now_s - HOUR_S - USAGE_DELAY_S
        wanted = {"cluster": self._cluster, "until_s": until_s, "most": most}
        with reading(self._engine) as connection:
            connection.execute(_SETTING)
            return tuple(PoolHour(*row) for row in connection.execute(text(_DUE), wanted))

    def divide(self, hours: Sequence[PoolHour], zone: str) -> int:
        """Book the parts of other services; return of how many.

        What was divided otherwise meanwhile is left out: it is decided again. ``zone`` is the time
        zone of the days to which the hours belong.
        """
        booked = [part for hour in hours for part in _parts(hour)]
        if not booked:
            return 0
        dividing = func.slicewise.divide_pool_hours(
            self._cluster, literal(booked, JSONB), zone, type_=Integer
        )
        with writing(self._engine) as connection:
            return int(connection.execute(select(dividing)).scalar_one())

    def forget(self) -> int:
        """Delete hours that nothing can change any more; return how many. Sums by the day stay."""
        gone = func.slicewise.forget_pool_hours(self._cluster, type_=Integer)
        with writing(self._engine) as connection:
            return int(connection.execute(select(gone)).scalar_one())


def _parts(hour: PoolHour) -> list[dict[str, Any]]:
    amounts = parts(hour)
    return [
        {
            "hour_s": hour.hour_s,
            "array_job_id": hour.array_job_id,
            "index": hour.index,
            "run_start_s": hour.run_start_s,
            "service": service,
            "tenant": hour.tenant,
            "payer": hour.payer,
            "owner": hour.owner,
            "divided_ms": told_ms,
            "hour_millislice_s": hour.amount_millislice_s,
            "is_shared": hour.is_shared,
            "before": hour.booked[service],
            "after": amounts[service],
        }
        for service, told_ms in hour.told_ms.items()
    ]
