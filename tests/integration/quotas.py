"""Quotas that tests set: until they are in Slurm."""

import json

from waiting import until

from slicewise.sandbox.cluster import Sandbox


def until_in_force(sandbox: Sandbox, *tenants: str) -> None:
    """``tenant-quota set`` waits for a few seconds only: on a busy machine it may take longer."""
    for tenant in tenants:
        show = ("slicewise", "tenant", "show", tenant, "--json")
        until(lambda argv=show: json.loads(sandbox.run("root", argv).stdout)["in_force"])
