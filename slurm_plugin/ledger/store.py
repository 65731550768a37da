"""The ledger: the plugin's only door to PostgreSQL. Synchronous; callers use a thread."""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from cluster.database import postgres_engine, writing
from cluster.leader_lock import LeaderLock
from slurm_plugin.decide.budgets import Amend
from slurm_plugin.decide.policy import Budget, QuotaChange, TenantUpdate
from slurm_plugin.ledger import schema
from slurm_plugin.ledger.audit import Audit
from slurm_plugin.ledger.booking import booking_engine
from slurm_plugin.ledger.budgets import Budgets
from slurm_plugin.ledger.charges import Charges
from slurm_plugin.ledger.keys import Keys
from slurm_plugin.ledger.orders import Orders
from slurm_plugin.ledger.rebalances import Rebalances
from slurm_plugin.ledger.recent_use import RecentUse
from slurm_plugin.ledger.recuts import Recuts
from slurm_plugin.ledger.windows import Windows


class Ledger(Windows, Charges, Budgets, Audit, RecentUse, Orders, Keys, Recuts, Rebalances):
    """One cluster's policy, calendar, charges, budgets, orders, keys, re-cuts, runs of rebalancing.

    Safe to use from several threads.
    """

    def __init__(self, url: str, cluster: str) -> None:
        """``url`` as postgresql://..., ``cluster`` is Slurm's ClusterName; connects later."""
        self._engine = postgres_engine(url)
        self._booking = booking_engine(self._engine)
        self._cluster = cluster

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
        """Close its connections."""
        self._engine.dispose()
        self._booking.dispose()

    def set_budget(self, update: TenantUpdate, author: str, reason: str, amend: Amend) -> int:
        """Change a budget's rule as ``change`` does, and with it the running period.

        Of two operators at once the second decides on what the first has left. Returns the
        millislice-seconds that were given at once; below zero, taken back.
        """
        with writing(self._engine) as connection:
            self._lock(connection)
            tenant = self._policy(connection).get(update.tenant)
            self._change(connection, update, author, reason)
            before = tenant.budget if tenant else None
            return self._amend(connection, update.tenant, before, amend)

    def change_together(
        self,
        updates: Sequence[TenantUpdate],
        author: str,
        reason: str,
        amend: Callable[[str, Budget], Amend],
    ) -> tuple[QuotaChange, ...]:
        """Change several tenants, or none, as ``change`` and ``set_budget`` do.

        Only the tree to which all of them lead has to hold. Raises InvalidInputError: SW-TEXT and
        what ``tenants.changed`` raises.
        """
        with writing(self._engine) as connection:
            self._lock(connection)
            before = self._policy(connection)
            changes = self._change_together(connection, updates, author, reason)
            for update in updates:
                if isinstance(update.budget, Budget):
                    tenant = before.get(update.tenant)
                    was = tenant.budget if tenant else None
                    entry = amend(update.tenant, update.budget)
                    self._amend(connection, update.tenant, was, entry)
            return changes

    def leader_lock(self, host: str) -> LeaderLock:
        """The lock of the daemon that leads; ``host`` is what others are told of it."""
        return LeaderLock(self._engine, "slicewise leader", self._cluster, host)

    def require_current(self) -> None:
        """Raises InvalidInputError (SW-DATABASE-OLD, SW-DATABASE-NEW) unless it is at head."""
        schema.require_current(self._engine)
