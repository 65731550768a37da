"""``slicewise costs``: what each MIG profile costs. It asks nobody."""

from collections.abc import Iterable
from fractions import Fraction
from typing import Annotated

import typer

from cluster.console import console, print_json
from cluster.mig_profiles import boards, cost_millislices
from cluster.settings import load_settings
from slurm_plugin.cli import present_explain as present
from slurm_plugin.cli.parts import Json
from slurm_plugin.cli.present_explain import ProfileCost


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
