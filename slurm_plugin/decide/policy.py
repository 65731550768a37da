"""The words of policy: tenants in a tree, quotas, loans, budgets, limits in Slurm."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from cluster.units import Millislices, MillisliceSeconds

MAX_NOMINAL_MILLISLICES = Millislices(10**9)
"""A million slices: 142,857 GPUs. As a borrowing or lending limit it means no limit."""

MAX_BUDGET_MILLISLICE_S = MillisliceSeconds(36 * 10**14)
"""A thousand million slice-hours; thousands of these fit into a bigint."""

MAX_WEIGHT = 1_000_000
MAX_TYPE_LIMIT = 1_000_000

ROOT_ACCOUNT = "root"
"""Slurm's top account. It is no tenant: its limit would be the whole cluster's."""


@dataclass(frozen=True)
class Quota:
    """What a tenant and the tenants below it may hold at one time, as in Kueue.

    Attributes:
        nominal_millislices: what it is guaranteed; 0 of a tenant with others below it: their sum.
        borrowing_limit_millislices: how far above it may go on what others leave idle.
        lending_limit_millislices: how much of its own idle nominal others may hold.
        weight: its share of what is idle, against others who want it.
        type_limits: instances of a GRES type at most: ``{"3g.40gb": 2}``.
        model_limits: millislices on a GPU model at most: ``{"H200-141GB": 7000}``.
    """

    nominal_millislices: Millislices
    borrowing_limit_millislices: Millislices = Millislices(0)
    lending_limit_millislices: Millislices = Millislices(0)
    weight: int = 1
    type_limits: Mapping[str, int] = field(default_factory=dict, hash=False)
    model_limits: Mapping[str, Millislices] = field(default_factory=dict, hash=False)


class Period(StrEnum):
    """How often a budget begins anew; NONE is never."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    NONE = "none"


@dataclass(frozen=True)
class Budget:
    """What a tenant may use up in a period.

    Attributes:
        amount_millislice_s: given at the start of each period.
        carry_over_millislice_s: at most so much of what is left goes on into the next period.
        overdraft_millislice_s: how far beyond what is left Slurm still starts jobs.
    """

    period: Period
    amount_millislice_s: MillisliceSeconds
    carry_over_millislice_s: MillisliceSeconds = MillisliceSeconds(0)
    overdraft_millislice_s: MillisliceSeconds = MillisliceSeconds(0)


@dataclass(frozen=True)
class Tenant:
    """A Slurm account that is charged.

    Attributes:
        parent: the nearest account above it that is a tenant, "" if there is none.
        budget: None if it has none of its own: then the nearest above it pays.
    """

    name: str
    parent: str
    quota: Quota
    budget: Budget | None = None


Policy = Mapping[str, Tenant]
"""Every tenant by name; removed ones are not in it."""


@dataclass(frozen=True)
class TenantUpdate:
    """What is to change of a tenant; None is left as it is. A new tenant begins with defaults.

    Attributes:
        budget: a budget, or "off" to take it away.
        removed: True takes the tenant out of the ledger's policy; its runs stay.
    """

    tenant: str
    parent: str | None = None
    removed: bool | None = None
    nominal_millislices: Millislices | None = None
    borrowing_limit_millislices: Millislices | None = None
    lending_limit_millislices: Millislices | None = None
    weight: int | None = None
    type_limits: Mapping[str, int] | None = field(default=None, hash=False)
    model_limits: Mapping[str, Millislices] | None = field(default=None, hash=False)
    budget: Budget | Literal["off"] | None = None


@dataclass(frozen=True)
class QuotaChange:
    """One row of a tenant's history, which is never altered.

    Attributes:
        change_id: rises with every change of any tenant; what the daemon has compiled is known
            by it.
        update: what was changed by it; its nominal is always set.
        author: the operator's user name.
        at_s: Unix seconds.
    """

    change_id: int
    update: TenantUpdate
    author: str
    reason: str
    at_s: int


@dataclass(frozen=True, order=True)
class Loan:
    """A part of the lender's own nominal that the borrower may hold now."""

    lender: str
    borrower: str
    amount_millislices: Millislices


@dataclass(frozen=True)
class LoanTerm:
    """A loan, and since when.

    Attributes:
        since_s: Unix seconds since when the borrower may hold something of the lender's.
        grown_s: when the loan grew last.
    """

    loan: Loan
    since_s: int
    grown_s: int


@dataclass(frozen=True, order=True)
class Recall:
    """A part of the lender's own nominal that it takes back and that the borrower still holds.

    The borrower may start nothing more on it, and the lender nothing yet.

    Attributes:
        called_s: Unix seconds.
    """

    lender: str
    borrower: str
    amount_millislices: Millislices
    called_s: int


@dataclass(frozen=True)
class LoanChange:
    """One row of the loans' history; an amount of 0 ends the loan. ``at_s`` is Unix seconds."""

    loan: Loan
    reason: str
    at_s: int


@dataclass(frozen=True, order=True)
class LimitKey:
    """One setting of Slurm that Slicewise manages.

    Attributes:
        entity: ``account`` or ``qos`` in slurmdbd; ``node``, of which the ledger remembers nothing.
        name: of the account, QOS or node.
        field: sacctmgr's word, and the TRES for limits: ``grptres=billing``,
            ``grptresrunmins=billing``, ``maxtresperaccount=billing``, ``defaultqos``, ...
    """

    entity: Literal["account", "qos", "node"]
    name: str
    field: str


@dataclass(frozen=True)
class KnownLimit:
    """What the ledger remembers of such a setting, as text; "" is not set.

    Attributes:
        before: what it was before Slicewise first touched it; uninstalling puts that back.
        last: what Slicewise has set last; what differs in Slurm was changed by somebody else.
            While a change is under way, the old and the new value: ``6000 or 7000``.
    """

    before: str
    last: str
