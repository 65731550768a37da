"""``bin/slicewise-restart``: restarts a server of a sandbox with its files as they are now."""

import os
import sys
from pathlib import Path

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.sandbox.host.host import Host
from slicewise.sandbox.host.layout import Layout
from slicewise.sandbox.host.state import load
from slicewise.sandbox.restart import renew


def main(directory: Path, server: str) -> None:
    """Restart a server; ``slurmd`` is the one of the job's node.

    Exit 1 with the reason if there is none of that name, or if it does not come back.
    """
    state = load(Layout(directory, 0).state_file)
    if state is None:
        sys.exit(f"No sandbox is up in {directory}.")
    name = f"slurmd-{os.environ.get('SLURMD_NODENAME', '')}" if server == "slurmd" else server
    if name not in state.processes:
        sys.exit(f"Name one of: {', '.join(state.processes)}; slurmd is the one of a job's node.")
    try:
        renew(Host(state), name)
    except SlicewiseError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *(sys.argv[2:3] or [""]))
