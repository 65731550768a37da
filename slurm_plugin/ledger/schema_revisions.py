"""Manages the ledger's schema: its revision, upgrades and downgrades, and roles' rights."""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Literal

from sqlalchemy import Column, Connection, Engine, MetaData, Table, Text, select, text

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.runtime.database import postgres_engine, reading, translated, writing
from slicewise.slurm_plugin.ledger.history_tables import HISTORY, history_subjects
from slicewise.slurm_plugin.ledger.observation_tables import OBSERVED
from slicewise.slurm_plugin.ledger.rebalance_tables import quota_window_ends, quota_windows
from slicewise.slurm_plugin.ledger.request_limit_tables import request_limits
from slicewise.slurm_plugin.ledger.tables import (
    SCHEMA,
    api_key_blocks,
    api_key_openings,
    api_key_revocations,
    api_keys,
    loan_changes,
    quota_changes,
    served_revisions,
    service_generations,
    service_orders,
    tariffs,
)
from slicewise.slurm_plugin.ledger.usage_tables import usage_gateways

BASE = "base"
"""The revision before the first: no tables."""

Duty = Literal["daemon", "operator", "reader", "launcher"]
"""What a role of PostgreSQL is for."""

LAUNCHER_SCHEMA = "launcher"
"""The launcher's own schema, which no other role uses."""

_APPENDED = (loan_changes, quota_changes, quota_windows, quota_window_ends, tariffs)
_APPENDED_BY_DAEMON = (
    *(service_orders, service_generations),
    usage_gateways,
    *(api_keys, api_key_revocations, api_key_blocks, api_key_openings, request_limits),
)
_OWN_WORDS = frozenset({"id", "recorded_at"})
"""Columns that the database itself writes, so that neither order nor time of a row can be
forged."""

_KEPT = (
    *("compilations", "known_limits", "lost_runs", "watermarks", "api_key_uses"),
    "guests",
    "allowances",
    *(table.name for table in OBSERVED),
)
"""Tables with rows that the daemon overwrites. None of it is money."""

_ADDED = tuple(table.name for table in (history_subjects, *HISTORY))
"""Tables to which the daemon adds rows, and from which it deletes old ones. None of it is money."""

_JOURNALS = ("repartitions", "repartition_steps", "mig_nodes", "rebalance_runs", "rebalance_steps")
"""Tables that repartitioning and rebalancing write and overwrite. None of it is money."""

_FORGOTTEN = ("repartitions", "repartition_steps", "rebalance_runs", "rebalance_steps")
"""Journals from which old rows are deleted."""

_TAKEN = ("locks",)
"""Tables of which rows are locked, and name who has a lock."""

_REPLACED = ("recalls",)
"""Tables that are replaced as a whole together with the loans. None of it is money."""

CHANGED = (*_KEPT, *_ADDED, *_JOURNALS, *_TAKEN, *_REPLACED)
"""Tables of which a duty changes or deletes rows. The others are what was booked and decided."""

_CALLED = ("enter_budget", "lock_policy", "seal_state")
"""Functions that operators and the daemon call, so that they need no right to write entries."""

_CALLED_BY_DAEMON = (
    *("book", "share", "seal", "forget_loans", "forget_generations"),
    *("post_usage", "note_engine_counters", "forget_usage", "bar_person", "forget_person"),
    *("note_pool_uses", "divide_pool_hours", "forget_pool_hours"),
    *("note_energy", "fold_energy"),
)

_READS = ("seal_hash", "sealed_policy", "state_hash")
"""Functions that read only what any role may read."""

_COUNTED = "seals_id_seq"
"""The sequence by which ``verify`` sees that the newest seals were deleted."""


_version = Table("alembic_version", MetaData(SCHEMA), Column("version_num", Text))
"""Alembic's own table."""


def head() -> str:
    """The newest revision that this version of the program knows."""
    return revisions()[-1]


_MIGRATION = re.compile(r"\d+_\w+\.py")

_FOLDER = Path(str(files("slicewise.migrations")))
"""The package's own place: the same in a clone and in an installed wheel."""


