"""The source of users' commands: the daemon."""

from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.messages import ViewRequest
from slicewise.cluster.rpc.read_messages import (
    BalanceRequest,
    BudgetsRequest,
    HeadroomRequest,
    StatementRequest,
)
from slicewise.slurm_plugin.rules.accounting.statement import totals
from slicewise.slurm_plugin.rules.accounting.types import BalanceLine, Statement, StatementRow

if TYPE_CHECKING:
    from slicewise.cluster.rpc.history_messages import HistoryAnswer, HistoryRequest
    from slicewise.slurm_plugin.rules.accounting.overview import BudgetStatus
    from slicewise.slurm_plugin.rules.explain.headroom import Explanation


class DaemonSource:
    """A ``Source`` that shows the caller's own tenants, as the daemon reports them."""

    def __init__(self, daemon: DaemonClient) -> None:
        self._daemon = daemon

    def explanation(self, tenant: str) -> "Explanation":
        """See ``Source``."""
        # Imported here: it loads much that statements and balances don't need.
        from slicewise.slurm_plugin.rules.explain.headroom import Explanation  # noqa: PLC0415

        answer = self._daemon.call(HeadroomRequest.of(tenant=tenant))
        return TypeAdapter(Explanation).validate_python(answer.headroom)

    def statement(self, tenant: str | None, since_s: int) -> tuple[Statement, int]:
        """See ``Source``."""
        rows, now_s = self._pages(StatementRequest.of(tenant=tenant, since_s=since_s))
        return Statement(rows, totals(rows)), now_s

    def charged_below(self, tenant: str) -> tuple[str, ...]:  # noqa: ARG002 -- see ``Source``
        """Return none: the daemon shows members of an account nothing of those below it."""
        return ()

    def _pages(self, request: StatementRequest) -> tuple[tuple[StatementRow, ...], int]:
        adapter = TypeAdapter(tuple[StatementRow, ...])
        answer = self._daemon.call(request)
        rows = [*adapter.validate_python(answer.rows)]
        while answer.more is not None:
            request = request.model_copy(update={"after": answer.more})
            answer = self._daemon.call(request)
            rows += adapter.validate_python(answer.rows)
        return tuple(rows), answer.now_s

    def balances(self, tenant: str | None) -> tuple[BalanceLine, ...]:
        """See ``Source``."""
        answer = self._daemon.call(BalanceRequest.of(tenant=tenant))
        return TypeAdapter(tuple[BalanceLine, ...]).validate_python(answer.balances)

    def budgets(self, tenant: str | None) -> "tuple[BudgetStatus, ...]":
        """See ``Source``."""
        # Imported here: statements and balances don't need it.
        from slicewise.slurm_plugin.rules.accounting.overview import BudgetStatus  # noqa: PLC0415

        answer = self._daemon.call(BudgetsRequest.of(tenant=tenant))
        return TypeAdapter(tuple[BudgetStatus, ...]).validate_python(answer.budgets)

    def tenants(self) -> tuple[str, ...]:
        """See ``Source``."""
        return tuple(one.name for one in self._daemon.call(ViewRequest()).tenants)

    def history(self, request: "HistoryRequest") -> "HistoryAnswer":
        """See ``Source``."""
        return self._daemon.call(request)
