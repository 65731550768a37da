"""What pyslurm's objects say, into the types of ``cluster.jobs``. Nothing here imports pyslurm.

Written for pyslurm 25.11. Its traps: a 0 reads as nothing (task 0), and so does the text "None";
text that is not UTF-8, which any user can write into his job, raises at each look at it.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cluster.jobs import TAG_PREFIX, JobState, JobView, StepView
from cluster.slurm.parse import HOLDABLE, job_state
from cluster.slurm.values import hosts, numbers

_COUNTED = ("cpu", "node", "billing")


def job_view(job: Any, user_name: Callable[[int], str]) -> JobView:
    """A ``pyslurm.Job`` of ``Jobs.load()``; ValueError or TypeError if it is not as expected."""
    state = job_state(job.state)
    array_job_id, task_index, untouched = _place(job, state)
    return JobView(
        job_id=int(job.id),
        array_job_id=array_job_id,
        task_index=task_index,
        untouched=untouched,
        name=_text(job, "name"),
        user=user_name(job.user_id),
        uid=int(job.user_id),
        account=_text(job, "account"),
        partition=_text(job, "partition"),
        qos=_text(job, "qos"),
        state=state,
        reason=_text(job, "state_reason") or "None",
        held=state in HOLDABLE and int(job.priority) == 0,
        priority=int(job.priority),
        admin_comment=_text(job, "admin_comment"),
        comment=_text(job, "comment"),
        tres=_tres(job.allocated_tres or job.requested_tres),
        nodes=hosts(_text(job, "allocated_nodes")),
        submit_s=job.submit_time,
        start_s=job.start_time,
        end_s=job.end_time,
        eligible_s=job.eligible_time,
        time_limit_s=None if job.time_limit is None else 60 * job.time_limit,
        restarts=int(job.requeue_count),
        ended=str(job.state) if state is JobState.ENDED else "",
    )


def step_views(
    jobs: Iterable[Any], steps: Mapping[int, Mapping[Any, Any]], user_name: Callable[[int], str]
) -> tuple[StepView, ...]:
    """Steps of srun with reserved ports, of running jobs with a tag.

    ``steps`` is ``JobSteps.load_all()``: by job id, then by step: a number, or a word such as
    ``batch`` for those that are not srun's.
    """
    ours = (
        job_view(job, user_name)
        for job in jobs
        if job.id in steps and TAG_PREFIX in _text(job, "admin_comment")
    )
    return tuple(
        _step_view(job, name, step)
        for job in ours
        if job.state is JobState.RUNNING
        for name, step in steps[job.job_id].items()
        if isinstance(name, int) and step.reserved_ports
    )


def _step_view(job: JobView, name: int, step: Any) -> StepView:
    return StepView(
        job_id=job.job_id,
        array_job_id=job.array_job_id,
        task_index=job.task_index,
        step=str(name),
        # pyslurm has cut the text at its commas, those in brackets too.
        nodes=hosts(",".join(step.allocated_nodes)),
        ports=numbers(step.reserved_ports),
    )


def _place(job: Any, state: JobState) -> tuple[int | None, int | None, frozenset[int]]:
    """Array, index and untouched indices, as ``JobView`` has them."""
    if job.array_id is None:
        return None, None, frozenset()
    waiting = frozenset(numbers(job.array_tasks_waiting or ""))
    if len(waiting) > 1:
        # The rest of an array can also end as a whole: nothing can be released any more.
        return job.array_id, None, frozenset() if state is JobState.ENDED else waiting
    return job.array_id, next(iter(waiting), job.array_task_id or 0), frozenset()


def _text(record: Any, attribute: str) -> str:
    try:
        return getattr(record, attribute) or ""
    except UnicodeDecodeError as error:
        return error.object.decode(errors="replace")


def _tres(found: Any) -> Mapping[str, str]:
    """As Slurm writes it: ``{"cpu": "1", "mem": "20M", "gres/gpu:1g.10gb": "1"}``."""
    if found is None:
        return {}
    counted = ((name, getattr(found, name, None)) for name in _COUNTED)
    texts = {name: str(resource.count) for name, resource in counted if resource is not None}
    if getattr(found, "mem", None) is not None:
        texts["mem"] = f"{found.mem.count}M"
    return texts | {f"gres/{name}": str(gres.count) for name, gres in found.gres.items()}
