"""What the parts of the ledger share."""

from sqlalchemy import Engine


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
