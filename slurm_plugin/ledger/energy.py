"""Keeps what boards took, and whose parts of it are."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Integer, func, literal, select, text
from sqlalchemy.dialects.postgresql import JSONB

from slicewise.cluster.rpc.energy_messages import EnergyPostRequest
from slicewise.cluster.runtime.database import writing
from slicewise.slurm_plugin.ledger.base import DEADLINE, LedgerPart
from slicewise.slurm_plugin.rules.accounting.energy import (
    EnergyRow,
    UnmeasuredRow,
    with_unchecked,
)
from slicewise.slurm_plugin.rules.common.ledger_facts import CheckedBoard

_SERVICE = """
 LEFT JOIN LATERAL (
       SELECT g.tenant || '/' || g.name AS service FROM slicewise.service_generations g
        WHERE (g.cluster, g.tenant) = (:cluster, r.tenant)
          AND strpos(r.task, '_') > 0 AND g.array_job_id::text = split_part(r.task, '_', 1)
        ORDER BY g.id DESC LIMIT 1) AS s ON true
"""

_RUN = """
       SELECT r.tenant, r.payer, r.user_name, r.task, r.start_s FROM slicewise.runs r
        WHERE (r.cluster, r.meter, r.job_id) = (:cluster, 'slice-seconds', p.job_id)
          AND r.start_s < p.until_s
          AND (EXISTS (SELECT FROM slicewise.open_reservations o WHERE o.run_id = r.id)
               OR (SELECT t.until_s FROM slicewise.transfers t WHERE t.run_id = r.id
                    ORDER BY t.number DESC LIMIT 1)
                  >= extract(epoch FROM p.day::timestamp AT TIME ZONE :zone) - 3600)
        ORDER BY r.start_s DESC LIMIT 1
"""
"""A job's number is used again some day: the run is the last one that began before the hour's end,
or the day's, and that had not ended before that day. Processes outlive their job by minutes, so it
may have ended an hour before."""

_SUMMED = """
WITH parts AS (
    SELECT (to_timestamp(hour_s) AT TIME ZONE :zone)::date AS day, node, job_id, measure, split,
           hour_s + 3600 AS until_s, energy_mj
      FROM slicewise.energy_hours
     WHERE cluster = :cluster AND hour_s BETWEEN :since_s - 86400 AND :until_s
     UNION ALL
    SELECT day, node, job_id, measure, split,
           extract(epoch FROM (day + 1)::timestamp AT TIME ZONE :zone)::bigint, energy_mj
      FROM slicewise.energy_days WHERE cluster = :cluster
), summed AS (
    SELECT day, node, job_id, measure, split, max(until_s) AS until_s, sum(energy_mj) AS energy_mj
      FROM parts
     WHERE day BETWEEN (to_timestamp(:since_s) AT TIME ZONE :zone)::date
                   AND (to_timestamp(:until_s - 1) AT TIME ZONE :zone)::date
     GROUP BY 1, 2, 3, 4, 5
)
"""

_RECENT = """
recent AS (
    SELECT run_id FROM slicewise.transfers WHERE until_s >= :since_s AND kind <> 'reserve'
     UNION SELECT run_id FROM slicewise.open_reservations
)"""
"""Runs that used something since then, and open ones: as ``queries.statement_of`` has them."""

_PARTS = {
    "SUMMED_PARTS": _SUMMED,
    "RECENT_RUNS": _RECENT,
    "RUN_OF_JOB": _RUN,
    "SERVICE_OF_RUN": _SERVICE,
    "IS_CHARGED": "p.job_id <> 0 AND p.split <> 'unchecked'",
    "WHOSE_SERVICE": "coalesce(split_part(s.service, '/', 2), '')",
}


def filled(query: str) -> str:
    """The query with what energy's queries have in common in the place of its names."""
    for word, part in _PARTS.items():
        query = query.replace(word, part)
    return query


_ROWS = filled("""
SUMMED_PARTS
SELECT WHAT_IT_IS_ABOUT, p.measure, p.split, p.job_id <> 0 AND r.tenant IS NULL AS is_unknown,
       sum(p.energy_mj)::bigint AS energy_mj
  FROM summed p
  LEFT JOIN LATERAL (RUN_OF_JOB) AS r ON p.job_id <> 0
NAMED_SERVICE
 WHERE CAST(:tenants AS text[]) IS NULL OR r.tenant = ANY (CAST(:tenants AS text[]))
 GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
 ORDER BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
 LIMIT :most
""")

CHARGED_ENERGY = filled("""
SUMMED_PARTS
SELECT p.day::text, coalesce(r.payer, r.tenant), r.tenant,
       WHOSE_SERVICE, r.user_name, p.split <> 'alone', sum(p.energy_mj)::bigint
  FROM summed p
 CROSS JOIN LATERAL (RUN_OF_JOB) AS r
SERVICE_OF_RUN
 WHERE IS_CHARGED
   AND (p.day, r.tenant, r.user_name, WHOSE_SERVICE)
       > (CAST(:after_day AS date), :after, :after_person, :after_service)
   AND (CAST(:tenants AS text[]) IS NULL OR r.tenant = ANY (CAST(:tenants AS text[])))
   AND (CAST(:tenant AS text) IS NULL OR :tenant IN (r.tenant, coalesce(r.payer, r.tenant)))
 GROUP BY p.day, 2, 3, 4, 5, 6
HAVING sum(p.energy_mj) > 0
 ORDER BY p.day, 3, 5, 4 FETCH FIRST (:most) ROWS WITH TIES
""")

