"""What is asked about money: tariffs, charges with their prices, what a service costs."""

from datetime import date
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from slicewise.cluster.rpc.message import (
    NO_CONTROLS,
    Asks,
    Cursor,
    Message,
    Request,
    TenantText,
    WholeAnswer,
)
from slicewise.slurm_plugin.common.ledger_requests import Number
from slicewise.slurm_plugin.common.tenant_requests import Authored
from slicewise.slurm_plugin.rules.accounting.begin_times import BeginTimes
from slicewise.slurm_plugin.rules.accounting.charge_lines import ChargeLine
from slicewise.slurm_plugin.rules.accounting.money_budgets import MoneyBudgetStatus
from slicewise.slurm_plugin.rules.accounting.tariff import TariffRecord
from slicewise.slurm_plugin.rules.accounting.tariff_file import TariffChange

MOST_BYTES = 48 * 1024
"""Of a tariff's text, so that it fits into a request."""
MOST_DAYS = 400
"""Days of charges that are asked for at once."""

_Word = Annotated[str, Field(max_length=256, pattern=NO_CONTROLS)]


class TariffAnswer(WholeAnswer):
    """What a file of a tariff changes, or would change.

    Attributes:
        valid_from_s: from when on, in Unix seconds.
        replaces: whether another tariff was entered for the same moment.
        unknown: names of tenants and GPU types that the cluster has not, with their places.
        tariff_id: the ledger's number; None if nothing was written.
    """

    valid_from_s: int
    changes: tuple[TariffChange, ...]
    replaces: bool
    unknown: tuple[str, ...] = ()
    tariff_id: int | None = None


class TariffPlanRequest(
    Request, Asks[TariffAnswer], post="tariff-plan", changes=False, asker="operators"
):
    """What would this tariff change? ``file`` is the name that errors give it."""

    text: str = Field(max_length=MOST_BYTES)
    file: str = Field(max_length=4096, pattern=NO_CONTROLS)


class TariffApplyRequest(
    Request, Authored, Asks[TariffAnswer], post="tariff-apply", asker="operators"
):
    """Enters a tariff, from a moment on that is not past."""

    text: str = Field(max_length=MOST_BYTES)
    file: str = Field(max_length=4096, pattern=NO_CONTROLS)


class TariffsAnswer(WholeAnswer):
    """Every tariff that was ever entered, the oldest first."""

    now_s: int
    tariffs: tuple[TariffRecord, ...]


class TariffsRequest(Request, Asks[TariffsAnswer], get="tariffs", asker="operators"):
    """Which tariffs hold, held and will hold?"""


class ChargeCursor(Message):
    """Where a page of charges ends.

    Attributes:
        part: of what the next page is.
        now_s: up to when running jobs are counted.
        run: account, start and job id of the last run; of runs.
        day: of all others the last day, and the tenant with which it ends; of joules, and of
            requests for who sees all persons, also the person and the service.
    """

    part: Literal["runs", "shares", "pools", "requests", "energy"]
    now_s: Number
    run: tuple[TenantText, Number, Number] | None = None
    day: tuple[date, TenantText, _Word, _Word] | None = None


class ChargesAnswer(WholeAnswer):
    """One page.

    Attributes:
        currency: "" without a tariff.
        zone: the time zone of days: the tariffs', without one the ledger's.
        budgets: on the first page, what was left within the last ten minutes of budgets in money
            that the reader may see; of a tenant those of it and of tenants above.
        more: where the next page begins; None after the last page.
    """

    currency: str
    zone: str
    now_s: int
    lines: tuple[ChargeLine, ...]
    budgets: tuple[MoneyBudgetStatus, ...] = ()
    more: ChargeCursor | None = None


class ChargesRequest(Request, Asks[ChargesAnswer], get="charges"):
    """Asks what was charged from ``since_s`` up to ``until_s``, with the price of each.

    Of one tenant and of what it pays for, or of all that the user may read; of persons who made
    requests, a user sees the own name. ``after`` is ``more`` of an earlier answer.
    """

    tenant: TenantText | None = None
    since_s: Number
    until_s: Number
    after: Cursor[ChargeCursor] | None = None

    @model_validator(mode="after")
    def _is_a_time(self) -> Self:
        if not self.since_s < self.until_s <= self.since_s + MOST_DAYS * 86_400:
            raise ValueError(f"ask for {MOST_DAYS} days at most")
        return self


MOST_AHEAD_S = 62 * 86_400
"""How far ahead a job may be asked about that ends then."""


class CheapestAnswer(WholeAnswer):
    """When a job should begin.

    Attributes:
        currency: "" without a tariff.
        now_s: the moment that was taken for now.
    """

    currency: str
    now_s: int
    times: BeginTimes


class CheapestRequest(Request, Asks[CheapestAnswer], get="cheapest"):
    """Asks when a tenant's job costs least money, or least CO2.

    Attributes:
        gres: of the job, as --gres of sbatch has it: GPUs with types.
        lasts_s: its time limit.
        last_s: the last moment at which it may begin; one that is past is now.
    """

    tenant: TenantText
    gres: str = Field(max_length=1024, pattern=NO_CONTROLS)
    lasts_s: int = Field(ge=60, le=MOST_AHEAD_S)
    last_s: Number
