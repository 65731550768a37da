"""What the sandbox emulates: nodes, how their GPUs are cut, tenants."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from slicewise.cluster.language.billing import MILLISLICES
from slicewise.cluster.language.gpus.mig_profiles import board, cost_millislices
from slicewise.slurm_plugin.rules.slurm_config import slurm_conf

CLUSTER = "sandbox"
PARTITION = "gpu"
CPUS_PER_NODE = 16
MEMORY_MIB_PER_NODE = 16000


@dataclass(frozen=True)
class EmulatedNode:
    """A node with one GPU.

    Attributes:
        name: as in slurm.conf.
        gpu: model name in ``slicewise.cluster.language.gpus.mig_profiles``.
        instances: how it is cut at first, as ``language/gpus/placement_text.py`` writes it.
    """

    name: str
    gpu: str
    instances: str

    @property
    def slices(self) -> Mapping[str, int]:
        """Its first MIG instances by profile name, in device order."""
        return dict(Counter(part.partition("@")[0] for part in self.instances.split(",")))


def _each(profile: str, count: int) -> str:
    return ",".join(f"{profile}@{start}" for start in range(count))


NODES = (
    EmulatedNode("gpu01", "A100-80GB", _each("1g.10gb", 7)),
    EmulatedNode("gpu02", "A100-80GB", f"{_each('1g.10gb', 3)},3g.40gb@4"),
    EmulatedNode("gpu03", "H200-141GB", _each("1g.18gb", 7)),
    EmulatedNode("gpu04", "H200-141GB", f"{_each('1g.18gb', 3)},3g.71gb@4"),
)
_TYPES = {
    "A100-80GB": ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"),
    "H200-141GB": ("1g.18gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"),
}

ACCOUNTS = {"vision": "alice", "nlp": "bob", "guest": "carol"}
"""Tenants, each a Slurm account, and the user of each."""


def gpu_types() -> Mapping[str, tuple[str, ...]]:
    """MIG profiles that may be asked for, by GPU model; not all of them are cut at first."""
    return _TYPES


def billing_weights() -> str:
    """``TRESBillingWeights`` of the partition."""
    return slurm_conf.billing_weights(_costs(), MILLISLICES)


def accounting_tres() -> str:
    """``AccountingStorageTRES``."""
    return slurm_conf.accounting_tres(_costs())


def _costs() -> Mapping[str, int]:
    """Millislices of an instance by GRES type."""
    return {
        profile: cost_millislices(board(model), profile, Fraction(1))
        for model, profiles in gpu_types().items()
        for profile in profiles
    }
