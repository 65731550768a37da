"""What Slicewise must know of one vendor's GPUs besides their profiles and their driver.

An accelerator is pure. It speaks of names and numbers, so that every room may ask it. The profiles
are data: rows of the table that ``mig_profiles`` reads. The driver stands in ``cluster/gpu``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from slicewise.cluster.language.gpus.mig_profiles import MigProfile


@dataclass(frozen=True)
class Extra:
    """What an instance takes of its board besides memory slices.

    The vendor numbers the bits, from 0 on; each stands for an engine or whatever else instances
    exclude each other by.

    Attributes:
        takes: bits that the instance takes, all of them.
        one_of: bits of which it takes one that is free; 0 if it needs none.
    """

    takes: int
    one_of: int


class Accelerator(Protocol):
    """One vendor's GPUs.

    Attributes:
        vendor: the vendor's name, as boards, inventories and sentences have it.
        gpu_uuid: form of a GPU's UUID, as a regular expression. The forms are what a node may
            report: Slicewise refuses any other text.
        instance_uuid: form of the UUID by which a program finds an instance.
        profile: form of a profile's name.
        variables: environment variables by which Slurm tells a job its instances.
        uncut: profile of the only instance of a GPU that is one device; "" if such a GPU has none.
        has_parts: whether an instance can be cut while others on the GPU stay, with their jobs.
            Where not, all instances of a GPU have one profile, and Slicewise never changes it.
        gres_flags: ``Flags`` that the GPUs' lines in gres.conf need; "" for none.
    """

    vendor: str
    gpu_uuid: str
    instance_uuid: str
    profile: str
    variables: tuple[str, ...]
    uncut: str
    has_parts: bool
    gres_flags: str

    def files(self, directory: str, gpu: int, instance: Sequence[int]) -> tuple[str, ...]:
        """The device files that a job needs for a GPU, or for one of its instances.

        ``gpu`` is the GPU's minor number. ``instance`` has the minor numbers of an instance, as
        the driver reports them; () stands for a GPU as a whole.
        """
        ...

    def pad_file(self, directory: str, nth: int) -> str:
        """A character device that no job needs, for the node's ``nth`` pad.

        Every pad needs another spelling of its path. Only nodes whose GPUs have parts get pads.
        """
        ...

    def extras(
        self, memory_slices: int, profiles: Sequence[MigProfile]
    ) -> Mapping[tuple[str, int], Extra]:
        """What each possible instance of a board takes besides memory slices.

        By profile and start, for every start of every profile. ``memory_slices`` is the board's
        number.
        """
        ...
