"""The source of operators' commands: the ledger itself, and Slurm."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.cli.common.options import require_tenant
from slicewise.slurm_plugin.ledger.summaries import balance_lines, budget_statuses, ledger_view_now
from slicewise.slurm_plugin.rules.accounting.overview import in_tree_order
from slicewise.slurm_plugin.rules.accounting.types import BalanceLine, Statement
from slicewise.slurm_plugin.rules.common.known_names import names_text
from slicewise.slurm_plugin.rules.quota.tenants import subtree

if TYPE_CHECKING:
    from slicewise.cluster.rpc.history_messages import HistoryAnswer, HistoryRequest
    from slicewise.slurm_plugin.ledger.store import Ledger
    from slicewise.slurm_plugin.rules.accounting.overview import BudgetStatus
    from slicewise.slurm_plugin.rules.explain.headroom import Explanation


class LedgerSource:
    """A ``Source`` that shows every tenant; this command asks Slurm itself."""

    def __init__(self, ledger: "Ledger", settings: Settings) -> None:
        self._ledger = ledger
        self._settings = settings

    def explanation(self, tenant: str) -> "Explanation":
        """See ``Source``."""
        # Imported here: statements and balances don't ask Slurm.
        from slicewise.slurm_plugin.cli.common.slurm_look import jobs_and_nodes  # noqa: PLC0415
        from slicewise.slurm_plugin.rules.explain.headroom import explain, situation  # noqa: PLC0415
        from slicewise.slurm_plugin.rules.round.gather import inputs_of  # noqa: PLC0415
        from slicewise.slurm_plugin.rules.round.inputs import SlurmView  # noqa: PLC0415

        ledger_view = ledger_view_now(self._ledger, self._settings)
        require_tenant(ledger_view.tenants, tenant)
        jobs, nodes = jobs_and_nodes(self._settings)
        inputs = inputs_of(ledger_view, self._settings, SlurmView(tuple(jobs), nodes, ()))
        return explain(tenant, situation(inputs))

    def statement(self, tenant: str | None, since_s: int) -> tuple[Statement, int]:
        """See ``Source``."""
        ledger = self._ledger
        if tenant is not None:
            _require_known(tenant, {*ledger.tenants.policy(), *ledger.charges.charged_tenants()})
        now_s = int(wall_s())
        return self._ledger.audit.statement(tenant, since_s, now_s), now_s

    def charged_below(self, tenant: str) -> tuple[str, ...]:
        """See ``Source``."""
        policy = self._ledger.tenants.policy()
        below = subtree(policy, tenant) if tenant in policy else ()
        return tuple(sorted(self._ledger.charges.charged_tenants() & (set(below) - {tenant})))

    def balances(self, tenant: str | None) -> tuple[BalanceLine, ...]:
        """See ``Source``."""
        ledger_view = ledger_view_now(self._ledger, self._settings)
        if tenant is None:
            return balance_lines(ledger_view, None)
        _require_known(tenant, {*ledger_view.tenants, *ledger_view.balances})
        return balance_lines(ledger_view, {tenant})

    def budgets(self, tenant: str | None) -> "tuple[BudgetStatus, ...]":
        """See ``Source``."""
        ledger_view = ledger_view_now(self._ledger, self._settings)
        if tenant is not None:
            require_tenant(ledger_view.tenants, tenant)
        zone = self._settings.ledger.time_zone
        return budget_statuses(self._ledger, ledger_view, zone, tenant, None)

    def tenants(self) -> tuple[str, ...]:
        """See ``Source``."""
        return tuple(name for name, _ in in_tree_order(self._ledger.tenants.policy()))

    def history(self, request: "HistoryRequest") -> "HistoryAnswer":
        """See ``Source``."""
        # Imported here: only a report shows it.
        from slicewise.slurm_plugin.ledger.history_answers import history_answer  # noqa: PLC0415

        return history_answer(self._ledger, self._settings, request, int(wall_s()))


def _require_known(tenant: str, known: Collection[str]) -> None:
    """Raise InvalidInputError (SW-TENANT-UNKNOWN) unless the ledger knows the account.

    An account that is not a tenant any more may still have runs.
    """
    if tenant not in known:
        raise InvalidInputError(
            Code.TENANT_UNKNOWN,
            f"The ledger knows no tenant {tenant!r}.",
            f"Known: {names_text(tenant, known)}.",
        )
