"""Runs: what the ledger has reserved for them, and what Slurm's accounting shows of them."""

from typing import Any

from builders.jobs import A_SLICE
from slicewise.cluster.language.jobs import RunRecord
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.slurm_plugin.rules.accounting.types import Reservation, RunKey


def a_reservation(tenant: str = "vision", job_id: int = 7, **changes: Any) -> Reservation:
    """A minute of a slice, reserved for a run of alice since second 1000; its tenant pays."""
    fields: dict[str, Any] = {
        "key": RunKey("c", job_id, 1000),
        "user": "alice",
        "task": str(job_id),
        "gres": {"1g.10gb": 1},
        "cost_millislices": Millislices(1000),
        "payer": tenant,
        "reserved_millislice_s": MillisliceSeconds(60_000),
        "posted_millislice_s": MillisliceSeconds(0),
        "transfers": 1,
    }
    return Reservation(tenant=tenant, **{**fields, **changes})


def a_run_record(start_s: int, end_s: int | None, **changes: Any) -> RunRecord:
    """A run of vision's on a slice as Slurm's accounting shows it; it goes on without an end."""
    fields: dict[str, Any] = {
        "job_id": 7,
        "task": "7",
        "user": "alice",
        "account": "vision",
        "partition": "gpu",
        "state": "RUNNING" if end_s is None else "COMPLETED",
        "time_limit_s": None,
        "tres": A_SLICE,
    }
    return RunRecord(start_s=start_s, end_s=end_s, **{**fields, **changes})
