"""The only door to a replica: asks a Triton server who it is and whether it is ready."""

import asyncio
from typing import Any

from tritonclient.http.aio import InferenceServerClient

from launcher.decide.services import Probe

DEADLINE_S = 1.0


async def probe(address: str, port: int, model: str, identity: str) -> Probe:
    """OURS if server and model are ready and it calls itself ``identity``; never raises.

    The identity is Triton's ``--id``, so a port that Slurm has given to somebody else since is
    found out.
    """
    try:
        async with asyncio.timeout(DEADLINE_S):
            return await _ask(f"{address}:{port}", model, identity)
    except Exception:  # noqa: BLE001 -- whatever a stranger's server answers, it is not ready
        return Probe.SILENT


async def _ask(url: str, model: str, identity: str) -> Probe:
    # Any: tritonclient has no type hints.
    client: Any = InferenceServerClient(url, conn_timeout=DEADLINE_S)
    try:
        if (await client.get_server_metadata())["name"] != identity:
            return Probe.STRANGER
        ready = await client.is_server_ready() and await client.is_model_ready(model)
        return Probe.OURS if ready else Probe.SILENT
    finally:
        await client.close()
