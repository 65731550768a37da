"""Property: whatever is killed when, each request that ended is booked once."""

import asyncio
import tempfile
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from effort import examples
from fault_world.virtual_time import WorldClock
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stand_ins.usage_books import DIGEST, Daemon, line, state

from slicewise.cluster.language.errors import UnreachableError
from slicewise.launcher.gateway import kept_lines
from slicewise.launcher.gateway.kept_lines import KeptLines
from slicewise.launcher.process.usage_journal import UsageJournal
from slicewise.launcher.process.usage_watch import UsageWatch

_RING_LINES = 4
_THREADS = (1, 2, 3)


class Killed(BaseException):
    """The launcher goes no further."""


class Haproxy:
    """Writes each line into the file and the ring, which ends with it and forgets."""

    def __init__(self, file: Path) -> None:
        self._file, self._boots = file, 0
        self.ended: set[tuple[str, int]] = set()
        self.start()

    def start(self) -> None:
        self._boots += 1
        self._boot = f"gw-{self._boots}-5"
        self._places: dict[int, int] = {}
        self._opened: dict[int, Any] = {}
        self.ring: deque[str] = deque(maxlen=_RING_LINES)

    def next_second(self, thread: int) -> None:
        """It opens the file anew at its next line."""
        if opened := self._opened.pop(thread, None):
            opened.close()

    def end_request(self, thread: int, *, has_run: bool) -> None:
        place = self._places.get(thread, 0)
        self._places[thread] = place + 1
        number = 64 * place + thread
        text = line(number, DIGEST if has_run else "0b" * 32, self._boot)
        if thread not in self._opened:
            self._opened[thread] = self._file.open("a", encoding="utf-8")
        self._opened[thread].write(f"{text}\n")
        self._opened[thread].flush()
        self.ring.append(text)
        self.ended.add((self._boot, number))


class World:
    """HAProxy, a launcher, and a daemon that books."""

    def __init__(self, place: Path, clock: WorldClock) -> None:
        self._place, self._clock = place, clock
        self._file = place / "of-haproxy" / "lines"
        self._daemon = Daemon()
        self._start()
        self._haproxy = Haproxy(self._file)

    def _start(self) -> None:
        """Start a launcher, which has had no turn yet."""
        self._kept = KeptLines(self._file)
        self._watch = UsageWatch(self._daemon, UsageJournal(self._place), self._kept)

    def requests_end(self, thread: int, number: int) -> None:
        for _ in range(number):
            self._haproxy.end_request(thread, has_run=number % 2 == 0)

    def seconds_pass(self, *_: int) -> None:
        for thread in _THREADS:
            self._haproxy.next_second(thread)
        self._clock.passed_s += 10

    def ring_is_heard(self, *_: int) -> None:
        for text in list(self._haproxy.ring):
            self._watch.hear(text)

    def file_is_heard(self, *_: int) -> None:
        self._watch.hear()

    def turn_ends(self, *_: int) -> None:
        self._watch.turned(state(DIGEST))

    def is_written(self, *_: int) -> None:
        asyncio.run(self._watch.write())

    def is_posted(self, away: int, lost: int) -> None:
        self._daemon.is_away, self._daemon.is_lost = away == 1, lost == 1
        with suppress(UnreachableError):
            asyncio.run(self._watch.post())
        self._daemon.is_away = self._daemon.is_lost = False

    def haproxy_is_killed(self, *_: int) -> None:
        for thread in _THREADS:
            self._haproxy.next_second(thread)
        self._haproxy.start()

    def launcher_is_killed(self, where: int, _: int) -> None:
        """Perhaps between the journal's file and what the next launcher goes on with."""
        if where > 1:
            name = "remember" if where == 2 else "add"
            with patch.object(UsageJournal, name, side_effect=Killed), suppress(Killed):
                asyncio.run(self._watch.write())
        self._kept.close()
        self._start()

    def is_as_it_should(self) -> None:
        assert self._watch.missed == 0
        assert self._daemon.booked.keys() <= self._haproxy.ended

    def all_is_booked(self) -> None:
        self._watch.turned(state(DIGEST, "0b" * 32))
        for _ in range(6):
            self.seconds_pass()
            self._watch.hear()
            asyncio.run(self._watch.write())
        asyncio.run(self._watch.post())
        assert self._daemon.booked.keys() == self._haproxy.ended
        self.is_as_it_should()
        assert not list(self._file.parent.glob("*.moved"))


STEPS = (
    *(World.requests_end, World.requests_end, World.seconds_pass, World.turn_ends),
    *(World.ring_is_heard, World.file_is_heard, World.is_written, World.is_posted),
    *(World.haproxy_is_killed, World.launcher_is_killed),
)
Step = tuple[Any, int, int]


@settings(
    max_examples=examples(100, nightly=5000),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(STEPS), st.sampled_from(_THREADS), st.integers(1, 6)), max_size=40
    )
)
def test_each_request_that_ended_is_booked_once(clock: WorldClock, steps: Sequence[Step]):
    with (
        tempfile.TemporaryDirectory() as place,
        patch.object(kept_lines, "_LET_GO_BYTES", 500),
    ):
        world = World(Path(place), clock)
        for step, first, second in steps:
            step(world, first, second)
            world.is_as_it_should()
        world.all_is_booked()
