"""Tests what is remembered of a setting whose last change got no answer."""

from slicewise.cluster.language.slurm.interface import Qos
from slicewise.slurm_plugin.rules.limits.desired import BILLING, Difference, Setting, found_of
from slicewise.slurm_plugin.rules.limits.drift import out_of_band, to_remember
from slicewise.slurm_plugin.rules.quota.types import KnownLimit, LimitKey

KEY = LimitKey("qos", "slicewise_vision", BILLING)


def found(billing: int):
    return found_of("c", (), [Qos(KEY.name, {"billing": billing}, frozenset())], {})


def test_a_change_that_comes_when_it_is_no_longer_wanted_is_nobodys_hand() -> None:
    wanted = {KEY: Setting("0", "")}
    asked = {KEY: KnownLimit("", "0 or 3500")}
    assert to_remember(wanted, (), found(0), asked) == {}
    late = Difference(KEY, "3500", "0", "")
    assert out_of_band([late], asked) == ()
    assert to_remember(wanted, [late], found(3500), asked) == {}


def test_what_was_asked_last_and_shows_is_remembered_alone() -> None:
    asked = {KEY: KnownLimit("", "0 or 3500")}
    confirmed = {KEY: KnownLimit("", "3500")}
    assert to_remember({KEY: Setting("3500", "")}, (), found(3500), asked) == confirmed
