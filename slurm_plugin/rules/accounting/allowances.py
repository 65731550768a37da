"""How many tokens of a limit, or of a budget, a gateway may hold.

What was posted, and what is set aside for other gateways, is taken off each limit: so gateways
never get more together than what is left. What a gateway posts it holds no longer. A tenant whose
tokens a budget pays holds the less of both: of its limits, and of what the budget has left for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from slicewise.slurm_plugin.rules.accounting.shares import divided

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
class TokenShare:
    """What a gateway may hold; if that is nothing, ``why``, and seconds until more may be left."""

    tokens: int
    why: str = ""
    retry_s: int = 0


def held(
    limits: TokenLimits, use: TokenUse, wanted: int, *, month_left_s: int, expires_s: int
) -> TokenShare:
    """What a gateway may hold now: what it wants, or half of what is left if it wants less.

    So the first request of a subject that nobody knew finds something, and a second gateway, too.
    """
    lefts = []
    if limits.a_minute is not None:
        lefts.append((limits.a_minute - use.in_minute, "tokens_per_minute", MINUTE_S))
    if limits.a_month is not None:
        lefts.append((limits.a_month - use.in_month, "tokens_per_month", month_left_s))
    if not lefts:
        return TokenShare(wanted)
    unposted, limit, retry_s = min(lefts)
    left = max(0, unposted - use.elsewhere)
    tokens = min(left, max(wanted, -(-left // 2)))
    if tokens:
        return TokenShare(tokens)
    if unposted > 0:
        return TokenShare(0, f"{limit}: {_ELSEWHERE}", expires_s)
    return TokenShare(0, f"{limit}: used up", retry_s)


_ELSEWHERE = "what is left is set aside for other gateways"
_LONGEST_S = 86_400


@dataclass(frozen=True)
class TokenPool:
    """What a budget of tokens has, from which all tenants take that it pays for.

    Attributes:
        payer: whose budget it is.
        unposted: what it may still pay for, its overdraft with it.
        elsewhere: how much of that is set aside for other gateways, and not expired.
        renewed_s: seconds until its next period begins; None without periods.
    """

    payer: str
    unposted: int
    elsewhere: int = 0
    renewed_s: int | None = None


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
    if tokens:
        return TokenShare(tokens)
    if pool.unposted > 0:
        return TokenShare(0, f"token_budget: of {pool.payer}: {_ELSEWHERE}", expires_s)
    retry_s = _LONGEST_S if pool.renewed_s is None else pool.renewed_s
    return TokenShare(0, f"token_budget: of {pool.payer}: used up", retry_s)


def less(limited: TokenShare | None, paid: TokenShare | None) -> TokenShare:
    """What a tenant may hold that has limits, or a budget that pays for it, or both."""
    shares = [share for share in (limited, paid) if share is not None]
    return min(shares, key=lambda share: share.tokens)
