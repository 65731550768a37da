"""``slicewise mig costs``: what each MIG profile costs. It asks no other program."""

from collections.abc import Iterable
from fractions import Fraction
from typing import Annotated

import typer

from slicewise.cluster.language.gpus.mig_profiles import (
    boards,
    cost_millislices,
    whole_cost,
    whole_memory_mib,
)
from slicewise.cluster.runtime.console import console, print_json
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.settings.file import GpuSettings, SharedSettings
from slicewise.cluster.settings.read import load_settings
from slicewise.slurm_plugin.cli.views import headroom as present
from slicewise.slurm_plugin.cli.views.headroom import ProfileCost

costs_app = typer.Typer()


@costs_app.command(
    "costs", epilog="Examples: slicewise mig costs | slicewise mig costs --all --json"
)
def print_costs(
    every: Annotated[
        bool, typer.Option("--all", help="Every model of the table, each at weight 1.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what one instance of every MIG profile costs, in slices.

    A profile costs 7 slices × the larger of its compute share and its memory share of the GPU × the
    weight of the GPU model, rounded up to a thousandth. The larger share is its dominant share, so
    that no job can hold a GPU's memory at the price of a little compute. NVIDIA documents the
    shares:
    https://docs.nvidia.com/datacenter/tesla/mig-user-guide/#supported-mig-profiles
    """
    if every:
        costs = [cost for model in sorted(boards()) for cost in profile_costs(model, Fraction(1))]
    else:
        settings = load_settings()
        costs = [
            cost
            for model, gpu in sorted(settings.gpus.items())
            for cost in (*profile_costs(model, gpu.weight), *_whole_costs(model, gpu))
        ]
        costs += _shared_costs(settings.shared)
    if as_json:
        print_json(costs)
    else:
        console().print(present.costs_table(costs))


def profile_costs(model: str, weight: Fraction) -> Iterable[ProfileCost]:
    """Return the cost of each profile of a model, the lowest first; () if it can't be cut."""
    on = boards().get(model)
    if on is None:
        return ()
    costs = [
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
    return sorted(costs, key=lambda cost: (cost.cost_millislices, cost.profile))


def _shared_costs(shared: SharedSettings) -> Iterable[ProfileCost]:
    """Parts of GPUs that jobs share: what such a job gets of its GPU is not known."""
    for name, cost in shared.costs.items():
        yield ProfileCost("any", Fraction(1), name, "shared", "shared", None, cost)


def _whole_costs(model: str, gpu: GpuSettings) -> Iterable[ProfileCost]:
    for gres_type in gpu.whole:
        yield ProfileCost(
            model=model,
            weight=gpu.weight,
            profile=gres_type,
            compute_share="1",
            memory_share="1",
            memory_mib=whole_memory_mib(model),
            cost_millislices=whole_cost(gpu.weight),
        )
