"""``slicewise explain``: what a tenant may still run."""

from dataclasses import asdict

from cluster.console import console, print_json
from cluster.settings import load_settings
from slurm_plugin.cli import present_explain as present
from slurm_plugin.cli.parts import Json, TenantName
from slurm_plugin.cli.source import opened_source


def explain_tenant(tenant: TenantName, as_json: Json = False) -> None:
    """Show what a tenant may still start of each GPU type, and what allows no more.

    Guaranteed is in its own QOS, borrowed what goes beyond that in slicewise_TENANT_borrowed. A
    budget allows what could run for an hour on it. The reason is what squeue shows of a job that
    waits for that. Users see the tenants that they belong to.
    """
    with opened_source(load_settings()) as source:
        found = source.explanation(tenant)
    if as_json:
        print_json(asdict(found))
    else:
        console().print(present.explanation(found))
