"""A node's emulated AMD driver: which GPUs it has, how they are partitioned, who uses them.

The state is one text file, which ``state.c`` reads at each call. No call changes it: Slicewise
changes no modes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import NAMESPACE_OID, uuid5

from slicewise.cluster.language.gpus.mig_profiles import MigProfile, board
from slicewise.sandbox.amd_smi.library import library

VERSION = "6.14.14"
DIRECTORY_VARIABLE = "SLICEWISE_AMD_SMI_DIR"
"""Where the library looks for its state."""

_FIRST_RENDER, _RENDERS_OF_GPU = 128, 8
"""The kernel's driver makes eight render nodes for each GPU, whatever its mode."""


@dataclass(frozen=True)
class EmulatedAmdGpu:
    """A GPU of the node.

    Attributes:
        model: as in ``slicewise.cluster.language.gpus.mig_profiles``.
        profile: its modes, as a profile of that model; "" for a GPU that has no modes.
        serial: makes its UUID differ from that of the same GPU in another node.
        partitions: number of partitions that the driver shows; by the profile if None.
    """

    model: str
    profile: str
    serial: str = ""
    partitions: int | None = None


class EmulatedAmdDriver:
    """The driver of one node, in a directory of its own; ``host_root`` stands for the node's /."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.host_root = directory / "root"

    def load(self, gpus: Sequence[EmulatedAmdGpu]) -> None:
        """Start again with these GPUs."""
        (self.host_root / "run").mkdir(parents=True, exist_ok=True)
        self._write([f"driver {VERSION}", *_lines(gpus)])

    def environment(self, builds: Path) -> Mapping[str, str]:
        """What a process needs to see this driver; ``builds`` is where the library is made."""
        return {
            "LD_LIBRARY_PATH": str(library(builds).parent),
            DIRECTORY_VARIABLE: str(self._directory),
        }

    def hold(self, gpu: int, partition: int, pid: int, memory_mib: int) -> None:
        """Let a process use a partition."""
        self._write([*self._read(), f"process {gpu} {partition} {pid} {memory_mib}"])

    def fail(self, function: str, code: int) -> None:
        """Let each call of that function fail from now on."""
        self._write([*self._read(), f"fail {function} {code}"])

    def _read(self) -> list[str]:
        return (self._directory / "state").read_text(encoding="ascii").splitlines()

    def _write(self, lines: Sequence[str]) -> None:
        fresh = self._directory / "state.new"
        fresh.write_text("\n".join(lines) + "\n", encoding="ascii")
        fresh.replace(self._directory / "state")


def _lines(gpus: Sequence[EmulatedAmdGpu]) -> Iterator[str]:
    for number, gpu in enumerate(gpus):
        on = board(gpu.model)
        whole = max(on.profiles.values(), key=lambda profile: profile.memory_slices)
        compute, _, memory = (gpu.profile or "-.-").upper().partition(".")
        uuid = uuid5(NAMESPACE_OID, f"{gpu.model} {number}{gpu.serial}")
        yield (
            f"gpu {on.pci_device_ids[0]:x} {0x0C + 0x10 * number}"
            f" {_FIRST_RENDER + _RENDERS_OF_GPU * number}"
            f" {gpu.partitions or _partitions(on.profiles.get(gpu.profile))}"
            f" {whole.multiprocessors} {whole.memory_mib} 141 38 0 0"
            f" {uuid} {compute} {memory} AMD Instinct {gpu.model.partition('-')[0]}"
        )


def _partitions(profile: MigProfile | None) -> int:
    return profile.max_instances if profile is not None else 1