def revisions() -> tuple[str, ...]:
    """Every revision, the oldest first, beginning with ``base``.

    The name of each migration's file begins with its revision. Alembic would have to import every
    migration to find the same.
    """
    return _revisions_in(_FOLDER)


@cache
def _revisions_in(folder: Path) -> tuple[str, ...]:
    names = (file.name for file in (folder / "versions").iterdir())
    return (BASE, *sorted(name.partition("_")[0] for name in names if _MIGRATION.fullmatch(name)))


def current(engine: Engine) -> str:
    """The revision that the database is at; ``base`` for an empty one."""
    with reading(engine) as connection:
        if not engine.dialect.has_table(connection, _version.name, SCHEMA):
            return BASE
        return connection.execute(select(_version.c.version_num)).scalar_one_or_none() or BASE


def current_of(url: str) -> str:
    """The revision that the database at ``url`` is at."""
    return current(postgres_engine(url))


def require_current(engine: Engine) -> None:
    """Raise InvalidInputError unless this program may use the database.

    SW-DATABASE-OLD: its revision is before head; SW-DATABASE-NEW: it is after head, and does not
    serve programs of this revision.
    """
    found = current(engine)
    if found == head():
        return
    if found in revisions():
        raise InvalidInputError(
            Code.DATABASE_OLD,
            f"The ledger's database is at revision {found}, this version needs {head()}.",
            "Run: slicewise ledger db upgrade",
        )
    if not _served(engine):
        raise _too_new(found)


def _served(engine: Engine) -> bool:
    """Whether the database says that programs made for ``head`` may use it.

    Each migration records that: one that only adds keeps the recorded revisions and adds its own,
    one that removes something deletes the revisions that need it.
    """
    mine = select(served_revisions).where(served_revisions.c.revision == head())
    with reading(engine) as connection:
        return connection.execute(mine).first() is not None


def _too_new(found: str) -> InvalidInputError:
    return InvalidInputError(
        Code.DATABASE_NEW,
        f"The ledger's database is at revision {found}, which this version does not know.",
        "A newer version of slicewise upgraded it: use that one.",
    )


def _unsaid(_: str) -> None:
    pass


def upgrade(url: str, say: Callable[[str], None] = _unsaid) -> tuple[str, str]:
    """Bring the database to ``head``; returns the revisions before and after.

    ``say`` is told what it waits for, which may take long.

    Raises UnreachableError (SW-DATABASE-BUSY) if a table is in use for too long; nothing was
    changed then.
    """
    return _migrate(url, head(), say)


def downgrade(url: str, revision: str, say: Callable[[str], None] = _unsaid) -> tuple[str, str]:
    """Go back to an older revision; returns the revisions before and after.

    Tables that the older revision lacks are lost with what is in them. Raises InvalidInputError
    (SW-VALUE) for a revision that does not exist or is newer than the database.
    """
    engine = postgres_engine(url)
    known = revisions()
    older = known[: known.index(found) + 1] if (found := current(engine)) in known else ()
    if revision not in older:
        raise InvalidInputError(
            Code.VALUE,
            f"{revision!r} is not a revision before the database's, {found}.",
            f"Choose one of: {', '.join(older) or 'none'}.",
        )
    return _migrate(url, revision, say)


def _migrate(url: str, target: str, say: Callable[[str], None]) -> tuple[str, str]:
    engine = postgres_engine(url)
    before = current(engine)
    if before not in revisions():
        raise _too_new(before)
    # Alembic takes longer to import than everything else that a command does.
    from slicewise.slurm_plugin.ledger.migrating import migrate  # noqa: PLC0415 -- only who changes it

    with translated(engine):
        backwards = revisions().index(target) < revisions().index(before)
        migrate(engine, _FOLDER, target, backwards=backwards, say=say)
    return before, current(engine)


