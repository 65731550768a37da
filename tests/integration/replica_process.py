"""A replica in a process of its own, which can be killed as a whole; it finishes nothing.

Its argument is the gateway's certificate. It says where it listens in one line of JSON, then
``asked`` for each request.
"""

import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path

from gateway_harness import Replica


class _Asked(Replica):
    async def infer(self, headers: dict[str, str]) -> None:
        _say("asked")
        await super().infer(headers)


async def _serve(gateway: Path) -> None:
    replica = await _Asked(gateway).start()
    replica.pause()
    _say(json.dumps(asdict(replica.endpoint)))
    await asyncio.Event().wait()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
