"""The admission worker at work on a small snapshot, and what slurmctld asks it."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from unittest.mock import patch

from waiting import PATIENCE_S

from builders.snapshots import snapshot
from slicewise.slurm_plugin.admission_server import worker_process as admission_process
from slicewise.slurm_plugin.admission_server.pipe import Decided
from slicewise.slurm_plugin.admission_server.worker_process import AdmissionProcess
from slicewise.slurm_plugin.common.sockets import own_directory
from slicewise.slurm_plugin.rules.admission.snapshot import Snapshot

SUBMIT = {"v": 1, "op": "submit", "uid": 7, "account": "vision", "partition": "gpu"}
QUESTION = json.dumps(SUBMIT | {"gres": "gpu:1g.10gb:1", "module": "0.1", "mode": "enforce"})
NO_TYPE = "SW-PROFILE-UNKNOWN"
"""The answer: the tenant has a quota, and no node has such GPUs."""
VISION = snapshot(vision=2000)


@asynccontextmanager
async def admitting(
    tmp_path: Path,
    uids: frozenset[int] = frozenset({os.getuid()}),
    on: Snapshot = VISION,
) -> AsyncIterator[tuple[AdmissionProcess, Path, list[Decided]]]:
    """A worker that listens, its socket, and what it has told; nothing is left of it then.

    None counts as hung while a busy machine starts it.
    """
    path = tmp_path / "admission" / "a.sock"
    own_directory(path.parent, 0o700)
    told: list[Decided] = []
    with patch.object(admission_process, "_PATIENCE_S", PATIENCE_S):
        process = AdmissionProcess(path, "enforce", uids, told.append)
        process.publish(on, 1.0)
        life = asyncio.create_task(process.run())
        try:
            await asyncio.wait_for(process.listening.wait(), PATIENCE_S)
            yield process, path, told
        finally:
            life.cancel()
            with suppress(asyncio.CancelledError):
                await life
    assert not path.exists()
