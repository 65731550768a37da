"""What gateways may hold of a limit of tokens."""

from hypothesis import given
from hypothesis import strategies as st

from slicewise.slurm_plugin.rules.accounting.allowances import (
    Renewal,
    TokenLimits,
    TokenPool,
    TokenShare,
    TokenUse,
    held,
    less,
    pooled,
)

LIMIT = st.none() | st.integers(0, 10_000)
AMOUNT = st.integers(0, 20_000)
NEXT_MONTH = Renewal(1000, "2025-12-01")
TIMES = {"month": NEXT_MONTH, "expires_s": 10}


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
    assert (got.used_up_until, got.retry_s) == ((None, 0) if got.tokens else ("2025-12-01", 1000))


def test_a_gateway_that_wants_little_gets_half_of_what_is_left():
    limits = TokenLimits(None, 1000)
    assert held(limits, TokenUse(0, 200), 0, **TIMES).tokens == 400
    assert held(limits, TokenUse(0, 999), 0, **TIMES).tokens == 1


def test_the_reason_is_the_limit_that_leaves_least():
    limits = TokenLimits(100, 5000)
    over = held(limits, TokenUse(100, 4000), 5, **TIMES)
    # The last minute moves on: no date is known until which it is used up.
    assert over == TokenShare(0, "tokens_per_minute", retry_s=60)
    over = held(limits, TokenUse(0, 5001), 5, **TIMES)
    assert over == TokenShare(0, "tokens_per_month", used_up_until="2025-12-01", retry_s=1000)
    over = held(limits, TokenUse(0, 0, 100), 5, **TIMES)
    assert over == TokenShare(0, "tokens_per_minute", retry_s=10)


WANTED = st.dictionaries(st.sampled_from("abcdef"), st.just(0) | AMOUNT, min_size=1)


@given(st.integers(-100, 20_000), AMOUNT, WANTED)
def test_tenants_of_one_budget_never_get_more_together_than_it_has(
    unposted: int, elsewhere: int, wanted: dict[str, int]
):
    given_shares = pooled(TokenPool("lab", unposted, elsewhere), wanted, 10)
    tokens = {name: share.tokens for name, share in given_shares.items()}
    left = max(0, unposted - elsewhere)
    assert tokens.keys() == wanted.keys()
    assert sum(tokens.values()) <= left
    # Nobody who wants something gets less for those who want nothing.
    assert sum(tokens[name] for name in wanted if wanted[name]) >= min(left, sum(wanted.values()))
    assert {(share.limit, share.payer) for share in given_shares.values()} == {
        ("token_budget", "lab")
    }
    assert all(bool(share.retry_s) == (share.tokens == 0) for share in given_shares.values())


def test_a_budget_that_is_used_up_says_when_its_period_ends():
    used_up = TokenPool("lab", 0, 0, Renewal(500, "2025-12-01"))
    (share,) = pooled(used_up, {"a": 9}, 10).values()
    assert (share.used_up_until, share.retry_s) == ("2025-12-01", 500)
    # Without periods only a grant ends that.
    (share,) = pooled(TokenPool("lab", 0, 0), {"a": 9}, 10).values()
    assert (share.used_up_until, share.retry_s) == ("", 86_400)
    # What is left is set aside for other gateways.
    (share,) = pooled(TokenPool("lab", 5, 5, Renewal(500, "2025-12-01")), {"a": 9}, 10).values()
    assert (share.used_up_until, share.retry_s) == (None, 10)


def test_the_less_of_limit_and_budget_holds_and_says_why():
    limited = held(TokenLimits(None, 100), TokenUse(0, 100), 5, **TIMES)
    paid = pooled(TokenPool("lab", 50), {"a": 5}, 10)["a"]
    assert less(limited, paid) == limited
    assert less(None, paid) == paid
