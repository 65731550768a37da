"""What tenants may still start, by the ledger and Slurm: for commands and for the daemon."""

from collections.abc import Iterable

from cluster.jobs import JobView, NodeView
from cluster.settings import Settings
from slurm_plugin.decide.books import Books
from slurm_plugin.decide.ceilings import by_use, ceilings, less_elsewhere
from slurm_plugin.decide.charging import run_cost
from slurm_plugin.decide.demand import capacity, held, qos_use
from slurm_plugin.decide.explain import Situation
from slurm_plugin.decide.free import free_instances
from slurm_plugin.decide.tenants import own_part


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
    holds = held(jobs, partitions)
    elsewhere = {name: run_cost(one.elsewhere, settings.costs) for name, one in holds.items()}
    use = qos_use(own_part(policy), jobs, partitions, settings.costs)
    return Situation(
        policy=policy,
        ceilings=less_elsewhere(by_use(most, use), elsewhere),
        held=holds,
        free=free_instances([node for node in nodes if node.partitions & partitions]),
        costs=settings.costs,
        models=settings.models,
        available_millislice_s={
            # Nothing was ever granted where the balance is missing.
            name: balances[name].available_millislice_s if name in balances else 0
            for name in books.rolls
        },
    )
