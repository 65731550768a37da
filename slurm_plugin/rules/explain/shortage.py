"""Computes what a job waits for: the limit, the jobs that use it up, when enough comes back."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from slicewise.cluster.language.errors import Refusal
from slicewise.cluster.language.jobs import ALLOTTED, WAITING, JobTag, JobView, NodeView
from slicewise.cluster.language.units import Millislices, slices_text
from slicewise.cluster.rpc.messages import ServiceReport
from slicewise.slurm_plugin.rules.common.costs import job_cost
from slicewise.slurm_plugin.rules.common.free_instances import free_instances, idle, is_usable
from slicewise.slurm_plugin.rules.common.qos_names import holder_of, qos_name
from slicewise.slurm_plugin.rules.explain.headroom import Cause, Situation, startable_on_budgets
from slicewise.slurm_plugin.rules.quota.jobs import wanted_on_nodes
from slicewise.slurm_plugin.rules.quota.tenants import ancestors, subtree
from slicewise.slurm_plugin.rules.quota.type_limits import own_type_limits, type_limits
from slicewise.slurm_plugin.rules.quota.types import Policy, Recall
from slicewise.slurm_plugin.rules.reclaim.given_way import GaveWay
from slicewise.slurm_plugin.rules.round.barred import BarredJob

QUOTA = frozenset({Cause.OWN_QOS, Cause.BORROWED_QOS})
"""Causes that a loan can bring about for its lender."""
_NODES = 5
"""Most nodes that are named one by one."""


@dataclass(frozen=True)
class WhyInput:
    """Everything that is known for an explanation.

    Attributes:
        now_s: Unix seconds.
        jobs, nodes: all that Slurm shows, including other partitions.
        partitions: the managed partitions.
        situation: quotas, limits and use at that moment.
        resets_s: when each tenant's budget starts again, in Unix seconds; None means never.
        notes: notes on services, by their array's job id.
        reports: what the launcher last reported of services, by tenant and name.
        refusals: why deferred jobs are held, by job id.
        recalls: quota that lenders take back now.
        grace_s: seconds after which recalled quota is back at the latest.
        over_budget: ids of waiting jobs for which their budgets do not suffice, whatever other
            limit Slurm names.
        kept_back: slots that quota keeps from starting, by their array's job id.
        gave_way: runs on borrowed quota that were requeued, by the ids of their jobs, which wait.
        made_way: for whom the last run of a job was requeued (``Requeues``), by job id.
        as_set: the tenants with the quotas that operators set, without the calendar's windows.
    """

    now_s: int
    jobs: tuple[JobView, ...] = field(hash=False)
    nodes: tuple[NodeView, ...] = field(hash=False)
    partitions: frozenset[str]
    situation: Situation
    resets_s: Mapping[str, int | None] = field(hash=False)
    notes: Mapping[int, str] = field(hash=False)
    reports: Mapping[tuple[str, str], ServiceReport] = field(hash=False)
    refusals: Mapping[int, Refusal] = field(hash=False)
    recalls: tuple[Recall, ...] = ()
    grace_s: int = 0
    over_budget: frozenset[int] = frozenset()
    kept_back: Mapping[int, frozenset[int]] = field(default_factory=dict, hash=False)
    as_set: Policy = field(default_factory=dict, hash=False)
    barred: Mapping[int, BarredJob] = field(default_factory=dict, hash=False)
    gave_way: Mapping[int, GaveWay] = field(default_factory=dict, hash=False)
    made_way: Mapping[int, str] = field(default_factory=dict, hash=False)

    def cost(self, job: JobView) -> Millislices:
        """Cost of the job, or of one task, in millislices.

        Of a waiting one that gets whole nodes it is the least that Slurm then counts.
        """
        return Millislices(max(job_cost(job, self.situation.costs), whole_millislices(job)))

    def allotted(self) -> Iterator[JobView]:
        """Jobs that hold GPUs of managed partitions."""
        return (
            job
            for job in self.jobs
            if job.state in ALLOTTED and job.partition in self.partitions and self.cost(job)
        )


def whole_millislices(job: JobView) -> int:
    """What Slurm counts at least once a waiting job has its whole nodes; 0 if it asks for none."""
    tag = JobTag.find(job.admin_comment) if job.state in WAITING else None
    return tag.whole_millislices if tag is not None else 0


@dataclass(frozen=True)
class Shortage:
    """One limit against one job. Amounts are millislices, or instances if ``of_type`` is set.

    Attributes:
        words: text with the limit's owner, what is in use of it, and what the job needs.
        missing: amount that must come back before the job fits; 0 or less: it would fit now.
        holders: each job under the limit, with the amount that it would give back.
        of_type: the GPU type of a limit on instances; "" for a limit on slices.
    """

    words: str
    missing: int
    holders: tuple[tuple[JobView, int], ...]
    of_type: str = ""


def shortage(job: JobView, cause: Cause, sight: WhyInput) -> Shortage | None:
    """What the job lacks by that cause; None where that is not known in numbers."""
    if cause is Cause.NONE_FREE:
        return _worst(_free(job, sight))
    if holder_of(job) not in sight.situation.policy:
        return None
    match cause:
        case Cause.OWN_QOS:
            return _own_limit(job, sight)
        case Cause.BORROWED_QOS:
            return _borrowed_limit(job, sight)
        case Cause.TYPE_LIMIT | Cause.GUARANTEED_TYPE:
            of_types = _type_limits if cause is Cause.TYPE_LIMIT else _own_types
            return _worst(of_types(job, sight))
        case _:
            return None


def recalls_of(lender: str, sight: WhyInput) -> tuple[Recall, ...]:
    """The recalls of a lender: what it takes back of what it has lent."""
    return tuple(recall for recall in sight.recalls if recall.lender == lender)


def back_s(short: Shortage, now_s: int) -> int | None:
    """When enough comes back if every job runs to its time limit, in Unix seconds.

    None if that is not certain.
    """
    missing, at_s = short.missing, now_s
    ends = ((end_s, amount) for job, amount in short.holders if (end_s := ends_s(job)) is not None)
    for end_s, amount in sorted(ends):
        if missing <= 0:
            break
        missing, at_s = missing - amount, max(now_s, end_s)
    return at_s if missing <= 0 else None


def ends_s(job: JobView) -> int | None:
    """When a running job reaches its time limit, in Unix seconds; None if it has none."""
    if job.start_s is None or job.time_limit_s is None:
        return None
    return job.start_s + job.time_limit_s


def _worst(shortages: Iterable[Shortage]) -> Shortage | None:
    """The limit with the largest amount missing; the first of equals. None if there is none."""
    return max(shortages, key=lambda shortage: shortage.missing, default=None)


def _own_limit(job: JobView, sight: WhyInput) -> Shortage:
    tenant, own = holder_of(job), job.qos
    limit = sight.situation.standings[tenant].own_qos_limit_millislices
    all_held = tuple(_holders(sight, {tenant}))
    holders = [pair for pair in all_held if pair[0].qos == own]
    own_shortage = _slices(f"The jobs of {tenant} in QOS {own}", limit, holders, sight.cost(job))
    back = tuple(_guarantee_back(job, all_held, sight))
    if not back:
        return own_shortage
    words = (
        f"{own_shortage.words}; its jobs on borrowed quota hold"
        f" {slices_text(sum(amount for _, amount in back))} of its guaranteed part"
    )
    return replace(own_shortage, words=words, holders=(*own_shortage.holders, *back))


def _guarantee_back(
    job: JobView, held: Iterable[tuple[JobView, int]], sight: WhyInput
) -> Iterator[tuple[JobView, int]]:
    """Yield what runs of the job's tenant outside its own QOS give back to its guaranteed quota.

    What they hold beyond loans is not in the limit of its own QOS until they end.
    """
    tenant = holder_of(job)
    standing = sight.situation.standings[tenant]
    outside = [pair for pair in held if pair[0].qos != qos_name(tenant)]
    unlent = standing.guaranteed_millislices - standing.lent_millislices
    beyond = min(
        sum(cost for _, cost in outside) - standing.borrowed_millislices,
        unlent - standing.own_qos_limit_millislices,
    )
    for outsider, cost in sorted(outside, key=lambda pair: ends_s(pair[0]) or math.inf):
        if beyond <= 0:
            return
        yield outsider, min(cost, beyond)
        beyond -= cost


def _own_types(job: JobView, sight: WhyInput) -> Iterator[Shortage]:
    tenant, own, needs = holder_of(job), job.qos, job.gpus
    now = sight.situation
    most = own_type_limits(now.policy, now.costs, now.models).get(tenant, {})
    its_own = [pair for pair in _holders(sight, {tenant}) if pair[0].qos == own]
    for gres_type in sorted(needs.keys() & most.keys()):
        holders = _instances(gres_type, its_own)
        held = sum(count for _, count in holders)
        words = (
            f"The jobs of {tenant} in QOS {own} hold {held} of {most[gres_type]} guaranteed"
            f" instances of {gres_type}; this one needs {needs[gres_type]}"
        )
        yield Shortage(words, held + needs[gres_type] - most[gres_type], holders, gres_type)


def _borrowed_limit(job: JobView, sight: WhyInput) -> Shortage:
    """The borrowed limit; what jobs hold in QOS in which they ran before counts there, too."""
    tenant = holder_of(job)
    limit = sight.situation.standings[tenant].borrowed_qos_limit_millislices
    holders = [pair for pair in _holders(sight, {tenant}) if pair[0].qos != qos_name(tenant)]
    return _slices(f"The borrowed jobs of {tenant}", limit, holders, sight.cost(job))


def _slices(whose: str, limit: int, holders: Iterable[tuple[JobView, int]], need: int) -> Shortage:
    held_by = tuple(holders)
    held = sum(amount for _, amount in held_by)
    words = (
        f"{whose} hold {slices_text(held)} of {slices_text(limit)} slices;"
        f" this one needs {slices_text(need)}"
    )
    return Shortage(words, held + need - limit, held_by)


def _holders(sight: WhyInput, accounts: Collection[str]) -> Iterator[tuple[JobView, int]]:
    """Jobs that take of these tenants' limits, with those of accounts without a quota below."""
    return ((job, sight.cost(job)) for job in sight.allotted() if holder_of(job) in accounts)


