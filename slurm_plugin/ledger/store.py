"""The ledger: the plugin's only access to PostgreSQL. Synchronous; callers use a thread."""

from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Self

from slicewise.cluster.runtime.database import postgres_engine, reading
from slicewise.slurm_plugin.ledger import reads, schema_revisions
from slicewise.slurm_plugin.ledger.base import Database
from slicewise.slurm_plugin.ledger.booking import booking_engine
from slicewise.slurm_plugin.ledger.budgets import Budgets
from slicewise.slurm_plugin.ledger.calendar import Windows
from slicewise.slurm_plugin.ledger.charges import Charges
from slicewise.slurm_plugin.ledger.limits import Limits
from slicewise.slurm_plugin.ledger.loans import Loans
from slicewise.slurm_plugin.ledger.locks import Locks
from slicewise.slurm_plugin.ledger.tenants import Tenants
from slicewise.slurm_plugin.rules.accounting.ledger_view import LedgerView
from slicewise.slurm_plugin.rules.quota.calendar_times import moment

if TYPE_CHECKING:
    from slicewise.slurm_plugin.ledger.audit import Audit
    from slicewise.slurm_plugin.ledger.generations import Generations
    from slicewise.slurm_plugin.ledger.history import History
    from slicewise.slurm_plugin.ledger.keys import Keys
    from slicewise.slurm_plugin.ledger.observations import ObservationSums
    from slicewise.slurm_plugin.ledger.orders import Orders
    from slicewise.slurm_plugin.ledger.rebalances import Rebalances
    from slicewise.slurm_plugin.ledger.repartitions import Repartitions


class Ledger:
    """One cluster's ledger, divided by subject. Safe to use from several threads.

    Attributes:
        tenants: quotas and budgets' rules of tenants.
        windows: the calendar of quotas.
        loans: idle quota lent to other tenants, and recalls of it.
        limits: what is known of Slurm's limits, and which change of policy they contain.
        charges: runs, what is reserved for them and what they used.
        budgets: what tenants were given to use up, and what is left.
        locks: locks for what only one process may do at a time.
    """

    def __init__(self, url: str, cluster: str) -> None:
        """``url``: postgresql://...; ``cluster``: Slurm's ClusterName. Connects at first use."""
        engine = postgres_engine(url)
        self._database = database = Database(engine, booking_engine(engine), cluster)
        self.tenants = Tenants(database)
        self.windows = Windows(database)
        self.loans = Loans(database)
        self.limits = Limits(database)
        self.charges = Charges(database)
        self.budgets = Budgets(database)
        self.locks = Locks(database)

    # Most commands need none of these, and to import them takes a tenth of a command's CPU.

    @cached_property
    def audit(self) -> "Audit":
        """Statements, exports, and checks that everything adds up."""
        from slicewise.slurm_plugin.ledger.audit import Audit  # noqa: PLC0415 -- as above

        return Audit(self._database)

    @cached_property
    def orders(self) -> "Orders":
        """What owners ordered for their services beside the scripts."""
        from slicewise.slurm_plugin.ledger.orders import Orders  # noqa: PLC0415 -- as above

        return Orders(self._database)

    @cached_property
    def generations(self) -> "Generations":
        """What was submitted of services."""
        from slicewise.slurm_plugin.ledger.generations import Generations  # noqa: PLC0415 -- as above

        return Generations(self._database)

    @cached_property
    def keys(self) -> "Keys":
        """API keys of tenants."""
        from slicewise.slurm_plugin.ledger.keys import Keys  # noqa: PLC0415 -- as above

        return Keys(self._database)

    @cached_property
    def repartitions(self) -> "Repartitions":
        """The journal of repartitioning GPUs, and how each node was cut when last seen."""
        from slicewise.slurm_plugin.ledger.repartitions import Repartitions  # noqa: PLC0415 -- as above

        return Repartitions(self._database)

    @cached_property
    def observations(self) -> "ObservationSums":
        """Sums by day of what was decided and of what could be lent."""
        from slicewise.slurm_plugin.ledger.observations import ObservationSums  # noqa: PLC0415 -- as above

        return ObservationSums(self._database)

    @cached_property
    def history(self) -> "History":
        """Figures over time of the cluster, tenants and services."""
        from slicewise.slurm_plugin.ledger.history import History  # noqa: PLC0415 -- as above

        return History(self._database)

    @cached_property
    def rebalances(self) -> "Rebalances":
        """The journal of ``slicewise rebalance``."""
        from slicewise.slurm_plugin.ledger.rebalances import Rebalances  # noqa: PLC0415 -- as above

        return Rebalances(self._database)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._database.engine.dispose()
        self._database.booking.dispose()

    def view(self, at_s: float, zone: str) -> LedgerView:
        """Everything that a round of quotas is decided on, read in one transaction.

        ``zone`` is the calendar's time zone. Raises what every part raises.
        """
        with reading(self._database.engine) as connection:
            return reads.ledger_view(connection, self._database.cluster, moment(at_s, zone))

    def require_current(self) -> None:
        """Raise InvalidInputError (SW-DATABASE-OLD, SW-DATABASE-NEW) unless it is at head."""
        schema_revisions.require_current(self._database.engine)
