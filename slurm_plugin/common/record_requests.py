"""What operators ask the daemon about what the ledger has recorded."""

from collections.abc import Mapping

from pydantic import Field

from slicewise.cluster.rpc.message import Asks, Cursor, Message, Request, WholeAnswer
from slicewise.slurm_plugin.rules.accounting.ledger_view import LedgerView
from slicewise.slurm_plugin.rules.common.observations import Observations
from slicewise.slurm_plugin.rules.quota.types import KnownLimit, LimitKey, Tenant

_LAST_ID = 2**62


class PolicyAnswer(WholeAnswer):
    """Every tenant as it was set, by name, whatever the calendar says now."""

    policy: Mapping[str, Tenant]


class PolicyRequest(Request, Asks[PolicyAnswer], get="policy", asker="operators"):
    """Which tenants are there, with which quotas and budgets?"""


class RememberedLimitsAnswer(WholeAnswer):
    """What the ledger remembers of each setting of Slurm that Slicewise ever changed."""

    known: tuple[tuple[LimitKey, KnownLimit], ...]


class RememberedLimitsRequest(
    Request, Asks[RememberedLimitsAnswer], get="remembered-limits", asker="operators"
):
    """Which limits in Slurm are Slicewise's own?"""


class ObservationsAnswer(WholeAnswer):
    """The sums of the days, and every tenant by name."""

    recorded: Observations
    policy: Mapping[str, Tenant]


class ObservationsRequest(Request, Asks[ObservationsAnswer], get="observations", asker="operators"):
    """What was decided, and could be lent, on days that began at ``since_s`` or later?"""

    since_s: int = 0


class ExportCursor(Message):
    """Where a page of an export ends: the id of its last transfer, and that of the export's."""

    after_id: int = Field(ge=0, le=_LAST_ID)
    until_id: int = Field(ge=0, le=_LAST_ID)


class ExportAnswer(WholeAnswer):
    """One page of transfers, in the order of booking; ``more`` is ``after`` of the next page."""

    rows: tuple[Mapping[str, str | int | None], ...]
    more: ExportCursor | None


class ExportRequest(Request, Asks[ExportAnswer], get="export", asker="operators"):
    """Which transfers were recorded at ``since_s`` or later, up to now?"""

    since_s: int = 0
    after: Cursor[ExportCursor] | None = None


class LedgerViewAnswer(WholeAnswer):
    """The ledger's view, without what operators wrote and what it remembers of slurmdbd."""

    view: LedgerView


class LedgerViewRequest(Request, Asks[LedgerViewAnswer], get="ledger-view", asker="operators"):
    """On what of the ledger is a round of quotas decided now?"""
