"""Quotas that tests set: until they are in Slurm, and while no daemon runs."""

from collections.abc import Iterator
from contextlib import contextmanager

from waiting import until

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.language.units import Millislices
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.messages import StatusRequest
from slicewise.cluster.settings.file import DaemonSettings
from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.host.inventory import CLUSTER
from slicewise.slurm_plugin.common.tenant_requests import (
    InForceRequest,
    TenantDeleteRequest,
    TenantDetailsRequest,
    TenantStatusesRequest,
)
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.quota.types import TenantUpdate


def daemon_of(sandbox: Sandbox) -> DaemonClient:
    """Asks the daemon in this very process: a command takes half a second of a processor."""
    return DaemonClient(DaemonSettings(run_dir=sandbox.layout.run_dir))


def until_in_force(sandbox: Sandbox, *tenants: str, daemon: DaemonClient | None = None) -> None:
    """``tenant-quota set`` waits for a few seconds only: on a busy machine it may take longer.

    ``daemon`` is who is asked if not the sandbox's own.
    """
    asked = daemon or daemon_of(sandbox)
    for tenant in tenants:
        request = TenantDetailsRequest.of(tenant=tenant)
        until(lambda request=request: asked.call(request).details.in_force)


def until_daemon_leads(sandbox: Sandbox) -> None:
    """One that was started anew takes a moment: until then it changes nothing that it is asked."""
    daemon = daemon_of(sandbox)

    def leads() -> bool:
        try:
            return daemon.call(StatusRequest()).is_leader
        except SlicewiseError:
            return False

    until(leads)


def delete_tenants(sandbox: Sandbox) -> None:
    """All of them, children before their parents, until Slurm has no limits of theirs."""
    daemon = daemon_of(sandbox)
    statuses = daemon.call(TenantStatusesRequest()).statuses
    for status in reversed(statuses):
        request = TenantDeleteRequest.of(tenant=status.tenant, author="root", reason="")
        waiting = InForceRequest(change_id=daemon.call(request).change.change_id, wait_s=1.0)

    def is_over() -> bool:
        answer = daemon.call(waiting)
        return answer.in_force or answer.sets_no_limits

    if statuses:
        until(is_over)


@contextmanager
def own_ledger(sandbox: Sandbox) -> Iterator[Ledger]:
    """The sandbox's ledger, read and written without a daemon."""
    url = sandbox.layout.database_url(sandbox.state.users["slurm"].name)
    with Ledger(url, CLUSTER) as ledger:
        yield ledger


def record_quota(sandbox: Sandbox, tenant: str, slices: int) -> None:
    """Set it in the ledger alone."""
    update = TenantUpdate(tenant, nominal_millislices=Millislices(slices * 1000))
    with own_ledger(sandbox) as ledger:
        ledger.tenants.change(update, "root", "test")


def recorded_nominal(sandbox: Sandbox, tenant: str) -> int:
    """Millislices, by the ledger."""
    with own_ledger(sandbox) as ledger:
        return ledger.tenants.policy()[tenant].quota.nominal_millislices


def forget_tenant(sandbox: Sandbox, tenant: str) -> None:
    """Delete it, if it is one, whether a daemon runs or not."""
    with own_ledger(sandbox) as ledger:
        if tenant in ledger.tenants.policy():
            ledger.tenants.change(TenantUpdate(tenant, removed=True), "root", "test")
