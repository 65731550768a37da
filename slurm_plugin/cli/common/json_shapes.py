"""Shapes of what operators' commands print with ``--json``, where no type of the code's own has it.

Where a document has the keys of a value, too, only its further keys are here: the values are named
in launcher/cli/json_outputs.py. Times are Unix seconds; null stands for what is not known or not
set.
"""

from typing import Any, Literal

from typing_extensions import TypedDict

from slicewise.cluster.rpc.tenant_messages import TypeOfQuota
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
