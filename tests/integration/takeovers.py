"""How long a pair takes until another of the two leads, on a machine that has much else to do."""

import subprocess
import sys
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import psycopg

from sandbox.cluster import Sandbox

_ASKS_EVERY_S, _SETTLES_S = 0.3, 1.7
_LOCK = 7
_RIVAL = f"""
import sys, time, psycopg
with psycopg.connect(sys.argv[1], autocommit=True) as session:
    print("waits", flush=True)
    while not session.execute("SELECT pg_try_advisory_lock({_LOCK})").fetchone()[0]:
        time.sleep({_ASKS_EVERY_S})
    time.sleep({_SETTLES_S})
    print(time.time(), flush=True)
"""


class Takeover:
    """Made right before the leader is lost; over once one of ``names`` has begun to lead.

    Their logs say when that was: a look of the test's may come much later. A lock of the test's own
    is lost at the same moment, and a program that does nothing else takes it as one of a pair does:
    as late as that is, the machine has made it.

    Attributes:
        took_s: from then to the lead, by the clock.
        own_s: the same without what the machine has added.
    """

    def __init__(self, sandbox: Sandbox, *names: str) -> None:
        self._logs = [sandbox.layout.log / f"{name}.log" for name in names]
        url = sandbox.layout.database_url(sandbox.state.users["slurm"].name)
        with psycopg.connect(url, autocommit=True) as holder:
            holder.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))
            self._rival = subprocess.Popen(
                (sys.executable, "-c", _RIVAL, url), stdout=subprocess.PIPE, text=True
            )
            assert self._rival.stdout is not None
            assert self._rival.stdout.readline() == "waits\n"
            self._began_s = time.time()
        self.took_s = self.own_s = float("inf")

    def is_over(self) -> bool:
        led_s = [one for log in self._logs for one in _led_s(log) if one > self._began_s]
        if led_s and self.took_s == float("inf"):
            self.took_s = min(led_s) - self._began_s
            rivals_s = float(self._rival.communicate()[0]) - self._began_s
            self.own_s = self.took_s - max(0.0, rivals_s - _ASKS_EVERY_S - _SETTLES_S)
        return bool(led_s)


def _led_s(log: Path) -> list[float]:
    """When it began to lead, in Unix seconds."""
    with suppress(FileNotFoundError):
        lines = [line for line in log.read_text().splitlines() if " event=leads " in line]
        at = (line.removeprefix("time=").partition(" ")[0] for line in lines)
        return [datetime.fromisoformat(one).timestamp() for one in at]
    return []
