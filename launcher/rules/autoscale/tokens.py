"""How long a service's requests take to their first token, and from one token to the next."""

from dataclasses import dataclass, replace

from slicewise.launcher.rules.autoscale.histogram import added_bins, counted_since, quantile
from slicewise.launcher.rules.engines.engine import FIRST_TOKEN_S, FirstTokens, TokenCounts

_FADE_REQUESTS, _FADE_TAIL = 200.0, 500.0
"""Number of requests that count, the newest most; and where the slowest of 20 are looked at."""
_TAIL, _ENOUGH = 0.95, 20.0
_PATIENCE = 200.0
"""Answers after which replicas that have not told a time of tokens are taken never to tell it."""


@dataclass(frozen=True)
class TokensDone:
    """What replicas have made; old parts fade away.

    Attributes:
        seen: their counters at the last look; None before the first one.
        requests: requests with a first token.
        first_s: seconds that these took, added up.
        tokens: tokens after the first ones.
        token_s: seconds that these took, added up.
        answers: requests answered since the service has an objective of tokens.
        firsts: requests by the time to their first token, as ``TokenCounts`` has them; empty if
            replicas have no such histogram.
    """

    seen: TokenCounts | None = None
    requests: float = 0.0
    first_s: float = 0.0
    tokens: float = 0.0
    token_s: float = 0.0
    answers: float = 0.0
    firsts: FirstTokens = ()

    @property
    def is_overdue(self) -> bool:
        """Whether a time that is not known yet would be known if replicas told it."""
        return self.answers >= _PATIENCE

    @property
    def to_first_s(self) -> float | None:
        """Mean seconds in a replica until a request's first token; None if not known."""
        return self.first_s / self.requests if self.requests and self.first_s else None

    @property
    def first_p95_s(self) -> float | None:
        """Seconds in a replica within which 95 % of the requests had their first token.

        None if replicas have no histogram, or too few requests for one in 20 to be slow.
        """
        is_enough = sum(self.firsts) >= _ENOUGH
        return quantile(self.firsts, FIRST_TOKEN_S, _TAIL) if is_enough else None

    @property
    def per_token_s(self) -> float | None:
        """Mean seconds from one token to the next; None if not known."""
        return self.token_s / self.tokens if self.tokens and self.token_s else None


def without_firsts(known: TokensDone) -> TokensDone:
    """Forget how long first tokens took."""
    return replace(known, requests=0.0, first_s=0.0, firsts=())


def learn_tokens(known: TokensDone, now: TokenCounts | None, answered: int) -> TokensDone:
    """Learn from a look; ``answered`` requests count where the engine does not count them."""
    if now is None:
        return known
    before = known.seen
    if before is None or now.first_s < before.first_s or now.tokens < before.tokens:
        return replace(known, seen=now)
    is_counted = now.requests is not None and before.requests is not None
    more = (now.requests or 0.0) - (before.requests or 0.0) if is_counted else float(answered)
    faded = _FADE_TAIL if now.firsts else _FADE_REQUESTS
    keep = faded / (faded + max(0.0, more))
    return TokensDone(
        now,
        keep * known.requests + max(0.0, more),
        keep * known.first_s + now.first_s - before.first_s,
        keep * known.tokens + now.tokens - before.tokens,
        keep * known.token_s + max(0.0, now.token_s - before.token_s),
        known.answers,
        added_bins(known.firsts, counted_since(before.firsts, now.firsts), keep),
    )
