"""Limits how often users may change what is kept forever."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RateLimit:
    """A rate limit: ``at_once`` changes in a row, and one more every ``every_s`` seconds."""

    at_once: int
    every_s: float


@dataclass(frozen=True)
class RateUse:
    """Number of changes used up at ``at_s`` (seconds); they become available again one by one."""

    changes: float = 0.0
    at_s: float = 0.0


def wait_s(rate_use: RateUse, rate: RateLimit, now_s: float) -> float:
    """Seconds until the next change is allowed; 0 means now."""
    return max(0.0, (_still_used(rate_use, rate, now_s) + 1 - rate.at_once) * rate.every_s)


def after_change(rate_use: RateUse, rate: RateLimit, now_s: float) -> RateUse:
    """The state after one more change."""
    return RateUse(_still_used(rate_use, rate, now_s) + 1, now_s)


def _still_used(rate_use: RateUse, rate: RateLimit, now_s: float) -> float:
    return max(0.0, rate_use.changes - (now_s - rate_use.at_s) / rate.every_s)
