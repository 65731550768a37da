"""Tests which connections the remote socket takes, and which make room."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.slurm_plugin.rules.common.connection_places import (
    ConnectionLimits,
    Guest,
    IdleConnection,
    Origin,
    PlaceVerdict,
    idle_to_cut,
    origin_of,
    room_for,
)

BOUNDS = ConnectionLimits(connections=8, per_host=3, per_prefix=5, grace_s=0.5)


def guest(
    number: int, host: str, *, at_s: float = 0.0, silent: bool = True, launchers: bool = False
) -> Guest:
    """Hosts are called PREFIX.HOST."""
    origin = Origin(host, host.partition(".")[0])
    return Guest(number, origin, at_s, is_silent=silent, is_launchers=launchers)


def spread(*hosts: str, silent: bool = True) -> list[Guest]:
    return [guest(number, host, silent=silent) for number, host in enumerate(hosts)]


NEW = guest(99, "z.1", at_s=10.0)


def test_of_idle_ones_those_of_the_user_who_has_most_make_room() -> None:
    idle = [
        IdleConnection(number, uid, 10.0 - number) for number, uid in enumerate((1, 1, 2, 2, 2, 3))
    ]
    assert idle_to_cut(4, idle, {1: 4, 2: 3, 3: 1}) == idle[1]
    assert idle_to_cut(4, idle[2:], {1: 4, 2: 3, 3: 1}) == idle[4]
    assert idle_to_cut(2, idle, {1: 4, 2: 3, 3: 1}) == idle[1]
    assert idle_to_cut(1, idle, {1: 4, 2: 4, 3: 1}) is None
    assert idle_to_cut(4, (), {1: 4}) is None


def test_there_is_room_while_few_are_there() -> None:
    assert room_for(NEW, spread("a.1", "a.1", "b.1"), BOUNDS) == PlaceVerdict(fits=True)


def test_who_has_most_makes_room() -> None:
    guests = spread("a.1", "b.1", "b.2", "b.2", "c.1", "c.1", "d.1", "e.1")
    assert room_for(NEW, guests, BOUNDS) == PlaceVerdict(fits=True, cut=guests[2])


def test_of_a_crowded_prefix_its_own_make_room() -> None:
    guests = spread("z.2", "z.3", "z.3", "z.4", "z.5", "a.1")
    assert room_for(NEW, guests, BOUNDS) == PlaceVerdict(fits=True, cut=guests[1])


def test_of_a_crowded_host_those_make_room_that_are_silent_for_a_while() -> None:
    guests = [guest(number, "z.1", at_s=8.0 + number) for number in range(3)]
    assert room_for(NEW, guests, BOUNDS) == PlaceVerdict(fits=True, cut=guests[0])
    young = [guest(number, "z.1", at_s=9.9) for number in range(3)]
    assert room_for(NEW, young, BOUNDS) == PlaceVerdict(fits=False)


def test_whose_question_is_there_is_not_cut_off() -> None:
    hosts = ("a.1", "b.1", "c.1", "d.1", "e.1", "f.1", "g.1", "h.1")
    assert room_for(NEW, spread(*hosts, silent=False), BOUNDS) == PlaceVerdict(fits=False)


def test_the_launcher_has_places_of_its_own() -> None:
    hosts = ("a.1", "b.1", "c.1", "d.1", "e.1", "f.1", "g.1", "h.1")
    full = spread(*hosts, silent=False)
    launchers = guest(99, "a.9", at_s=10.0, launchers=True)
    assert room_for(launchers, full, BOUNDS) == PlaceVerdict(fits=True)
    # And it takes none of the others'.
    own = [guest(number, "a.9", launchers=True) for number in range(2)]
    assert room_for(NEW, [*full[:7], *own], BOUNDS) == PlaceVerdict(fits=True)


def test_nobody_beside_the_launcher_keeps_its_places_busy() -> None:
    launchers = guest(99, "a.9", at_s=10.0, launchers=True)
    young = [guest(number, "a.9", at_s=9.9, launchers=True) for number in range(3)]
    assert room_for(launchers, young, BOUNDS) == PlaceVerdict(fits=True, cut=young[0])


@pytest.mark.parametrize(
    ("address", "host", "prefix"),
    [
        ("10.1.2.3", "10.1.2.3", "10.1.2.0/24"),
        ("::ffff:10.1.2.3", "10.1.2.3", "10.1.2.0/24"),
        ("127.3.2.1", "127.3.2.1", "loopback"),
        ("::1", "::1", "loopback"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64", "2001:db8:1::/48"),
        ("fe80::1%eth0", "fe80::/64", "fe80::/48"),
        ("", "unknown", "unknown"),
    ],
)
def test_where_it_comes_from(address: str, host: str, prefix: str) -> None:
    assert origin_of(address) == Origin(host, prefix)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans()), max_size=60))
def test_however_many_come_the_bounds_hold(arrivals: list[tuple[int, int, bool]]) -> None:
    guests: list[Guest] = []
    for number, (prefix, host, is_silent) in enumerate(arrivals):
        new = guest(number, f"{prefix}.{host}", at_s=number, silent=is_silent)
        room = room_for(new, guests, BOUNDS)
        assert room.cut is None or (room.fits and room.cut.is_silent)
        guests = [one for one in guests if one != room.cut] + [new] * room.fits
        hosts = [one.origin.host for one in guests]
        prefixes = [one.origin.prefix for one in guests]
        assert len(guests) <= BOUNDS.connections
        assert max(map(hosts.count, hosts), default=0) <= BOUNDS.per_host
        assert max(map(prefixes.count, prefixes), default=0) <= BOUNDS.per_prefix
    # A stranger is refused only where no connection is silent.
    room = room_for(guest(1000, "stranger.1", at_s=1000.0), guests, BOUNDS)
    assert room.fits or not any(one.is_silent for one in guests)
