"""Whatever was used of a pool's replica, its hours are divided without a rest, and fairly."""

from collections.abc import Mapping
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from slicewise.launcher.rules.pools.busy import PoolLook, used_ms
from slicewise.slurm_plugin.rules.accounting.pool_hours import PoolHour, parts

OWNER = "vision/bert"
OTHERS = ("vision/clip", "vision/gpt", "vision/aya")
USED = st.dictionaries(st.sampled_from(OTHERS), st.integers(0, 3_600_000), max_size=3)


def an_hour(amount: int, length_ms: int, used: Mapping[str, int]) -> PoolHour:
    return PoolHour(7, 0, 1000, 0, "vision", "vision", OWNER, amount, length_ms, used)


@given(st.integers(0, 10**15), st.integers(0, 3_600_000), USED)
def test_the_parts_add_up_and_are_less_than_one_off_the_exact_ones(
    amount: int, length_ms: int, used: Mapping[str, int]
) -> None:
    found = parts(an_hour(amount, length_ms, used))
    whole = max(length_ms, sum(used.values()))
    if not whole:
        assert set(found.values()) == {0}
        return
    assert found.keys() == {*used, OWNER}
    assert sum(found.values()) == amount
    exact = {service: Fraction(amount * each, whole) for service, each in used.items()}
    exact[OWNER] = amount - sum(exact.values())
    assert all(abs(found[service] - exact[service]) < 1 for service in found)


@given(
    st.lists(
        st.tuples(
            st.floats(0, 2),
            st.dictionaries(st.sampled_from(OTHERS), st.integers(1, 50), max_size=3),
            st.integers(0, 50),
        ),
        max_size=40,
    ),
    st.floats(0, 10**9),
)
def test_others_have_no_more_of_any_hour_than_there_is_of_it(
    steps: list[tuple[float, Mapping[str, int], int]], at_s: float
) -> None:
    begin_s, sums, before = at_s, dict[int, float](), PoolLook(at_s, {})
    for after_s, in_flight, own in steps:
        at_s += after_s
        whole = sum(in_flight.values()) + own
        look = PoolLook(at_s, {(7, 0, 1): {name: n / whole for name, n in in_flight.items()}})
        for used, more_ms in used_ms(before, look).items():
            assert more_ms >= 0
            sums[used.hour_s] = sums.get(used.hour_s, 0) + more_ms
        before = look
    for hour_s, sum_ms in sums.items():
        length_s = min(at_s, hour_s + 3600) - max(begin_s, hour_s)
        assert sum_ms <= 1000 * length_s + 0.1
