"""Commands that explain: what a tenant may still run, what each MIG profile costs."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from fractions import Fraction
from typing import Annotated

import typer

from cluster.console import console, print_json
from cluster.jobs import JobView, NodeView
from cluster.mig_profiles import boards, cost_millislices
from cluster.settings import Settings, load_settings
from cluster.slurm.commands import CommandSlurm
from slurm_plugin.cli import present_explain as present
from slurm_plugin.cli.parts import Json, TenantName, opened_ledger, require_tenant
from slurm_plugin.cli.present_explain import ProfileCost
from slurm_plugin.decide.ceilings import ceilings
from slurm_plugin.decide.demand import capacity, held
from slurm_plugin.decide.explain import Situation, explain
from slurm_plugin.decide.policy import Policy
from slurm_plugin.ledger.store import Ledger

_OUT_OF_USE = frozenset({"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "NOT_RESPONDING"})


def explain_tenant(tenant: TenantName, as_json: Json = False) -> None:
    """Show what a tenant may still start of each GPU type, and what allows no more.

    Guaranteed is in its own QOS, borrowed what goes beyond that with --qos=slicewise-borrowed. A
    budget allows what could run for an hour on it. The reason is what squeue shows of a job that
    waits for that.
    """
    settings = load_settings()
    with opened_ledger(settings) as ledger:
        policy = ledger.policy()
        require_tenant(policy, tenant)
        jobs, nodes = asyncio.run(_look())
        found = explain(tenant, _situation(ledger, policy, settings, jobs, nodes))
    if as_json:
        print_json(asdict(found))
    else:
        console().print(present.explanation(found))


async def _look() -> tuple[tuple[JobView, ...], tuple[NodeView, ...]]:
    slurm = CommandSlurm()
    return await asyncio.gather(slurm.jobs(), slurm.nodes())


def _situation(
    ledger: Ledger,
    policy: Policy,
    settings: Settings,
    jobs: Iterable[JobView],
    nodes: tuple[NodeView, ...],
) -> Situation:
    partitions = frozenset(settings.cluster.partitions)
    balances = ledger.balances()
    return Situation(
        policy=policy,
        ceilings=ceilings(policy, ledger.loans(), capacity(nodes, partitions, settings.costs)),
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


def free_instances(nodes: Iterable[NodeView]) -> Mapping[str, int]:
    """Instances by type that nobody holds; those of nodes out of use are not free."""
    free: Counter[str] = Counter()
    for node in nodes:
        usable = not node.states & _OUT_OF_USE
        for name, count in node.gpus.items():
            free[name] += (count - node.gpus_allotted.get(name, 0)) * usable
    return free


def print_costs(
    every: Annotated[
        bool, typer.Option("--all", help="Every model of the table, each at weight 1.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what one instance of every MIG profile costs, in slices.

    A profile costs 7 slices × the larger of its compute share and its memory share of the GPU × the
    weight of the GPU model, rounded up to a thousandth: its dominant share, so that nobody can hold
    a GPU's memory at the price of a little compute. Shares are those that NVIDIA documents:
    https://docs.nvidia.com/datacenter/tesla/mig-user-guide/#supported-mig-profiles
    """
    weights = (
        dict.fromkeys(boards(), Fraction(1))
        if every
        else {model: gpu.weight for model, gpu in load_settings().gpus.items()}
    )
    costs = [
        cost for model, weight in sorted(weights.items()) for cost in profile_costs(model, weight)
    ]
    if as_json:
        print_json([present.cost_json(cost) for cost in costs])
    else:
        console().print(present.costs_table(costs))


def profile_costs(model: str, weight: Fraction) -> Iterable[ProfileCost]:
    """Of each profile of a model, the smallest first."""
    on = boards()[model]
    found = [
        ProfileCost(
            model=model,
            weight=weight,
            profile=profile.name,
            compute_share=f"{profile.compute_slices}/{on.compute_slices}",
            memory_share=f"{profile.memory_slices}/{on.memory_slices}",
            memory_mib=profile.memory_mib,
            cost_millislices=cost_millislices(on, profile.name, weight),
        )
        for profile in on.profiles.values()
    ]
    return sorted(found, key=lambda cost: (cost.cost_millislices, cost.profile))
