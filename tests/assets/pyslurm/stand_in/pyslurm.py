"""Stands in for pyslurm and libslurm in the worker: recorded objects, or the trouble asked for.

In the directory $STAND_IN: ``pyslurm.json``, the recorded attributes; ``trouble``, a word; each
request leaves a line in ``asked``.
"""

import ctypes
import json
import os
import pwd
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(os.environ["STAND_IN"])
RECORDED = json.loads((HERE / "pyslurm.json").read_text(encoding="utf-8"))


class RPCError(Exception):
    pass


class Recorded:
    """An object with these attributes; text that is not UTF-8 raises as pyslurm's does."""

    def __init__(self, attributes: dict[str, Any]) -> None:
        self.attributes = attributes

    def __getattr__(self, name: str) -> Any:
        try:
            value = self.attributes[name]
        except KeyError:
            raise AttributeError(name) from None
        if isinstance(value, dict) and "bytes" in value:
            return bytes.fromhex(value["bytes"]).decode()
        if name == "gres":
            return {key: Recorded(one) for key, one in value.items()}
        return Recorded(value) if isinstance(value, dict) else value

    def get_resource_layout_per_node(self) -> dict[str, Any]:
        return {}


def trouble() -> str:
    file = HERE / "trouble"
    return file.read_text(encoding="utf-8") if file.exists() else ""


def suffer() -> None:
    sys.stdout.write("pyslurm prints\n")
    with (HERE / "asked").open("a", encoding="utf-8") as file:
        file.write(f"{os.environ.get('SLURM_BITSTR_LEN')}\n")
    match trouble():
        case "hangs":
            time.sleep(60)
        case "exits":
            os._exit(1)
        case "crashes":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "refuses":
            raise RPCError("Unable to contact slurm controller")


class Jobs:
    @staticmethod
    def load() -> dict[int, Recorded]:
        suffer()
        return {job["id"]: Recorded(job) for job in RECORDED["jobs"]}


class JobSteps:
    @staticmethod
    def load_all() -> dict[int, dict[Any, Recorded]]:
        suffer()
        return {
            int(job): {step["id"]: Recorded(step) for step in steps}
            for job, steps in RECORDED["steps"].items()
        }


class Job:
    def __init__(self, job_id: int) -> None:
        self.job_id = job_id

    def get_batch_script(self) -> str:
        suffer()
        return str(RECORDED["script"])


def ping_primary() -> None:
    if trouble() == "down":
        raise RPCError("Unable to contact slurm controller (connect failure)")


slurmctld = SimpleNamespace(ping_primary=ping_primary)


def slurm_api_version() -> tuple[int, int, int]:
    return (22, 5, 8) if trouble() == "is old" else (25, 11, 7)


LIBRARY = 45 if trouble() == "has another library" else 44
ctypes.CDLL = lambda name: SimpleNamespace(slurm_api_version=lambda: LIBRARY << 16)  # type: ignore[assignment,misc]
pwd.getpwuid = lambda uid: SimpleNamespace(pw_name="alice")  # type: ignore[assignment,return-value]
if trouble() == "has no slurm.conf":
    sys.stderr.write("slurm_init: fatal: Unable to process configuration file\n")
    os._exit(1)
if trouble() == "does not load":
    raise ImportError("undefined symbol: slurm_something")
