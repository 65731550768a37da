"""Reads what the doctor checks of the ledger's database: rights, seals, copies, clock."""

import time
from dataclasses import replace

from sqlalchemy import Connection, Engine, text

from slicewise.cluster.runtime.database import (
    LOCKS_OF_OTHERS,
    database_place,
    postgres_engine,
    reading,
)
from slicewise.cluster.runtime.leader_lock import LIVES
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.slurm_plugin.ledger import schema_revisions
from slicewise.slurm_plugin.ledger.energy import checked_boards
from slicewise.slurm_plugin.ledger.schema_revisions import BASE
from slicewise.slurm_plugin.rules.common.ledger_facts import LedgerFacts, LockHolder

READS_LONG_S, RUNS_LONG_S = 3600, 3600
_LOOKS_AGAIN_S = 2.0
"""How long a transaction must at least be open to be spoken of, where its begin is hidden."""
_SETTINGS = (
    *("fsync", "full_page_writes", "archive_mode", "default_transaction_read_only"),
    *("synchronous_standby_names", "synchronous_commit"),
)
_SERVER = text(
    "SELECT current_setting('server_version_num')::int AS version,"
    " extract(epoch FROM clock_timestamp())::float8 AS now_s,"
    " (SELECT count(*) FROM pg_stat_replication) AS standbys,"
    " pg_is_in_recovery() AS is_standby,"
    " EXISTS (SELECT FROM pg_namespace WHERE nspname = 'slicewise'"
    "   AND pg_has_role(nspowner, 'USAGE')) AS owns"
)
_RIGHTS = text("""
SELECT has_table_privilege('slicewise.seals', 'SELECT') AS "to read it",
       has_any_column_privilege('slicewise.loan_changes', 'INSERT') AS "to lend",
       has_table_privilege('slicewise.known_limits', 'INSERT') AS "to note limits",
       (SELECT bool_and(has_table_privilege(oid, 'INSERT')
                        AND has_table_privilege(oid, 'DELETE')) FROM pg_class
         WHERE relnamespace = 'slicewise'::regnamespace AND relkind = 'r'
           AND relname IN ('history_subjects', 'history_cluster', 'history_tenants',
                           'history_services')
       ) AS "to keep history",
       (SELECT bool_and(has_function_privilege(oid, 'EXECUTE')) FROM pg_proc
         WHERE pronamespace = 'slicewise'::regnamespace
           AND proname IN ('book', 'seal', 'seal_state')
       ) AS "to charge"
""")
"""Whether the role may do each thing that the daemon does."""
_CHANGERS = text("""
SELECT DISTINCT coalesce(quote_ident(role.rolname), 'PUBLIC') AS role, object.relname AS name
  FROM pg_class AS object
  LEFT JOIN pg_attribute AS part ON part.attrelid = object.oid AND part.attacl IS NOT NULL
 CROSS JOIN LATERAL (SELECT * FROM aclexplode(object.relacl)
                     UNION ALL SELECT * FROM aclexplode(part.attacl)) AS given
  LEFT JOIN pg_roles AS role ON role.oid = given.grantee
 WHERE object.relnamespace = 'slicewise'::regnamespace AND object.relkind = 'r'
   AND object.relname <> ALL (:changed)
   AND given.privilege_type IN ('UPDATE', 'DELETE', 'TRUNCATE')
   AND given.grantee <> object.relowner
 ORDER BY 1, 2
""")
"""Who has a right on tables, or on columns of them, that ``grant`` gives to nobody."""
_UNSEALED = text("""
SELECT extract(epoch FROM now() - min(recorded_at))::float8 FROM slicewise.transfers
 WHERE id > (SELECT coalesce(max(last_transfer_id), 0) FROM slicewise.seals)
""")
_DEAD = text("""
SELECT relname, n_dead_tup, n_live_tup FROM pg_stat_user_tables
 WHERE schemaname = 'slicewise' ORDER BY n_dead_tup DESC LIMIT 1
""")
_CONNECTED = text("""
SELECT usename AS role, count(*) AS open, sum(count(*)) OVER ()::int AS of_all,
       current_setting('max_connections')::int
       - current_setting('superuser_reserved_connections')::int AS most
  FROM pg_stat_activity WHERE datid IS NOT NULL GROUP BY 1 ORDER BY 2 DESC LIMIT 1
""")
_OPEN = text(f"""
SELECT held.virtualtransaction AS number, session.usename AS role,
       session.application_name AS application,
       min(held.mode || ' on ' || object.relname) AS what,
       extract(epoch FROM statement_timestamp() - session.xact_start)::float8 AS age_s
       {LOCKS_OF_OTHERS}
   AND (held.mode <> 'AccessShareLock'
        OR statement_timestamp() - session.xact_start > interval '{READS_LONG_S} s')
 GROUP BY 1, 2, 3, 5
""")  # noqa: S608
"""Transactions that may keep others waiting; of those that only read, long ones."""
_TAKEN = text(f"""
SELECT held.role, held.application, held.name AS what,
       extract(epoch FROM clock_timestamp() - held.taken_at)::float8 AS age_s
  FROM slicewise.locks AS held JOIN pg_stat_activity AS session ON {LIVES}
 WHERE held.name <> 'slicewise leader'
   AND clock_timestamp() - held.taken_at > interval '{RUNS_LONG_S} s'
""")  # noqa: S608
"""Locks that a run has had for long. A leader's is meant to last."""


