"""A replica in a process of its own, which can be killed as a whole.

Its arguments are the gateway's certificate and the seconds that a request takes, ``inf`` if it
finishes none. It says where it listens in one line of JSON; one that finishes none then says
``asked`` for each request.
"""

import asyncio
import json
import math
import sys
from dataclasses import asdict
from pathlib import Path

from gateway_harness import Replica


class _Asked(Replica):
    async def infer(self, headers: dict[str, str]) -> None:
        _say("asked")
        await super().infer(headers)


async def _serve(gateway: Path, work_s: float) -> None:
    if work_s == math.inf:
        replica: Replica = _Asked(gateway)
        replica.pause()
    else:
        replica = Replica(gateway)
        replica.work_s = work_s
    await replica.start()
    _say(json.dumps(asdict(replica.endpoint)))
    await asyncio.Event().wait()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), float(sys.argv[2])))
