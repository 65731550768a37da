"""Which calls fail, when and how: all by one seeded generator, in the order of the calls."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random

from slicewise.cluster.language.errors import UnreachableError


def seeded(purpose: str, seed: int) -> Random:
    """A generator for one purpose, so that what is drawn for others moves nothing of it."""
    return Random(f"{purpose} {seed}")  # noqa: S311 -- it must be repeatable


class CrashError(BaseException):
    """A process dies here. No ``except Exception`` of the product sees it."""


class Fault(StrEnum):
    """What happens to one call."""

    DOWN = "is not there"
    LOST = "answers, and the reply is lost"
    AFTERWARDS = "answers nothing, and does it later"
    PARTLY = "does a part, and answers nothing"
    CRASH_BEFORE = "never hears of it: the caller dies"
    CRASH_AFTER = "does it, and the caller dies"


@dataclass(frozen=True)
class Rates:
    """How often calls to one server end badly: shares of the calls.

    Attributes:
        late: of calls that answer some seconds late.
        outages_s: begin and end of the times in which it answers nobody, since the beginning.
    """

    of: Mapping[Fault, float] = field(default_factory=dict, hash=False)
    late: float = 0.0
    late_s: float = 5.0
    outages_s: tuple[tuple[float, float], ...] = ()


SERVERS = ("slurmctld", "slurmdbd", "postgresql", "daemon")
"""Who is called; ``daemon`` is called by the launcher."""


LONG_AFTER_S = 8.0
"""Seconds after which something is done that got no answer, at most."""
_HALF = 0.5
_CHANGES_FAIL = 5
"""How much more often calls fail that change something: there are fewer, and they matter more."""


class Faults:
    """Draws the faults.

    Attributes:
        is_over: nothing fails any more, but for what follows.
        once: what happens to the next change by a server, by its name.
        failed_once: told when that happens.
        silent: servers that answer nobody, and questions of which half get no answer.
    """

    def __init__(
        self, random: Random, rates: Mapping[str, Rates], pauses: Random, longest_pause_s: float
    ) -> None:
        self._random, self._rates = random, rates
        self._pauses, self._longest_pause_s = pauses, longest_pause_s
        self.is_over = False
        self.once: dict[str, Fault] = {}
        self.failed_once: Callable[[], None] = lambda: None
        self.silent: set[str] = set()
        self.drawn: dict[Fault, int] = {}

    def of_call(self, server: str, words: str, passed_s: float, *, changes: bool) -> Fault | None:
        """The fault of a call made now; only calls that change something are done in part."""
        if server in self.silent or (words in self.silent and self._random.random() < _HALF):
            return self._note(Fault.DOWN)
        if changes and server in self.once:
            self.failed_once()
            return self._note(self.once.pop(server))
        if self.is_over:
            return None
        rates = self._rates[server]
        if any(begin_s <= passed_s < end_s for begin_s, end_s in rates.outages_s):
            return self._note(Fault.DOWN)
        left = self._random.random() / (_CHANGES_FAIL if changes else 1)
        for fault, share in rates.of.items():
            left -= share
            if left < 0:
                is_vain = not changes and fault in {Fault.AFTERWARDS, Fault.PARTLY}
                return self._note(Fault.LOST if is_vain else fault)
        return None

    def takes_s(self, server: str) -> float:
        """Seconds by which the next call or its answer is late; 0 for most."""
        rates = self._rates[server]
        if self.is_over or not rates.late or self._random.random() >= rates.late:
            return 0.0
        return self._random.uniform(0.1, rates.late_s)

    def pause_s(self) -> float:
        """Seconds that a step of a program takes, however well all goes: others come between."""
        return self._longest_pause_s and self._pauses.random() * self._longest_pause_s

    def later_s(self) -> float:
        """Seconds after which something is done all the same that got no answer."""
        return self._random.uniform(0.1, LONG_AFTER_S)

    def part(self, count: int) -> int:
        """How many of so many changes are made."""
        return self._random.randrange(count + 1)

    def _note(self, fault: Fault) -> Fault:
        self.drawn[fault] = self.drawn.get(fault, 0) + 1
        return fault


def down(server: str) -> UnreachableError:
    """What a client says of a server that does not answer."""
    code = {"postgresql": "SW-DATABASE-DOWN", "daemon": "SW-DAEMON-DOWN"}.get(
        server, "SW-SLURM-DOWN"
    )
    return UnreachableError(code, f"{server} does not answer.", "Try again.")
