"""Worlds of many seeds, in each of which everything fails now and then: what must hold does.

``SLICEWISE_FAULT_SEED=17 pytest tests/property/test_fault_simulation.py`` replays one world, and
shows all that happens in it. ``docs/explanation/simulator.md`` says what a world is.
"""

import os

import pytest
from effort import examples
from fault_world.world import FoundFaultError, live

pytestmark = pytest.mark.usefixtures("clock")

_ONE = os.environ.get("SLICEWISE_FAULT_SEED")
_AT_ONCE, _OF_A_CHANGE = 10, 20
"""The worlds after so many are slow: `make integration` lives them."""
SEEDS = (int(_ONE),) if _ONE else range(examples(200, nightly=10_000))


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=[pytest.mark.slow] * (first >= _OF_A_CHANGE and not _ONE))
        for first in SEEDS[::_AT_ONCE]
    ],
)
def test_whatever_fails_all_is_settled_in_the_end(first: int) -> None:
    for seed in SEEDS if _ONE else range(first, first + _AT_ONCE):
        try:
            live(seed)
        except FoundFaultError as error:
            command = f"SLICEWISE_FAULT_SEED={seed} .venv/bin/pytest {os.path.relpath(__file__)}"
            trace = "\n".join(error.__notes__) if _ONE else f"Replay it: {command}"
            pytest.fail(f"seed {seed}: {error}\n{trace}", pytrace=False)
