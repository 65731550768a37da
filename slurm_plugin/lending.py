"""One round of lending: idle quota goes to who wants it, and comes back when it is asked for."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cluster.jobs import JobView, NodeView
from cluster.settings import Settings
from cluster.wire import WHEN_REPLACED_S, ServiceView
from slurm_plugin.calendar_times import moment
from slurm_plugin.decide.calendar import capped, in_force
from slurm_plugin.decide.demand import capacity, demand, waiting_for_own
from slurm_plugin.decide.lending import lend
from slurm_plugin.decide.policy import Loan, Policy, Recall
from slurm_plugin.decide.reclaim.inputs import taking
from slurm_plugin.decide.reclaim.recalls import (
    have_room,
    meanwhile,
    over_entitlement,
    recalled,
)
from slurm_plugin.decide.reclaim.victims import Reclaim, reclaim
from slurm_plugin.decide.services import used_by_tenant

if TYPE_CHECKING:
    from slurm_plugin.ledger.store import Ledger


_REASON = "by demand: what lies idle is lent, what is wanted goes back"
_NOBODY = Reclaim(victims={}, ready={}, missing={})


@dataclass(frozen=True)
class LendingLook:
    """What was seen of Slurm. Half a look decides nothing.

    Attributes:
        lately: millislices that each tenant's jobs have held on average.
        told: job ids of replicas that have been told to end, whether ``services`` show it or not.
    """

    jobs: tuple[JobView, ...] = field(hash=False)
    nodes: tuple[NodeView, ...] = field(hash=False)
    services: tuple[ServiceView, ...] = field(hash=False)
    told: frozenset[int] = frozenset()
    lately: Mapping[str, int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Renewed:
    """What a round comes to.

    Attributes:
        policy: in force now.
        loans_before, recalls_before: what the ledger had.
        reclaim: which borrowed replicas go, once the limits of these loans and recalls are in
            Slurm: before, others of the borrower would take their place.
        over: millislices that tenants hold beyond what is theirs and lent to them.
    """

    policy: Policy = field(hash=False)
    loans_before: tuple[Loan, ...]
    recalls_before: tuple[Recall, ...]
    loans: tuple[Loan, ...]
    recalls: tuple[Recall, ...]
    reclaim: Reclaim
    over: Mapping[str, int] = field(hash=False)

    @property
    def is_new(self) -> bool:
        """Whether the ledger has something else."""
        before = set(self.loans_before), set(self.recalls_before)
        return (set(self.loans), set(self.recalls)) != before


def renew(ledger: "Ledger", settings: Settings, look: LendingLook, now_s: float) -> Renewed:
    """``planned``, and written to the ledger: loans and recalls in one transaction."""
    found = planned(ledger, settings, look, now_s)
    if not found.is_new:
        return found
    ledger.set_loans(found.loans, _REASON, found.recalls)
    return replace(found, loans=ledger.loans(), recalls=ledger.recalls())


def planned(ledger: "Ledger", settings: Settings, look: LendingLook, now_s: float) -> Renewed:
    """What the look and the ledger lead to now; changes nothing. Raises what ``Ledger`` raises."""
    windows, loans, recalls = ledger.windows(), ledger.loans(), ledger.recalls()
    now = moment(now_s, settings.ledger.time_zone)
    policy = in_force(ledger.policy(), windows, now)
    borrows = any(one.quota.borrowing_limit_millislices for one in policy.values())
    if not (borrows or loans or recalls or windows):
        return Renewed(policy, loans, recalls, loans, recalls, _NOBODY, over={})
    partitions, costs = frozenset(settings.cluster.partitions), settings.costs
    whole = capacity(look.nodes, partitions, costs) or None
    able = _able(look.services)
    known = [one for one in recalls if one.borrower in able]
    wanted = meanwhile(policy, demand(policy, look.jobs, partitions, costs), loans, known)
    lately = look.lately if settings.lending.past_use else {}
    after = lend(policy, wanted, loans, whole, lately)
    held, grace_s = used_by_tenant(look.jobs, partitions, costs), settings.lending.grace_s
    waiting = waiting_for_own(look.jobs, partitions, costs)
    room = have_room(policy, loans, known, held, waiting, now_s=int(now_s), grace_s=grace_s)

    def left(ready: Mapping[str, int]) -> tuple[Recall, ...]:
        return recalled(
            policy,
            [one for one in loans if one.borrower in able],
            after,
            known,
            held,
            ready=Counter(ready) | Counter(room),
            waiting=waiting,
            now_s=int(now_s),
            grace_s=grace_s,
        )

    over = over_entitlement(policy, after, held)
    beyond = capped(policy, windows, now, held)
    excess = {name: amount for name, amount in over.items() if name in beyond}
    found = _reclaimed(policy, left({}), settings, look, now_s, excess=excess)
    return Renewed(policy, loans, recalls, after, left(found.ready), found, over)


def _reclaimed(
    policy: Policy,
    recalls: Sequence[Recall],
    settings: Settings,
    look: LendingLook,
    now_s: float,
    *,
    excess: Mapping[str, int],
) -> Reclaim:
    if not recalls and not excess:
        return _NOBODY
    return reclaim(
        taking(
            policy,
            recalls,
            look.jobs,
            look.nodes,
            services=look.services,
            partitions=frozenset(settings.cluster.partitions),
            costs=settings.costs,
            leaving=look.told | _leaving(look.services, settings.lending.grace_s),
            now_s=now_s,
            term_s=settings.lending.term_s,
            excess=excess,
        )
    )


def _able(services: Iterable[ServiceView]) -> frozenset[str]:
    """Tenants with replicas on borrowed quota: these can go in good order, batch jobs can't.

    A lender does not wait for the others: what a rule cut off their loans is its own at once.
    """
    return frozenset(
        service.tenant
        for service in services
        for slot in service.slots
        if slot.is_borrowed and slot.state in {"starting", "running", "ending"}
    )


def _leaving(services: Iterable[ServiceView], soon_s: int) -> frozenset[int]:
    """Job ids of runs that end anyway before Slurm would preempt."""
    return frozenset(
        slot.job_id
        for service in services
        for slot in service.slots
        if slot.job_id is not None and slot.leaves_s != WHEN_REPLACED_S
        if slot.state == "ending" or (slot.leaves_s is not None and slot.leaves_s <= soon_s)
    )