def _type_limits(job: JobView, sight: WhyInput) -> Iterator[Shortage]:
    now = sight.situation
    needs, tenant = job.gpus, holder_of(job)
    for name in (tenant, *ancestors(now.policy, tenant)):
        below = subtree(now.policy, name)
        bounds = type_limits(now.policy[name].quota, now.costs, now.models)
        for gres_type in needs.keys() & bounds.keys():
            holders = _instances(gres_type, _holders(sight, below))
            held = sum(count for _, count in holders)
            words = (
                f"Of {gres_type}, {name} holds {held} of at most {bounds[gres_type]} instances;"
                f" this one needs {needs[gres_type]}"
            )
            yield Shortage(words, held + needs[gres_type] - bounds[gres_type], holders, gres_type)


def _free(job: JobView, sight: WhyInput) -> Iterator[Shortage]:
    partitions = frozenset(job.partition.split(","))
    nodes = [node for node in sight.nodes if node.is_in(partitions)]
    names = frozenset(node.name for node in nodes)
    free = free_instances(nodes)
    on_nodes = [(other, 0) for other in sight.allotted() if not names.isdisjoint(other.nodes)]
    for gres_type, need in sorted(job.gpus.items()):
        holders = _instances(gres_type, on_nodes)
        count = free.get(gres_type, 0)
        has = "is" if count == 1 else "are"
        apart, missing = _too_far_apart(job, gres_type, nodes)
        words = (
            f"{count} of {_there(nodes, gres_type)} {gres_type} {has} free; this one needs {need}"
            f"{apart}{_blocked(nodes, gres_type)}"
        )
        yield Shortage(words, max(need - count, missing), holders, gres_type)


