"""A lock in PostgreSQL that at most one of several processes has: the one that has it leads."""

from sqlalchemy import (
    Column,
    Connection,
    DateTime,
    Engine,
    Integer,
    MetaData,
    Table,
    Text,
    create_engine,
    text,
)

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.runtime.database import CONNECT, translated

_SETTINGS = {
    "statement_timeout": "1500ms",
    # The lock ends with the server, so no disk need have it, nor a standby.
    "synchronous_commit": "off",
    # If a host dies without closing its connection, its lock is free some 11 s later.
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
}


def lock_table(metadata: MetaData) -> Table:
    """Return the table of locks of a schema; only roles that need its locks may change it."""
    return Table(
        "locks",
        metadata,
        Column("cluster", Text, primary_key=True),
        Column("name", Text, primary_key=True),
        Column("pid", Integer),
        Column("role", Text),
        Column("application", Text),
        Column("session_start", DateTime(timezone=True)),
        Column("taken_at", DateTime(timezone=True)),
    )


LIVES = """
    session.pid = held.pid AND session.usename = held.role
    AND session.application_name = held.application
    AND coalesce(session.backend_start, held.session_start) = held.session_start
"""
"""SQL: whether a session of pg_stat_activity is the one that has a lock.

A number comes again, for another session. PostgreSQL shows everybody its role and the name that it
gave itself, and who has its role, when it began.
"""
_MINE = "cluster = :cluster AND name = :name"


class LeaderLock:
    """A lock that a session has until it ends, by a row that names the session.

    It is no advisory lock: those are open to every role of a database. Not safe to use from two
    threads at the same time.
    """

    def __init__(self, engine: Engine, table: Table, purpose: str, cluster: str, host: str) -> None:
        """``purpose`` and ``cluster`` name the lock; other processes see ``host`` as its holder."""
        options = " ".join(f"-c {name}={value}" for name, value in _SETTINGS.items())
        self._engine = create_engine(
            engine.url,
            connect_args={
                **CONNECT,
                "application_name": f"{purpose} {host}",
                "connect_timeout": 2,
                "tcp_user_timeout": 2000,
                # A standby shows sessions of its own: after a failover one daemon may reach the new
                # primary, and another one the old, which has come back as a standby.
                "target_session_attrs": "read-write",
                "options": options,
            },
            isolation_level="AUTOCOMMIT",
            pool_size=1,
        )
        self._purpose = f"{purpose} "
        self._names = {"cluster": cluster, "name": purpose}
        self._session: Connection | None = None
        self._has = False
        self._is_mine = text(f"SELECT pid = pg_backend_pid() FROM {table} WHERE {_MINE}")  # noqa: S608
        self._add = text(
            f"INSERT INTO {table} (cluster, name) VALUES (:cluster, :name) ON CONFLICT DO NOTHING"  # noqa: S608
        )
        self._lock = text(f"SELECT FROM {table} WHERE {_MINE} FOR UPDATE")
        self._holder = text(
            f"SELECT held.application FROM {table} AS held JOIN pg_stat_activity AS session"  # noqa: S608
            f" ON {LIVES} WHERE {_MINE}"
        )
        self._take = text(f"""
            UPDATE {table}
               SET pid = own.pid, role = own.usename, application = own.application_name,
                   session_start = own.backend_start, taken_at = clock_timestamp()
              FROM pg_stat_activity AS own WHERE own.pid = pg_backend_pid() AND {_MINE}
        """)  # noqa: S608

    def hold(self) -> bool:
        """Take the lock, or make sure that it is held; False if another session has it.

        Raises what ``database.reading`` raises, SW-DATABASE-DOWN also for a server that can only be
        read; the lock is not held then.
        """
        try:
            with translated(self._engine):
                session = self._session = self._session or self._engine.connect()
                if self._has:
                    self._has = bool(session.execute(self._is_mine, self._names).scalar())
                elif session.execute(self._holder, self._names).first() is None:
                    self._has = self._took(session)
                return self._has
        except SlicewiseError:
            self.give_up()
            raise

    def _took(self, session: Connection) -> bool:
        """Take the lock unless another session has it by now.

        Which sessions live is looked at once the row is locked: a transaction sees them as they
        were when it looked first.
        """
        session.execute(self._add, self._names)
        session.exec_driver_sql("BEGIN ISOLATION LEVEL READ COMMITTED")
        session.execute(self._lock, self._names)
        is_free = session.execute(self._holder, self._names).first() is None
        if is_free:
            session.execute(self._take, self._names)
        session.exec_driver_sql("COMMIT")
        return is_free

    def holder(self) -> str:
        """The host of the process that has the lock.

        "" if no process has it, or if PostgreSQL does not answer.
        """
        try:
            with translated(self._engine):
                session = self._session = self._session or self._engine.connect()
                name = session.execute(self._holder, self._names).scalar()
        except SlicewiseError:
            self.give_up()
            return ""
        return str(name or "").removeprefix(self._purpose)

    def give_up(self) -> None:
        """End the session, and the lock with it."""
        self._has = False
        if self._session is not None:
            self._session.invalidate()
            self._session.close()
            self._session = None
