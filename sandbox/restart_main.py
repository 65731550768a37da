"""``bin/slicewise-restart``: restarts a sandbox's slurmctld, or the slurmd of a job's node."""

import os
import sys
from pathlib import Path

from cluster.language.errors import SlicewiseError
from sandbox.host.host import Host
from sandbox.host.layout import Layout
from sandbox.host.state import load
from sandbox.restart import renew


def main(directory: Path, server: str) -> None:
    """Restart ``server``, slurmctld or slurmd; exit 1 with the reason if it does not come back."""
    state = load(Layout(directory, 0).state_file)
    if state is None:
        sys.exit(f"No sandbox is up in {directory}.")
    name = f"slurmd-{os.environ['SLURMD_NODENAME']}" if server == "slurmd" else server
    try:
        renew(Host(state), name)
    except SlicewiseError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
