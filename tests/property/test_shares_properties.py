"""Whatever was used of a shared service, its hours are divided without a rest, and fairly."""

from collections.abc import Mapping
from fractions import Fraction
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from slicewise.cluster.language.division import divided
from slicewise.cluster.language.units import MillisliceSeconds
from slicewise.slurm_plugin.rules.accounting.shares import (
    Share,
    SharedHour,
    TimeKind,
    shares,
)

NAMES = ("chem", "optics", "owner", "physics", "vision")
AMOUNTS = st.integers(0, 10**15)
WEIGHTS = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 10**18), max_size=5)


@st.composite
def hours(draw: st.DrawFn) -> SharedHour:
    length_ms = draw(st.integers(1, 3_600_000))
    return SharedHour(
        "owner",
        MillisliceSeconds(draw(AMOUNTS)),
        length_ms,
        draw(st.integers(0, length_ms)),
        draw(WEIGHTS),
        draw(WEIGHTS),
    )


def exact(hour: SharedHour) -> Mapping[Share, Fraction]:
    """What each has without rounding."""
    tokens, idle = sum(hour.tokens.values()), sum(hour.idle.values())
    busy = Fraction(hour.busy_ms, hour.length_ms) if tokens else Fraction(0)
    amount = hour.amount_millislice_s
    by_tokens = {
        Share(name, TimeKind.TOKENS): amount * busy * weight / tokens
        for name, weight in hour.tokens.items()
        if tokens
    }
    quotas = hour.idle if idle else {"owner": 1}
    by_quota = {
        Share(name, TimeKind.IDLE): amount * (1 - busy) * weight / sum(quotas.values())
        for name, weight in quotas.items()
    }
    return by_tokens | by_quota


@given(hours())
def test_the_parts_add_up_and_are_less_than_one_off_the_exact_ones(hour: SharedHour):
    found = shares(hour)
    assert sum(found.values()) == hour.amount_millislice_s
    fair = exact(hour)
    assert found.keys() <= fair.keys()
    assert all(abs(found.get(share, 0) - amount) < 1 for share, amount in fair.items())
    assert all(amount > 0 for amount in found.values())


@given(hours(), st.randoms(use_true_random=False))
def test_the_order_of_what_is_given_changes_nothing(hour: SharedHour, random: Random):
    tokens, idle = list(hour.tokens.items()), list(hour.idle.items())
    random.shuffle(tokens)
    random.shuffle(idle)
    other = SharedHour(
        hour.owner,
        hour.amount_millislice_s,
        hour.length_ms,
        hour.busy_ms,
        dict(tokens),
        dict(idle),
    )
    assert shares(other) == shares(hour)


@given(hours())
def test_who_used_nothing_changes_nothing(hour: SharedHour):
    with_nothing = SharedHour(
        hour.owner,
        hour.amount_millislice_s,
        hour.length_ms,
        hour.busy_ms,
        {"a newcomer": 0, **hour.tokens},
        {"a newcomer": 0, **hour.idle},
    )
    assert shares(with_nothing) == shares(hour)


@given(hours(), st.integers(1, 5))
def test_an_hour_in_parts_is_the_hour_but_for_rounding(hour: SharedHour, count: int):
    """Each part is as busy, and has as many tokens of each."""
    part = SharedHour(
        hour.owner, hour.amount_millislice_s, hour.length_ms, hour.busy_ms, hour.tokens, hour.idle
    )
    whole = SharedHour(
        hour.owner,
        MillisliceSeconds(count * hour.amount_millislice_s),
        count * hour.length_ms,
        count * hour.busy_ms,
        {name: count * weight for name, weight in hour.tokens.items()},
        hour.idle,
    )
    found, parts = shares(whole), shares(part)
    assert all(
        abs(found.get(share, 0) - count * parts.get(share, 0)) <= count + 1 for share in exact(hour)
    )


@given(AMOUNTS, st.dictionaries(st.integers(), st.integers(0, 10**30)))
def test_what_is_divided_is_divided_whole(amount: int, weights: Mapping[int, int]):
    found = divided(amount, weights)
    assert sum(found.values()) == (amount if any(weights.values()) else 0)
    assert all(weights[key] for key in found)


def test_equal_rests_go_by_name():
    assert divided(2, {"c": 1, "a": 1, "b": 1}) == {"a": 1, "b": 1}


def test_an_hour_by_hand():
    """Half of it busy: a quarter of the tokens is chem's; the idle half goes by quota, 2 to 1."""
    hour = SharedHour(
        "owner",
        MillisliceSeconds(3_600_000),
        3_600_000,
        1_800_000,
        {"chem": 10, "owner": 30},
        {"chem": 2000, "physics": 1000},
    )
    assert shares(hour) == {
        Share("chem", TimeKind.TOKENS): 450_000,
        Share("owner", TimeKind.TOKENS): 1_350_000,
        Share("chem", TimeKind.IDLE): 1_200_000,
        Share("physics", TimeKind.IDLE): 600_000,
    }


def test_busy_time_without_a_token_is_idle_time():
    hour = SharedHour("owner", MillisliceSeconds(10), 1000, 700, {"chem": 0})
    assert shares(hour) == {Share("owner", TimeKind.IDLE): 10}
