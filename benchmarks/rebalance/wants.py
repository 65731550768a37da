"""What a replay on a shared cluster keeps of each ask, and counts; its tenants' quotas."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from benchmarks.rebalance.tenants import COSTS, Ask, Wishes
from cluster.units import Millislices
from slurm_plugin.decide.policy import MAX_NOMINAL_MILLISLICES, Policy, Quota, Tenant


@dataclass(frozen=True)
class Terms:
    """[lending] of the settings."""

    grace_s: int = 60
    term_s: int = 0
    turn_s: int = 1800


@dataclass(order=True)
class Want:
    """An ask on its way: waits, runs, is sent away, runs again.

    Attributes:
        number: of all asks: also its job id.
        start_s: of the run that it has now; last_start_s: also of one that has ended.
        since_s: when it began to wait.
        waited_s: all its waits together.
        sent_away: how often.
    """

    submit_s: int
    number: int
    tenant: int = field(compare=False)
    ask: Ask = field(compare=False)
    node: str = field(compare=False, default="")
    is_borrowed: bool = field(compare=False, default=False)
    is_leaving: bool = field(compare=False, default=False)
    start_s: int | None = field(compare=False, default=None)
    last_start_s: int | None = field(compare=False, default=None)
    since_s: int = field(compare=False, default=0)
    waited_s: int = field(compare=False, default=0)
    sent_away: int = field(compare=False, default=0)


@dataclass
class Counts:
    """What happened.

    Attributes:
        asked: replicas that the reclaim asked to go; ``cut_off``: of them those that Slurm
            preempted while they drained.
        preempted: runs that Slurm sent away unasked: replicas, and jobs.
        lost_millislice_s: work of jobs that must be done again.
        loans, lent_millislices: loans granted or enlarged, and by how much.
        held_millislice_s: by all.
    """

    asked: int = 0
    cut_off: int = 0
    preempted_replicas: int = 0
    preempted_jobs: int = 0
    lost_millislice_s: int = 0
    loans: int = 0
    lent_millislices: int = 0
    recalls: int = 0
    held_millislice_s: int = 0


def policy(wishes: Sequence[Wishes], nominal: Sequence[int]) -> Policy:
    """A group a trace; below it its tenants, who lend and borrow without limit."""
    policy = {
        group: Tenant(group, "", _quota(0)) for group in sorted({one.group for one in wishes})
    }
    for one, count in zip(wishes, nominal, strict=True):
        quota = _quota(count * COSTS[one.kind])
        if not one.borrows:
            quota = replace(quota, borrowing_limit_millislices=Millislices(0))
        policy[one.name] = Tenant(one.name, one.group, quota)
    return policy


def _quota(nominal: int) -> Quota:
    return Quota(Millislices(nominal), MAX_NOMINAL_MILLISLICES, MAX_NOMINAL_MILLISLICES)
