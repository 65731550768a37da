"""Counts where replicas may move to, so that a GPU can be cut again.

A replica moves to another node: its own is reserved while a GPU of it is cut, so nothing starts
there. Its successor takes an instance of the same profile that is free. For a job that is owed its
type it may also take one on loan, if it ``preempts``: Slurm then ends the job on loan there. What
its tenant's guarantee has room for is shared by all replicas of the tenant that move.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from slicewise.slurm_plugin.rules.mig.candidates import (
    GpuState,
    InstanceState,
    JobHolder,
    ReplicaHolder,
)

_OnNode = tuple[str, str]
"""A node and a profile."""


@dataclass(frozen=True)
class Places:
    """Instances to which replicas might move, by node and profile."""

    free: Mapping[_OnNode, int] = field(hash=False)
    on_loan: Mapping[_OnNode, int] = field(hash=False)

    def suffice(self, destroyed: Iterable[tuple[str, InstanceState, bool]]) -> bool:
        """Whether all replicas of these instances find places, once all of these are gone.

        Each instance comes with its node, and with whether it goes for a job that is owed its type.
        Where replicas of several nodes move, each node alone must leave places enough for all.
        """
        free, on_loan = Counter(self.free), Counter(self.on_loan)
        firm, movers = Counter[str](), Counter[str]()
        left, used = set[_OnNode](), defaultdict[str, Fraction](Fraction)
        for node, instance, is_owed in destroyed:
            profile = instance.placement.profile
            match instance.holder:
                case None:
                    free[node, profile] -= 1
                case JobHolder():
                    on_loan[node, profile] -= 1
                case ReplicaHolder(preempts=most, tenant=tenant):
                    left.add((node, profile))
                    movers[profile] += 1
                    if most and is_owed and used[tenant] + Fraction(1, most) <= 1:
                        used[tenant] += Fraction(1, most)
                    else:
                        firm[profile] += 1
        for node, profile in left:
            places = _elsewhere(free, node, profile)
            if firm[profile] > places:
                return False
            if movers[profile] > places + _elsewhere(on_loan, node, profile):
                return False
        return True


def places(gpus: Iterable[GpuState]) -> Places:
    """Count the free instances and those on loan of GPUs that are not in work."""
    placed = [(gpu.node, instance) for gpu in gpus if not gpu.in_work for instance in gpu.instances]
    return Places(
        Counter(
            (node, instance.placement.profile)
            for node, instance in placed
            if instance.holder is None
        ),
        Counter(
            (node, instance.placement.profile)
            for node, instance in placed
            if instance.on_loan_s is not None
        ),
    )


def _elsewhere(count: Mapping[_OnNode, int], own: str, profile: str) -> int:
    return sum(n for (node, gres_type), n in count.items() if gres_type == profile and node != own)
