"""Messages about tenants: their tree with what each has and holds, loans, budgets."""

from slicewise.cluster.language.periods import Period
from slicewise.cluster.rpc.message import Answer, Asks, Message, Request
from slicewise.cluster.rpc.overview_messages import OtherTenants, Position, TenantNow


class TypeOfQuota(Message):
    """A GPU type that a quota limits or guarantees, in instances, with those of tenants below.

    Attributes:
        gres_type: such as ``1g.10gb``.
        limit: most that may be held in any QOS, by a limit on the type or its model; None without.
        guaranteed: most that the nominals guarantee; None if only slices bound that.
        in_use: what running jobs hold.
        guaranteed_in_use: what of that is held within guarantees, in the tenants' own QOS.
    """

    gres_type: str
    limit: int | None = None
    guaranteed: int | None = None
    in_use: int
    guaranteed_in_use: int


class TenantInTree(TenantNow):
    """A tenant with its place in the tree and its own quota, as the calendar has it now.

    Attributes:
        parent: the nearest tenant above it that the reader sees; "" without one.
        children: tenants whose ``parent`` it is.
        own_nominal_millislices: what was set for the tenant itself.
        borrowing_limit_millislices, lending_limit_millislices: None is unlimited.
        own_in_use_millislices: what its own running jobs hold.
        types: what its quota limits or guarantees by type.
    """

    parent: str
    children: tuple[str, ...]
    own_nominal_millislices: int
    borrowing_limit_millislices: int | None = None
    lending_limit_millislices: int | None = None
    own_in_use_millislices: int
    types: tuple[TypeOfQuota, ...] = ()


class LoanFlow(Message):
    """What flows from a lender to a borrower now.

    Attributes:
        lender, borrower: "" stands for all tenants together that the reader may not read.
        is_recalled: the lender takes this part back: neither can start jobs on it.
        since_s: Unix seconds since when it is lent, or recalled; of a sum, the first.
        until_s: Unix seconds until which it is promised, or by which a recalled part is back; of a
            sum, when the first promise ends, or by when all of it is back. None without a promise.
    """

    lender: str
    borrower: str
    amount_millislices: int
    is_recalled: bool
    since_s: int
    until_s: int | None = None


class PayingBudget(Message):
    """A budget as it is now, in millislice-seconds.

    Attributes:
        payer: the tenant that has it.
        amount_millislice_s: granted at the start of each period.
        left_millislice_s: what is left; None until its first period has begun.
        reserved_millislice_s: how much of that running jobs may still use up.
        rate_millislices: what running jobs that it pays for hold: a second uses up as many
            millislice-seconds.
        ends_s: Unix seconds at which nothing is left at this rate; None if nothing is used up.
        period_start_s: Unix seconds at which the running period began; None without periods.
        resets_s: Unix seconds at which the next period begins; None means never.
    """

    payer: str
    period: Period
    amount_millislice_s: int
    carry_over_millislice_s: int
    overdraft_millislice_s: int
    left_millislice_s: int | None = None
    reserved_millislice_s: int
    rate_millislices: int
    ends_s: int | None = None
    period_start_s: int | None = None
    resets_s: int | None = None


class TenantsAnswer(Answer):
    """One page of the tree: each tenant is followed by those below it.

    Attributes:
        now_s: Unix seconds of the ledger's answer.
        others: sums of the tenants that the reader may not read; None if there is none.
        loans: those to the tenants of the page, and from them to tenants that the reader may not
            read. So each loan is on one page.
        budgets: those that pay for the tenants of the page.
        more: ``after`` of the next page; None after the last page.
    """

    now_s: int
    tenants: tuple[TenantInTree, ...]
    others: OtherTenants | None = None
    loans: tuple[LoanFlow, ...]
    budgets: tuple[PayingBudget, ...]
    more: int | None = None


class TenantsRequest(Request, Asks[TenantsAnswer], get="tenants"):
    """Asks for the tree of tenants with quotas, limits as in force, use, loans and budgets.

    A user gets the own tenants in full, of the others only sums. ``after`` is ``more`` of an
    earlier answer.
    """

    after: Position = 0
