"""Builds the input of reclaiming from Slurm's jobs and nodes and the ledger's recalls."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from slicewise.cluster.language.jobs import JobState, RunOfJob
from slicewise.cluster.rpc.messages import WHEN_REPLACED_S, ServiceView
from slicewise.slurm_plugin.rules.common.qos_names import holder_of, is_borrowed
from slicewise.slurm_plugin.rules.quota.demand import demand_of, within_guarantees
from slicewise.slurm_plugin.rules.quota.jobs import (
    JobsByHolder,
    PricedRun,
)
from slicewise.slurm_plugin.rules.quota.nodes import free_by_node
from slicewise.slurm_plugin.rules.quota.tenants import guaranteed_quota
from slicewise.slurm_plugin.rules.quota.types import Policy, Recall
from slicewise.slurm_plugin.rules.reclaim.running import Running
from slicewise.slurm_plugin.rules.reclaim.victims import ReclaimInput
from slicewise.slurm_plugin.rules.round.whole_jobs import own_needs
from slicewise.slurm_plugin.rules.round.world import SlurmView, World


def reclaim_input(inputs: World) -> ReclaimInput:
    """The runs that may end for a turn and the free instances, before anybody gives up quota.

    These runs are the replicas on borrowed quota and what is leaving: runs that have been told to
    go, that end soon, or that are completing. ``giving_back`` adds all others on borrowed quota. A
    run's GPUs are assumed to be spread evenly over its nodes, since no more is known here.
    """
    rules, seen, now_s = inputs.rules, inputs.slurm_view, inputs.ledger_view.when.at_s
    runs = inputs.jobs.held.priced
    ending = [run.job for run in inputs.jobs.held.ending if run.job.gpus]
    free = free_by_node(ending, inputs.free)
    ends = {(job.job_id, job.start_s) for job in ending}
    goes = seen.evicting | leaving(seen.services, rules.grace_s) | ends
    may_go = {job_id for job_id, _ in goes} | replicas(seen.services)
    some = [run for run in runs if run.job.job_id in may_go and run.job.gpus] if may_go else ()
    above = Counter(inputs.held)
    return ReclaimInput(
        wanting=(),
        running=tuple(_running(some, seen, free, excess={})),
        free=free,
        above_nominal_millislices=above - Counter(guaranteed_quota(inputs.fitted)),
        shrink={},
        leaving=goes,
        weights={name: tenant.quota.weight for name, tenant in inputs.policy.items()},
        now_s=now_s,
        term_s=rules.term_s,
    )


def giving_back(
    given: ReclaimInput, inputs: World, recalls: Iterable[Recall], excess: Mapping[str, int]
) -> ReclaimInput:
    """``there`` with all that runs on borrowed quota, what waits for recalls, and what must go.

    ``excess`` are millislices that tenants hold beyond a cap: their replicas may be drained in any
    QOS.
    """
    policy = inputs.fitted
    recalls = sorted(recalls, key=lambda recall: recall.called_s)
    theirs = inputs.jobs.of({recall.lender for recall in recalls})
    held = theirs.held.by_tenant
    waiting = {name: amount - held.get(name, 0) for name, amount in _wanted_whole(policy, theirs)}
    runs = [run for run in inputs.jobs.held.priced if run.job.gpus]
    return replace(
        given,
        wanting=tuple(within_guarantees(theirs, policy)),
        running=tuple(_running(runs, inputs.slurm_view, given.free, excess=excess)),
        shrink=_shrink(recalls, waiting, given.above_nominal_millislices, excess),
        recalled=_recalled(recalls),
        late=frozenset(_late(recalls, inputs)),
    )


def _wanted_whole(policy: Policy, by_holder: JobsByHolder) -> Iterator[tuple[str, int]]:
    """Yield what each tenant's jobs hold and wait for within its guaranteed quota.

    Of the jobs that wait for a loan those count that fit whole into the rest: while one of them
    takes quota back, no run has to end for it.
    """
    queues, own = by_holder.for_loans, guaranteed_quota(policy)
    for name, needs in own_needs(policy, demand_of(policy, by_holder), queues).items():
        left = max(0, own[name] - needs)
        for job in queues.get(name, ()):
            left -= min(job.tasks, left // job.cost_millislices) * job.cost_millislices
        yield name, max(needs, own[name] - left)


def _late(recalls: Iterable[Recall], inputs: World) -> Iterator[str]:
    """Lenders whose limit rises before a batch job that is requeued now must have ended.

    Slurm does not see that it ends, and would preempt others besides.
    """
    called_s = inputs.ledger_view.now_s + inputs.slurm_view.kill_wait_s - inputs.rules.grace_s
    return (recall.lender for recall in recalls if recall.called_s <= called_s)


def _recalled(recalls: Iterable[Recall]) -> Mapping[str, int]:
    amounts: Counter[str] = Counter()
    for recall in recalls:
        amounts[recall.borrower] += recall.amount_millislices
    return amounts


def replicas(services: Iterable[ServiceView]) -> frozenset[int]:
    """Job ids of services' runs that may be told to go."""
    return frozenset(
        slot.job_id
        for service in services
        for slot in service.slots
        if slot.job_id is not None and slot.state in {"starting", "running"}
    )


def leaving(services: Iterable[ServiceView], soon_s: int) -> frozenset[RunOfJob]:
    """Services' runs that are ending, or must end within ``soon_s`` seconds anyway.

    Runs that end only when replaced do not count.
    """
    return frozenset(
        (slot.job_id, slot.start_s)
        for service in services
        for slot in service.slots
        if slot.job_id is not None and slot.ends_in_s != WHEN_REPLACED_S
        if slot.state == "ending" or (slot.ends_in_s is not None and slot.ends_in_s <= soon_s)
    )


def _running(
    runs: Iterable[PricedRun],
    seen: SlurmView,
    usable: Collection[str],
    *,
    excess: Mapping[str, int],
) -> Iterator[Running]:
    """Runs on borrowed quota, runs in any QOS of tenants beyond a cap, and completing runs."""
    may_be_asked = replicas(seen.services)
    for job, cost, _ in runs:
        may_go = is_borrowed(job.qos) or holder_of(job) in excess
        if (may_go or job.state is JobState.COMPLETING) and not job.is_doubtful:
            yield Running.of(
                job,
                cost,
                usable,
                is_replica=job.job_id in may_be_asked,
                may_requeue=(job.job_id, job.start_s) in seen.may_requeue,
            )


def _shrink(
    recalls: Iterable[Recall],
    waiting: Mapping[str, int],
    above: Mapping[str, int],
    excess: Mapping[str, int],
) -> Mapping[str, int]:
    """Millislices that tenants must give up in instances of any shape.

    These are what they hold beyond caps, and recalls that no waiting jobs of the lender account
    for, because a rule has cut the loan. A tenant gives up no more than it holds ``above`` its own
    part.
    """
    accounted = Counter(waiting)
    shrink: Counter[str] = Counter()
    for recall in recalls:
        for_jobs = min(recall.amount_millislices, max(0, accounted[recall.lender]))
        accounted[recall.lender] -= for_jobs
        shrink[recall.borrower] += recall.amount_millislices - for_jobs
    # What was borrowed beyond a cap is recalled as well, so the larger of both counts.
    shrink |= Counter(excess)
    kept = {name: min(amount, above.get(name, 0)) for name, amount in shrink.items()}
    return {name: amount for name, amount in kept.items() if amount > 0}
