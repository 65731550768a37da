"""Compiles once as the daemon does, where none runs: for tests and benchmarks."""

import asyncio
import sys

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.runtime.console import print_json
from slicewise.cluster.settings.read import database_url, load_settings
from slicewise.cluster.slurm.open import open_slurm
from slicewise.slurm_plugin.api.compile_desk import compile_now
from slicewise.slurm_plugin.cli.commands.compile import limits_set
from slicewise.slurm_plugin.ledger.store import Ledger

AGAIN = "--again"


def main() -> None:
    """Print as JSON what was changed, or the error; with ``--again``, also after an uninstall."""
    settings = load_settings()
    try:
        with Ledger(database_url(settings.database), settings.cluster.name) as ledger:
            slurm = open_slurm(settings)
            compiling = compile_now(slurm, ledger, settings, again=AGAIN in sys.argv)
            print_json(limits_set(asyncio.run(compiling)))
    except SlicewiseError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
