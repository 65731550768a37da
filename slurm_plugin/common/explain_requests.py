"""Questions that the rules' explanations answer: what may start, what a change would do."""

from pydantic import Field

from slicewise.cluster.rpc.message import Asks, Request, TenantText, WholeAnswer
from slicewise.slurm_plugin.rules.explain.change_report import Impact, LoanPlan, TenantPlan
from slicewise.slurm_plugin.rules.explain.headroom import Explanation

LONGEST_FILE = 32 * 1024
"""Most characters of a file of quotas: with its escapes in JSON it then fits into a request."""


class HeadroomAnswer(WholeAnswer):
    """``headroom``: what ``slicewise why TENANT --limits --json`` prints."""

    headroom: Explanation


class HeadroomRequest(Request, Asks[HeadroomAnswer], get="headroom"):
    """Asks what a tenant may still start, and why not more; for its users, root and SlurmUser."""

    tenant: TenantText


class QuotaPlanAnswer(WholeAnswer):
    """What the file would do now; nothing was written.

    Attributes:
        changes: what it would set, a line for each tenant that it names.
        tenants: those that it names or that change otherwise, and the tenants above them, in the
            order of the tree; ``unchanged`` is the number of the others.
        harms: what it would make worse.
        left_out: number of tenants, loans and harms beyond the most that an answer has.
        hidden: tenants that the file names and for which the calendar has other quotas now.
        ended_windows: ids of calendar windows that end since their tenants are removed.
        warnings: tenants that are elsewhere in Slurm, with the command that moves them.
        needs_overcommit: whether the quotas at the top would exceed the cluster by more than now;
            ``slicewise tenant-quota apply`` then needs ``--overcommit``.
    """

    changes: tuple[str, ...]
    tenants: tuple[TenantPlan, ...]
    unchanged: int
    loans: tuple[LoanPlan, ...]
    harms: tuple[Impact, ...]
    left_out: int = 0
    hidden: tuple[str, ...] = ()
    ended_windows: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()
    needs_overcommit: bool


class QuotaPlanRequest(
    Request, Asks[QuotaPlanAnswer], post="quota-plan", changes=False, asker="operators"
):
    """Root or SlurmUser: what would the file of quotas with this text do? It changes nothing.

    The text is that of a file for ``slicewise tenant-quota apply``.
    """

    text: str = Field(max_length=LONGEST_FILE)
