"""What gateways may hold of a limit of tokens."""

from hypothesis import given
from hypothesis import strategies as st

from slicewise.slurm_plugin.rules.accounting.allowances import TokenLimits, TokenUse, held

LIMIT = st.none() | st.integers(0, 10_000)
AMOUNT = st.integers(0, 20_000)
TIMES = {"month_left_s": 1000, "expires_s": 10}


@given(st.builds(TokenLimits, LIMIT, LIMIT), AMOUNT, AMOUNT, st.lists(AMOUNT, max_size=5))
def test_gateways_never_get_more_together_than_what_is_left(
    limits: TokenLimits, in_minute: int, in_month: int, wanted: list[int]
):
    given_tokens = list[int]()
    for wish in wanted:
        use = TokenUse(in_minute, in_month, sum(given_tokens))
        given_tokens.append(held(limits, use, wish, **TIMES).tokens)
    pairs = ((limits.a_minute, in_minute), (limits.a_month, in_month))
    lefts = [max(0, limit - posted) for limit, posted in pairs if limit is not None]
    assert all(sum(given_tokens) <= left for left in lefts)


@given(st.integers(1, 10_000), AMOUNT, AMOUNT)
def test_while_something_is_left_somebody_gets_it(limit: int, in_month: int, wanted: int):
    got = held(TokenLimits(None, limit), TokenUse(0, in_month), wanted, **TIMES)
    assert (got.tokens > 0) == (in_month < limit)
    assert bool(got.why) == (got.tokens == 0)


def test_a_gateway_that_wants_little_gets_half_of_what_is_left():
    limits = TokenLimits(None, 1000)
    assert held(limits, TokenUse(0, 200), 0, **TIMES).tokens == 400
    assert held(limits, TokenUse(0, 999), 0, **TIMES).tokens == 1


def test_the_reason_is_the_limit_that_leaves_least():
    limits = TokenLimits(100, 5000)
    over = held(limits, TokenUse(100, 4000), 5, **TIMES)
    assert (over.why, over.retry_s) == ("tokens_per_minute: used up", 60)
    over = held(limits, TokenUse(0, 5001), 5, **TIMES)
    assert (over.why, over.retry_s) == ("tokens_per_month: used up", 1000)
    over = held(limits, TokenUse(0, 0, 100), 5, **TIMES)
    assert (over.retry_s, "other gateways" in over.why) == (10, True)
