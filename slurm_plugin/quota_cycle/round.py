"""One round of quotas: decides loans, recalls and the replicas to drain together."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cluster.rpc.messages import ServiceView
from slurm_plugin.accounting.ledger_view import Books
from slurm_plugin.quota.calendar import capped
from slurm_plugin.quota.demand import demand, waiting_for_own
from slurm_plugin.quota.types import Loan, Recall
from slurm_plugin.quota_cycle.claims import giving_back, taking
from slurm_plugin.quota_cycle.whole_jobs import Lent, Waits, lend_whole_jobs, own_needs, waits
from slurm_plugin.quota_cycle.world import World
from slurm_plugin.reclaim.recalls import have_room, meanwhile, over_entitlement, recalled
from slurm_plugin.reclaim.turns import who_goes
from slurm_plugin.reclaim.victims import NOBODY, Reclaim


@dataclass(frozen=True)
class Plan:
    """The result of a round.

    Attributes:
        reclaim: borrowed replicas to drain, once the limits of these loans and recalls are in
            Slurm. Any earlier, other jobs of the borrower would take their place.
        over: millislices that tenants hold beyond their own parts and what is lent to them.
    """

    loans: tuple[Loan, ...]
    recalls: tuple[Recall, ...]
    reclaim: Reclaim
    over: Mapping[str, int] = field(hash=False)


def plan(world: World) -> Plan:
    """Decide loans, recalls and the replicas to drain for the given world.

    Lenders come before the job whose turn it is (``who_goes``).
    """
    books = world.books
    if not _is_anything_lent(books):
        return Plan(books.loans, books.recalls, NOBODY, over={})
    # Only replicas can be drained in order. A lender does not wait for borrowers without replicas:
    # what a rule cuts off their loans is the lender's own immediately.
    able = _with_replicas(world.seen.services)
    known = [one for one in books.recalls if one.borrower in able]
    held = world.held
    beyond = capped(world.policy, books.windows, books.when, held)
    waiting = waits(world, taking(world), beyond)
    lent = _lent(world, waiting, known)
    over = over_entitlement(world.policy, lent.loans, held)
    excess = {name: amount for name, amount in over.items() if name in beyond}
    recalls = _Recalls(world, able, known, lent.loans, held)
    called = recalls.left({})
    found = NOBODY
    if called or excess or lent.turn:
        # A tenant beyond a cap gives up just the excess, so its replicas are not drained for turns.
        others = {name: amount for name, amount in over.items() if name not in excess}
        there = giving_back(waiting.taking, world, called, excess)
        found = who_goes(there, lent.turn, others, waiting.free)
    return Plan(lent.loans, recalls.left(found.ready), found, over)


def _is_anything_lent(books: Books) -> bool:
    borrows = any(one.quota.borrowing_limit_millislices for one in books.policy.values())
    return bool(borrows or books.loans or books.recalls or books.windows)


def _lent(world: World, waiting: Waits, recalls: Iterable[Recall]) -> Lent:
    policy, seen, rules = world.policy, world.seen, world.rules
    wanted = demand(policy, world.jobs, rules.partitions, rules.costs)
    needs = own_needs(policy, wanted, waiting.queues, waiting.guaranteed)
    return lend_whole_jobs(
        policy,
        wanted,
        waiting,
        world.books.loans,
        capacity=world.capacity_millislices,
        lately=seen.lately,
        at_most=meanwhile(
            policy, wanted, needs, world.books.loans, recalls, guaranteed=waiting.guaranteed
        ),
    )


class _Recalls:
    """The recalls of a round, given how much of the lenders' jobs is ready to start."""

    def __init__(
        self,
        world: World,
        able: frozenset[str],
        known: list[Recall],
        after: tuple[Loan, ...],
        held: Mapping[str, int],
    ) -> None:
        self._policy, self._known, self._after, self._held = world.policy, known, after, held
        loans = world.books.loans
        self._before = [one for one in loans if one.borrower in able]
        rules = world.rules
        self._waiting = waiting_for_own(world.jobs, rules.partitions, rules.costs)
        self._when = {"now_s": world.books.now_s, "grace_s": rules.grace_s}
        self._room = have_room(world.policy, loans, known, held, self._waiting, **self._when)

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


def _with_replicas(services: Iterable[ServiceView]) -> frozenset[str]:
    """Tenants with replicas on borrowed quota."""
    return frozenset(
        service.tenant
        for service in services
        for slot in service.slots
        if slot.is_borrowed and slot.state in {"starting", "running", "ending"}
    )