_UNMEASURED = filled("""
WITH RECENT_RUNS, runs AS (
    SELECT r.*, CASE WHEN o.run_id IS NOT NULL THEN :now_s
                     ELSE (SELECT (max(ARRAY[t.number, t.until_s]))[2]
                             FROM slicewise.transfers t WHERE t.run_id = r.id) END AS end_s
      FROM recent JOIN slicewise.runs r ON r.id = recent.run_id
      LEFT JOIN slicewise.open_reservations o ON o.run_id = r.id
     WHERE (r.cluster, r.meter) = (:cluster, 'slice-seconds') AND r.start_s < :until_s
       AND (CAST(:tenants AS text[]) IS NULL OR r.tenant = ANY (CAST(:tenants AS text[])))
       AND NOT EXISTS (SELECT FROM slicewise.energy_hours e
                        WHERE (e.cluster, e.job_id) = (:cluster, r.job_id)
                          AND e.hour_s > r.start_s - 3600)
       AND NOT EXISTS (SELECT FROM slicewise.energy_days e
                        WHERE (e.cluster, e.job_id) = (:cluster, r.job_id)
                          AND e.day >= (to_timestamp(r.start_s) AT TIME ZONE :zone)::date)
)
SELECT WHAT_IT_IS_ABOUT, r.gres,
       sum(least(r.end_s, d.until_s, :until_s) - greatest(r.start_s, d.from_s, :since_s))::bigint
       AS seconds
  FROM runs r
 CROSS JOIN LATERAL (
       SELECT day, extract(epoch FROM day AT TIME ZONE :zone)::bigint AS from_s,
              extract(epoch FROM (day + interval '1 day') AT TIME ZONE :zone)::bigint AS until_s
         FROM generate_series(
              date_trunc('day', to_timestamp(greatest(r.start_s, :since_s)) AT TIME ZONE :zone),
              to_timestamp(least(r.end_s, :until_s) - 1) AT TIME ZONE :zone,
              interval '1 day') AS day) AS d
NAMED_SERVICE
 WHERE r.end_s > :since_s
 GROUP BY 1, 2, 3, 4, 5, 6, 7
HAVING sum(least(r.end_s, d.until_s, :until_s) - greatest(r.start_s, d.from_s, :since_s)) > 0
 ORDER BY 1, 2, 3, 4, 5, 6, 7
 LIMIT :most
""")
"""Runs of which no meter has seen anything."""

_RUN_FIELDS = {
    "day": "to_char(d.day, 'YYYY-MM-DD')",
    "tenant": "r.tenant",
    "person": "r.user_name",
    "service": "coalesce(s.service, '')",
    "run": "r.task",
    "started_s": "r.start_s",
}
_MEASURED_FIELDS = {
    "day": "p.day::text",
    "node": "p.node",
    "tenant": "coalesce(r.tenant, '')",
    "person": "coalesce(r.user_name, '')",
    "service": "coalesce(s.service, '')",
    "run": "CASE WHEN p.job_id = 0 THEN '' ELSE coalesce(r.task, p.job_id::text) END",
    "started_s": "coalesce(r.start_s, 0)",
}


_BOARDS = """
SELECT node, gpu_uuid, min(model) AS model, coalesce(sum(checked_mj), 0)::bigint AS checked_mj,
       coalesce(sum(power_mj), 0)::bigint AS power_mj, max(covered_ms)::bigint AS most_covered_ms
  FROM (SELECT cluster, node, gpu_uuid, min(model) AS model, sum(covered_ms) AS covered_ms,
               sum(checked_mj) FILTER (WHERE measure = 'counter') AS checked_mj,
               sum(power_mj) FILTER (WHERE measure = 'counter') AS power_mj
          FROM slicewise.energy_boards
         WHERE WHICH_HOURS
         GROUP BY cluster, node, gpu_uuid, hour_s) AS hours
 GROUP BY cluster, node, gpu_uuid ORDER BY cluster, node, gpu_uuid
"""
_ALL_BOARDS = text(
    _BOARDS.replace("WHICH_HOURS", "hour_s > extract(epoch FROM now() - interval '2 days')")
)
# Hour by hour: thousands of nodes tell, and each reads its own rows alone.
_BOARDS_OF_NODE = text(
    _BOARDS.replace(
        "WHICH_HOURS",
        """(cluster, node) = (:cluster, :node) AND hour_s IN (
               SELECT (floor(extract(epoch FROM now()) / 3600)::bigint - back) * 3600
                 FROM generate_series(-1, 47) AS back)""",
    )
)

