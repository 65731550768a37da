"""Who may be connected to the daemon's sockets at once, and who is cut off for somebody new.

Connections that stay silent cost their owner nothing, so they are never a reason to refuse anybody
from elsewhere: they make room, those of who has most first.
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
        prefix: its /24 or /48, and the whole loopback network.
    """

    host: str
    prefix: str


@dataclass(frozen=True)
class Guest:
    """A connection.

    Attributes:
        since_s: when it came.
        is_silent: its question is not whole yet.
        is_launchers: the launcher has asked from its host.
    """

    number: int
    origin: Origin
    since_s: float
    is_silent: bool = True
    is_launchers: bool = False


@dataclass(frozen=True)
class Bounds:
    """How many at once.

    Attributes:
        connections: of all hosts but the launcher's.
        per_host, per_prefix: of one; the launcher's hosts do not count in their prefix.
        grace_s: so long a silent connection is left alone by others of its own host.
    """

    connections: int
    per_host: int
    per_prefix: int
    grace_s: float


@dataclass(frozen=True)
class Room:
    """Whether there is room, and who is cut off for it."""

    fits: bool
    cut: Guest | None = None


def origin_of(address: str) -> Origin:
    """Of a peer's numeric address; what is none counts as one host of its own."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return Origin(_UNKNOWN, _UNKNOWN)
    if isinstance(found, IPv6Address):
        found = found.ipv4_mapped or found
    if found.is_loopback:
        return Origin(str(found), "loopback")
    if isinstance(found, IPv4Address):
        return Origin(str(found), _network(found, _IPV4_PREFIX))
    return Origin(_network(found, _IPV6_HOST), _network(found, _IPV6_PREFIX))


def _network(address: IPv4Address | IPv6Address, bits: int) -> str:
    return str(ip_network((address, bits), strict=False))


def room_for(new: Guest, guests: Collection[Guest], bounds: Bounds) -> Room:
    """Whether ``new`` may stay beside ``guests``."""
    own = [one for one in guests if one.origin.host == new.origin.host]
    if len(own) >= bounds.per_host:
        # Whoever else works on the launcher's host must not be able to keep its places busy.
        grace_s = 0.0 if new.is_launchers else bounds.grace_s
        return _made_among([one for one in own if new.since_s - one.since_s >= grace_s])
    if new.is_launchers:
        return Room(fits=True)
    others = [one for one in guests if not one.is_launchers]
    near = [one for one in others if one.origin.prefix == new.origin.prefix]
    if len(near) >= bounds.per_prefix:
        return _made_among(near)
    if len(others) >= bounds.connections:
        return _made_among(others)
    return Room(fits=True)


@dataclass(frozen=True)
class Idle:
    """A connection to the user socket of which nothing is asked now, or whose answer is not taken.

    Attributes:
        since_s: when that began.
    """

    number: int
    uid: int
    since_s: float


def idle_to_cut(uid: int, idle: Collection[Idle], open_by_uid: Mapping[int, int]) -> Idle | None:
    """Which one makes room for one more of ``uid``: the longest idle of the user who has most.

    None if nobody who has more than ``uid`` has an idle one.
    """
    own = open_by_uid.get(uid, 0)
    return max(
        (one for one in idle if open_by_uid.get(one.uid, 0) > own),
        key=lambda one: (open_by_uid.get(one.uid, 0), -one.since_s),
        default=None,
    )


def _made_among(guests: Sequence[Guest]) -> Room:
    """The longest silent one of the host that has most, in the prefix that has most."""
    prefixes = Counter(one.origin.prefix for one in guests)
    hosts = Counter(one.origin.host for one in guests)
    cut = max(
        (one for one in guests if one.is_silent),
        key=lambda one: (prefixes[one.origin.prefix], hosts[one.origin.host], -one.since_s),
        default=None,
    )
    return Room(cut is not None, cut)
