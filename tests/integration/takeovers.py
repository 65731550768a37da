"""How long a pair takes until another of the two leads, on a machine that has much else to do."""

import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from processes import children_of, waited_s

from sandbox.cluster import Sandbox


class Takeover:
    """Made right before the leader is lost; over once one of ``names`` has begun to lead.

    Their logs say when that was: a look of the test's may come much later. For as long as they, or
    PostgreSQL, waited for a processor meanwhile, the machine is to blame.

    Attributes:
        took_s: from then to the lead, by the clock.
        own_s: the same without those waits.
    """

    def __init__(self, sandbox: Sandbox, *names: str) -> None:
        self._logs = [sandbox.layout.log / f"{name}.log" for name in names]
        self._servers = [sandbox.state.processes[name].pid for name in names]
        self._postgres = sandbox.state.processes["postgres"].pid
        self._before_s = waited_s(self._pids())
        self._began_s = time.time()
        self.took_s = self.own_s = float("inf")

    def is_over(self) -> bool:
        led_s = [one for log in self._logs for one in _led_s(log) if one > self._began_s]
        if led_s and self.took_s == float("inf"):
            now_s = waited_s(self._pids())
            waits_s = (waited - self._before_s.get(thread, 0.0) for thread, waited in now_s.items())
            self.took_s = min(led_s) - self._began_s
            self.own_s = self.took_s - sum(waits_s)
        return bool(led_s)

    def _pids(self) -> Iterable[int]:
        """Each session of PostgreSQL's is a process of its own."""
        return (*self._servers, self._postgres, *children_of(self._postgres))


def _led_s(log: Path) -> list[float]:
    """When it began to lead, in Unix seconds."""
    with suppress(FileNotFoundError):
        lines = [line for line in log.read_text().splitlines() if " leads " in line]
        return [datetime.fromisoformat(line[:23]).timestamp() for line in lines]
    return []
