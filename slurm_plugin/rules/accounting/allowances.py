"""How many tokens of a limit, or of a budget, a gateway may hold.

What was posted, and what is set aside for other gateways, is taken off each limit: so gateways
never get more together than what is left. What a gateway posts it holds no longer. A tenant whose
tokens a budget pays holds the less of both: of its limits, and of what the budget has left for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from slicewise.cluster.language.division import divided
from slicewise.cluster.rpc.usage_messages import TokenLimitName

MINUTE_S = 60
"""Limits a minute count the last sixty seconds at every moment: no window begins anew."""


@dataclass(frozen=True)
class TokenLimits:
    """Limits of one subject, in prompt and output tokens; None is unlimited."""

    a_minute: int | None
    a_month: int | None


@dataclass(frozen=True)
class TokenUse:
    """What counts against a subject's limits.

    Attributes:
        in_minute, in_month: posted in the last minute, and in this calendar month.
        elsewhere: set aside for other gateways, and not expired.
    """

    in_minute: int = 0
    in_month: int = 0
    elsewhere: int = 0


@dataclass(frozen=True)
class Renewal:
    """When a limit or a budget has its whole amount again.

    Attributes:
        left_s: seconds until then; None for a budget without periods.
        on: the date, as people write it; "" for a budget without periods.
    """

    left_s: int | None = None
    on: str = ""


@dataclass(frozen=True)
class TokenShare:
    """What a gateway may hold, and of which limit.

    Attributes:
        limit: the limit, or budget, that leaves least; "" if there is none.
        payer: whose budget it is, if it is one.
        used_up_until: the date until which nobody has any of it, "" if no date is known; None
            while something is left, if only for requests that other gateways have let in.
        retry_s: seconds until more may be left; 0 while there is some.
    """

    tokens: int
    limit: TokenLimitName = ""
    payer: str = ""
    used_up_until: str | None = None
    retry_s: int = 0


def held(
    limits: TokenLimits, use: TokenUse, wanted: int, *, month: Renewal, expires_s: int
) -> TokenShare:
    """What a gateway may hold now: what it wants, or half of what is left if it wants less.

    So the first request of a subject that nobody knew finds something, and a second gateway, too.
    """
    lefts = []
    if limits.a_minute is not None:
        lefts.append((limits.a_minute - use.in_minute, _A_MINUTE, _MINUTE))
    if limits.a_month is not None:
        lefts.append((limits.a_month - use.in_month, _A_MONTH, month))
    if not lefts:
        return TokenShare(wanted)
    unposted, empty, renewal = min(lefts, key=lambda left: left[0])
    left = max(0, unposted - use.elsewhere)
    tokens = min(left, max(wanted, -(-left // 2)))
    return _share(empty, tokens, renewal, is_used_up=unposted <= 0, expires_s=expires_s)


_LONGEST_S = 86_400
_MINUTE = Renewal(MINUTE_S)
_A_MINUTE, _A_MONTH = TokenShare(0, "tokens_per_minute"), TokenShare(0, "tokens_per_month")


def _share(
    empty: TokenShare, tokens: int, renewal: Renewal, *, is_used_up: bool, expires_s: int
) -> TokenShare:
    if tokens:
        return replace(empty, tokens=tokens)
    if not is_used_up:
        return replace(empty, retry_s=expires_s)
    retry_s = _LONGEST_S if renewal.left_s is None else renewal.left_s
    # The last minute moves on with each second: it is never used up until some time.
    until = None if empty == _A_MINUTE else renewal.on
    return replace(empty, used_up_until=until, retry_s=retry_s)


@dataclass(frozen=True)
class TokenPool:
    """What a budget of tokens has, from which all tenants take that it pays for.

    Attributes:
        payer: whose budget it is.
        unposted: what it may still pay for, its overdraft with it.
        elsewhere: how much of that is set aside for other gateways, and not expired.
        renewal: its next period.
    """

    payer: str
    unposted: int
    elsewhere: int = 0
    renewal: Renewal = Renewal()


def pooled(pool: TokenPool, wanted: Mapping[str, int], expires_s: int) -> Mapping[str, TokenShare]:
    """What a gateway may hold for each tenant that a budget pays for, by what it wants.

    What is left goes to those who want something, by what they want if it is too little; half of
    what remains evenly to all, so that the first request of a tenant that nobody knew finds
    something, and another gateway, too.
    """
    left = max(0, pool.unposted - pool.elsewhere)
    first = divided(min(left, sum(wanted.values())), wanted)
    spare = -(-(left - sum(first.values())) // 2)
    even = divided(spare, dict.fromkeys(wanted, 1))
    return {
        tenant: _of_pool(pool, first.get(tenant, 0) + even.get(tenant, 0), expires_s)
        for tenant in wanted
    }


def _of_pool(pool: TokenPool, tokens: int, expires_s: int) -> TokenShare:
    empty = TokenShare(0, "token_budget", pool.payer)
    is_used_up = pool.unposted <= 0
    return _share(empty, tokens, pool.renewal, is_used_up=is_used_up, expires_s=expires_s)


def less(limited: TokenShare | None, paid: TokenShare | None) -> TokenShare:
    """What a tenant may hold that has limits, or a budget that pays for it, or both."""
    shares = [share for share in (limited, paid) if share is not None]
    return min(shares, key=lambda share: share.tokens)
