"""Sums up the cluster's slices by state, the tenants, and the jobs that wait."""

from collections import Counter
from collections.abc import Iterable

from slicewise.cluster.language.jobs import ALLOTTED, JobView, NodeView
from slicewise.cluster.language.slurm.node_states import (
    INVALID,
    OUT_OF_USE,
    RESERVED,
    boots,
    is_asleep,
    is_drained,
)
from slicewise.cluster.rpc.overview_messages import (
    NodeCondition,
    OtherTenants,
    PowerNow,
    SlicesByState,
    TenantNow,
    WaitingNow,
)
from slicewise.slurm_plugin.rules.accounting.overview import in_tree_order, with_those_below
from slicewise.slurm_plugin.rules.common.costs import run_cost
from slicewise.slurm_plugin.rules.common.qos_names import holder_of, is_borrowed
from slicewise.slurm_plugin.rules.overview.overview_facts import (
    OverviewFacts,
    Reader,
    service_of,
)
from slicewise.slurm_plugin.rules.quota.nodes import gpus_on_nodes, has_gpus, node_capacity
from slicewise.slurm_plugin.rules.quota.tenants import (
    ancestors,
    effective_nominal,
    guaranteed_quota,
    payers,
)
from slicewise.slurm_plugin.rules.services.state import used_by_tenant

MOST_WAITING = 200
"""Waiting jobs that are listed one by one."""
_DOWN = OUT_OF_USE - {"DRAIN", "DRAINED", "DRAINING"} | {*INVALID, "UNKNOWN"}


def condition_of(node: NodeView) -> NodeCondition:
    """What Slurm does with the node, in one word."""
    if node.states & _DOWN:
        return "down"
    if is_drained(node) or node.states & OUT_OF_USE:
        return "draining"
    if node.states & RESERVED:
        return "reserved"
    return "powered down" if is_asleep(node) else "powering up" if boots(node) else "up"


def managed_nodes(facts: OverviewFacts) -> tuple[NodeView, ...]:
    """Nodes with GPUs in managed partitions, by name."""
    nodes = (node for node in facts.nodes if has_gpus(node, facts.partitions))
    return tuple(sorted(nodes, key=lambda node: node.name))


def slices_by_state(facts: OverviewFacts) -> SlicesByState:
    """Divide the capacity of all managed GPUs by state."""
    lent = _lent_by_node(facts)
    sums = Counter[str]()
    for node in managed_nodes(facts):
        whole = node_capacity(node, facts.costs, facts.whole_boards)
        condition = condition_of(node)
        sums["capacity"] += whole
        if condition == "down":
            sums["down"] += whole
            continue
        held = min(whole, max(run_cost(node.gpus_allotted, facts.costs), lent[node.name]))
        sums["lent"] += min(held, lent[node.name])
        sums["used"] += held - min(held, lent[node.name])
        sums["draining" if condition == "draining" else "idle"] += whole - held
    return SlicesByState(
        capacity_millislices=sums["capacity"],
        used_millislices=sums["used"],
        lent_millislices=sums["lent"],
        idle_millislices=sums["idle"],
        draining_millislices=sums["draining"],
        down_millislices=sums["down"],
    )


def power_now(facts: OverviewFacts) -> PowerNow | None:
    """Sum up what boards draw of which a meter tells; None without one."""
    told = {node: boards_mw for node, boards_mw in facts.boards_mw.items() if boards_mw}
    if not told:
        return None
    with_gpus = {node.name for node in facts.nodes if any(node.gpus.values()) or node.untyped_gpus}
    return PowerNow(
        power_mw=sum(map(sum, told.values())),
        boards=sum(map(len, told.values())),
        metered_nodes=len(told),
        gpu_nodes=len(with_gpus | told.keys()),
    )


def _lent_by_node(facts: OverviewFacts) -> Counter[str]:
    held = Counter[str]()
    for job in facts.jobs:
        if job.state in ALLOTTED and job.partition in facts.partitions and is_borrowed(job.qos):
            for node, gpus in gpus_on_nodes(job):
                held[node] += run_cost(gpus, facts.costs)
    return held


