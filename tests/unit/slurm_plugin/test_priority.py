import pytest

from cluster.units import Millislices
from slurm_plugin.decide.priority import SITE_FACTOR_MAX, site_factor


@pytest.mark.parametrize(
    ("nominal", "used", "expected"),
    [
        (6000, 0, 1000),
        (6000, 3000, 500),
        (6000, 5999, 0),
        (6000, 6000, 0),
        (6000, 9000, 0),
        (3000, 1000, 666),
        (0, 0, 0),
        (0, 1000, 0),
    ],
)
def test_how_far_below_nominal(nominal: int, used: int, expected: int) -> None:
    assert site_factor(Millislices(nominal), used) == expected
    assert 0 <= expected <= SITE_FACTOR_MAX
