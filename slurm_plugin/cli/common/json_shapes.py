"""Shapes of what operators' commands print with ``--json``, where no type of the code's own has it.

Where a document has the keys of a value, too, only its further keys are here: the values are named
in launcher/cli/json_outputs.py. Times are Unix seconds; null stands for what is not known or not
set.
"""

from typing import Any, Literal

from typing_extensions import TypedDict

from slicewise.cluster.rpc.tenant_messages import TypeOfQuota
from slicewise.slurm_plugin.rules.accounting.types import TenantTotal
from slicewise.slurm_plugin.rules.limits.desired import Difference
from slicewise.slurm_plugin.rules.quota.calendar_times import Span
from slicewise.slurm_plugin.rules.quota.types import Budget, Loan, Quota


class ChangeJson(TypedDict):
    """A change of a tenant, beside what was changed: null there is unchanged."""

    change_id: int
    author: str
    reason: str
    at_s: int | None


class ChangeOfTenantJson(ChangeJson):
    """A change of a tenant with what was changed."""

    tenant: str
    parent: str | None
    removed: bool | None
    nominal_millislices: int | None
    borrowing_limit_millislices: int | None
    lending_limit_millislices: int | None
    weight: int | None
    type_limits: dict[str, int] | None
    model_limits: dict[str, int] | None
    type_nominals: dict[str, int] | None
    budget: Budget | Literal["off"] | None


class QuotaOutcomeJson(TypedDict):
    """A tenant's quota before and after a change, and when Slurm had it."""

    before: Quota | None
    after: Quota
    in_force: bool
    in_force_after_s: float | None


class TenantJson(TypedDict):
    """A tenant as it stands, beside its quota and its limit."""

    tenant: str
    parent: str
    own_nominal_millislices: int
    nominal_millislices: int
    in_use_millislices: int
    own_in_use_millislices: int
    running: int
    budget: Budget | None
    payer: str | None
    left_millislice_s: int | None
    in_slurm: bool | None


class TenantDetailsJson(TypedDict):
    """What ``tenant show`` says beyond ``tenant list``."""

    children: tuple[str, ...]
    loans: list[Loan]
    last_change: ChangeOfTenantJson
    in_force: bool
    types: list[TypeOfQuota] | None


class TenantAddedJson(TypedDict):
    """Where the tenant is now, and whether that is new."""

    tenant: str
    parent: str
    changed: bool


class TenantRemovedJson(TypedDict):
    """How many jobs of it run, and whether Slurm has its removal."""

    tenant: str
    running: int
    in_force: bool


class BudgetSetJson(TypedDict):
    """What follows from a new budget, beside the budget."""

    tenant: str
    adjusted_millislice_s: int
    started: bool
    lost_millislice_s: int


class PayerJson(TypedDict):
    """The tenant that pays from now on."""

    tenant: str
    payer: str | None


class HadJson(TypedDict):
    """What the running period had, beside the budget's status; null without a tenant's name."""

    had_millislice_s: int | None


class LeftJson(TypedDict):
    """What a budget has left."""

    left_millislice_s: int | None


class WindowJson(TypedDict):
    """A window of the calendar: days as words, times of the day in minutes."""

    id: int
    tenant: str | None
    kind: str
    amount_millislices: int
    days: list[str]
    begin_min: int
    end_min: int
    first_s: int | None
    last_s: int | None
    reason: str


class ShownWindowJson(WindowJson):
    """A window, and whether it is in force."""

    in_force: bool
    next_change_s: float | None


class NewWindowJson(ShownWindowJson):
    """A window with the next times at which it holds."""

    spans: list[Span]


class PastWindowJson(WindowJson):
    """A window with its history."""

    author: str
    set_s: float
    ended_by: str | None
    ended_s: float | None
    ended_why: str | None


class LoanChangeJson(TypedDict):
    """A change of a loan, beside the loan; an amount of 0 ended it."""

    reason: str
    at_s: float


class QuotaPlanJson(TypedDict):
    """What a file of quotas would do, or did."""

    tenants: list[dict[str, Any]]
    loans: list[dict[str, Any]]
    harms: list[dict[str, Any]]
    ended_windows: tuple[int, ...]
    differences: list[Difference]
    commands: list[list[str]]
    applied: bool
    in_force_after_s: float | None


