"""What operators ask the daemon about tenants and quotas, and have it change.

The answers hold the values of the rules as they are: daemon and commands are of this package.
"""

from collections.abc import Mapping

from pydantic import BaseModel, Field

from slicewise.cluster.rpc.journal_messages import EntryId
from slicewise.cluster.rpc.message import Asks, Request, TenantText, WholeAnswer
from slicewise.slurm_plugin.rules.accounting.overview import Details, TenantStatus
from slicewise.slurm_plugin.rules.quota.accounts import AccountDifference, TakeOver
from slicewise.slurm_plugin.rules.quota.loan_lines import LoanLine
from slicewise.slurm_plugin.rules.quota.types import LoanChange, QuotaChange, Tenant
from slicewise.slurm_plugin.rules.quota.waiting_work import WaitingWork

_LONGEST_WAIT_S = 10.0
"""Less than a client waits for an answer."""


class Authored(BaseModel):
    """Who changes something, and why: kept in the history.

    Attributes:
        author: the operator's login name, under sudo that of the user who called it; "" stands for
            the user who asks.
    """

    author: str = ""
    reason: str = ""


class TenantStatusesAnswer(WholeAnswer):
    """The tree, each tenant followed by those below it.

    Attributes:
        calendar_notes: where the calendar has another quota now than was set.
        without_slurm: why Slurm could not be asked for accounts and jobs; "" if it could.
    """

    statuses: tuple[TenantStatus, ...]
    calendar_notes: tuple[str, ...]
    without_slurm: str


class TenantStatusesRequest(
    Request, Asks[TenantStatusesAnswer], get="tenant-statuses", asker="operators"
):
    """How does each tenant stand by the ledger?"""


class TenantDetailsAnswer(WholeAnswer):
    """Everything about one tenant; the rest as in TenantStatusesAnswer."""

    details: Details
    calendar_notes: tuple[str, ...]
    without_slurm: str


class TenantDetailsRequest(
    Request, Asks[TenantDetailsAnswer], get="tenant-details", asker="operators"
):
    """What has the ledger about this tenant?"""

    tenant: TenantText


class TenantHistoryAnswer(WholeAnswer):
    """Every change of the tenant, the newest first."""

    changes: tuple[QuotaChange, ...]


class TenantHistoryRequest(
    Request, Asks[TenantHistoryAnswer], get="tenant-history", asker="operators"
):
    """What was ever set for this account, which need not be a tenant any more?"""

    tenant: TenantText


class LoansAnswer(WholeAnswer):
    """Loans as they are now; ``changes`` are a page of what a tenant ever gave or took.

    ``more`` is ``before`` of the next page; None after the last page.
    """

    lines: tuple[LoanLine, ...] = ()
    changes: tuple[LoanChange, ...] = ()
    more: int | None = None


class LoansRequest(Request, Asks[LoansAnswer], get="loans", asker="operators"):
    """Who lends to whom, until when? With ``past``, what did this tenant ever lend and borrow?

    The newest changes come first; ``before`` is ``more`` of an earlier answer.
    """

    tenant: TenantText | None = None
    past: bool = False
    before: EntryId | None = None


class AccountsAnswer(WholeAnswer):
    """Tenants beside Slurm's accounts.

    Attributes:
        differences: tenants that are elsewhere than their accounts.
        others: accounts that are no tenants, by name.
        refusals: why some of those can't be.
    """

    differences: tuple[AccountDifference, ...]
    others: tuple[str, ...]
    refusals: tuple[str, ...]


class AccountsRequest(Request, Asks[AccountsAnswer], get="accounts", asker="operators"):
    """Which tenants are not where Slurm has their accounts?"""


class TenantPlaceAnswer(WholeAnswer):
    """Where the tenant is now.

    Attributes:
        is_changed: whether it was not there before.
        warning: that Slurm has its account elsewhere; "" if it has not.
    """

    parent: str
    is_changed: bool
    warning: str = ""


class TenantCreateRequest(
    Request, Authored, Asks[TenantPlaceAnswer], post="tenant-create", asker="operators"
):
    """Makes an account a tenant, below ``parent``, or the nearest above its account in Slurm."""

    tenant: TenantText
    parent: TenantText | None = None


class TenantMoveRequest(
    Request, Authored, Asks[TenantPlaceAnswer], post="tenant-move", asker="operators"
):
    """Moves a tenant below another one; "" is none."""

    tenant: TenantText
    parent: TenantText


class TenantImportAnswer(WholeAnswer):
    """What was taken over, or would be, of Slurm's accounts, and what could not be."""

    rows: tuple[TakeOver, ...]


class TenantImportRequest(
    Request, Authored, Asks[TenantImportAnswer], post="tenant-import", asker="operators"
):
    """Takes over Slurm's account tree, unless ``is_dry``."""

    is_dry: bool = False


class TenantRemainsAnswer(WholeAnswer):
    """What remains of a tenant that is deleted; ``waiting`` is None if Slurm is silent."""

    running: int
    waiting: WaitingWork | None


class TenantRemainsRequest(
    Request, Asks[TenantRemainsAnswer], get="tenant-remains", asker="operators"
):
    """What would remain of this tenant if it were deleted? Refused if it could not be."""

    tenant: TenantText


class TenantDeleteAnswer(WholeAnswer):
    """The change, and how many of the tenant's jobs run on."""

    change: QuotaChange
    running: int


class TenantDeleteRequest(
    Request, Authored, Asks[TenantDeleteAnswer], post="tenant-delete", asker="operators"
):
    """Deletes a tenant from the policy."""

    tenant: TenantText


class QuotaSetAnswer(WholeAnswer):
    """What a tenant has now.

    Attributes:
        change: the one of before if the tenant had all this.
        warnings: that quotas exceed the cluster, and that Slurm could not be asked.
    """

    before: Tenant | None
    after: Tenant
    change: QuotaChange
    warnings: tuple[str, ...]


class QuotaSetRequest(Request, Authored, Asks[QuotaSetAnswer], post="quota-set", asker="operators"):
    """Sets what a tenant may hold; what is left out stays.

    ``quota`` has the words of a file's table: ``{"nominal": "6", "limits": ["3g.40gb=2"]}``. An
    account that is no tenant becomes one.
    """

    tenant: TenantText
    quota: Mapping[str, str | tuple[str, ...]] = {}
    overcommit: bool = False


class InForceAnswer(WholeAnswer):
    """Whether Slurm's limits have the change.

    Attributes:
        why_not: in words.
        sets_no_limits: whether waiting longer is in vain.
    """

    in_force: bool
    why_not: str = ""
    sets_no_limits: bool = False


class InForceRequest(Request, Asks[InForceAnswer], get="in-force", asker="operators"):
    """Is this change in force in Slurm? Answered once it is, or after ``wait_s`` seconds."""

    change_id: int
    wait_s: float = Field(0.0, ge=0, le=_LONGEST_WAIT_S)
