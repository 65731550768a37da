"""Reads from a node's /proc and /dev what its GPUs' driver does not say."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

ROOT = Path("/")
"""Where the node's /proc and /dev are, outside containers."""

_MINORS = Path("proc/driver/nvidia-caps/mig-minors")
_MINOR = re.compile(r"(gpu\d+/gi\d+(?:/ci\d+)?)/access (\d+)")
_JOB = re.compile(r"/job_(\d+)(?:/|$)", re.MULTILINE)
# Only from the kernel itself (facility 0), and only at a record's beginning: behind other words, a
# user may have made the kernel log the text. On a GPU that is cut, the numbers of its instances may
# follow the address: (PCI:0000:07:00 GPU-I:05).
_XID = re.compile(
    r"^[0-7],\d+,\d+,[^;\n]*;NVRM: Xid "
    r"\(PCI:([0-9a-fA-F]{1,8}):([0-9a-fA-F]{1,4}):([0-9a-fA-F]{1,4})[^)\n]*\): (\d{1,4})(?!\d)",
    re.MULTILINE | re.ASCII,
)
_RECORD_BYTES = 8192


def capability_minors(root: Path) -> Mapping[str, int]:
    """Minor numbers in /dev/nvidia-caps, by ``gpu0/gi3`` and ``gpu0/gi3/ci0``; {} without MIG."""
    try:
        text = (root / _MINORS).read_text(encoding="ascii")
    except OSError:
        return {}
    return {name: int(minor) for name, minor in _MINOR.findall(text)}


def job_of(root: Path, pid: int) -> int | None:
    """The Slurm job that has the process in its cgroup; None if there is none."""
    try:
        text = (root / "proc" / str(pid) / "cgroup").read_text(encoding="ascii")
    except OSError:
        return None
    match = _JOB.search(text)
    return int(match[1]) if match else None


def has_amd_gpus(root: Path) -> bool:
    """Whether AMD's driver for compute is loaded, whatever else is installed."""
    return (root / "dev" / "kfd").exists()


def xids(root: Path) -> Mapping[str, tuple[int, ...]] | None:
    """Errors that the kernel has logged, by ``bus_key``; None where its log may not be read."""
    numbers: dict[str, tuple[int, ...]] = {}
    try:
        for domain, bus, device, number in _XID.findall(_kernel_log(root / "dev" / "kmsg")):
            key = f"{int(domain, 16):x}:{int(bus, 16):x}:{int(device, 16):x}"
            numbers[key] = tuple(dict.fromkeys((*numbers.get(key, ()), int(number))))
    except OSError:
        return None
    return numbers


def bus_key(pci_bus_id: str) -> str:
    """NVML's ``00000000:0F:00.0`` in the form of the keys of ``xids``: ``0:f:0``."""
    parts = pci_bus_id.partition(".")[0].split(":")
    return ":".join(f"{int(part, 16):x}" for part in parts)


def _kernel_log(place: Path) -> str:
    file = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return "\n".join(_records(file))
    finally:
        os.close(file)


def _records(file: int) -> Iterator[str]:
    """The log's records: each read gives one, and an error means that there is no further one."""
    with suppress(BlockingIOError):
        while True:
            try:
                record = os.read(file, _RECORD_BYTES)
            except BrokenPipeError:
                continue  # overwritten before it was read; the next one is there
            if not record:
                return
            yield record.decode(errors="replace")
