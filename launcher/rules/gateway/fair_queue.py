"""Who of those who share one service is served next: who has used least of its share.

Virtual counters as in VTC (Sheng et al., OSDI'24), kept where the queue is. HAProxy orders its
queue by a moment that is fixed when a request comes. So each subject (a tenant, or a person) has a
counter, the moment of its next request, which each of its requests moves on by a *step*: its
tokens, each at its weight, divided by the subject's weight, times the *pace*, milliseconds for a
token. The *turn* is the moment of the request that got a place last. No counter is behind it: who
was away saves nothing up, and who had all places while nobody else asked pays nothing for it
(start-time fair queueing, Goyal et al., 1996).

What a request will use nobody knows as it comes: it counts as the mean of its subject's last ones.
The pace lets the turn go about as fast as the clock, as HAProxy compares moments only near the
clock. Another pace holds from a moment on that no request has yet: within a queue of two paces
shares would be off.

This module works out means and pace; HAProxy's configuration does the rest.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import exp

GUESSED_TOKENS = 1_000.0
"""Tokens of a request before any has ended, and of each one of an engine that counts no tokens."""
MOST_SUBJECTS = 1_000
"""Subjects of a service of which means are remembered: those that ended a request last."""
_MEAN_KEEPS = 0.95
"""What of a mean is left after one more request."""
_KEPT_MS = 3_600_000.0
"""Time for which a subject that ends no request is remembered."""
_GUESSED_PACE = 0.1
_MEASURED_MS = 10_000.0
"""Time for which requests must have waited under a pace before it is changed."""
_ENOUGH = 1.2
"""By this factor the turn may go faster or slower than the clock."""
_MOST_CHANGE = 4.0
"""What is measured as a queue begins may be far off."""
_NEAR_MS = 100_000.0
"""How far the turn may be from the clock before a pace brings it back within about that time."""
_AFTER_MS = 1_000.0
"""By how much of the turn's way another pace begins after the latest moment that was seen: requests
come until HAProxy knows of it."""


@dataclass(frozen=True)
class SubjectUse:
    """What requests of a subject that have ended have used: tokens, each times its weight."""

    requests: int
    tokens: float


@dataclass(frozen=True)
class Mean:
    """The mean tokens of a subject's last requests, and the Unix milliseconds of the last end."""

    tokens: float
    ended_ms: float


@dataclass(frozen=True)
class TokenPace:
    """Milliseconds for a token of a subject of weight 1.

    Attributes:
        before: for requests whose moment is before ``from_ms``, in Unix milliseconds.
        then: for all later ones.
    """

    before: float = _GUESSED_PACE
    then: float = _GUESSED_PACE
    from_ms: float = 0.0


@dataclass(frozen=True)
class Position:
    """Where a queue stands, in Unix milliseconds: its turn, and the latest of the counters."""

    turn_ms: float
    latest_ms: float


@dataclass(frozen=True)
class FairQueue:
    """What is remembered of one service. After a restart of the launcher it is learnt again.

    Attributes:
        means: by subject.
        mean: of all requests of the service; None until one has ended.
        since: when the present pace began to be measured, and where the turn was; None while
            nobody waits, or the turn has not come to that pace.
    """

    means: Mapping[str, Mean] = field(default_factory=dict, hash=False)
    mean: float | None = None
    pace: TokenPace = TokenPace()
    since: tuple[float, float] | None = None


def with_uses(queue: FairQueue, now_ms: float, uses: Mapping[str, SubjectUse]) -> FairQueue:
    """Return the queue with the means of requests that have ended, by subject."""
    used = {name: use for name, use in uses.items() if use.requests > 0 and use.tokens > 0}
    if not used:
        return queue
    means = {name: mean for name, mean in queue.means.items() if now_ms - mean.ended_ms < _KEPT_MS}
    for name, use in used.items():
        mean = means.get(name)
        means[name] = Mean(_mean(mean.tokens if mean else None, use), now_ms)
    latest = sorted(means, key=lambda name: (-means[name].ended_ms, name))
    requests = sum(use.requests for use in used.values())
    tokens = sum(use.tokens for use in used.values())
    return replace(
        queue,
        means={name: means[name] for name in latest[:MOST_SUBJECTS]},
        mean=_mean(queue.mean, SubjectUse(requests, tokens)),
    )


def _mean(before: float | None, use: SubjectUse) -> float:
    mean = use.tokens / use.requests
    if before is None:
        return mean
    keeps: float = _MEAN_KEEPS**use.requests
    return before * keeps + mean * (1 - keeps)


def with_pace(queue: FairQueue, now_ms: float, position: Position | None) -> FairQueue:
    """Return the queue with the pace that follows from its position; None: nobody waits."""
    if position is not None and position.turn_ms < queue.pace.from_ms:
        return replace(queue, since=None)
    # No request has the pace before any more.
    queue = replace(queue, pace=TokenPace(queue.pace.then, queue.pace.then))
    if position is None:
        return replace(queue, since=None)
    if queue.since is None:
        return replace(queue, since=(now_ms, position.turn_ms))
    since_ms, turn_ms = queue.since
    passed_ms, moved_ms = now_ms - since_ms, position.turn_ms - turn_ms
    if passed_ms < _MEASURED_MS or moved_ms <= 0:
        return queue
    back = exp(-(position.turn_ms - now_ms) / _NEAR_MS)
    change = passed_ms / moved_ms * min(_ENOUGH, max(1 / _ENOUGH, back))
    change = min(_MOST_CHANGE, max(1 / _MOST_CHANGE, change))
    if 1 / _ENOUGH < change < _ENOUGH:
        return queue
    after_ms = _AFTER_MS * moved_ms / passed_ms
    pace = TokenPace(queue.pace.then, queue.pace.then * change, position.latest_ms + after_ms)
    return replace(queue, pace=pace, since=None)


def tokens_of(queue: FairQueue, weights: Mapping[str, float]) -> tuple[float, Mapping[str, float]]:
    """Return a request's tokens for a weight of 1: of a subject of which nothing is known, and of
    all others.
    """
    mean = queue.mean or GUESSED_TOKENS
    means = dict.fromkeys(weights, mean) | {name: own.tokens for name, own in queue.means.items()}
    return mean, {name: tokens / weights.get(name, 1.0) for name, tokens in means.items()}
