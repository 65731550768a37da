"""The ledger: the plugin's only access to PostgreSQL. Synchronous; callers use a thread."""

from types import TracebackType
from typing import Self

from slicewise.cluster.runtime.database import postgres_engine, reading
from slicewise.slurm_plugin.ledger import reads, schema_revisions
from slicewise.slurm_plugin.ledger.allowances import Allowances
from slicewise.slurm_plugin.ledger.audit import Audit
from slicewise.slurm_plugin.ledger.base import Database
from slicewise.slurm_plugin.ledger.booking import booking_engine
from slicewise.slurm_plugin.ledger.budgets import Budgets
from slicewise.slurm_plugin.ledger.calendar import Windows
from slicewise.slurm_plugin.ledger.charges import Charges
from slicewise.slurm_plugin.ledger.energy import Energy
from slicewise.slurm_plugin.ledger.generations import Generations
from slicewise.slurm_plugin.ledger.guests import GuestClaims
from slicewise.slurm_plugin.ledger.history import History
from slicewise.slurm_plugin.ledger.keys import Keys
from slicewise.slurm_plugin.ledger.limits import Limits
from slicewise.slurm_plugin.ledger.loans import Loans
from slicewise.slurm_plugin.ledger.locks import Locks
from slicewise.slurm_plugin.ledger.observations import ObservationSums
from slicewise.slurm_plugin.ledger.orders import Orders
from slicewise.slurm_plugin.ledger.pools import Pools
from slicewise.slurm_plugin.ledger.rebalances import Rebalances
from slicewise.slurm_plugin.ledger.repartitions import Repartitions
from slicewise.slurm_plugin.ledger.request_limits import LimitsOfRequests
from slicewise.slurm_plugin.ledger.shares import Shares
from slicewise.slurm_plugin.ledger.tariffs import Tariffs
from slicewise.slurm_plugin.ledger.tenants import Tenants
from slicewise.slurm_plugin.ledger.usage import Usage
from slicewise.slurm_plugin.ledger.usage_reads import UsageReads
from slicewise.slurm_plugin.rules.accounting.ledger_view import LedgerView
from slicewise.slurm_plugin.rules.quota.calendar_times import moment


class Ledger:
    """One cluster's ledger, divided by subject. Safe to use from several threads.

    Attributes:
        tenants: quotas and budgets' rules of tenants.
        windows: the calendar of quotas.
        loans: idle quota lent to other tenants, and recalls of it.
        limits: what is known of Slurm's limits, and which change of policy they contain.
        charges: runs, what is reserved for them and what they used.
        shares: what of shared services' runs each tenant is charged.
        pools: which services have used a pool's replicas.
        energy: what boards took, and whose parts of it are.
        budgets: what tenants were given to use up, and what is left.
        locks: locks for what only one process may do at a time.
        usage: what requests used of tokens; usage_reads: sums of it.
        allowances: tokens of limits that are set aside for gateways.
        tariffs: what use costs, and what is billed beside runs.
        audit: statements, exports, and checks that everything adds up.
        orders: what owners ordered for their services beside the scripts.
        generations: what was submitted of services.
        keys: API keys of tenants.
        guests: tenants that the identity provider has named for people without an account.
        request_limits: limits on the requests of tenants, persons and keys.
        repartitions: the journal of repartitioning GPUs, and how each node was cut when last seen.
        observations: sums by day of what was decided and of what could be lent.
        history: figures over time of the cluster, tenants and services.
        rebalances: the journal of ``slicewise rebalance``.
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
        self.shares = Shares(database)
        self.pools = Pools(database)
        self.energy = Energy(database)
        self.budgets = Budgets(database)
        self.locks = Locks(database)
        self.audit = Audit(database)
        self.orders = Orders(database)
        self.generations = Generations(database)
        self.keys = Keys(database)
        self.guests = GuestClaims(database)
        self.request_limits = LimitsOfRequests(database)
        self.repartitions = Repartitions(database)
        self.observations = ObservationSums(database)
        self.history = History(database)
        self.rebalances = Rebalances(database)
        self.usage = Usage(database)
        self.usage_reads = UsageReads(database)
        self.allowances = Allowances(database)
        self.tariffs = Tariffs(database)

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
