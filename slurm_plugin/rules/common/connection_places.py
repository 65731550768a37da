"""Bounds the connections to the daemon's sockets, and chooses which one is closed for a new one.

Silent connections cost their owner nothing, so they are never a reason to refuse a connection from
elsewhere. They make room instead, first those of the host or user that has the most connections.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

_IPV6_HOST, _IPV6_PREFIX, _IPV4_PREFIX = 64, 48, 24
_UNKNOWN = "unknown"


@dataclass(frozen=True)
class Origin:
    """Where a connection comes from.

    Attributes:
        host: an IPv4 address, or an IPv6 /64, in which one host has all addresses.
        prefix: its /24 or /48; for all loopback addresses ``loopback``.
    """

    host: str
    prefix: str


@dataclass(frozen=True)
class Guest:
    """A connection to the remote socket.

    Attributes:
        since_s: when it was accepted.
        is_silent: whether its question has not fully arrived yet.
        is_launchers: whether the launcher has asked from its host.
    """

    number: int
    origin: Origin
    since_s: float
    is_silent: bool = True
    is_launchers: bool = False


@dataclass(frozen=True)
class ConnectionLimits:
    """The most connections at one time.

    Attributes:
        connections: from all hosts but the launcher's.
        per_host, per_prefix: from one; the launcher's hosts do not count in their prefix.
        grace_s: seconds before a silent connection may be closed for another of its own host.
    """

    connections: int
    per_host: int
    per_prefix: int
    grace_s: float


@dataclass(frozen=True)
class PlaceVerdict:
    """Whether there is room for a connection, and which other one is closed for it, if any."""

    fits: bool
    cut: Guest | None = None


def origin_of(address: str) -> Origin:
    """Return the origin of a peer's numeric address; all unreadable ones count as one host."""
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return Origin(_UNKNOWN, _UNKNOWN)
    if isinstance(ip, IPv6Address):
        ip = ip.ipv4_mapped or ip
    if ip.is_loopback:
        return Origin(str(ip), "loopback")
    if isinstance(ip, IPv4Address):
        return Origin(str(ip), _network(ip, _IPV4_PREFIX))
    return Origin(_network(ip, _IPV6_HOST), _network(ip, _IPV6_PREFIX))


def _network(address: IPv4Address | IPv6Address, bits: int) -> str:
    return str(ip_network((address, bits), strict=False))


def room_for(new: Guest, guests: Collection[Guest], bounds: ConnectionLimits) -> PlaceVerdict:
    """Decide whether ``new`` may stay beside ``guests``, and which of these is closed for it."""
    own = [guest for guest in guests if guest.origin.host == new.origin.host]
    if len(own) >= bounds.per_host:
        # Other users of the launcher's host must not be able to occupy the launcher's places.
        grace_s = 0.0 if new.is_launchers else bounds.grace_s
        return _made_among([guest for guest in own if new.since_s - guest.since_s >= grace_s])
    if new.is_launchers:
        return PlaceVerdict(fits=True)
    others = [guest for guest in guests if not guest.is_launchers]
    near = [guest for guest in others if guest.origin.prefix == new.origin.prefix]
    if len(near) >= bounds.per_prefix:
        return _made_among(near)
    if len(others) >= bounds.connections:
        return _made_among(others)
    return PlaceVerdict(fits=True)


@dataclass(frozen=True)
class IdleConnection:
    """A connection to the user socket that asks nothing now, or that does not read its answer.

    Attributes:
        since_s: when it became idle.
    """

    number: int
    uid: int
    since_s: float


def idle_to_cut(
    uid: int, idle: Collection[IdleConnection], open_by_uid: Mapping[int, int]
) -> IdleConnection | None:
    """Choose the idle connection to close for a new one of ``uid``.

    It is the longest idle one of the user with the most open connections. None if no user with more
    connections than ``uid`` has an idle one.
    """
    own = open_by_uid.get(uid, 0)
    return max(
        (connection for connection in idle if open_by_uid.get(connection.uid, 0) > own),
        key=lambda connection: (open_by_uid.get(connection.uid, 0), -connection.since_s),
        default=None,
    )


def _made_among(guests: Sequence[Guest]) -> PlaceVerdict:
    """Make room by closing a silent connection, if any, of the prefix and host with the most.

    It is the longest silent one there.
    """
    prefixes = Counter(guest.origin.prefix for guest in guests)
    hosts = Counter(guest.origin.host for guest in guests)
    cut = max(
        (guest for guest in guests if guest.is_silent),
        key=lambda guest: (prefixes[guest.origin.prefix], hosts[guest.origin.host], -guest.since_s),
        default=None,
    )
    return PlaceVerdict(cut is not None, cut)