def grant(url: str, role: str, duty: Duty) -> None:
    """Let a role of PostgreSQL do that duty and no more; its earlier rights are taken away.

    No role may change or delete an entry: triggers derive balances, open reservations and loans
    from entries. Raises InvalidInputError (SW-DATABASE-ROLE) for a role that does not exist or is
    allowed everything anyway, and what ``require_current`` raises.
    """
    engine = postgres_engine(url)
    require_current(engine)
    with writing(engine) as connection:
        _check_role(connection, role)
        for statement in _grants(engine.dialect.identifier_preparer.quote_identifier(role), duty):
            connection.exec_driver_sql(statement)


def _check_role(connection: Connection, role: str) -> None:
    owns = text(
        "SELECT pg_has_role(r.oid, n.nspowner, 'USAGE')"
        "  FROM pg_roles r, pg_namespace n WHERE r.rolname = :role AND n.nspname = :schema"
    )
    found = connection.execute(owns, {"role": role, "schema": SCHEMA}).scalar_one_or_none()
    if found is None:
        raise InvalidInputError(
            Code.DATABASE_ROLE,
            f"PostgreSQL has no role {role!r}.",
            f"Create it first, as PostgreSQL's administrator: CREATE ROLE {role} LOGIN",
        )
    if found:
        raise InvalidInputError(
            Code.DATABASE_ROLE,
            f"The role {role!r} is a superuser or may act as the owner of the ledger's tables.",
            "Give a role that is neither: no table could be protected from this one.",
        )


def _grants(role: str, duty: Duty) -> Iterator[str]:
    """The statements that grant the duty; ``role`` is quoted already."""
    tables, functions = f"ALL TABLES IN SCHEMA {SCHEMA}", f"ALL FUNCTIONS IN SCHEMA {SCHEMA}"
    yield f"REVOKE ALL ON ALL SEQUENCES IN SCHEMA {SCHEMA} FROM {role}"
    own = f"ALL TABLES IN SCHEMA {LAUNCHER_SCHEMA}"
    yield f"REVOKE ALL ON {tables} FROM {role}"
    yield f"REVOKE ALL ON {functions} FROM {role}"
    yield f"REVOKE ALL ON {own} FROM {role}"
    yield f"REVOKE ALL ON SCHEMA {SCHEMA}, {LAUNCHER_SCHEMA} FROM {role}"
    if duty == "launcher":
        yield f"GRANT USAGE ON SCHEMA {LAUNCHER_SCHEMA} TO {role}"
        yield f"GRANT SELECT, INSERT, UPDATE, DELETE ON {own} TO {role}"
        return
    yield f"GRANT USAGE ON SCHEMA {SCHEMA} TO {role}"
    yield f"GRANT SELECT ON {tables} TO {role}"
    for name in _READS:
        yield f"GRANT EXECUTE ON FUNCTION {SCHEMA}.{name} TO {role}"
    yield f"GRANT SELECT ON SEQUENCE {SCHEMA}.{_COUNTED} TO {role}"
    if duty == "reader":
        return
    yield from _may_append(role, _APPENDED)
    for name in _CALLED:
        yield f"GRANT EXECUTE ON FUNCTION {SCHEMA}.{name} TO {role}"
    yield from _may(role, "INSERT, UPDATE", _JOURNALS)
    yield from _may(role, "DELETE", _FORGOTTEN)
    yield from _may(role, "INSERT, DELETE", _REPLACED)
    yield from _may(role, "INSERT, UPDATE", _TAKEN)
    if duty == "operator":
        return
    yield from _may_append(role, _APPENDED_BY_DAEMON)
    yield from _may(role, "INSERT, UPDATE, DELETE", _KEPT)
    yield from _may(role, "INSERT, DELETE", _ADDED)
    for name in _CALLED_BY_DAEMON:
        yield f"GRANT EXECUTE ON FUNCTION {SCHEMA}.{name} TO {role}"


def _may(role: str, rights: str, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        yield f"GRANT {rights} ON {SCHEMA}.{name} TO {role}"


def _may_append(role: str, appended: Iterable[Table]) -> Iterator[str]:
    for table in appended:
        columns = ", ".join(
            column.name for column in table.columns if column.name not in _OWN_WORDS
        )
        yield f"GRANT INSERT ({columns}) ON {SCHEMA}.{table.name} TO {role}"
