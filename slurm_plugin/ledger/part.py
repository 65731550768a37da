"""What the parts of the ledger share."""

from typing import Any

from sqlalchemy import Engine, text

DEADLINE = text("SET LOCAL statement_timeout = '4s'")
"""For what somebody waits for: it is done, or never will be, before he is told that it failed."""


class LedgerPart:
    """Methods on one cluster's rows.

    Every method raises UnreachableError (SW-DATABASE-DOWN) if PostgreSQL does not answer and
    OutsideError (SW-DATABASE-FAILED, SW-LEDGER-REFUSED) if it answers with an error; then nothing
    was written.
    """

    _engine: Engine
    _booking: Engine
    """For ``Charges.apply``: see ``booking.booking_engine``."""
    _cluster: str
    """Slurm's ClusterName."""


def seconds(epoch: Any) -> float | None:
    """What PostgreSQL's ``extract(epoch ...)`` says."""
    return None if epoch is None else float(epoch)
