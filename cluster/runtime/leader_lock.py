"""A lock in PostgreSQL that at most one of several processes has: the one that has it leads."""

from sqlalchemy import Connection, Engine, create_engine, text

from cluster.language.errors import SlicewiseError
from cluster.runtime.database import CONNECT, translated

_SETTINGS = {
    "statement_timeout": "1500ms",
    # If a host dies without closing its connection, its lock is free some 11 s later.
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
}

_KEY = "hashtextextended(:name, 0)"
_TRY = text(f"SELECT pg_try_advisory_lock({_KEY})")
_LIVES = text("SELECT 1")
_HOLDER = text(f"""
    SELECT activity.application_name
    FROM pg_locks AS lock JOIN pg_stat_activity AS activity USING (pid)
    WHERE lock.locktype = 'advisory' AND lock.granted AND lock.objsubid = 1
      AND lock.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND (lock.classid::bigint << 32 | lock.objid::bigint) = {_KEY}
""")  # noqa: S608


class LeaderLock:
    """A session-level advisory lock; PostgreSQL frees it when the lock's own connection ends.

    Not safe to use from two threads at the same time.
    """

    def __init__(self, engine: Engine, purpose: str, cluster: str, host: str) -> None:
        """``purpose`` and ``cluster`` name the lock; other processes see ``host`` as its holder."""
        options = " ".join(f"-c {name}={value}" for name, value in _SETTINGS.items())
        self._engine = create_engine(
            engine.url,
            connect_args={
                **CONNECT,
                "application_name": f"{purpose} {host}",
                "connect_timeout": 2,
                "tcp_user_timeout": 2000,
                # A standby gives such locks, too: after a failover one daemon may reach the new
                # primary, and another one the old, which has come back as a standby.
                "target_session_attrs": "read-write",
                "options": options,
            },
            isolation_level="AUTOCOMMIT",
            pool_size=1,
        )
        self._purpose = f"{purpose} "
        self._name = f"{purpose} {cluster}"
        self._session: Connection | None = None
        self._has = False

    def hold(self) -> bool:
        """Take the lock, or make sure that it is held; False if another session has it.

        Raises what ``database.reading`` raises, SW-DATABASE-DOWN also for a server that can only be
        read; the lock is not held then.
        """
        try:
            with translated(self._engine):
                session = self._session = self._session or self._engine.connect()
                if self._has:
                    session.execute(_LIVES)
                else:
                    self._has = bool(session.execute(_TRY, {"name": self._name}).scalar())
                return self._has
        except SlicewiseError:
            self.give_up()
            raise

    def holder(self) -> str:
        """The host of the process that has the lock.

        "" if no process has it, or if PostgreSQL does not answer.
        """
        try:
            with translated(self._engine):
                session = self._session = self._session or self._engine.connect()
                name = session.execute(_HOLDER, {"name": self._name}).scalar()
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
