"""Builds the input of reclaiming from Slurm's jobs and nodes and the ledger's recalls."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from slicewise.cluster.language.jobs import ALLOTTED, JobState, JobView, RunOfJob
from slicewise.cluster.language.units import Millislices
from slicewise.cluster.rpc.messages import WHEN_REPLACED_S, ServiceView
from slicewise.slurm_plugin.rules.common.costs import job_cost
from slicewise.slurm_plugin.rules.common.qos_names import holder_of, is_borrowed
from slicewise.slurm_plugin.rules.quota.demand import (
    demand_of,
    free_by_node,
    holdings,
    is_managed,
    wanted_on_nodes,
    within_guarantees,
)
from slicewise.slurm_plugin.rules.quota.holdings import Holdings
from slicewise.slurm_plugin.rules.quota.tenants import guaranteed_quota
from slicewise.slurm_plugin.rules.quota.types import Policy, Recall
from slicewise.slurm_plugin.rules.reclaim.victims import ReclaimInput, Running, Wanting
from slicewise.slurm_plugin.rules.round.inputs import QuotaInputs, SlurmView
from slicewise.slurm_plugin.rules.round.whole_jobs import own_needs, waiting_for_loans
from slicewise.slurm_plugin.rules.services.state import used_by_tenant


def reclaim_input(inputs: QuotaInputs) -> ReclaimInput:
    """The runs that may end for a turn and the free instances, before anybody gives up quota.

    These runs are the replicas on borrowed quota and what is leaving: runs that have been told to
    go, that end soon, or that are completing. ``giving_back`` adds all others on borrowed quota. A
    run's GPUs are assumed to be spread evenly over its nodes, since no more is known here.
    """
    rules, seen, now_s = inputs.rules, inputs.seen, inputs.ledger_view.when.at_s
    runs = inputs.holdings.runs
    ending = [one.job for one in inputs.holdings.ending if one.job.gpus]
    free = free_by_node(ending, inputs.free)
    ends = {(job.job_id, job.start_s) for job in ending}
    goes = seen.evicting | leaving(seen.services, rules.grace_s) | ends
    may_go = {job_id for job_id, _ in goes} | replicas(seen.services)
    some = [job for job in runs if job.job_id in may_go and job.gpus] if may_go else ()
    above = Counter(inputs.held)
    return ReclaimInput(
        wanting=(),
        running=tuple(_running(some, seen, rules.costs, free, excess={})),
        free=free,
        above_nominal_millislices=above - Counter(guaranteed_quota(inputs.fitted)),
        shrink={},
        leaving=goes,
        weights={name: tenant.quota.weight for name, tenant in inputs.policy.items()},
        now_s=now_s,
        term_s=rules.term_s,
    )


def giving_back(
    there: ReclaimInput, inputs: QuotaInputs, recalls: Iterable[Recall], excess: Mapping[str, int]
) -> ReclaimInput:
    """``there`` with all that runs on borrowed quota, what waits for recalls, and what must go.

    ``excess`` are millislices that tenants hold beyond a cap: their replicas may be drained in any
    QOS.
    """
    policy, partitions, costs = inputs.fitted, inputs.rules.partitions, inputs.rules.costs
    recalls = sorted(recalls, key=lambda recall: recall.called_s)
    jobs = _managed(inputs)
    lenders = {recall.lender for recall in recalls}
    theirs = [job for job in jobs if holder_of(job) in lenders]
    held = used_by_tenant(theirs, partitions, costs)
    of_lenders = holdings(theirs, partitions, costs, inputs.rules.models)
    waiting = {
        name: amount - held.get(name, 0) for name, amount in _wanted_whole(policy, of_lenders)
    }
    return replace(
        there,
        wanting=tuple(_wants(job, costs) for job in within_guarantees(of_lenders, policy)),
        running=tuple(_running(jobs, inputs.seen, costs, there.free, excess=excess)),
        shrink=_shrink(recalls, waiting, there.above_nominal_millislices, excess),
        recalled=_recalled(recalls),
        late=frozenset(_late(recalls, inputs)),
    )


def _wanted_whole(policy: Policy, there: Holdings) -> Iterator[tuple[str, int]]:
    """Yield what each tenant's jobs hold and wait for within its guaranteed quota.

    Of the jobs that wait for a loan those count that fit whole into the rest: while one of them
    takes quota back, no run has to end for it.
    """
    queues, own = waiting_for_loans(there), guaranteed_quota(policy)
    for name, needs in own_needs(policy, demand_of(policy, there), queues).items():
        left = max(0, own[name] - needs)
        for job in queues.get(name, ()):
            left -= min(job.tasks, left // job.cost_millislices) * job.cost_millislices
        yield name, max(needs, own[name] - left)


def _managed(inputs: QuotaInputs) -> list[JobView]:
    return [job for job in inputs.jobs if is_managed(job, inputs.rules.partitions) and job.gpus]


def _late(recalls: Iterable[Recall], inputs: QuotaInputs) -> Iterator[str]:
    """Lenders whose limit rises before a batch job that is requeued now must have ended.

    Slurm does not see that it ends, and would preempt others besides.
    """
    called_s = inputs.ledger_view.now_s + inputs.seen.kill_wait_s - inputs.rules.grace_s
    return (one.lender for one in recalls if one.called_s <= called_s)


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


def _wants(job: JobView, costs: Mapping[str, Millislices]) -> Wanting:
    instances, nodes = wanted_on_nodes(job)
    return Wanting(
        job_id=job.job_id,
        tenant=holder_of(job),
        priority=job.priority,
        cost_millislices=_cost(job, costs),
        instances=instances,
        nodes=nodes,
        task=job.task,
    )


def _running(
    jobs: Iterable[JobView],
    seen: SlurmView,
    costs: Mapping[str, Millislices],
    usable: Collection[str],
    *,
    excess: Mapping[str, int],
) -> Iterator[Running]:
    """Runs on borrowed quota, runs in any QOS of tenants beyond a cap, and completing runs."""
    may_be_asked = replicas(seen.services)
    for job in jobs:
        tenant = holder_of(job)
        may_go = is_borrowed(job.qos) or tenant in excess
        is_one = may_go or job.state is JobState.COMPLETING
        if job.state in ALLOTTED and is_one and not job.is_doubtful:
            yield Running.of(
                job,
                _cost(job, costs),
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


def _cost(job: JobView, costs: Mapping[str, Millislices]) -> int:
    return job_cost(job, costs)