def _too_far_apart(job: JobView, gres_type: str, nodes: Iterable[NodeView]) -> tuple[str, int]:
    """Text on a replica that needs several instances on a node, and how many these nodes lack.

    ("", 0) for other jobs, of which Slurm may choose the nodes of each GPU.
    """
    tag = JobTag.find(job.admin_comment)
    gpus, count = wanted_on_nodes(job)
    each = gpus.get(gres_type, 1)
    if tag is None or tag.service is None or (each, count) == (1, 1):
        return "", 0
    fit = sum(free_instances([node]).get(gres_type, 0) >= each for node in nodes)
    on = " on one node" if count == 1 else f", {each} on each of {count} nodes"
    have = {0: "no node has", 1: "1 node has"}.get(fit, f"{fit} nodes have")
    return f"{on}, and {have} {each} free", max(0, count - fit) * each


def _blocked(nodes: Iterable[NodeView], gres_type: str) -> str:
    """Text on instances that no job holds and no job can have: on which nodes, and why."""
    kept = [node for node in nodes if node.blocked and is_usable(node) and idle(node, gres_type)]
    if not kept:
        return ""
    count = sum(idle(node, gres_type) for node in kept)
    where = ", ".join(f"{node.name} ({node.blocked})" for node in kept[:_NODES])
    more = f" and {len(kept) - _NODES} more nodes" if len(kept) > _NODES else ""
    return f"; {count} that no job holds can't be used, on {where}{more}"


def _there(nodes: Iterable[NodeView], gres_type: str) -> int:
    return sum(node.gpus.get(gres_type, 0) + node.shared.get(gres_type, 0) for node in nodes)


def _instances(
    gres_type: str, holders: Iterable[tuple[JobView, int]]
) -> tuple[tuple[JobView, int], ...]:
    """The jobs that hold that type, with their number of instances."""
    counts = ((job, job.gpus.get(gres_type, 0)) for job, _ in holders)
    return tuple((job, count) for job, count in counts if count)


@dataclass(frozen=True)
class BudgetShortage:
    """A budget against one job.

    Attributes:
        payer: the tenant with the budget that leaves the least.
        startable_millislice_s: what that budget leaves for new runs.
        need_millislice_s: what the job could use up; None without a time limit.
        longest_s: seconds for which the job could run on what is left.
    """

    payer: str
    startable_millislice_s: int
    need_millislice_s: int | None
    longest_s: int


def budget_shortage(job: JobView, sight: WhyInput) -> BudgetShortage | None:
    """The budget that leaves the least for the job; None if no budget pays for it."""
    now = sight.situation
    tenant = holder_of(job)
    if tenant not in now.policy:
        return None
    payer, startable = startable_on_budgets(tenant, now)
    if startable is None:
        return None
    cost = sight.cost(job)
    need = None if job.time_limit_s is None else cost * job.time_limit_s
    return BudgetShortage(payer, startable, need, startable // max(1, cost))
