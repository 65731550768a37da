"""Decides which of two launchers acts."""

import logging
import socket

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, UnreachableError
from slicewise.cluster.runtime.leadership import Lead, Lock
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.settings.read import launcher_database_url
from slicewise.launcher.process.store import StateStore

_LOG = logging.getLogger("slicewise.launcher")


class Leadership(Lead):
    """Whether this launcher leads.

    Of a pair, the launcher with the lock leads. A single launcher leads until PostgreSQL says that
    another one has the lock: services are looked after while PostgreSQL is away, from the start on.
    """

    def __init__(self, lock: Lock, *, pair: bool) -> None:
        super().__init__(lock, _LOG, pair=pair)

    def leads(self) -> bool:
        """Whether this launcher may act now."""
        return super().leads() if self._pair else not self.denied

    def require(self) -> None:
        """Raises UnreachableError (SW-LOCK) unless it leads."""
        if not self.leads():
            raise UnreachableError(
                Code.LOCK,
                f"This launcher no longer leads: {self.holder or 'none'} does.",
                "It stands by; no action is needed.",
            )


def own_store(settings: Settings) -> StateStore | None:
    """Return the launcher's database; None if it has none.

    Raises InvalidInputError (SW-SETTINGS) for a launcher of a pair that has none, and for a URL
    that can't be read.
    """
    url = launcher_database_url(settings.launcher)
    if url:
        return StateStore(url, settings.cluster.name)
    if settings.launcher.pair:
        raise InvalidInputError(
            Code.SETTINGS,
            "launcher.pair is true, and the launcher has no database.",
            "A lock in it decides which of the two leads: set [launcher] url_file on both hosts.",
        )
    return None


def leadership(store: StateStore, *, pair: bool) -> Leadership:
    """Return the leadership of this host's launcher."""
    return Leadership(store.lock(socket.gethostname()), pair=pair)