_NOTHING, _EMPTY = {"started_s": "0"}, "''"


def _about(query: str, columns: Mapping[str, str], fields: Collection[str]) -> str:
    """The query, by these fields alone: a service is looked up where it is wanted."""
    about = (
        f"{column if name in fields else _NOTHING.get(name, _EMPTY)} AS {name}"
        for name, column in columns.items()
    )
    service = _SERVICE if "service" in fields else ""
    return query.replace("WHAT_IT_IS_ABOUT", ", ".join(about)).replace("NAMED_SERVICE", service)


_TOKENS = """
SELECT service, day::text AS day, sum(prompt_tokens + output_tokens)::bigint AS tokens
  FROM slicewise.usage_days
 WHERE cluster = :cluster
   AND day BETWEEN (to_timestamp(:since_s) AT TIME ZONE :zone)::date
               AND (to_timestamp(:until_s - 1) AT TIME ZONE :zone)::date
   AND (CAST(:tenants AS text[]) IS NULL
        OR split_part(service, '/', 1) = ANY (CAST(:tenants AS text[])))
 GROUP BY 1, 2
"""


@dataclass(frozen=True)
class WantedEnergy:
    """Of which days and tenants energy is read: None is all tenants, and what is nobody's.

    Attributes:
        zone: the time zone of days.
        most: rows at most.
        fields: by which of day, node, tenant, person, service, run and its start sums are wanted.
    """

    since_s: int
    until_s: int
    zone: str
    tenants: Collection[str] | None
    most: int
    fields: Collection[str]


def checked_boards(
    connection: Connection, of_node: tuple[str, str] | None = None
) -> tuple[CheckedBoard, ...]:
    """What counters and power say of boards in the last two days: all, or of a cluster's node."""
    query = _ALL_BOARDS if of_node is None else _BOARDS_OF_NODE
    words = {} if of_node is None else dict(zip(("cluster", "node"), of_node, strict=True))
    return tuple(CheckedBoard(**board) for board in connection.execute(query, words).mappings())


class Energy(LedgerPart):
    """What boards took. What of it is charged: ``Tariffs.energy``.

    Reads raise UnreachableError (SW-DATABASE-DOWN) if PostgreSQL takes too long.
    """

    def note(self, told: EnergyPostRequest) -> int:
        """Keep what a node's meter has seen; the same again changes nothing. What it tells of
        boards of which the doctor has a finding, this included, is kept as unchecked.

        Returns how many sums were not kept: of hours more than a week ago, or to come.
        """
        with writing(self._engine) as connection:
            connection.execute(DEADLINE)
            not_kept = self._noted(connection, told)
            checked = checked_boards(connection, (self._cluster, told.node))
            if (hours := with_unchecked(told.hours, checked)) != told.hours:
                self._noted(connection, told.model_copy(update={"hours": hours}))
            return not_kept

    def _noted(self, connection: Connection, told: EnergyPostRequest) -> int:
        hours = [hour.model_dump(mode="json") for hour in told.hours]
        noted = func.slicewise.note_energy(
            *(self._cluster, told.node, told.seen_by, literal(hours, JSONB)), type_=Integer
        )
        return int(connection.execute(select(noted)).scalar_one())

    def fold(self, zone: str) -> int:
        """Sum hours by the day that nothing can change any more; return how many of boards.

        ``zone`` is the time zone of days.
        """
        folded = func.slicewise.fold_energy(self._cluster, zone, type_=Integer)
        with writing(self._engine) as connection:
            return int(connection.execute(select(folded)).scalar_one())

    def rows(self, wanted: WantedEnergy) -> tuple[EnergyRow, ...]:
        """What meters saw, by the fields that are wanted and how it is known; the others are ""."""
        query = _about(_ROWS, _MEASURED_FIELDS, wanted.fields)
        return tuple(EnergyRow(**row) for row in self._read(query, wanted))

    def unmeasured(self, wanted: WantedEnergy, now_s: int) -> tuple[UnmeasuredRow, ...]:
        """Seconds of runs of which no meter saw anything, by these fields and what they held."""
        query = _about(_UNMEASURED, _RUN_FIELDS, wanted.fields)
        rows = self._read(query, wanted, now_s=now_s)
        return tuple(UnmeasuredRow(**row) for row in rows)

    def tokens(self, wanted: WantedEnergy) -> dict[tuple[str, str], int]:
        """Tokens of services, by service and day."""
        rows = self._read(_TOKENS, wanted)
        return {(row["service"], row["day"]): row["tokens"] for row in rows}

    def _read(self, query: str, wanted: WantedEnergy, **others: int) -> list[Any]:
        words = {
            "cluster": self._cluster,
            "zone": wanted.zone,
            "since_s": wanted.since_s,
            "until_s": wanted.until_s,
            "tenants": None if wanted.tenants is None else sorted(wanted.tenants),
            "most": wanted.most,
            **others,
        }
        with self._reading() as connection:
            return [dict(row) for row in connection.execute(text(query), words).mappings()]
