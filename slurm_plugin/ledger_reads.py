"""What people read, put together from the ledger and Slurm: for commands and for the daemon."""

import time
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from cluster.jobs import JobView, NodeView
from cluster.settings import Settings
from slurm_plugin.decide.books import Books
from slurm_plugin.decide.ceilings import by_use, ceilings
from slurm_plugin.decide.decayed_use import HALF_LIVES, DecayedUse, averages, recorded
from slurm_plugin.decide.demand import capacity, held, qos_use
from slurm_plugin.decide.explain import Situation
from slurm_plugin.decide.free import free_instances
from slurm_plugin.decide.model import BalanceLine

if TYPE_CHECKING:
    from slurm_plugin.ledger.store import Ledger


def books_now(ledger: "Ledger", settings: Settings) -> Books:
    """All that the ledger says now."""
    return ledger.books(time.time(), settings.ledger.time_zone)


def recent_use(ledger: "Ledger", settings: Settings, at_s: float) -> DecayedUse:
    """What tenants have used lately, by the ledger alone. The daemon follows it itself."""
    half_life_s = settings.priority.half_life_s
    holdings = ledger.charges.holdings(int(at_s - HALF_LIVES * half_life_s))
    return recorded(holdings, at_s, half_life_s)


def held_lately(ledger: "Ledger", settings: Settings, at_s: float) -> Mapping[str, int]:
    """Millislices that each tenant has held on average; none where loans do not go by it."""
    if not settings.lending.past_use:
        return {}
    return averages(recent_use(ledger, settings, at_s), settings.priority.half_life_s)


def situation(
    books: Books, settings: Settings, jobs: Iterable[JobView], nodes: tuple[NodeView, ...]
) -> Situation:
    """What ``decide.explain`` needs to know of every tenant."""
    partitions, policy = frozenset(settings.cluster.partitions), books.policy
    balances = books.balances
    # Without any GPU the compiled limits stay, too.
    whole = capacity(nodes, partitions, settings.costs, settings.whole_boards) or None
    jobs = tuple(jobs)
    most = ceilings(policy, books.loans, whole, books.recalls)
    return Situation(
        policy=policy,
        ceilings=by_use(most, qos_use(jobs, partitions, settings.costs)),
        held=held(jobs, partitions),
        free=free_instances([node for node in nodes if node.partitions & partitions]),
        costs=settings.costs,
        models=settings.models,
        available_millislice_s={
            # Nothing was ever granted where the balance is missing.
            name: balances[name].available_millislice_s if name in balances else 0
            for name in books.rolls
        },
    )


def balance_lines(books: Books, tenants: Collection[str] | None) -> tuple[BalanceLine, ...]:
    """Of these tenants as far as they ever had a run or a budget, by name; None is all."""
    left = left_millislice_s(books)
    return tuple(
        BalanceLine(balance, left.get(name))
        for name, balance in sorted(books.balances.items())
        if tenants is None or name in tenants
    )


def left_millislice_s(books: Books) -> Mapping[str, int]:
    """What each budget that has begun has left, by tenant."""
    return {tenant: one.left_millislice_s for tenant, one in books.left.items()}
