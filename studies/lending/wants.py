"""The state of asks in a replay on a shared cluster, its counts, and its tenants' quotas."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.quota.types import MAX_NOMINAL_MILLISLICES, Policy, Quota, Tenant
from studies.lending.tenants import COSTS, Ask, Wishes


@dataclass(frozen=True)
class Terms:
    """Values of the settings' [lending], in seconds."""

    grace_s: int = 60
    term_s: int = 0
    turn_s: int = 1800


@dataclass(order=True)
class Want:
    """An ask and its state: it waits, runs, may be sent away, and runs again.

    Attributes:
        number: its number among all asks, which is also its job id.
        is_leaving: whether it was asked to go.
        start_s: start of its current run; None while it does not run.
        last_start_s: start of its latest run, also of one that has ended; None if it never ran.
        since_s: when it began to wait.
        waited_s: seconds of all its waits together.
        sent_away: how often it was sent away.
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
    """Counts of what happened.

    Attributes:
        asked: replicas that the reclaim asked to go.
        cut_off: replicas among these that Slurm preempted while they drained.
        preempted_replicas, preempted_jobs: runs that Slurm preempted without a request to go.
        lost_millislice_s: work of jobs that must be done again.
        loans, lent_millislices: loans granted or enlarged, and by how much.
        recalls: recalls that began.
        held_millislice_s: millislice-seconds held by all tenants.
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
    """A group for each trace, and below it its tenants.

    Tenants lend without limit, and borrow without limit or not at all.
    """
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
