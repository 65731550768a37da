"""Tests what the replay's curves give at an attainment."""

import pytest

from studies.autoscale.curves import saving, slice_hours_at


def point(attainment: float, slice_hours: float) -> dict[str, float]:
    return {"attainment": attainment, "slice_hours": slice_hours}


CURVE = (point(0.99, 20.0), point(0.9, 10.0), point(0.999, 40.0))


@pytest.mark.parametrize(
    ("attainment", "hours"),
    [
        (0.9, 10.0),
        (0.99, 20.0),
        (1 - 0.1 / 10**0.5, 15.0),  # half way from 10 % to 1 % of late requests
        (0.5, 10.0),  # the cheapest does more than is asked
        (0.9995, None),
    ],
)
def test_between_two_settings_it_is_linear_in_the_logarithm_of_what_is_late(
    attainment: float, hours: float | None
):
    assert slice_hours_at(CURVE, attainment) == pytest.approx(hours)


def test_a_setting_that_another_beats_in_both_does_not_count():
    beaten = (*CURVE, point(0.95, 30.0))
    assert slice_hours_at(beaten, 0.95) == slice_hours_at(CURVE, 0.95)


def test_a_setting_without_a_late_request_attains_everything():
    assert slice_hours_at([point(1.0, 7.0)], 0.999) == 7.0


def test_the_saving_is_beside_the_best_of_the_others():
    policies = {
        "ours": [point(0.99, 9.0)],
        "a": [point(0.99, 10.0)],
        "b": [point(0.95, 4.0), point(0.995, 40.0)],
        "optimum": [point(1.0, 1.0)],
    }
    found = saving(policies, "ours", ("a", "b"))
    assert found == {"90": -1.25, "95": -1.25, "99": 0.1, "99.9": None}


def test_without_ours_there_is_no_saving():
    assert set(saving({"a": list(CURVE)}, "ours", ("a",)).values()) == {None}
