"""What the sandbox emulates: nodes, how their GPUs are cut, tenants."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from cluster.mig_profiles import board, cost_millislices
from slurm_plugin.decide import slurm_conf

CLUSTER = "sandbox"
PARTITION = "gpu"
CPUS_PER_NODE = 16
MEMORY_MIB_PER_NODE = 16000


@dataclass(frozen=True)
class EmulatedNode:
    """A node with one GPU.

    Attributes:
        name: as in slurm.conf.
        gpu: model name in ``cluster.mig_profiles``.
        slices: MIG instances by profile name, in device order.
    """

    name: str
    gpu: str
    slices: Mapping[str, int]

    @property
    def gres(self) -> str:
        """As slurm.conf's ``Gres`` takes it: ``gpu:1g.10gb:3,gpu:3g.40gb:1``."""
        return ",".join(f"gpu:{profile}:{count}" for profile, count in self.slices.items())


NODES = (
    EmulatedNode("gpu01", "A100-80GB", {"1g.10gb": 7}),
    EmulatedNode("gpu02", "A100-80GB", {"1g.10gb": 3, "3g.40gb": 1}),
    EmulatedNode("gpu03", "H200-141GB", {"1g.18gb": 7}),
    EmulatedNode("gpu04", "H200-141GB", {"1g.18gb": 3, "3g.71gb": 1}),
)

ACCOUNTS = {"vision": "alice", "nlp": "bob", "guest": "carol"}
"""Tenants, each a Slurm account, and the user that each has."""


def gpu_types() -> Mapping[str, tuple[str, ...]]:
    """MIG profiles in use, by GPU model."""
    models = dict.fromkeys(node.gpu for node in NODES)
    return {
        model: tuple(dict.fromkeys(p for node in NODES if node.gpu == model for p in node.slices))
        for model in models
    }


def billing_weights() -> str:
    """``TRESBillingWeights`` of the partition."""
    return slurm_conf.billing_weights(_costs())


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
