"""Decides which settings Slurm should have, on one look at Slurm and one view of the ledger."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from slicewise.cluster.language.billing import BillingUnit
from slicewise.cluster.language.jobs import JobView, NodeView, PartitionView
from slicewise.cluster.language.slurm.interface import Association, Qos
from slicewise.slurm_plugin.rules.common.released_soon import ReleasedSoon
from slicewise.slurm_plugin.rules.limits.desired import (
    Allowed,
    DesiredLimits,
    InUse,
    SlurmLimits,
    desired_limits,
    found_of,
    in_use,
)
from slicewise.slurm_plugin.rules.quota.standings import QosUse
from slicewise.slurm_plugin.rules.round.barred import NOTHING_BARRED, Barred
from slicewise.slurm_plugin.rules.round.kept_back import kept_back_waiting
from slicewise.slurm_plugin.rules.round.world import World


@dataclass(frozen=True)
class Conf:
    """The parts of slurm.conf that matter for limits, as slurmctld has read them."""

    config: Mapping[str, str] = field(hash=False)
    partitions: tuple[PartitionView, ...]


@dataclass(frozen=True)
class SlurmNow:
    """Slurm's limits, and the jobs and nodes that they bind.

    Attributes:
        is_fresh: whether the jobs were read no earlier than the limits.
        barred: the jobs that want no quota, see ``barred``.
        soon: held slots that want quota, by array job id, see ``kept_back``.
        world: that of a round before, of which all stays that has not changed since.
    """

    associations: tuple[Association, ...]
    qos: tuple[Qos, ...]
    conf: Conf
    jobs: tuple[JobView, ...]
    nodes: tuple[NodeView, ...]
    is_fresh: bool = True
    barred: Barred = NOTHING_BARRED
    soon: Mapping[int, ReleasedSoon] = field(default_factory=dict, hash=False)
    world: World | None = field(default=None, compare=False)

    @cached_property
    def quota_jobs(self) -> tuple[JobView, ...]:
        """The jobs as quota is decided for them."""
        return kept_back_waiting(self.barred.told(self.jobs), self.soon)


@dataclass(frozen=True)
class WantedLimits:
    """What the ledger allows, what Slurm has, and the settings that follow."""

    allowed: Allowed
    found: SlurmLimits
    limits: DesiredLimits


@dataclass(frozen=True)
class PlannedFor:
    """The use for which limits are wanted, where it is not what the look itself shows."""

    use: QosUse
    in_use: InUse


def wanted_limits(
    inputs: World,
    shown: SlurmNow,
    cluster: str,
    billing: BillingUnit,
    planned: PlannedFor | None = None,
) -> WantedLimits:
    """Translate what the ledger allows into the settings that the ``cluster`` should have.

    Raises InvalidInputError (SW-CLUSTER-NAME) if Slurm's replies are from another cluster.
    """
    allowed = inputs.allowed(planned.use if planned else inputs.use)
    now_s, has_budgets = inputs.ledger_view.now_s, bool(allowed.run_minutes)
    used = (
        planned.in_use
        if planned
        else in_use(inputs.seen_jobs, now_s=now_s, has_budgets=has_budgets, billing=billing)
    )
    config = shown.conf.config
    slurm_limits = found_of(cluster, shown.associations, shown.qos, config, used, billing=billing)
    return WantedLimits(
        allowed, slurm_limits, desired_limits(allowed, slurm_limits, inputs.ledger_view.known)
    )
