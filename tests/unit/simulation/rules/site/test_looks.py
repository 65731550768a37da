"""When the simulated daemon looks at Slurm."""

from math import inf

import pytest

from slicewise.simulation.rules.site.looks import Looks


@pytest.mark.parametrize(
    ("changed_s", "heard_s", "due_s"),
    [
        (inf, -inf, inf),
        (100.0, -inf, 105.0),
        (104.9, -inf, 105.0),
        (105.0, -inf, 110.0),
        (117.0, -inf, 120.0),
        (117.0, 117.0, 118.0),
        (117.2, 115.0, 118.0),
        (119.0, 115.0, 120.0),
        (99.0, 98.0, 101.0),
    ],
)
def test_a_look_shows_what_changed_before_it(changed_s: float, heard_s: float, due_s: float):
    looks = Looks(moving_s=1.0, rest_s=5.0, looked_s=100.0, heard_s=heard_s)
    assert looks.due_s(changed_s) == due_s


def test_the_first_look_comes_at_once():
    assert Looks(1.0, 5.0).due_s(-inf) == -inf
    assert Looks(1.0, 5.0).due_s(3.0) == 3.0
