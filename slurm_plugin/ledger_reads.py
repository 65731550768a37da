"""What people read, put together from the ledger and Slurm: for commands and for the daemon."""

import time
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from cluster.jobs import JobView, NodeView
from cluster.settings import Settings
from slurm_plugin.decide.budgets import left
from slurm_plugin.decide.ceilings import ceilings
from slurm_plugin.decide.decayed_use import HALF_LIVES, DecayedUse, averages, recorded
from slurm_plugin.decide.demand import capacity, held
from slurm_plugin.decide.explain import Situation
from slurm_plugin.decide.free import free_instances
from slurm_plugin.decide.model import BalanceLine
from slurm_plugin.decide.policy import Policy

if TYPE_CHECKING:
    from slurm_plugin.ledger.store import Ledger


def policy_now(ledger: "Ledger", settings: Settings) -> Policy:
    """Every tenant as the calendar has it now."""
    return ledger.policy_in_force(time.time(), settings.ledger.time_zone)


def recent_use(ledger: "Ledger", settings: Settings, at_s: float) -> DecayedUse:
    """What tenants have used lately, by the ledger alone. The daemon follows it itself."""
    half_life_s = settings.priority.half_life_s
    return recorded(ledger.holdings(int(at_s - HALF_LIVES * half_life_s)), at_s, half_life_s)


def held_lately(ledger: "Ledger", settings: Settings, at_s: float) -> Mapping[str, int]:
    """Millislices that each tenant has held on average; none where loans do not go by it."""
    if not settings.lending.past_use:
        return {}
    return averages(recent_use(ledger, settings, at_s), settings.priority.half_life_s)


def situation(
    ledger: "Ledger",
    policy: Policy,
    settings: Settings,
    jobs: Iterable[JobView],
    nodes: tuple[NodeView, ...],
) -> Situation:
    """What ``decide.explain`` needs to know of every tenant of ``policy``."""
    partitions = frozenset(settings.cluster.partitions)
    balances = ledger.balances()
    # Without any GPU the compiled limits stay, too.
    whole = capacity(nodes, partitions, settings.costs) or None
    return Situation(
        policy=policy,
        ceilings=ceilings(policy, ledger.loans(), whole, ledger.recalls()),
        held=held(jobs, partitions),
        free=free_instances([node for node in nodes if node.partitions & partitions]),
        costs=settings.costs,
        models={name: board.model for name, board in settings.boards_by_type.items()},
        available_millislice_s={
            # Nothing was ever granted where the balance is missing.
            name: balances[name].available_millislice_s if name in balances else 0
            for name in ledger.rolls()
        },
    )


def balance_lines(ledger: "Ledger", tenants: Collection[str] | None) -> tuple[BalanceLine, ...]:
    """Of these tenants as far as they ever had a run or a budget, by name; None is all."""
    left_s = left_now(ledger, ledger.policy())
    return tuple(
        BalanceLine(balance, left_s.get(name))
        for name, balance in sorted(ledger.balances().items())
        if tenants is None or name in tenants
    )


def left_now(ledger: "Ledger", policy: Policy) -> Mapping[str, int]:
    """Millislice-seconds that each budget that has begun has left, by tenant."""
    running, now_s = ledger.open_reservations(), int(time.time())
    found = left(policy, ledger.balances(), ledger.rolls(), running, now_s)
    return {tenant: one.left_millislice_s for tenant, one in found.items()}
