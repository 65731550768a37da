"""What tenants may still start, by the ledger and Slurm: for commands and for the daemon."""

from collections.abc import Iterable

from cluster.jobs import JobView, NodeView
from cluster.settings import Settings
from slurm_plugin.decide.books import Books
from slurm_plugin.decide.ceilings import less_elsewhere
from slurm_plugin.decide.charging import run_cost
from slurm_plugin.decide.demand import held
from slurm_plugin.decide.explain import Situation
from slurm_plugin.decide.free import free_instances
from slurm_plugin.decide.world import Seen
from slurm_plugin.world import world_of


def situation(
    books: Books, settings: Settings, jobs: Iterable[JobView], nodes: tuple[NodeView, ...]
) -> Situation:
    """What ``decide.explain`` needs to know of every tenant."""
    world = world_of(books, settings, Seen(tuple(jobs), nodes, ()))
    partitions, balances = world.rules.partitions, books.balances
    holds = held(world.seen.jobs, partitions)
    elsewhere = {name: run_cost(one.elsewhere, settings.costs) for name, one in holds.items()}
    return Situation(
        policy=world.policy,
        ceilings=less_elsewhere(world.allowed().ceilings, elsewhere),
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
