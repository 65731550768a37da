"""One round of quotas: decides loans, recalls and the runs to end together."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from slicewise.cluster.rpc.messages import ServiceView
from slicewise.slurm_plugin.rules.accounting.ledger_view import LedgerView
from slicewise.slurm_plugin.rules.common.qos_names import holder_of
from slicewise.slurm_plugin.rules.quota.calendar import capped
from slicewise.slurm_plugin.rules.quota.demand import demand_of, for_recalls, since_any_waits
from slicewise.slurm_plugin.rules.quota.types import Loan, Recall
from slicewise.slurm_plugin.rules.reclaim.recalls import (
    have_room,
    meanwhile,
    over_entitlement,
    recalled,
)
from slicewise.slurm_plugin.rules.reclaim.turns import runs_to_end
from slicewise.slurm_plugin.rules.reclaim.victims import NOBODY, Reclaim
from slicewise.slurm_plugin.rules.round.reclaim_inputs import giving_back, reclaim_input
from slicewise.slurm_plugin.rules.round.whole_jobs import (
    Lent,
    Waits,
    lend_whole_jobs,
    own_needs,
    waits,
)
from slicewise.slurm_plugin.rules.round.world import SlurmView, World


@dataclass(frozen=True)
class RoundPlan:
    """The result of a round.

    Attributes:
        reclaim: borrowed replicas to drain and batch jobs to requeue, once the limits of these
            loans and recalls are in Slurm. Any earlier, other jobs of the borrower would take their
            place.
        over: millislices that tenants hold beyond their guaranteed quotas and what is lent to them.
    """

    loans: tuple[Loan, ...]
    recalls: tuple[Recall, ...]
    reclaim: Reclaim
    over: Mapping[str, int] = field(hash=False)


def plan(inputs: World) -> RoundPlan:
    """Decide loans, recalls and the runs to end for the given world.

    Lenders come before the job whose turn it is (``reclaim.turns``).
    """
    ledger_view = inputs.ledger_view
    if not _is_anything_lent(ledger_view):
        return RoundPlan(ledger_view.loans, ledger_view.recalls, NOBODY, over={})
    # A lender does not wait for borrowers of which no run can be ended in order: what a rule cuts
    # off their loans is the lender's own immediately.
    able = _with_replicas(inputs.slurm_view.services) | _with_requeueable(inputs.slurm_view)
    recalls_left = [recall for recall in ledger_view.recalls if recall.borrower in able]
    held = inputs.held
    beyond = capped(inputs.policy, ledger_view.windows, ledger_view.when, held)
    waiting = waits(inputs, reclaim_input(inputs), beyond)
    lent = _lent(inputs, waiting, recalls_left)
    over = over_entitlement(inputs.fitted, lent.loans, held)
    excess = {name: amount for name, amount in over.items() if name in beyond}
    recalls = _Recalls(inputs, able, recalls_left, lent.loans, held)
    called = recalls.left({})
    eviction = NOBODY
    if called or excess or lent.turn:
        # A tenant beyond a cap gives up just the excess, so its replicas are not drained for turns.
        others = {name: amount for name, amount in over.items() if name not in excess}
        giving = giving_back(waiting.reclaim_input, inputs, called, excess)
        eviction = runs_to_end(giving, lent.turn, others, waiting.free)
    left = recalls.left(eviction.ready) if eviction.ready else called
    return RoundPlan(lent.loans, left, eviction, over)


def _is_anything_lent(ledger_view: LedgerView) -> bool:
    borrows = any(
        tenant.quota.borrowing_limit_millislices for tenant in ledger_view.policy.values()
    )
    return bool(borrows or ledger_view.loans or ledger_view.recalls or ledger_view.windows)


def _lent(inputs: World, waiting: Waits, recalls: Iterable[Recall]) -> Lent:
    policy = inputs.fitted
    wanted = demand_of(policy, inputs.startable)
    needs = own_needs(policy, wanted, waiting.queues)
    return lend_whole_jobs(
        policy,
        wanted,
        waiting,
        inputs.ledger_view.loans,
        capacity=inputs.capacity_millislices,
        lately=inputs.slurm_view.lately,
        at_most=meanwhile(
            policy, wanted, needs, inputs.ledger_view.loans, recalls, guaranteed=waiting.guaranteed
        ),
    )


class _Recalls:
    """The recalls of a round, given how much of the lenders' jobs is ready to start."""

    def __init__(
        self,
        inputs: World,
        able: frozenset[str],
        recalls_before: list[Recall],
        after: tuple[Loan, ...],
        held: Mapping[str, int],
    ) -> None:
        self._policy, self._known, self._after, self._held = (
            inputs.fitted,
            recalls_before,
            after,
            held,
        )
        loans = inputs.ledger_view.loans
        self._before = [loan for loan in loans if loan.borrower in able]
        rules = inputs.rules
        startable = inputs.startable
        self._waiting = since_any_waits(inputs.fitted, for_recalls(startable), startable)
        self._when = {"now_s": inputs.ledger_view.now_s, "grace_s": rules.grace_s}
        self._room = have_room(
            inputs.fitted, loans, recalls_before, held, self._waiting, **self._when
        )

    def left(self, ready: Mapping[str, int]) -> tuple[Recall, ...]:
        """The recalls that stay.

        ``ready``: millislices of each lender's jobs for which enough GPU instances are free.
        """
        return recalled(
            self._policy,
            self._before,
            self._after,
            self._known,
            self._held,
            ready=Counter(ready) | Counter(self._room),
            waiting=self._waiting,
            **self._when,
        )


def _with_requeueable(seen: SlurmView) -> frozenset[str]:
    """Tenants with batch jobs on borrowed quota that may be requeued."""
    may = seen.may_requeue
    jobs = seen.jobs if may else ()
    return frozenset(holder_of(job) for job in jobs if (job.job_id, job.start_s) in may)


def _with_replicas(services: Iterable[ServiceView]) -> frozenset[str]:
    """Tenants with replicas on borrowed quota."""
    return frozenset(
        service.tenant
        for service in services
        for slot in service.slots
        if slot.is_borrowed and slot.state in {"starting", "running", "ending"}
    )
