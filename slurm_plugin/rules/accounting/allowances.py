"""How many tokens of a limit a gateway may hold.

What was posted, and what is set aside for other gateways, is taken off each limit: so gateways
never get more together than what is left. What a gateway posts it holds no longer.
"""

from dataclasses import dataclass

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
        return TokenShare(0, f"{limit}: what is left is set aside for other gateways", expires_s)
    return TokenShare(0, f"{limit}: used up", retry_s)
