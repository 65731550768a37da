"""What has happened in a world, for people who look for the cause."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fault_world.virtual_time import WorldClock
from slicewise.cluster.runtime.log import LoggedEvent

_SAID_OFTEN = frozenset({"lent", "limit_set"})


class Trace:
    """Lines, each with its second since the beginning.

    Attributes:
        odd: what the product has logged that it never should.
        by_hand: limits that it says somebody else has changed.
        heard: those who are told of each event that a program logs.
    """

    def __init__(self, clock: WorldClock) -> None:
        self._clock = clock
        self._lines: list[tuple[float, str, object]] = []
        self.odd: list[str] = []
        self.by_hand: list[str] = []
        self.heard: list[Callable[[LoggedEvent], None]] = []

    def note(self, who: str, words: object) -> None:
        """Note what ``who`` does, or what is done to it; it is made text only when it is read."""
        self._lines.append((self._clock.passed_s, who, words))

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(f"{at_s:9.2f}  {who:<10} {words}" for at_s, who, words in self._lines)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Note what the programs log meanwhile."""
        logger, ear = logging.getLogger("slicewise"), _Ear(self)
        before = (logger.level, logger.propagate)
        logger.addHandler(ear)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        try:
            yield
        finally:
            logger.removeHandler(ear)
            logger.level, logger.propagate = before
            logging.getLogger("slicewise").manager._clear_cache()  # type: ignore[attr-defined]


class _Ear(logging.Handler):
    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    def handle(self, record: logging.LogRecord) -> bool:
        said: object = record.msg
        if isinstance(said, LoggedEvent):
            self._trace.note(record.name.rpartition(".")[2], said)
            if said.name == "limit_changed_by_hand":
                self._trace.by_hand.append(str(said))
            elif "kind" in said.fields:
                self._trace.odd.append(str(said))
            for one in self._trace.heard:
                one(said)
        return True