def tenants_now(facts: OverviewFacts, reader: Reader) -> tuple[TenantNow, ...]:
    """Return the tenants that the reader may read, each followed by those below it."""
    policy, nominal, paid_by = facts.policy, effective_nominal(facts.policy), payers(facts.policy)
    held = with_those_below(policy, held_by_tenant(facts))
    on_loan = with_those_below(policy, held_on_loan(facts))
    amounts, jobs = (with_those_below(policy, tenant) for tenant in waiting_by_tenant(facts))
    tenant_nows = []
    for name, _ in in_tree_order(policy):
        if not reader.may_read(name):
            continue
        standing, payer = facts.standings.get(name), paid_by[name]
        has_budget = policy[payer].budget is not None
        tenant_nows.append(
            TenantNow(
                name=name,
                depth=sum(map(reader.may_read, ancestors(policy, name))),
                nominal_millislices=nominal[name],
                borrowed_millislices=standing.borrowed_millislices if standing else 0,
                lent_millislices=standing.lent_millislices if standing else 0,
                limit_millislices=standing.limit_millislices if standing else None,
                in_use_millislices=held[name],
                on_loan_millislices=on_loan[name],
                waiting_jobs=jobs[name],
                waiting_millislices=amounts[name],
                payer=payer if has_budget else "",
                left_millislice_s=facts.left_millislice_s.get(payer) if has_budget else None,
                resets_s=facts.resets_s.get(payer),
            )
        )
    return tuple(tenant_nows)


def other_tenants(facts: OverviewFacts, reader: Reader) -> OtherTenants | None:
    """Return the sums of the tenants that the reader may not read; None if there is none."""
    hidden = [name for name in facts.policy if not reader.may_read(name)]
    if not hidden:
        return None
    own, held, (amounts, jobs) = (
        guaranteed_quota(facts.policy),
        held_by_tenant(facts),
        waiting_by_tenant(facts),
    )
    return OtherTenants(
        tenants=len(hidden),
        nominal_millislices=sum(own.get(name, 0) for name in hidden),
        in_use_millislices=sum(held[name] for name in hidden),
        waiting_jobs=sum(jobs[name] for name in hidden),
        waiting_millislices=sum(amounts[name] for name in hidden),
    )


def held_by_tenant(facts: OverviewFacts) -> Counter[str]:
    """Millislices that each tenant's own jobs hold, and those of accounts without a quota in its
    QOS.
    """
    return Counter(used_by_tenant(facts.jobs, facts.partitions, facts.costs))


def held_on_loan(facts: OverviewFacts) -> Counter[str]:
    """Millislices that each tenant's own jobs hold on borrowed quota."""
    borrowing = (job for job in facts.jobs if is_borrowed(job.qos))
    return Counter(used_by_tenant(borrowing, facts.partitions, facts.costs))


def waiting_by_tenant(facts: OverviewFacts) -> tuple[Counter[str], Counter[str]]:
    """Millislices, and number, of the jobs and tasks that wait, by tenant."""
    amounts, jobs = Counter[str](), Counter[str]()
    for job in facts.waiting:
        tenant = holder_of(job)
        amounts[tenant] += facts.cost(job)
        jobs[tenant] += job.tasks
    return amounts, jobs


def waiting_now(facts: OverviewFacts, reader: Reader) -> Iterable[WaitingNow]:
    """Yield the jobs that wait and that the reader may see, those first that go first."""
    seen = [job for job in facts.waiting if reader.may_see(job)]
    for job in seen[:MOST_WAITING]:
        yield waiting_row(job, facts)


def waiting_row(job: JobView, facts: OverviewFacts) -> WaitingNow:
    """Return what a reader who may see the job is told of it."""
    return WaitingNow(
        job=job.task,
        tenant=job.account,
        user=job.user,
        service=service_of(job),
        gpus=dict(job.gpus),
        tasks=job.tasks,
        cost_millislices=facts.cost(job),
        since_s=job.submit_s if job.eligible_s is None else job.eligible_s,
        reason=job.reason,
    )