class RunJson(TypedDict):
    """A run of a job in a statement."""

    cluster: str
    job_id: int
    start_s: int
    tenant: str
    payer: str
    user: str
    task: str
    gres: dict[str, int]
    cost_millislices: int
    service: str
    end_s: int | None
    seconds: int
    used_millislice_s: int
    waived_millislice_s: int
    reserved_millislice_s: int


class StatementJson(TypedDict):
    """A statement, beside its lines; running jobs count up to ``now_s``."""

    now_s: int
    tenants: list[TenantTotal]


class ReportServiceJson(TypedDict):
    """What a service was charged in a month; of a tenant's other jobs the name is empty."""

    service: str
    charged_millislice_s: int


class ReportTenantJson(TypedDict):
    """A tenant's month: what it was charged, and means with the tenants below it.

    ``guarantee_kept`` is the part of the guaranteed slices that were wanted and there in time.
    """

    tenant: str
    runs: int
    charged_millislice_s: int
    waived_millislice_s: int
    nominal_millislices: int | None
    in_use_millislices: int | None
    borrowed_millislices: int | None
    lent_millislices: int | None
    waiting_millislices: int | None
    late_millislices: int | None
    guarantee_kept: float | None
    budget_left_millislice_s: int | None
    services: list[ReportServiceJson]


class ReportJson(TypedDict):
    """A month: parts of 1, of the time that was recorded, and slices by state."""

    cluster: str
    month: str
    from_s: int
    until_s: int
    zone: str
    in_use: float | None
    guarantee_kept: float | None
    recorded: float | None
    slices_millislice_s: dict[str, int]
    tenants: list[ReportTenantJson]


class ReportDayJson(TypedDict):
    """A row of the report's CSV: a tenant on a day."""

    tenant: str
    day: str
    charged_millislice_s: int
    waived_millislice_s: int
    nominal_millislices: int | None
    in_use_millislices: int | None
    borrowed_millislices: int | None
    lent_millislices: int | None
    waiting_millislices: int | None
    late_millislices: int | None
    budget_left_millislice_s: int | None


class JournalJson(StatementJson):
    """A statement with every run."""

    runs: list[RunJson]


class LineJson(TypedDict):
    """A line of a statement, beside what it is about."""

    tenant: str
    runs: int
    running: int
    used_millislice_s: int
    waived_millislice_s: int
    reserved_millislice_s: int


class ServiceLineJson(LineJson):
    """What a tenant's service used; "" stands for its other jobs."""

    service: str


class UserLineJson(LineJson):
    """What a tenant's user used."""

    user: str


class DayLineJson(LineJson):
    """What a tenant used on a day, such as ``2026-01-31``."""

    day: str


class ByServiceJson(TypedDict):
    """A statement's lines by service."""

    by: Literal["service"]
    lines: list[ServiceLineJson]


class ByUserJson(TypedDict):
    """A statement's lines by user."""

    by: Literal["user"]
    lines: list[UserLineJson]


class ByDayJson(TypedDict):
    """A statement's lines by day."""

    by: Literal["day"]
    lines: list[DayLineJson]


class FocusRowJson(TypedDict):
    """A row of a statement for billing, in the columns of FOCUS 1.2; null without a price."""

    BilledCost: float | None
    BillingAccountId: str
    BillingAccountName: str
    BillingAccountType: str
    BillingCurrency: str | None
    BillingPeriodEnd: str
    BillingPeriodStart: str
    ChargeCategory: str
    ChargeClass: None
    ChargeDescription: str
    ChargeFrequency: str
    ChargePeriodEnd: str
    ChargePeriodStart: str
    ConsumedQuantity: float
    ConsumedUnit: str
    ContractedCost: float | None
    ContractedUnitPrice: float | None
    EffectiveCost: float | None
    InvoiceIssuerName: str
    ListCost: float | None
    ListUnitPrice: float | None
    PricingQuantity: float
    PricingUnit: str
    ProviderName: str
    PublisherName: str
    ResourceId: str | None
    ResourceName: str | None
    ResourceType: str | None
    ServiceCategory: str
    ServiceName: str
    ServiceSubcategory: str
    SkuId: str
    SubAccountId: str
    SubAccountName: str
    SubAccountType: str
    Tags: str


class SecondsJson(TypedDict):
    """How long it took."""

    seconds: float
