"""What operators ask the daemon about budgets, and have it change."""

from typing import Literal, Self

from pydantic import Field, model_validator

from slicewise.cluster.rpc.message import Asks, Request, TenantText, WholeAnswer
from slicewise.slurm_plugin.common.tenant_requests import Authored
from slicewise.slurm_plugin.rules.accounting.types import BudgetEntry
from slicewise.slurm_plugin.rules.quota.types import (
    MAX_BUDGET_MILLISLICE_S,
    Budget,
    QuotaChange,
)

BudgetMeter = Literal["slice-seconds", "tokens"]
"""Of what the budget is: those of ``BUDGETED``."""


class BudgetSetAnswer(WholeAnswer):
    """The budget as it was and is.

    Attributes:
        adjusted: given immediately in the running period; below zero, taken back.
        lost: what was left and is gone, since another period begins.
        has_started: whether the running period has begun in the ledger.
    """

    before: Budget | None
    after: Budget
    adjusted: int
    lost: int
    has_started: bool


class BudgetSetRequest(
    Request, Authored, Asks[BudgetSetAnswer], post="budget-set", asker="operators"
):
    """Sets a tenant's budget by words as ``month``, ``12.5`` and ``all``; what is left out stays.

    Answered once its period has begun, or after some seconds.
    """

    tenant: TenantText
    meter: BudgetMeter = "slice-seconds"
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
    """Deletes a tenant's own budget on a meter."""

    tenant: TenantText
    meter: BudgetMeter = "slice-seconds"


class BudgetEnterAnswer(WholeAnswer):
    """What the budget has left now; None before its first period."""

    entry: BudgetEntry
    left: int | None


class BudgetEnterRequest(
    Request, Authored, Asks[BudgetEnterAnswer], post="budget-enter", asker="operators"
):
    """Gives a tenant more in the running period, or corrects it; once for each ``key``.

    ``units`` are the meter's own: millislice-seconds, or tokens.
    """

    tenant: TenantText
    kind: Literal["grant", "adjust"]
    units: int = Field(ge=-MAX_BUDGET_MILLISLICE_S, le=MAX_BUDGET_MILLISLICE_S)
    meter: BudgetMeter = "slice-seconds"
    key: str = Field(min_length=1, pattern=r"^[^\x00]*$")

    @model_validator(mode="after")
    def _require_sense(self) -> Self:
        """As the commands do: nothing of 0 is booked, no grant takes back, and each says why."""
        if self.units <= 0 and (self.kind == "grant" or not self.units):
            raise ValueError(f"a {self.kind} of {self.units}")
        if not self.reason.strip():
            raise ValueError("no reason")
        return self


class BudgetHistoryAnswer(WholeAnswer):
    """What was set for the tenant, and each entry of its budget."""

    changes: tuple[QuotaChange, ...]
    entries: tuple[BudgetEntry, ...]


class BudgetHistoryRequest(
    Request, Asks[BudgetHistoryAnswer], get="budget-history", asker="operators"
):
    """How did this budget come about?"""

    tenant: TenantText
    meter: BudgetMeter = "slice-seconds"
