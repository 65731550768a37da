"""Says where the public traces lie, which are not in this repository."""

import os
from pathlib import Path


def traces_folder() -> Path:
    """The folder of requests and of pods: SLICEWISE_TRACES, or ``traces``."""
    return Path(os.environ.get("SLICEWISE_TRACES", "traces"))


def cluster_traces_folder() -> Path:
    """The folder of clusters' jobs: SLICEWISE_CLUSTER_TRACES, or ``cluster-traces``."""
    return Path(os.environ.get("SLICEWISE_CLUSTER_TRACES", "cluster-traces"))
