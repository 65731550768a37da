"""Jobs as Slurm's list shows them."""

from typing import Any

from slicewise.cluster.language.jobs import JobState, JobTag, JobView
from slicewise.slurm_plugin.rules.common.qos_names import qos_name

A_SLICE = {"gres/gpu:1g.10gb": "1"}
"""TRES of a job of one instance."""


def a_job(job_id: int = 7, account: str = "vision", **changes: Any) -> JobView:
    """An admitted job of alice, of no array, that waits for a slice of its tenant's own quota."""
    fields: dict[str, Any] = {
        "array_job_id": None,
        "task_index": None,
        "untouched": frozenset(),
        "name": "train",
        "user": "alice",
        "uid": 61001,
        "partition": "gpu",
        "qos": qos_name(account),
        "state": JobState.PENDING,
        "reason": "QOSGrpBilling",
        "held": False,
        "priority": 100,
        "admin_comment": JobTag("ab", account).text(),
        "comment": "",
        "tres": A_SLICE,
        "nodes": (),
        "submit_s": 1,
        "start_s": None,
        "end_s": None,
        "eligible_s": None,
        "time_limit_s": 3600,
        "restarts": 0,
    }
    return JobView(job_id=job_id, account=account, **{**fields, **changes})


def a_running_job(job_id: int = 7, account: str = "vision", **changes: Any) -> JobView:
    """The same job, which has run on n1 since second 100."""
    fields = {"state": JobState.RUNNING, "reason": "None", "nodes": ("n1",), "start_s": 100}
    return a_job(job_id, account, **{**fields, **changes})
