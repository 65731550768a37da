"""NVIDIA's GPUs: MIG instances, their device files, and the engines that they share."""

from collections.abc import Iterable, Mapping, Sequence

from slicewise.cluster.language.gpus.accelerator import Extra
from slicewise.cluster.language.gpus.mig_profiles import MigProfile

_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"


class Nvidia:
    """Implements ``Accelerator``; profiles are called ``1g.10gb`` or ``1g.24gb+me.all``."""

    vendor = "NVIDIA"
    gpu_uuid = f"GPU-{_UUID}"
    instance_uuid = f"MIG-(?:{_UUID}|GPU-{_UUID}/[0-9]{{1,3}}/[0-9]{{1,3}})"
    profile = r"[0-9]{1,2}g\.[0-9]{1,4}gb(?:[+-][a-z.]{1,16})?"
    variables: tuple[str, ...] = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
    uncut = ""
    has_parts = True
    gres_flags = ""

    def files(self, directory: str, gpu: int, instance: Sequence[int]) -> tuple[str, ...]:
        """The GPU's own file, and an instance's capabilities."""
        capabilities = (f"{directory}/nvidia-caps/nvidia-cap{minor}" for minor in instance)
        return (f"{directory}/nvidia{gpu}", *capabilities)

    def pad_file(self, directory: str, nth: int) -> str:
        """The capability that lets a process change MIG.

        Where Slurm constrains devices, jobs can't access devices that they were not given, and no
        job needs this one.
        """
        return f"{directory}/nvidia-caps/{'./' * nth}nvidia-cap1"

    def extras(
        self, memory_slices: int, profiles: Sequence[MigProfile]
    ) -> Mapping[tuple[str, int], Extra]:
        """Media engines, and those that a board has too few of for all instances."""
        media = any(_takes_all_media(profile) for profile in profiles)
        engines = _engines(memory_slices, profiles)
        return {
            (profile.name, start): Extra(
                _media(profile, start, memory_slices) if media else 0,
                engines.get(_engine(profile), 0),
            )
            for profile in profiles
            for start in profile.starts
        }


def _media(profile: MigProfile, start: int, memory_slices: int) -> int:
    """Bits of the media engines that an instance takes.

    Each slice brings media engines: for the instance that lies there, for none (``-me``), or all of
    them for one instance (``+me.all``).
    """
    if profile.extension == "-me":
        return 0
    if _takes_all_media(profile):
        return (1 << memory_slices) - 1
    return ((1 << profile.memory_slices) - 1) << start


def _takes_all_media(profile: MigProfile) -> bool:
    return profile.extension == "+me.all"


def _engines(first_bit: int, profiles: Iterable[MigProfile]) -> Mapping[str, int]:
    """Bits for engines of profiles that have fewer instances than there would be room for."""
    bits: dict[str, int] = {}
    for profile in profiles:
        name = _engine(profile)
        if name not in bits and profile.max_instances < _most_by_room(profile):
            bits[name] = ((1 << profile.max_instances) - 1) << first_bit
            first_bit += profile.max_instances
    return bits


def _engine(profile: MigProfile) -> str:
    """The engine that bounds a profile; all with media extensions share that for optical flow."""
    return "+me" if profile.extension.startswith("+me") else profile.name


def _most_by_room(profile: MigProfile) -> int:
    most, end = 0, 0
    for start in profile.starts:
        if start >= end:
            most, end = most + 1, start + profile.memory_slices
    return most
