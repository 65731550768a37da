"""Asks Slurm for what is left of the operators' commands that look there themselves."""

import asyncio

import typer

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.rules.quota.nodes import capacity


def try_to_ask_capacity(settings: Settings) -> int | None:
    """Return the millislices of all managed GPUs; None, told on stderr, if Slurm is silent."""
    # Imported here: the commands that ask the daemon import this, too.
    from slicewise.cluster.slurm.open import open_slurm  # noqa: PLC0415

    try:
        nodes = asyncio.run(open_slurm(settings).nodes())
    except SlicewiseError as error:
        typer.echo(f"Without Slurm: {error}", err=True)
        return None
    partitions = frozenset(settings.cluster.partitions)
    return capacity(nodes, partitions, settings.costs, settings.whole_boards)
