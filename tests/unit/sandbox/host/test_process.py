from slicewise.sandbox.host.process import (
    Stat,
    members,
    parse_stat,
)

STAT = "42 (a) b) {state} 7 42 42 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 99 0 0"


def test_stat_is_read_behind_a_name_with_parentheses():
    assert parse_stat(STAT.format(state="S")) == Stat(parent=7, start_ticks=99)


def test_a_zombie_has_ended():
    assert parse_stat(STAT.format(state="Z")) is None


def test_members_are_the_marked_and_their_descendants():
    parents = {1: 0, 10: 1, 11: 10, 12: 11, 20: 1}
    assert members(parents, [10], spared=[]) == {10, 11, 12}


def test_the_spared_and_what_is_below_them_stay():
    parents = {1: 0, 10: 1, 11: 10, 12: 11}
    assert members(parents, [10, 12], spared=[1, 10]) == {12}


def test_members_of_a_cycle_end():
    assert members({1: 2, 2: 1}, [1], spared=[]) == {1, 2}
