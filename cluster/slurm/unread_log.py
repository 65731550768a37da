"""Logs what Slurm says and Slicewise can't read, and counts it."""

import logging
import time
from collections import Counter

from slicewise.cluster.language.slurm.unread import RECORDS, LogsEvent, Unread
from slicewise.cluster.runtime.log import emit

_AGAIN_S = 3600.0
_MOST = 100
_LOG = logging.getLogger("slicewise.slurm")


def warn(event: str, /, **fields: object) -> None:
    """Log the event as a warning; a command's warnings go to its standard error."""
    emit(_LOG, logging.WARNING, event, fields)


class UnreadLog:
    """Logs each unreadable value once an hour, at most 100 values an hour, and counts all of them.

    Attributes:
        counts: how often values could not be read, by kind of record.
    """

    def __init__(self, tell: LogsEvent = warn) -> None:
        self._tell = tell
        self._until_s = 0.0
        self._said: set[tuple[str, str, str]] = set()
        # A count of 0, too: Prometheus sees no increase from nothing to 1.
        self.counts = Counter(dict.fromkeys(RECORDS, 0))

    def __call__(self, unread: Unread) -> None:
        """Count the value, and log it unless that was done within the hour."""
        self.counts[unread.record] += 1
        now_s = time.monotonic()
        if now_s >= self._until_s:
            self._said, self._until_s = set(), now_s + _AGAIN_S
        key = (unread.record, unread.name, unread.field)
        if key in self._said or len(self._said) >= _MOST:
            return
        self._said.add(key)
        self._tell(
            "slurm_unreadable",
            record=unread.record,
            name=unread.name,
            field=unread.field or "-",
            text=unread.text,
        )
