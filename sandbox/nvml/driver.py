"""A node's emulated NVIDIA driver: which boards it has, and what happens to them.

The state is one text file (read and written by ``state.c``), so that a person can look at it and
several processes see the same boards. It lasts, as a real driver's state lasts until a reboot.
"""

import fcntl
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import NAMESPACE_OID, uuid5

from slicewise.cluster.language.gpus.mig_profiles import Board, MigProfile, board
from slicewise.sandbox.nvml.library import library

VERSION = "570.86.15"
DIRECTORY_VARIABLE = "SLICEWISE_NVML_DIR"
"""Where the library looks for its state."""

_NAMES = {
    "A30-24GB": "NVIDIA A30",
    "A100-40GB": "NVIDIA A100-SXM4-40GB",
    "A100-80GB": "NVIDIA A100-SXM4-80GB",
    "H100-80GB": "NVIDIA H100 80GB HBM3",
    "H200-141GB": "NVIDIA H200",
    "B200-180GB": "NVIDIA B200",
}
"""Boards' names as the real driver gives them, for boards whose name a log shows."""

_SUFFIXES = {"+me": 7, "+gfx": 10, "-me": 13, "+me.all": 15}
"""NVML_GPU_INSTANCE_PROFILE_1_SLICE_* by suffix; the 2_SLICE_* of each is the next number."""
_GFX_4_SLICES, _DOUBLE_MEMORY = 12, 9
_PLAIN = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}

_POWER_MW = 68_000
_GPUS_OF_MINORS, _INSTANCES_OF_MINORS, _COMPUTES_OF_MINORS = 8, 15, 8


@dataclass(frozen=True)
class EmulatedGpu:
    """A board of the node.

    Attributes:
        model: as in ``slicewise.cluster.language.gpus.mig_profiles``.
        mig: whether MIG mode is on.
        serial: makes its UUID differ from that of the same board in another node.
    """

    model: str
    mig: bool = True
    serial: str = ""


class EmulatedDriver:
    """The driver of one node, in a directory of its own.

    Attributes:
        host_root: stands for the node's ``/``: its /proc has the capabilities' minor numbers, its
            /dev/kmsg the kernel's messages.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.host_root = directory / "root"

    def load(self, gpus: Sequence[EmulatedGpu]) -> None:
        """Start again with these boards, none of them cut."""
        self._directory.mkdir(parents=True, exist_ok=True)
        (self._directory / "lock").touch()
        with self.lines() as lines:
            lines[:] = [f"driver {VERSION}", *_gpu_lines(gpus)]
        minors = self.host_root / "proc" / "driver" / "nvidia-caps" / "mig-minors"
        minors.parent.mkdir(parents=True, exist_ok=True)
        minors.write_text("\n".join(_minor_lines()) + "\n", encoding="ascii")
        for place in ("dev", "run"):
            (self.host_root / place).mkdir(exist_ok=True)
        (self.host_root / "dev" / "kmsg").write_text("", encoding="ascii")

    def environment(self, builds: Path) -> Mapping[str, str]:
        """What a process needs to see this driver; ``builds`` is where the library is made."""
        return {
            "LD_LIBRARY_PATH": str(library(builds).parent),
            DIRECTORY_VARIABLE: str(self._directory),
        }

    @contextmanager
    def lines(self) -> Iterator[list[str]]:
        """Yield the state's lines, to be changed in place; locked as the library locks them."""
        state, fresh = self._directory / "state", self._directory / "state.new"
        with (self._directory / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            lines = state.read_text(encoding="ascii").splitlines() if state.exists() else []
            yield lines
            fresh.write_text("\n".join(lines) + "\n", encoding="ascii")
            fresh.replace(state)


def _gpu_lines(gpus: Sequence[EmulatedGpu]) -> Iterator[str]:
    for number, gpu in enumerate(gpus):
        yield from _board_lines(number, gpu, board(gpu.model))


def _board_lines(number: int, gpu: EmulatedGpu, on: Board) -> Iterator[str]:
    whole = max(on.profiles.values(), key=lambda profile: profile.memory_slices)
    memory_mib = whole.memory_mib or int(whole.name.split(".")[1].removesuffix("gb")) * 1000
    name = _NAMES.get(gpu.model, f"NVIDIA {gpu.model}")
    uuid = uuid5(NAMESPACE_OID, f"{gpu.model} {number}{gpu.serial}")
    bus = 7 + 8 * number
    mode = f"{int(gpu.mig)} {int(gpu.mig)}"
    yield (
        f"board {number} {on.pci_device_ids[0]:x} {number} {mode} {memory_mib} {on.memory_slices}"
        f" 00000000:{bus:02X}:00.0 GPU-{uuid} {name}"
    )
    yield f"reading {number} {_POWER_MW} 700000 31"
    yield f"energy {number} 0 {_up_ms()} 0"
    for profile in on.profiles.values():
        yield _profile_line(number, on, profile)


def _profile_line(number: int, on: Board, profile: MigProfile) -> str:
    memory_mib = profile.memory_mib or int(profile.name.split(".")[1].split("gb")[0]) * 1000
    fields = (
        nvml_kind(on, profile),
        profile.gi_profile_id,
        profile.compute_slices,
        profile.memory_slices,
        memory_mib,
        profile.multiprocessors or 0,
        profile.max_instances,
        profile.name,
        ",".join(map(str, profile.starts)),
    )
    return f"profile {number} {' '.join(map(str, fields))}"


def _up_ms() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def nvml_kind(on: Board, profile: MigProfile) -> int:
    """``NVML_GPU_INSTANCE_PROFILE_*`` of a profile, by its name."""
    slices = profile.compute_slices
    for suffix, kind in _SUFFIXES.items():
        if profile.name.endswith(f"gb{suffix}"):
            return _GFX_4_SLICES if (suffix, slices) == ("+gfx", 4) else kind + slices - 1
    smallest = min(profile.memory_slices for profile in on.profiles.values())
    if slices == 1 and profile.memory_slices > smallest:
        return _DOUBLE_MEMORY
    return _PLAIN[slices]


def _minor_lines() -> Iterator[str]:
    """Minor numbers as in the driver's /proc: each GPU instance's, then its compute instances'."""
    minor = 3
    yield from ("config 1", "monitor 2")
    for gpu in range(_GPUS_OF_MINORS):
        for gi in range(_INSTANCES_OF_MINORS):
            yield f"gpu{gpu}/gi{gi}/access {minor}"
            for ci in range(_COMPUTES_OF_MINORS):
                yield f"gpu{gpu}/gi{gi}/ci{ci}/access {minor + 1 + ci}"
            minor += 1 + _COMPUTES_OF_MINORS
