"""Types of policy: tenants in a tree, quotas, loans, budgets, limits in Slurm."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Self

from slicewise.cluster.language.meters import MOST, SLICES, TOKENS
from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.units import Millislices, MillisliceSeconds

MAX_NOMINAL_MILLISLICES = Millislices(10**9)
"""A million slices: 142,857 GPUs. As a borrowing or lending limit it means "no limit"."""

MAX_BUDGET_MILLISLICE_S = MillisliceSeconds(MOST)
"""A thousand million slice-hours; on another meter as many of its units."""

MAX_WEIGHT = 1_000_000
MAX_TYPE_LIMIT = 1_000_000

ROOT_ACCOUNT = "root"
"""Slurm's top account. It can't be a tenant: its limit would apply to the whole cluster."""


@dataclass(frozen=True)
class Quota:
    """What a tenant and the tenants below it may hold at one time. The terms are Kueue's.

    Attributes:
        nominal_millislices: guaranteed amount. 0 for a tenant with children means their sum.
        borrowing_limit_millislices: most that the tenant may hold beyond its nominal, from what
            other tenants leave idle.
        lending_limit_millislices: most of its own idle nominal that other tenants may hold.
        weight: weight of its share of idle quota, relative to other tenants that want it.
        type_limits: most instances by GRES type in any QOS: ``{"3g.40gb": 2}``.
        model_limits: most millislices by GPU model: ``{"H200-141GB": 7000}``.
        type_nominals: most instances by GRES type that the nominal guarantees:
            ``{"1g.10gb": 40}``. More of them run on loan. Of other types it guarantees as many as
            its slices pay for.
    """

    nominal_millislices: Millislices
    borrowing_limit_millislices: Millislices = Millislices(0)
    lending_limit_millislices: Millislices = Millislices(0)
    weight: int = 1
    type_limits: Mapping[str, int] = field(default_factory=dict, hash=False)
    model_limits: Mapping[str, Millislices] = field(default_factory=dict, hash=False)
    type_nominals: Mapping[str, int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Budget:
    """What a tenant may use up of a meter in a period. Amounts are in the meter's own unit.

    Attributes:
        amount: granted at the start of each period.
        carry_over: most of an unused amount that carries over into the next period.
        overdraft: beyond what is left, up to which Slurm still starts jobs, or the gateway lets
            requests in.
        meter: its name.
    """

    period: Period
    amount: int
    carry_over: int = 0
    overdraft: int = 0
    meter: str = SLICES.name


@dataclass(frozen=True)
class Tenant:
    """A Slurm account that is charged.

    Attributes:
        parent: the nearest account above it that is a tenant, "" if there is none.
        budget: of slices; None if the tenant has no budget of its own: the nearest tenant above it
            that has one then pays.
        token_budget: the same of tokens.
    """

    name: str
    parent: str
    quota: Quota
    budget: Budget | None = None
    token_budget: Budget | None = None

    def budget_on(self, meter: str) -> Budget | None:
        """Its own budget on a meter."""
        return self.token_budget if meter == TOKENS.name else self.budget


Policy = Mapping[str, Tenant]
"""Every tenant by name, without removed tenants."""


@dataclass(frozen=True)
class TenantUpdate:
    """A change of one tenant. None leaves a value as it is; a new tenant begins with defaults.

    Attributes:
        budget, token_budget: the new budget, or "off" to remove the budget.
        removed: True removes the tenant from the ledger's policy; its runs stay.
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
    type_nominals: Mapping[str, int] | None = field(default=None, hash=False)
    token_budget: Budget | Literal["off"] | None = None

    @classmethod
    def of_budget(cls, tenant: str, meter: str, budget: Budget | Literal["off"]) -> Self:
        """A change of nothing but the budget on a meter."""
        if meter == TOKENS.name:
            return cls(tenant, token_budget=budget)
        return cls(tenant, budget=budget)

    def budget_on(self, meter: str) -> Budget | Literal["off"] | None:
        """What it makes of the budget on a meter."""
        return self.token_budget if meter == TOKENS.name else self.budget


@dataclass(frozen=True)
class QuotaChange:
    """One row of a tenant's history. Rows are never altered.

    Attributes:
        change_id: number that rises with every change of any tenant. It identifies the state that
            the daemon has compiled.
        update: the change itself; its nominal is always set.
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
    """A part of the lender's own nominal that the borrower may hold at present."""

    lender: str
    borrower: str
    amount_millislices: Millislices


@dataclass(frozen=True)
class LoanTerm:
    """A loan with the times of its start and of its last increase.

    Attributes:
        since_s: Unix seconds since when the borrower may hold some of the lender's quota.
        grown_s: Unix seconds when the loan last grew.
    """

    loan: Loan
    since_s: int
    grown_s: int


@dataclass(frozen=True, order=True)
class Recall:
    """A part of the lender's own nominal that it takes back while the borrower still holds it.

    The borrower may start nothing more on this part, and the lender nothing yet.

    Attributes:
        called_s: Unix seconds when the part was recalled.
    """

    lender: str
    borrower: str
    amount_millislices: Millislices
    called_s: int


@dataclass(frozen=True)
class LoanChange:
    """One row of the loans' history; an amount of 0 ends the loan. ``at_s`` is Unix seconds.

    ``change_id`` grows with each change of any loan.
    """

    change_id: int
    loan: Loan
    reason: str
    at_s: int


@dataclass(frozen=True, order=True)
class LimitKey:
    """One setting of Slurm that Slicewise manages.

    Attributes:
        entity: ``account`` or ``qos`` in slurmdbd, or ``node``; the ledger stores nothing of nodes.
        name: name of the account, QOS or node.
        field: sacctmgr's name of the setting, with the TRES for limits: ``grptres=billing``,
            ``grptresrunmins=billing``, ``defaultqos``, ...
    """

    entity: Literal["account", "qos", "node"]
    name: str
    field: str


@dataclass(frozen=True)
class KnownLimit:
    """What the ledger remembers of such a setting, as text; "" means not set.

    Attributes:
        before: value before Slicewise first touched the setting; uninstalling restores it.
        last: value that Slicewise set last. A different value in Slurm was set outside Slicewise.
            While a change is under way: the old and the new value, ``6000 or 7000``.
    """

    before: str
    last: str
