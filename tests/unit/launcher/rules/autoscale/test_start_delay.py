"""Tests what a service's next start is expected to take, by where weights were at the last ones."""

from dataclasses import replace

import pytest

from slicewise.cluster.language.starts import StartClass
from slicewise.launcher.rules.autoscale.start_delay import Delays, learn_starts
from slicewise.launcher.rules.autoscale.types import ReplicaStart

LOAD_S: dict[StartClass, float] = {"remote": 24.0, "copied": 30.0, "node": 6.0}


def after(*classes: StartClass, delays: Delays | None = None) -> Delays:
    starts = (ReplicaStart(1.0, LOAD_S[one], one) for one in classes)
    return learn_starts(delays or Delays(), tuple(starts))


REMOTE = after(*["remote"] * 40)
NODE = after(*["node"] * 40, delays=REMOTE)


def test_before_the_first_start_half_a_minute_is_assumed() -> None:
    assert 20 < Delays().load_s < 30


def test_starts_of_one_class_are_expected_to_take_as_long_as_these() -> None:
    assert REMOTE.load_s == pytest.approx(24, rel=0.2)
    assert REMOTE.start_s == pytest.approx(25, rel=0.25)
    assert NODE.load_s == pytest.approx(6, rel=0.2)


def test_a_cache_that_is_switched_on_counts_after_a_few_starts() -> None:
    """Forty starts without it are no reason to expect another one of these."""
    assert after("copied", delays=REMOTE).load_s > 20
    assert after("copied", *["node"] * 5, delays=REMOTE).load_s < 8


def test_where_other_weights_are_copied_the_next_start_may_copy_them_as_well() -> None:
    assert after("copied", delays=NODE).load_s > 20
    assert after("copied", "node", "node", delays=NODE).load_s < 8


def test_a_class_that_comes_back_takes_as_long_as_before() -> None:
    """Its first start was slow: that is known of it, whatever came between."""
    known = after(*["copied"] * 20, *["node"] * 20)
    quick = learn_starts(known, (ReplicaStart(1.0, 12.0, "copied"),))
    assert quick.load_s > 20
    assert learn_starts(NODE, (ReplicaStart(1.0, 12.0, "node"),)).load_s < 8


def test_of_classes_that_take_turns_the_slower_one_is_planned_with() -> None:
    assert after(*["node", "copied"] * 20).load_s > 20
    assert after(*["copied", "node"] * 20).load_s > 20


def test_a_boot_counts_only_where_the_next_start_has_to_wait_for_one() -> None:
    """Ten slow wakes in a row say nothing of a start on a node that is awake."""
    woken = learn_starts(NODE, (ReplicaStart(1.0, 6.0, "node", boot_s=90.0),) * 10)
    awake = learn_starts(NODE, (ReplicaStart(1.0, 6.0, "node"),) * 10)
    assert (woken.start_s, woken.load_s) == (awake.start_s, awake.load_s)
    asleep = replace(woken, wakes_node=True)
    assert asleep.start_s == pytest.approx(NODE.start_s + 90, rel=0.2)
    assert replace(NODE, wakes_node=True).start_s == pytest.approx(200, rel=0.3)
