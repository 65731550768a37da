"""Questions that the rules' explanations answer: what may start, what a change would do."""

from pydantic import Field

from slicewise.cluster.rpc.message import Asks, Request, TenantText, WholeAnswer
from slicewise.slurm_plugin.rules.explain.change_report import ChangeReport
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
    """What the file would do now; nothing was written."""

    change: ChangeReport


class QuotaPlanRequest(
    Request, Asks[QuotaPlanAnswer], post="quota-plan", changes=False, asker="operators"
):
    """Root or SlurmUser: what would the file of quotas with this text do? It changes nothing.

    The text is that of a file for ``slicewise tenant-quota apply``.
    """

    text: str = Field(max_length=LONGEST_FILE)
