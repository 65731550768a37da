"""Finds what somebody should look at, each with the command that mends it."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.findings import Severity
from slicewise.cluster.language.jobs import JobView, NodeView, node_reasons
from slicewise.cluster.language.units import counted, slices_words
from slicewise.cluster.rpc.messages import ServiceView
from slicewise.cluster.rpc.overview_messages import (
    AttentionItem,
    NodeCondition,
    ServiceNow,
    TenantNow,
)
from slicewise.slurm_plugin.rules.common.qos_names import holder_of
from slicewise.slurm_plugin.rules.overview.overview_facts import OverviewFacts, Reader
from slicewise.slurm_plugin.rules.overview.services import failed_starts
from slicewise.slurm_plugin.rules.overview.slices import condition_of, held_by_tenant, managed_nodes
from slicewise.slurm_plugin.rules.quota.demand import late_before_s, late_jobs
from slicewise.slurm_plugin.rules.quota.jobs import WaitingJob, jobs_by_holder
from slicewise.slurm_plugin.rules.quota.nodes import node_capacity
from slicewise.slurm_plugin.rules.quota.tenants import payers

_LATE_S = 30.0
"""Age of a look at Slurm, or of the launcher's or the ledger's last word, that is no pause."""
_NODES = 4
"""Most nodes, and items of one kind, that are named one by one."""
_SOON_S = 86_400
"""A budget that lasts as long as jobs use it as now is no warning yet: they may end."""


def attention(
    facts: OverviewFacts,
    reader: Reader,
    services: Sequence[tuple[tuple[ServiceView, ...], ServiceNow]],
    tenants: Sequence[TenantNow],
) -> tuple[AttentionItem, ...]:
    """Return what is wrong, the worst first; users see what concerns their own tenants.

    ``services`` and ``tenants`` are those that the reader may see.
    """
    findings = [*_of_services(services, facts), *_of_tenants(tenants, facts, reader)]
    findings += [*_of_money(facts, reader), *_of_waiting(facts, reader), *_of_barred(facts, reader)]
    if reader.tenants is None:
        findings = [*_of_site(facts), *_of_nodes(managed_nodes(facts), facts), *findings]
    ranks = list(Severity)
    return tuple(sorted(findings, key=lambda item: ranks.index(item.severity)))


def _error(code: Code, what: str, command: str, about: str = "") -> AttentionItem:
    return AttentionItem(
        severity=Severity.ERROR, code=code, about=about, what=what, command=command
    )


def _warning(code: Code, what: str, command: str, about: str = "") -> AttentionItem:
    return AttentionItem(
        severity=Severity.WARNING, code=code, about=about, what=what, command=command
    )


def _of_site(facts: OverviewFacts) -> Iterator[AttentionItem]:
    age_s = facts.now_s - facts.observed_s
    if not facts.complete:
        yield _error(
            Code.DAEMON_BLIND,
            f"the daemon's last look at Slurm was not complete: this is of {age_s:.0f} s ago",
            "slicewise doctor --section daemon",
        )
    elif age_s > _LATE_S:
        yield _warning(
            Code.DAEMON_BLIND,
            f"the daemon looked at Slurm {age_s:.0f} s ago",
            "slicewise doctor --section daemon",
        )
    if facts.is_uninstalled:
        yield _error(
            Code.UNINSTALLED,
            "Slicewise was taken out of Slurm: no limits are set",
            "slicewise compile --again",
        )
    if facts.ledger_silent_s > _LATE_S:
        yield _error(
            Code.DATABASE_DOWN,
            f"PostgreSQL has not answered the daemon for {facts.ledger_silent_s:.0f} s: admission"
            " goes on from memory, charging catches up",
            "slicewise doctor --section ledger",
        )
    if facts.services and facts.launcher_silent_s > _LATE_S:
        yield _error(
            Code.LAUNCHER_DOWN,
            f"the launcher has not asked for {facts.launcher_silent_s:.0f} s: no service scales",
            "systemctl status slicewise-launcher",
        )
    if facts.unadmitted:
        yield _warning(
            Code.SCRIPT_PASSED,
            f"{counted(facts.unadmitted, 'job')} got GPUs without slicewise.lua",
            "slicewise doctor --section script",
        )

    if (over := facts.overcommitment) is not None:
        yield _warning(
            Code.QUOTA_CAPACITY,
            f"{over.words}, since {(facts.now_s - over.since_s) / 3600:,.1f} h at least: jobs"
            " within their guarantee may wait for each other",
            "slicewise doctor --section limits",
        )


def _of_nodes(nodes: Iterable[NodeView], facts: OverviewFacts) -> Iterator[AttentionItem]:
    by_condition = defaultdict[NodeCondition, list[NodeView]](list)
    for node in nodes:
        by_condition[condition_of(node)].append(node)
    if down := by_condition["down"]:
        yield _error(
            Code.NODE_DOWN,
            f"{_named(down)} down, {_slices(down, facts)} with it{node_reasons(down, _NODES)}",
            _resume(down),
            about=down[0].name,
        )
    if draining := by_condition["draining"]:
        yield _warning(
            Code.NODE_DOWN,
            f"{_named(draining)} drained, nothing new starts on {_slices(draining, facts)}"
            f"{node_reasons(draining, _NODES)}",
            _resume(draining),
            about=draining[0].name,
        )


def _named(nodes: Sequence[NodeView]) -> str:
    """``gpu1 is``, ``gpu1, gpu2 are``, ``gpu1, gpu2 and 7 more are``."""
    shown = ", ".join(node.name for node in nodes[:_NODES])
    more = f" and {len(nodes) - _NODES} more" if len(nodes) > _NODES else ""
    return f"{shown}{more} {'is' if len(nodes) == 1 else 'are'}"


def _slices(nodes: Iterable[NodeView], facts: OverviewFacts) -> str:
    whole = (node_capacity(node, facts.costs, facts.whole_boards) for node in nodes)
    return slices_words(sum(whole))


def _resume(nodes: Sequence[NodeView]) -> str:
    names = ",".join(node.name for node in nodes)
    return f"scontrol update NodeName={names} State=RESUME"


def _of_services(
    services: Iterable[tuple[tuple[ServiceView, ...], ServiceNow]], facts: OverviewFacts
) -> Iterator[AttentionItem]:
    for living, now in services:
        name = f"{now.tenant}/{now.name}"
        kept = sum(len(facts.kept_back.get(service.array_job_id, ())) for service in living)
        if now.condition == "failing":
            failures = failed_starts(living[0], facts.reports.get((now.tenant, now.name)))
            yield _error(
                Code.SERVICE_FAILING,
                f"{name} serves nothing: {counted(failures, 'start')} failed in a row",
                f"slicewise service logs {name}",
                about=name,
            )
        elif kept:
            yield _warning(
                Code.WAITING,
                f"{name} has {now.ready} of {counted(now.ready + now.starting + kept, 'replica')}"
                " that it wants, as its quota is used up",
                f"slicewise why {name}",
                about=name,
            )


def _of_tenants(
    tenants: Iterable[TenantNow], facts: OverviewFacts, reader: Reader
) -> Iterator[AttentionItem]:
    rates = _rates(facts)
    for tenant in tenants:
        left, is_operator = tenant.left_millislice_s, reader.tenants is None
        if tenant.payer != tenant.name or left is None:
            continue
        command = f"slicewise budget {'grant' if is_operator else 'show'} {tenant.name}"
        command += " --amount SLICE_HOURS --reason WHY" if is_operator else ""
        budget, rate = facts.policy[tenant.name].budget, rates.get(tenant.name, 0)
        overdraft = budget.overdraft if budget is not None else 0
        ends_s = facts.now_s + max(0, left) / rate if rate else None
        if left + overdraft <= 0:
            yield _error(
                Code.BUDGET_LOW,
                f"the budget of {tenant.name} is used up: nothing that it pays for starts",
                command,
                about=tenant.name,
            )
        elif ends_s is not None and tenant.resets_s is not None and ends_s < tenant.resets_s:
            lasts_s = ends_s - facts.now_s
            yield AttentionItem(
                severity=Severity.WARNING if lasts_s < _SOON_S else Severity.HINT,
                code=Code.BUDGET_LOW,
                about=tenant.name,
                what=f"the budget of {tenant.name} lasts {lasts_s / 3600:,.1f} h as it is used now,"
                f" and its period {(tenant.resets_s - facts.now_s) / 3600:,.1f} h",
                command=command,
            )


def _of_money(facts: OverviewFacts, reader: Reader) -> Iterator[AttentionItem]:
    """Yield tenants that have used the part of their budget in money of which the tariff warns."""
    for budget in facts.money_budgets:
        if budget.is_low and reader.may_read(budget.tenant):
            # Not rounded up: all of it is said where all of it is used.
            used = 100 * budget.used_millionths // budget.amount_millionths
            yield _warning(
                Code.BUDGET_LOW,
                f"{budget.tenant} has used {used:,} % of its budget in money",
                f"slicewise ledger invoice --tenant {budget.tenant} --by service",
                about=budget.tenant,
            )


def _rates(facts: OverviewFacts) -> dict[str, int]:
    """Millislices that running jobs hold, by the tenant that pays for them."""
    paid_by = payers(facts.policy)
    holding = defaultdict[str, int](int)
    for name, held in held_by_tenant(facts).items():
        holding[paid_by.get(name, name)] += held
    return holding


def _of_waiting(facts: OverviewFacts, reader: Reader) -> Iterator[AttentionItem]:
    """Yield tenants of which jobs wait beyond the grace time, within their guaranteed quota."""
    late = defaultdict[str, list[WaitingJob]](list)
    before_s = late_before_s(facts.now_s, facts.grace_s)
    by_holder = jobs_by_holder(facts.jobs, facts.partitions, facts.costs, facts.models)
    records = {record.job_id: record for record in by_holder.others}
    for job in late_jobs(by_holder, facts.policy, before_s):
        if reader.may_see(records[job.job_id]):
            late[job.tenant].append(job)
    for tenant, jobs in sorted(late.items()):
        longest = min(jobs, key=lambda job: (job.since_s or 0, job.job_id))
        waited_s = facts.now_s - (longest.since_s or 0)
        waits = "waits" if len(jobs) == 1 else "wait"
        yield _warning(
            Code.WAITING,
            f"{counted(len(jobs), 'job')} of {tenant} {waits} within its guaranteed quota, the"
            f" first for {waited_s / 60:,.0f} min",
            f"slicewise why {longest.task or longest.job_id}",
            about=tenant,
        )


def _of_barred(facts: OverviewFacts, reader: Reader) -> Iterator[AttentionItem]:
    """Yield what keeps jobs from their start that were lent quota."""
    kept = defaultdict[tuple[str, str], list[JobView]](list)
    for job in facts.jobs if facts.barred else ():
        if (bar := facts.barred.get(job.job_id)) is not None and reader.may_see(job):
            kept[holder_of(job), bar.reason].append(job)
    for (tenant, reason), jobs in sorted(kept.items()):
        first = min(jobs, key=lambda job: job.job_id)
        due_s = min(facts.barred[job.job_id].due_s for job in jobs) - facts.now_s
        yield _warning(
            Code.WAITING,
            f"{counted(len(jobs), 'job')} of {tenant} had quota and did not start, for {reason}:"
            f" none is lent for that again within {max(0, due_s) / 60:,.0f} min",
            f"slicewise why {first.task}",
            about=tenant,
        )
