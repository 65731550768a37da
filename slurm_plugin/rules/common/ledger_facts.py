"""What the doctor knows of the ledger's database."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class LockHolder:
    """A session of PostgreSQL that others may wait for.

    Attributes:
        application: the name that it gave itself.
        what: the lock that it has, in words.
        age_s: seconds since then; None if the role that asks may not see that.
    """

    role: str
    application: str
    what: str
    age_s: float | None


@dataclass(frozen=True)
class CheckedBoard:
    """What a board's counter, and its power times time, say of the same hours.

    Attributes:
        most_covered_ms: of the hour of which meters together saw most.
    """

    node: str
    gpu_uuid: str
    model: str
    checked_mj: int
    power_mj: int
    most_covered_ms: int = 0


@dataclass(frozen=True)
class LedgerFacts:
    """The ledger's database and its server.

    Attributes:
        revision, head: of the tables, and what this version needs.
        server_version: PostgreSQL's number, such as 150008.
        role: as which this was asked.
        lacks: what the role may not do and the daemon's duty needs, in words.
        changers: who may change or delete rows that are only ever added: role, as SQL writes it,
            and table.
        is_owner: whether the role owns the tables or is a superuser.
        clock_ahead_s: seconds by which its clock is ahead of this host's.
        settings: PostgreSQL's own settings, by name.
        standbys: servers that read its write-ahead log.
        is_standby: whether it is one itself.
        unsealed_s: age of the oldest transfer that no seal covers; None if all are sealed.
        holders: who has had a lock for long.
        connections: that are open, of all databases; ``most_connections`` that may be.
        most_connected: the role that has most of them, and how many.
        boards: with a meter that counts, in the last two days.
        dead_rows, live_rows: of ``bloated``, the table with the most dead rows.
    """

    role: str
    revision: str
    head: str
    server_version: int
    lacks: tuple[str, ...] = ()
    changers: tuple[tuple[str, str], ...] = ()
    is_owner: bool = False
    clock_ahead_s: float = 0.0
    settings: Mapping[str, str] = field(default_factory=dict, hash=False)
    standbys: int = 0
    is_standby: bool = False
    unsealed_s: float | None = None
    dead_rows: int = 0
    live_rows: int = 0
    bloated: str = ""
    holders: tuple[LockHolder, ...] = ()
    connections: int = 0
    most_connections: int = 100
    most_connected: tuple[str, int] = ("", 0)
    boards: tuple[CheckedBoard, ...] = ()
