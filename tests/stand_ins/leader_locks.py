"""PostgreSQL's lock that says who leads, and each process's side of it."""

from dataclasses import dataclass, field

from slicewise.cluster.language.errors import UnreachableError

DOWN = UnreachableError("SW-DATABASE-DOWN", "down")


@dataclass
class Postgres:
    """Gives one lock to one session at a time; ``now_s`` is everybody's clock."""

    now_s: float = 0.0
    session: object = None
    holder: str = ""

    def free(self) -> None:
        """A restart, pg_terminate_backend, or an unanswered keepalive."""
        self.session, self.holder = None, ""


@dataclass
class Lock:
    """A daemon's side of it, as ``LeaderLock``."""

    server: Postgres
    host: str
    reached: bool = True
    session: object = field(default_factory=object)
    has: bool = False

    def hold(self) -> bool:
        if not self.reached or (self.has and self.server.session is not self.session):
            self.session, self.has = object(), False
            raise DOWN
        if self.server.session is None:
            self.server.session, self.server.holder = self.session, self.host
        self.has = self.server.session is self.session
        return self.has

    def holder(self) -> str:
        return self.server.holder
