"""Charges of runs that have ended."""

from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.slurm_plugin.rules.accounting.types import (
    Charge,
    Run,
    RunKey,
    Transfer,
    TransferKind,
)


def ended(tenant_name: str, job_id: int, seconds: int) -> Charge:
    amount = MillisliceSeconds(1000 * seconds)
    run = Run(
        RunKey("cluster", job_id, 1000),
        tenant_name,
        "alice",
        str(job_id),
        {"1g.10gb": 1},
        Millislices(1000),
        "lab",
    )
    steps = (TransferKind.RESERVE, TransferKind.POST)
    return Charge(run, 0, tuple(Transfer(step, amount, 1000 + seconds) for step in steps))
