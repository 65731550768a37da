"""Converts slurmrestd's JSON into types of ``language/jobs.py``.

Written for the data parser v0.0.44. A number is written as ``{"set", "infinite", "number"}``.
"""

from collections.abc import Callable, Mapping
from typing import Any

from slicewise.cluster.language.jobs import JobState, JobView
from slicewise.cluster.language.slurm.job_rows import HOLDABLE, OVER, job_state
from slicewise.cluster.language.slurm.unnamed_gpus import AskedGpus, GpusOfJob, gpus_of_job
from slicewise.cluster.language.slurm.unread import Fields, ReportsUnread
from slicewise.cluster.language.slurm.values import hosts, numbers, tres, unreadable

_FLAGS = (
    "COMPLETING",
    "STAGE_OUT",
    "CONFIGURING",
    "RESIZING",
    "REQUEUED",
    "REQUEUE_FED",
    "REQUEUE_HOLD",
    "SPECIAL_EXIT",
    "STOPPED",
    "REVOKED",
    "RESV_DEL_HOLD",
    "SIGNALING",
)
"""Words beside the state proper, in the order in which squeue shows one of them in its place."""


def job_view(
    job: Mapping[str, Any], user_name: Callable[[int], str], told: ReportsUnread
) -> JobView:
    """Convert one of the ``jobs``; LookupError, ValueError or TypeError if it has no job id."""
    job_id = int(job["job_id"])

    def of(name: str) -> Any:
        return job if name == "array_job_id" else job[name]

    fields = Fields("job", str(job_id), of, told)
    limit_s = fields.read("time_limit_s", "time_limit", _limit_s, None)
    word = fields.read("state", "job_state", _word, "")
    state = job_state(word) if word else JobState.OTHER
    priority = fields.read("priority", "priority", _number, -1)
    uid = fields.read("uid", "user_id", int, -1)
    end_s = fields.read("end_s", "end_time", _time_s, None)
    array_job_id, task_index, untouched = fields.read(
        "task_index", "array_job_id", _place, _NO_PLACE
    )
    said: Mapping[str, str] = fields.read(
        "tres", "tres_alloc_str", lambda text: tres(text or job["tres_req_str"]), {}
    )
    gpus = fields.read(
        "unnamed",
        "gres_detail",
        lambda given: gpus_of_job(said, _asked(job), ",".join(filter(None, given))),
        GpusOfJob(said, {}),
    )
    return JobView(
        job_id=job_id,
        array_job_id=array_job_id,
        task_index=task_index,
        # The untouched tasks can also end together: none of them can be released any more.
        untouched=frozenset() if state is JobState.ENDED else untouched,
        name=job["name"],
        # Empty where slurmrestd's host does not know the user.
        user=job["user_name"] or user_name(uid),
        uid=uid,
        account=job["account"],
        partition=job["partition"],
        qos=job["qos"],
        state=state,
        reason=job["state_description"] or job["state_reason"],
        held=state in HOLDABLE and priority == 0,
        priority=max(priority, 0),
        admin_comment=job["admin_comment"],
        comment=job["comment"],
        tres=gpus.tres,
        unnamed=gpus.unnamed,
        nodes=fields.read("nodes", "nodes", hosts, ()),
        submit_s=fields.read("submit_s", "submit_time", _time_s, None),
        start_s=fields.read("start_s", "start_time", _time_s, None),
        end_s=end_s if limit_s is not None or state in OVER else None,
        eligible_s=fields.read("eligible_s", "eligible_time", _time_s, None),
        time_limit_s=limit_s,
        restarts=fields.read("restarts", "restart_cnt", int, 0),
        ended=word if state is JobState.ENDED else "",
        het_job_id=fields.read("het_job_id", "het_job_id", _number, -1),
        unread=fields.unread,
    )


def _word(words: Any) -> str:
    """The one word that squeue shows; an error for one that no known version has."""
    word = str(next((flag for flag in _FLAGS if flag in words), words[0]))
    job_state(word)
    return word


def _asked(job: Mapping[str, Any]) -> AskedGpus:
    node, per_job, socket, task = (
        job[f"tres_per_{what}"] for what in ("node", "job", "socket", "task")
    )
    return AskedGpus(node, per_job, socket, task, int(job["tasks"]["number"]))


def _number(field: Any) -> int:
    if not field["set"] or field["infinite"]:
        raise unreadable("number", str(field))
    return int(field["number"])


def _time_s(field: Any) -> int | None:
    """Unix second; None for 0, which is not known or not set."""
    return (int(field["number"]) or None) if field["set"] else None


def _limit_s(minutes: Any) -> int | None:
    return None if minutes["infinite"] else 60 * _number(minutes)


_Place = tuple[int | None, int | None, frozenset[int]]
_NO_PLACE: _Place = (None, None, frozenset())


def _place(job: Any) -> _Place:
    """Array, index and untouched indices, as in ``JobView``."""
    array_job_id = _number(job["array_job_id"])
    if not array_job_id:
        return _NO_PLACE
    waiting = frozenset(numbers(job["array_task_string"]))
    if len(waiting) > 1:
        return array_job_id, None, waiting
    index = next(iter(waiting)) if waiting else _number(job["array_task_id"])
    return array_job_id, index, frozenset()
