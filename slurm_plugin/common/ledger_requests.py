"""What users ask the daemon about the books: tenants, use, accounts, budgets."""

from typing import Annotated

from pydantic import Field

from slicewise.cluster.rpc.message import Asks, Cursor, Message, Request, TenantText, WholeAnswer
from slicewise.cluster.rpc.overview_messages import OtherTenants, Position
from slicewise.slurm_plugin.common.budget_requests import BudgetMeter
from slicewise.slurm_plugin.rules.accounting.overview import BudgetStatus, TenantInTree
from slicewise.slurm_plugin.rules.accounting.types import BalanceLine, ShareLine, StatementRow
from slicewise.slurm_plugin.rules.quota.loan_lines import LoanLine

Number = Annotated[int, Field(ge=-(2**40), le=2**40)]
"""Job ids and Unix seconds."""


class StatementCursor(Message):
    """Where a page of a statement ends: its last run, and up to when running ones are counted."""

    tenant: TenantText
    start_s: Number
    job_id: Number
    now_s: Number


class StatementAnswer(WholeAnswer):
    """One page.

    Attributes:
        more: where the next page begins; None after the last page.
        charged_below: of one tenant, those below it that have had runs, as far as the user may read
            them: the statement has none of theirs that it does not pay for. On the first page.
    """

    now_s: int
    rows: tuple[StatementRow, ...]
    more: StatementCursor | None = None
    charged_below: tuple[str, ...] = ()


class StatementRequest(Request, Asks[StatementAnswer], get="statement"):
    """Asks what was used, run by run, by a tenant or by all that the user may read.

    Of a tenant, the runs of its account and those that it pays for, as far as they are of accounts
    that the user may read. Of runs that began before ``until_s``, if it is given. ``after`` is
    ``more`` of an earlier answer, to get the next page.
    """

    tenant: TenantText | None = None
    since_s: Number = 0
    until_s: Number | None = None
    after: Cursor[StatementCursor] | None = None


ShareCursor = tuple[Number, TenantText, TenantText, Annotated[str, Field(max_length=128)]]
"""Where a page of shares ends: begin of the day, tenant, payer and service of its last line."""


class SharesAnswer(WholeAnswer):
    """One page; ``more`` is where the next begins, None after the last page."""

    lines: tuple[ShareLine, ...]
    more: ShareCursor | None = None


class SharesRequest(Request, Asks[SharesAnswer], get="shares"):
    """Asks what tenants were charged and relieved of services' runs, and the tokens they used.

    By the day, of those that begin from ``since_s`` up to ``until_s``; of one tenant and of what it
    pays for, or of all that the user may read. ``after`` is ``more`` of an earlier answer.
    """

    tenant: TenantText | None = None
    since_s: Number = 0
    until_s: Number | None = None
    after: Cursor[ShareCursor] | None = None


class BalanceAnswer(WholeAnswer):
    """One line for each tenant that ever had a run or a budget."""

    balances: tuple[BalanceLine, ...]


class BalanceRequest(Request, Asks[BalanceAnswer], get="balance"):
    """Asks for accounts as they stand, of a tenant or of all that the user may read."""

    tenant: TenantText | None = None


class BudgetsAnswer(WholeAnswer):
    """Budgets as they are now."""

    budgets: tuple[BudgetStatus, ...]


class BudgetsRequest(Request, Asks[BudgetsAnswer], get="budgets"):
    """Asks what is left of the budgets that pay for a tenant, or for all that the user may read.

    Of a tenant, also what was used in the running period.
    """

    tenant: TenantText | None = None
    meter: BudgetMeter = "slice-seconds"


class TenantsAnswer(WholeAnswer):
    """One page of the tree: each tenant is followed by those below it.

    Attributes:
        now_s: Unix seconds of the ledger's answer.
        others: sums of the tenants that the reader may not read; None if there is none.
        loans: those to the tenants of the page, and from them to tenants that the reader may not
            read. So each loan is on one page. All tenants that the reader may not read are one,
            whose name is "".
        budgets: those that pay for the tenants of the page, of slices and of tokens.
        more: ``after`` of the next page; None after the last page.
    """

    now_s: int
    tenants: tuple[TenantInTree, ...]
    others: OtherTenants | None = None
    loans: tuple[LoanLine, ...]
    budgets: tuple[BudgetStatus, ...]
    more: int | None = None


class TenantsRequest(Request, Asks[TenantsAnswer], get="tenants"):
    """Asks for the tree of tenants with quotas, limits as in force, use, loans and budgets.

    A user gets the own tenants in full, of the others only sums. ``after`` is ``more`` of an
    earlier answer.
    """

    after: Position = 0
