"""Quotas that tests set: until they are in Slurm, and while no daemon runs."""

import json
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
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.quota.types import TenantUpdate


def until_in_force(sandbox: Sandbox, *tenants: str, config: tuple[str, ...] = ()) -> None:
    """``tenant-quota set`` waits for a few seconds only: on a busy machine it may take longer.

    ``config`` are the words that give the command other settings.
    """
    for tenant in tenants:
        show = (*config, "slicewise", "tenant", "show", tenant, "--json")
        until(lambda argv=show: json.loads(sandbox.run("root", argv).stdout)["in_force"])


def until_daemon_leads(sandbox: Sandbox) -> None:
    """One that was started anew takes a moment: until then it changes nothing that it is asked."""
    client = DaemonClient(DaemonSettings(run_dir=sandbox.layout.run_dir))

    def leads() -> bool:
        try:
            return client.call(StatusRequest()).is_leader
        except SlicewiseError:
            return False

    until(leads)


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