def ledger_facts(url: str) -> LedgerFacts:
    """Return what the database at ``url`` says; the rights are those of the role in it.

    Raises what ``postgres_engine`` and ``reading`` raise.
    """
    engine = postgres_engine(url)
    revision = schema_revisions.current(engine)
    head = schema_revisions.head()
    with reading(engine) as connection:
        asked_s = wall_s()
        server = connection.execute(_SERVER).one()
        answered_s = wall_s()
        facts = LedgerFacts(
            role=database_place(url).role,
            revision=revision,
            head=head,
            server_version=server.version,
            is_owner=server.owns,
            clock_ahead_s=server.now_s - (asked_s + answered_s) / 2,
            settings={name: _setting(connection, name) for name in _SETTINGS},
            standbys=server.standbys,
            is_standby=server.is_standby,
        )
        if revision == BASE:
            return facts
        facts = _with_tables(facts, connection)
    return facts if "to read it" in facts.lacks else _with_others(facts, engine)


def _with_others(facts: LedgerFacts, engine: Engine) -> LedgerFacts:
    """Add what other sessions do, each look in a transaction of its own."""
    with reading(engine) as connection:
        connected = connection.execute(_CONNECTED).one()
        taken = connection.execute(_TAKEN).all()
        boards = checked_boards(connection)
        open_first = {session.number for session in connection.execute(_OPEN)}
    still = []
    if open_first:
        time.sleep(_LOOKS_AGAIN_S)
        with reading(engine) as connection:
            still = [
                session for session in connection.execute(_OPEN) if session.number in open_first
            ]
    return replace(
        facts,
        holders=tuple(
            LockHolder(holder.role, holder.application, holder.what, holder.age_s)
            for holder in (*taken, *still)
        ),
        connections=connected.of_all,
        most_connections=connected.most,
        most_connected=(connected.role, connected.open),
        boards=boards,
    )


def _setting(connection: Connection, name: str) -> str:
    return str(connection.execute(text("SELECT current_setting(:name)"), {"name": name}).scalar())


def _with_tables(facts: LedgerFacts, connection: Connection) -> LedgerFacts:
    rights = connection.execute(_RIGHTS).mappings().one()
    facts = replace(facts, lacks=tuple(name for name, may in rights.items() if not may))
    if "to read it" in facts.lacks:
        return facts
    changers = connection.execute(_CHANGERS, {"changed": list(schema_revisions.CHANGED)})
    facts = replace(
        facts,
        unsealed_s=connection.execute(_UNSEALED).scalar_one(),
        changers=tuple((changer.role, changer.name) for changer in changers),
    )
    dead = connection.execute(_DEAD).one_or_none()
    if dead is None:
        return facts
    return replace(
        facts, bloated=dead.relname, dead_rows=dead.n_dead_tup, live_rows=dead.n_live_tup
    )
