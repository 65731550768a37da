"""What was held lately: what priority's share term begins with after a restart."""

from sqlalchemy import or_, select, true

from cluster.database import reading
from slurm_plugin.decide.decayed_use import Holding
from slurm_plugin.ledger.part import LedgerPart
from slurm_plugin.ledger.tables import open_reservations, runs, transfers

_ROWS_AT_ONCE = 5000


class RecentUse(LedgerPart):
    """Runs, as what they held from when to when."""

    def holdings(self, since_s: int) -> tuple[Holding, ...]:
        """Of every run that has ended at ``since_s`` or later, or is still open."""
        newest = (
            select(transfers.c.until_s)
            .where(transfers.c.run_id == runs.c.id)
            .order_by(transfers.c.number.desc())
            .limit(1)
            .lateral("newest")
        )
        is_open = open_reservations.c.run_id.is_not(None)
        query = (
            select(
                runs.c.tenant, runs.c.cost_millislices, runs.c.start_s, newest.c.until_s, is_open
            )
            .select_from(runs)
            .join(newest, true())
            .outerjoin(open_reservations, open_reservations.c.run_id == runs.c.id)
            .where(runs.c.cluster == self._cluster, or_(is_open, newest.c.until_s >= since_s))
        )
        with reading(self._engine) as connection:
            found = connection.execution_options(yield_per=_ROWS_AT_ONCE).execute(query)
            return tuple(
                Holding(tenant, amount, start_s, None if still_open else until_s)
                for tenant, amount, start_s, until_s, still_open in found
            )
