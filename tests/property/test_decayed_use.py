"""Property: decayed use is exact, however the time is cut and in whatever order."""

import math
from collections.abc import Mapping, Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.slurm_plugin.rules.admission.decayed_use import (
    DecayedUse,
    Holding,
    folded,
    recorded,
    shares,
)

_HALF_LIFE_S = 3600.0
_NOW_S = 1_000_000

_tenants = st.sampled_from(("optics", "vision", "physics"))
_amounts = st.integers(0, 10**7)
_held = st.dictionaries(_tenants, _amounts)
_uses = st.dictionaries(_tenants, st.floats(0, 1e15))
_half_lives = st.floats(1, 1e8)


@st.composite
def _holdings(draw: st.DrawFn) -> Holding:
    start_s = draw(st.integers(_NOW_S - 500_000, _NOW_S))
    end_s = draw(st.none() | st.integers(start_s, _NOW_S))
    return Holding(draw(_tenants), draw(_amounts), start_s, end_s)


def _equal(one: DecayedUse, other: DecayedUse) -> bool:
    names = one.millislice_s.keys() | other.millislice_s.keys()
    return all(
        math.isclose(
            one.millislice_s.get(name, 0.0),
            other.millislice_s.get(name, 0.0),
            rel_tol=1e-9,
            abs_tol=1e-3,
        )
        for name in names
    )


@given(_uses, _held, st.lists(st.floats(0, 10_000), min_size=1, max_size=30), _half_lives)
def test_many_small_steps_are_one_large_step(
    before: Mapping[str, float],
    held: Mapping[str, int],
    steps_s: Sequence[float],
    half_life_s: float,
) -> None:
    at_once = folded(DecayedUse(0.0, before), held, sum(steps_s), half_life_s)
    use = DecayedUse(0.0, before)
    for step_s in steps_s:
        use = folded(use, held, use.at_s + step_s, half_life_s)
    assert _equal(use, at_once)


@given(st.lists(_holdings(), max_size=20), st.randoms(use_true_random=False), _half_lives)
def test_the_order_of_runs_does_not_matter(
    runs: list[Holding], random: Random, half_life_s: float
) -> None:
    shuffled = random.sample(runs, len(runs))
    assert _equal(recorded(runs, _NOW_S, half_life_s), recorded(shuffled, _NOW_S, half_life_s))


@given(st.lists(_holdings(), max_size=8), _half_lives)
def test_following_runs_and_reading_them_later_is_the_same(
    runs: list[Holding], half_life_s: float
) -> None:
    moments = {_NOW_S, *(run.start_s for run in runs), *(run.end_s or _NOW_S for run in runs)}
    use = DecayedUse(min(moments))
    for moment in sorted(moments):
        use = folded(use, _held_before(runs, moment), moment, half_life_s)
    assert _equal(use, recorded(runs, _NOW_S, half_life_s))


def _held_before(runs: Sequence[Holding], moment: int) -> Mapping[str, int]:
    """Between the moment before and this one."""
    held: dict[str, int] = {}
    for run in runs:
        if run.start_s < moment <= (run.end_s or _NOW_S):
            held[run.tenant] = held.get(run.tenant, 0) + run.amount_millislices
    return held


@given(_uses, _held, st.floats(0, 1e9), _half_lives)
def test_it_is_never_below_zero_and_never_above_plain_use(
    before: Mapping[str, float], held: Mapping[str, int], passed_s: float, half_life_s: float
) -> None:
    after = folded(DecayedUse(0.0, before), held, passed_s, half_life_s)
    for tenant, amount in after.millislice_s.items():
        most = before.get(tenant, 0.0) + held.get(tenant, 0) * passed_s
        assert 0.0 <= amount <= most * (1 + 1e-9) + 1e-9  # Floats near zero are coarse.


def test_half_of_it_is_left_after_a_half_life() -> None:
    use = folded(DecayedUse(0.0, {"vision": 800.0}), {}, _HALF_LIFE_S, _HALF_LIFE_S)
    assert use.millislice_s == pytest.approx({"vision": 400.0})


def test_a_clock_set_back_makes_no_time_pass() -> None:
    use = DecayedUse(100.0, {"vision": 800.0})
    back = folded(use, {"vision": 1000}, 40.0, _HALF_LIFE_S)
    assert (back.at_s, back.millislice_s) == (40.0, {"vision": 800.0})


def test_who_always_holds_its_own_part_has_half_a_share() -> None:
    own = {"vision": 7000, "optics": 7000, "guests": 0}
    use = folded(DecayedUse(0.0), {"vision": 7000}, 100 * _HALF_LIFE_S, _HALF_LIFE_S)
    found = shares(use, own, _HALF_LIFE_S)
    assert found == pytest.approx({"vision": 0.5, "optics": 1.0, "guests": 0.0})
