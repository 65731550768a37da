"""What operators ask the daemon about the calendar of quotas, and have it change."""

from collections.abc import Mapping

from pydantic import Field

from slicewise.cluster.rpc.message import Asks, Request, WholeAnswer
from slicewise.slurm_plugin.common.tenant_requests import Authored
from slicewise.slurm_plugin.rules.quota.calendar import Window, WindowRecord
from slicewise.slurm_plugin.rules.quota.types import Tenant


class WindowsAnswer(WholeAnswer):
    """Windows that hold now or later, and every tenant by name as it was set."""

    windows: tuple[Window, ...]
    policy: Mapping[str, Tenant]


class WindowsRequest(Request, Asks[WindowsAnswer], get="windows", asker="operators"):
    """When have tenants other quotas?"""


class WindowHistoryAnswer(WholeAnswer):
    """Every window that ever existed, the newest first."""

    records: tuple[WindowRecord, ...]


class WindowHistoryRequest(
    Request, Asks[WindowHistoryAnswer], get="window-history", asker="operators"
):
    """Who has set and deleted which windows?"""


class WindowAnswer(WholeAnswer):
    """The window, and a warning that quotas then exceed the cluster, or that Slurm was silent."""

    window: Window
    warning: str = ""


class WindowCreateRequest(
    Request, Authored, Asks[WindowAnswer], post="window-create", asker="operators"
):
    """Adds a window; the reason is the request's."""

    window: Window
    overcommit: bool = False


class WindowDeleteRequest(
    Request, Authored, Asks[WindowAnswer], post="window-delete", asker="operators"
):
    """Deletes a window."""

    window_id: int = Field(ge=1, le=2**62)
