"""What operators ask the daemon about budgets, and have it change."""

from typing import Literal

from slicewise.cluster.rpc.message import Asks, Request, TenantText
from slicewise.slurm_plugin.common.tenant_requests import Authored, WholeAnswer
from slicewise.slurm_plugin.rules.accounting.types import BudgetEntry
from slicewise.slurm_plugin.rules.quota.types import Budget, QuotaChange


class BudgetSetAnswer(WholeAnswer):
    """The budget as it was and is.

    Attributes:
        adjusted_millislice_s: given immediately in the running period; below zero, taken back.
        lost_millislice_s: what was left and is gone, since another period begins.
        has_started: whether the running period has begun in the ledger.
    """

    before: Budget | None
    after: Budget
    adjusted_millislice_s: int
    lost_millislice_s: int
    has_started: bool


class BudgetSetRequest(
    Request, Authored, Asks[BudgetSetAnswer], post="budget-set", asker="operators"
):
    """Sets a tenant's budget by words as ``month``, ``12.5`` and ``all``; what is left out stays.

    Answered once its period has begun, or after some seconds.
    """

    tenant: TenantText
    period: str | None = None
    amount: str | None = None
    carry_over: str | None = None
    overdraft: str | None = None


class BudgetDeleteAnswer(WholeAnswer):
    """Who pays from now on; the tenant itself if nobody does."""

    payer: str


class BudgetDeleteRequest(
    Request, Authored, Asks[BudgetDeleteAnswer], post="budget-delete", asker="operators"
):
    """Deletes a tenant's own budget."""

    tenant: TenantText


class BudgetEnterAnswer(WholeAnswer):
    """What the budget has left now; None before its first period."""

    entry: BudgetEntry
    left_millislice_s: int | None


class BudgetEnterRequest(
    Request, Authored, Asks[BudgetEnterAnswer], post="budget-enter", asker="operators"
):
    """Gives a tenant more in the running period, or corrects it; once for each ``key``."""

    tenant: TenantText
    kind: Literal["grant", "adjust"]
    amount_millislice_s: int
    key: str


class BudgetHistoryAnswer(WholeAnswer):
    """What was set for the tenant, and each entry of its budget."""

    changes: tuple[QuotaChange, ...]
    entries: tuple[BudgetEntry, ...]


class BudgetHistoryRequest(
    Request, Asks[BudgetHistoryAnswer], get="budget-history", asker="operators"
):
    """How did this budget come about?"""

    tenant: TenantText
