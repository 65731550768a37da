"""Sites for tests on the model of Slurm."""

from collections.abc import Iterator

import pytest
from model_daemon import NODES, SETTINGS, DaemonOnModel

ACCOUNTS = {"lab": "root", "group": "lab", "lender": "root", "other": "root"}
"""The Slurm accounts, each with its parent and a user of its own; none is a tenant at first."""


@pytest.fixture
def site() -> Iterator[DaemonOnModel]:
    """A site whose daemon runs; ten small GPU instances and three large ones are free."""
    with DaemonOnModel(ACCOUNTS, SETTINGS, NODES).running() as site:
        yield site
