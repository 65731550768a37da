"""How often somebody may change what is kept for ever."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rate:
    """So many changes at once, and one more each ``every_s``."""

    at_once: int
    every_s: float


@dataclass(frozen=True)
class Used:
    """So many of the changes were used up at ``at_s``; they come back one by one."""

    changes: float = 0.0
    at_s: float = 0.0


def wait_s(known: Used, rate: Rate, now_s: float) -> float:
    """Until the next change is allowed, in seconds; 0 is now."""
    return max(0.0, (_still_used(known, rate, now_s) + 1 - rate.at_once) * rate.every_s)


def after_change(known: Used, rate: Rate, now_s: float) -> Used:
    """With one more."""
    return Used(_still_used(known, rate, now_s) + 1, now_s)


def _still_used(known: Used, rate: Rate, now_s: float) -> float:
    return max(0.0, known.changes - (now_s - known.at_s) / rate.every_s)
