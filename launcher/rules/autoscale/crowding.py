"""Learns from servers' own queues how many requests a replica can really work on together.

A server whose cache of keys and values is full lets requests wait, or sets some back. Such a wait
counts in the time to the first token, which is short before and long after: a curve through times
does not show where.
"""

from dataclasses import dataclass, replace
from math import ceil

from slicewise.launcher.rules.engines.load import ServersLoad

_ENOUGH_S, _ENOUGH_ANSWERS = 20.0, 20.0
"""Seconds and answers that make a sample: one request more or less waits at any moment."""
_CROWDED = 0.1
"""Share of the requests worked on that may wait in a server, for what comes in a burst."""
_FULL = 0.75
"""Share of a cache in use from which on requests wait for it: it holds whole prompts only."""
_AGAIN = 400.0
"""Answers for each request at a replica after which more are tried again."""


@dataclass(frozen=True)
class Crowding:
    """What replicas' servers have worked on while requests waited in them.

    Attributes:
        most: requests that each worked on then; None if none had to wait, or long ago.
        running, waiting, replica_s: while some waited since the last sample, requests worked on
            and waiting, and replicas, added up over seconds.
        seconds, answers: seconds and answers since then.
        since: answers since ``most`` was found.
    """

    most: int | None = None
    running: float = 0.0
    waiting: float = 0.0
    replica_s: float = 0.0
    seconds: float = 0.0
    answers: float = 0.0
    since: float = 0.0

    @property
    def is_told(self) -> bool:
        """Whether servers have said what they work on."""
        return bool(self.seconds or self.since or self.most)

    @property
    def is_new(self) -> bool:
        """Whether the last look has shown that requests have to wait in servers."""
        return self.most is not None and not self.since and not self.seconds


def is_full(seen: ServersLoad) -> bool:
    """Whether requests wait since a cache is full, and not just for the prompts before theirs."""
    return bool(seen.waiting) and (seen.kv_cache is None or seen.kv_cache >= _FULL)


def room_of(seen: ServersLoad) -> int | None:
    """Return how many requests, such as run now, the fullest cache holds; None if not known."""
    return ceil(seen.running / max(1, seen.replicas) / seen.kv_cache) if seen.kv_cache else None


def learn_crowding(known: Crowding, seen: ServersLoad, elapsed_s: float, answered: int) -> Crowding:
    """Learn from a look."""
    waits_s = elapsed_s if is_full(seen) else 0.0
    sample = replace(
        known,
        running=known.running + seen.running * waits_s,
        waiting=known.waiting + seen.waiting * waits_s,
        replica_s=known.replica_s + seen.replicas * waits_s,
        seconds=known.seconds + elapsed_s,
        answers=known.answers + answered,
        since=known.since + answered,
    )
    if sample.seconds < _ENOUGH_S or sample.answers < _ENOUGH_ANSWERS:
        return sample
    if sample.waiting > max(sample.seconds * seen.replicas, _CROWDED * sample.running):
        return Crowding(max(1, ceil(sample.running / max(1.0, sample.replica_s))))
    is_old = known.most is not None and sample.since >= _AGAIN * known.most * seen.replicas
    return Crowding(None if is_old else known.most, since=sample.since)
