"""``slicewise explain``: what a tenant may still run."""

from dataclasses import asdict

from cluster.runtime.console import console, print_json
from cluster.settings.file import load_settings
from slurm_plugin.cli_common.options import Json, TenantName
from slurm_plugin.cli_common.read_backend import opened_source
from slurm_plugin.cli_views import headroom as present


def explain_tenant(tenant: TenantName, as_json: Json = False) -> None:
    """Show what a tenant may still start of each GPU type, and what allows no more.

    "Guaranteed" counts instances in the tenant's own QOS, "borrowed" further ones in
    slicewise_TENANT_borrowed. A budget allows as many as could run on it for an hour. In
    parentheses is the reason that squeue shows for a job that waits for the limit. Users see the
    tenants that they belong to.
    """
    with opened_source(load_settings()) as source:
        found = source.explanation(tenant)
    if as_json:
        print_json(asdict(found))
    else:
        console().print(present.explanation(found))
