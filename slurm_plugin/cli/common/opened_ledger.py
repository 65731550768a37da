"""Opens the ledger, for the few commands that work without the daemon."""

from collections.abc import Iterator
from contextlib import contextmanager

from slicewise.cluster.settings.file import Settings
from slicewise.cluster.settings.read import database_url
from slicewise.slurm_plugin.ledger.store import Ledger


@contextmanager
def opened_ledger(settings: Settings) -> Iterator[Ledger]:
    """Open the ledger; refuse one whose tables are not of the revision that this program needs."""
    with Ledger(database_url(settings.database), settings.cluster.name) as ledger:
        ledger.require_current()
        yield ledger
