"""What servers work on now, and what they have counted: one server's, and a service's together."""

from collections.abc import Iterable
from dataclasses import dataclass, fields

_MOST = 2**53
"""The largest count: readers of JSON keep it exact. Replicas that say more are not believed."""
_FADE_TOKENS = 500_000.0
"""Tokens of prompts that count for the share found in caches, the newest most."""


@dataclass(frozen=True)
class EngineCounts:
    """What a server has counted since its start; None of what it does not count.

    Attributes:
        preemptions: how often it has set a request back, since its cache was full.
        prompt_tokens: tokens of prompts.
        output_tokens: tokens that it has made.
        prefix_cache_lookup_tokens: tokens of prompts that it has looked for in its cache.
        prefix_cache_hit_tokens: those of them that it has found there.
    """

    preemptions: float | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    prefix_cache_lookup_tokens: float | None = None
    prefix_cache_hit_tokens: float | None = None

    def later(
        self, before: "EngineCounts", now: "EngineCounts", keep: float = 1.0
    ) -> "EngineCounts":
        """Add what was counted between two looks; of what is known the share ``keep`` stays.

        A counter that is lower than before started again.
        """
        return EngineCounts(
            *(
                _later(getattr(self, name), getattr(before, name), getattr(now, name), keep)
                for name in _COUNTS
            )
        )


_COUNTS = tuple(field.name for field in fields(EngineCounts))


def _later(
    average: float | None, before: float | None, now: float | None, keep: float
) -> float | None:
    if now is None:
        return average
    more = max(0.0, now - before) if before is not None else 0.0
    return min(keep * (average or 0.0) + more, _MOST)


@dataclass(frozen=True)
class EngineLoad:
    """What a server works on now.

    Attributes:
        running: requests that it works on.
        waiting: requests that wait in it.
        kv_cache: share of its cache of keys and values that is in use; None if it does not say.
        counts_cached: whether it counts tokens of prompts that it has found in its cache.
    """

    running: float
    waiting: float
    kv_cache: float | None = None
    counts: EngineCounts = EngineCounts()
    counts_cached: bool = True


@dataclass(frozen=True)
class ServersLoad:
    """What the replicas of a service work on now.

    Attributes:
        running, waiting: requests that servers work on, and that wait in them.
        kv_cache: share of the cache in use where it is fullest; None if none says it.
        counts: what was counted while this launcher led.
        prefix_hits: share of the prompts' tokens that caches had, lately; None if not known.
        replicas: how many have said it.
    """

    running: int
    waiting: int
    kv_cache: float | None = None
    counts: EngineCounts = EngineCounts()
    prefix_hits: float | None = None
    replicas: int = 1


@dataclass(frozen=True)
class CountsSeen:
    """What a service's replicas have counted: in all, and lately."""

    total: EngineCounts = EngineCounts()
    lately: EngineCounts = EngineCounts()

    def later(self, before: EngineCounts, now: EngineCounts) -> "CountsSeen":
        """Add what a replica has counted between two looks."""
        more = EngineCounts().later(before, now).prefix_cache_lookup_tokens or 0.0
        keep = _FADE_TOKENS / (_FADE_TOKENS + more)
        return CountsSeen(self.total.later(before, now), self.lately.later(before, now, keep))


def servers_load(loads: Iterable[EngineLoad], seen: CountsSeen) -> ServersLoad | None:
    """Add up what replicas have said last; None if none has said anything."""
    engine_loads = list(loads)
    if not engine_loads:
        return None
    lately = seen.lately
    hits = None
    if lately.prefix_cache_lookup_tokens and lately.prefix_cache_hit_tokens is not None:
        hits = min(1.0, lately.prefix_cache_hit_tokens / lately.prefix_cache_lookup_tokens)
    return ServersLoad(
        min(round(sum(load.running for load in engine_loads)), _MOST),
        min(round(sum(load.waiting for load in engine_loads)), _MOST),
        max((load.kv_cache for load in engine_loads if load.kv_cache is not None), default=None),
        seen.total,
        hits,
        len(engine_loads),
    )
