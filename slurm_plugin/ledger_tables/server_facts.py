"""Reads what the doctor checks of the ledger's database: rights, seals, copies, clock."""

import time
from dataclasses import replace

from sqlalchemy import Connection, text

from cluster.runtime.database import database_place, postgres_engine, reading
from slurm_plugin.common.ledger_facts import LedgerFacts
from slurm_plugin.ledger_tables import schema_revisions
from slurm_plugin.ledger_tables.schema_revisions import BASE

_SETTINGS = ("fsync", "archive_mode")
_SERVER = text(
    "SELECT current_setting('server_version_num')::int AS version,"
    " extract(epoch FROM clock_timestamp())::float8 AS now_s,"
    " (SELECT count(*) FROM pg_stat_replication) AS standbys,"
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
         WHERE pronamespace = 'slicewise'::regnamespace AND proname IN ('book', 'seal')
       ) AS "to charge"
""")
"""Whether the role may do each thing that the daemon does."""
_UNSEALED = text("""
SELECT extract(epoch FROM now() - min(recorded_at))::float8 FROM slicewise.transfers
 WHERE id > (SELECT coalesce(max(last_transfer_id), 0) FROM slicewise.seals)
""")
_DEAD = text("""
SELECT relname, n_dead_tup, n_live_tup FROM pg_stat_user_tables
 WHERE schemaname = 'slicewise' ORDER BY n_dead_tup DESC LIMIT 1
""")


def ledger_facts(url: str) -> LedgerFacts:
    """Return what the database at ``url`` says; the rights are those of the role in it.

    Raises what ``postgres_engine`` and ``reading`` raise.
    """
    engine = postgres_engine(url)
    revision = schema_revisions.current(engine)
    head = schema_revisions.head()
    with reading(engine) as connection:
        asked_s = time.time()
        server = connection.execute(_SERVER).one()
        answered_s = time.time()
        facts = LedgerFacts(
            role=database_place(url).role,
            revision=revision,
            head=head,
            server_version=server.version,
            is_owner=server.owns,
            clock_ahead_s=server.now_s - (asked_s + answered_s) / 2,
            settings={name: _setting(connection, name) for name in _SETTINGS},
            standbys=server.standbys,
        )
        return facts if revision == BASE else _with_tables(facts, connection)


def _setting(connection: Connection, name: str) -> str:
    return str(connection.execute(text("SELECT current_setting(:name)"), {"name": name}).scalar())


def _with_tables(facts: LedgerFacts, connection: Connection) -> LedgerFacts:
    rights = connection.execute(_RIGHTS).mappings().one()
    facts = replace(facts, lacks=tuple(name for name, may in rights.items() if not may))
    if "to read it" in facts.lacks:
        return facts
    facts = replace(facts, unsealed_s=connection.execute(_UNSEALED).scalar_one())
    dead = connection.execute(_DEAD).one_or_none()
    if dead is None:
        return facts
    return replace(
        facts, bloated=dead.relname, dead_rows=dead.n_dead_tup, live_rows=dead.n_live_tup
    )
