"""Counts the requests that this process makes to slurmctld.

What a command asks was counted with ``sdiag`` on 22.05. Newer versions ask no more.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

_READS = {"squeue": 2, "sinfo": 2, "sprio": 2, "scontrol": 2, "sdiag": 1}
"""Commands that read, and what each asks slurmctld: jobs or nodes, and partitions."""
_OWN = "show hostnames "
"""What ``scontrol`` answers without slurmctld."""
_SHOWS = ("show ", "write ")


class RequestCount:
    """Requests so far.

    Attributes:
        reads: questions to slurmctld, by command, or pyslurm or slurmrestd. Changes of jobs and
            nodes are not counted: they never wait, and their number follows from what people do.
    """

    def __init__(self) -> None:
        self.reads: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """Questions to slurmctld so far."""
        return self.reads.total()

    def count(self, argv: Sequence[str], stdin: str = "") -> None:
        """Count a command that begins now."""
        if requests := requests_of(argv, stdin):
            self.reads[argv[0]] += requests


def requests_of(argv: Sequence[str], stdin: str = "") -> int:
    """How many questions the command asks slurmctld; 0 for a change, and for slurmdbd's commands.

    ``stdin``: the lines that ``scontrol`` reads, if it reads any.
    """
    if argv[0] != "scontrol":
        return 1 if "--steps" in argv else _READS.get(argv[0], 0)
    words = [word for word in argv[1:] if not word.startswith("-")]
    if words:
        return _READS["scontrol"] if words[0] in {"show", "write"} else 0
    lines = stdin.splitlines()
    return sum(line.startswith(_SHOWS) and not line.startswith(_OWN) for line in lines)


ASKED = RequestCount()
"""This process's."""


class SlurmWaits:
    """How long Slurm's answers were waited for.

    Attributes:
        waited_s: seconds until each answer began, all together; to read them takes longer.
    """

    def __init__(self) -> None:
        self.waited_s = 0.0


_WAITS: ContextVar[SlurmWaits | None] = ContextVar("waits", default=None)


@contextmanager
def counted_waits() -> Iterator[SlurmWaits]:
    """Count the waits of what is called inside, also in tasks that are made there."""
    token = _WAITS.set(waits := SlurmWaits())
    try:
        yield waits
    finally:
        _WAITS.reset(token)


def waited(seconds: float) -> None:
    """Add a wait where waits are counted."""
    if waits := _WAITS.get():
        waits.waited_s += seconds
