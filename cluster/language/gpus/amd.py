"""AMD's Instinct GPUs: compute and memory partitions, one mode of each for a whole GPU.

AMD's guides to partitioning: instinct.docs.amd.com/projects/amdgpu-docs, gpu-partitioning.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations

from slicewise.cluster.language.gpus.accelerator import Extra
from slicewise.cluster.language.gpus.mig_profiles import MigProfile

_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"


class Amd:
    """Implements ``Accelerator``; profiles are called ``cpx.nps4``: compute and memory mode.

    AMD has no UUID that tells partitions of a GPU apart: an instance has the GPU's, with the
    partition's number.
    """

    vendor = "AMD"
    gpu_uuid = _UUID
    instance_uuid = f"{_UUID}/[0-9]"
    profile = r"[sdtqc]px\.nps[1248]"
    variables: tuple[str, ...] = ("ROCR_VISIBLE_DEVICES",)
    uncut = "spx.nps1"
    has_parts = False
    # Without it Slurm sets CUDA_VISIBLE_DEVICES and GPU_DEVICE_ORDINAL as well, and HIP would count
    # devices by these among those that ROCR_VISIBLE_DEVICES has left.
    gres_flags = "amd_gpu_env"

    def files(self, directory: str, gpu: int, instance: Sequence[int]) -> tuple[str, ...]:
        """The render node of the GPU, or of its partition; jobs share /dev/kfd beside it.

        The kernel's driver gives a partition only to processes that may open its render node.
        """
        minors = dict.fromkeys(instance or (gpu,))
        return tuple(f"{directory}/dri/renderD{minor}" for minor in minors)

    def pad_file(self, directory: str, nth: int) -> str:
        """None: nodes with AMD's GPUs have no pads."""
        raise AssertionError(f"{directory} of a node with AMD's GPUs gets no pad ({nth})")

    def extras(
        self, memory_slices: int, profiles: Sequence[MigProfile]
    ) -> Mapping[tuple[str, int], Extra]:
        """A bit for each two partitions of different modes, which both take."""
        del memory_slices
        places = [(profile.name, start) for profile in profiles for start in profile.starts]
        takes = dict.fromkeys(places, 0)
        for nth, (place, other) in enumerate(combinations(places, 2)):
            if place[0] != other[0]:
                takes[place] |= 1 << nth
                takes[other] |= 1 << nth
        return {place: Extra(bits, 0) for place, bits in takes.items()}
