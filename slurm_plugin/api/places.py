"""The open connections of both sockets: who may have how many, and who makes room for others."""

import time
from collections import Counter, OrderedDict
from dataclasses import dataclass, replace
from itertools import count

from slicewise.slurm_plugin.api.http_server import Connection
from slicewise.slurm_plugin.common.sockets import peer_uid
from slicewise.slurm_plugin.rules.common.connection_places import (
    ConnectionLimits,
    Guest,
    IdleConnection,
    idle_to_cut,
    origin_of,
    room_for,
)

_LAUNCHERS_HOSTS = 4
"""Launcher's hosts that are remembered: those of a pair, and those from which they moved."""


@dataclass(frozen=True)
class UserLimits:
    """Limits of the user socket.

    Attributes:
        connections, connections_per_uid: connections open at a time. A further one gets SW-BUSY,
            unless an idle connection of a user with more of them makes room.
        reserved: number of the connections that only the uids in ``reserved_for`` may use.
    """

    connections: int
    connections_per_uid: int
    reserved: int = 0
    reserved_for: frozenset[int] = frozenset()


class UserPlaces:
    """The connections to the user socket, by the uid that the kernel names.

    Attributes:
        uids: the user of each connection that has a place.
    """

    def __init__(self, limits: UserLimits) -> None:
        self._limits = limits
        self._open: Counter[int] = Counter()
        self._idle: dict[Connection, IdleConnection] = {}
        self._numbers = count()
        self.uids: dict[Connection, int] = {}

    def enter(self, connection: Connection) -> bool:
        """Whether there is room for a connection; an idle one may be dropped to make room."""
        uid = peer_uid(connection.wire)
        if self._is_full(uid) and not self._made_room(uid):
            return False
        self.uids[connection] = uid
        self._open[uid] += 1
        self.idle(connection)
        return True

    def busy(self, connection: Connection) -> None:
        """Note that the daemon works for the connection."""
        self._idle.pop(connection, None)

    def idle(self, connection: Connection) -> None:
        """Note that the connection asks nothing yet, or has to read its answer."""
        if connection in self.uids:
            uid = self.uids[connection]
            self._idle[connection] = IdleConnection(next(self._numbers), uid, time.monotonic())

    def leave(self, connection: Connection) -> None:
        """Free the connection's place."""
        self._idle.pop(connection, None)
        self._open -= Counter([uid] if (uid := self.uids.pop(connection, None)) is not None else ())

    def _is_full(self, uid: int) -> bool:
        limits = self._limits
        if self._open[uid] >= limits.connections_per_uid:
            return True
        if uid in limits.reserved_for:
            return self._open.total() >= limits.connections
        others = self._open.total() - sum(self._open[uid] for uid in limits.reserved_for)
        return others >= limits.connections - limits.reserved

    def _made_room(self, uid: int) -> bool:
        """Drop an idle connection to make room, so that few users can't keep all others out."""
        limits = self._limits
        if self._open[uid] >= limits.connections_per_uid:
            return False
        others = [
            connection
            for connection in self._idle.values()
            if connection.uid not in limits.reserved_for
        ]
        cut = idle_to_cut(uid, others, self._open)
        for connection in [connection for connection, idle in self._idle.items() if idle == cut]:
            connection.drop()
        return cut is not None


class Guests:
    """The connections to the remote socket, by where they come from."""

    def __init__(self, bounds: ConnectionLimits) -> None:
        self._bounds = bounds
        self._guests: dict[Connection, Guest] = {}
        self._launchers: OrderedDict[str, None] = OrderedDict()
        self._numbers = count()

    def enter(self, connection: Connection) -> bool:
        """Whether there is room for a connection; a silent one may be dropped to make room."""
        origin = origin_of(connection.address)
        is_launchers = origin.host in self._launchers
        new = Guest(next(self._numbers), origin, time.monotonic(), is_launchers=is_launchers)
        room = room_for(new, self._guests.values(), self._bounds)
        for one in [one for one, guest in self._guests.items() if guest == room.cut]:
            one.drop()
        if room.fits:
            self._guests[connection] = new
        return room.fits

    def busy(self, connection: Connection) -> None:
        """Note that the connection's question has arrived."""
        if connection in self._guests:
            self._guests[connection] = replace(self._guests[connection], is_silent=False)

    def idle(self, connection: Connection) -> None:
        """Nothing changes: what has asked is not silent."""

    def leave(self, connection: Connection) -> None:
        """Free the connection's place."""
        self._guests.pop(connection, None)

    def launcher_asks(self, connection: Connection) -> None:
        """Keep places for the connection's host from now on: the launcher asks from it."""
        if connection not in self._guests:
            return
        guest = self._guests[connection]
        self._launchers[guest.origin.host] = None
        self._launchers.move_to_end(guest.origin.host)
        while len(self._launchers) > _LAUNCHERS_HOSTS:
            self._launchers.popitem(last=False)
        self._guests[connection] = replace(guest, is_launchers=True)
