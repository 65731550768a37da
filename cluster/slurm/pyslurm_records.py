"""Converts pyslurm's objects into types of ``language/jobs.py``, without importing pyslurm.

Written for pyslurm 25.11. Its traps: a 0 reads as nothing (task 0), and so does the text "None";
text that is not UTF-8, which any user can write into a job, raises at each access.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from slicewise.cluster.language.jobs import ALLOTTED, JobState, JobView, StepView
from slicewise.cluster.language.slurm.job_rows import HOLDABLE, OVER, job_state
from slicewise.cluster.language.slurm.unnamed_gpus import (
    AskedGpus,
    GpusOfJob,
    gpus_of_job,
    names_all,
)
from slicewise.cluster.language.slurm.unread import Fields, ReportsUnread, each
from slicewise.cluster.language.slurm.values import MOST_STEPS, hosts, numbers, tres

_COUNTED = ("cpu", "node", "billing")


def job_view(job: Any, user_name: Callable[[int], str], told: ReportsUnread) -> JobView:
    """Convert a ``pyslurm.Job`` of ``Jobs.load()``; ValueError or TypeError if it has no job id."""
    job_id = int(job.id)

    def of(attribute: str) -> Any:
        return job if attribute == "array_id" else getattr(job, attribute)

    fields = Fields("job", str(job_id), of, told)
    limit_s = fields.read("time_limit_s", "time_limit", _limit_s, None)
    state = fields.read("state", "state", job_state, JobState.OTHER)
    priority = fields.read("priority", "priority", int, -1)
    uid = fields.read("uid", "user_id", int, -1)
    end_s = fields.read("end_s", "end_time", _whole, None)
    array_job_id, task_index, untouched = fields.read("task_index", "array_id", _place, _NO_PLACE)
    tres: Mapping[str, str] = fields.read(
        "tres",
        "allocated_tres",
        lambda _: _tres(job.allocated_tres or job.requested_tres),
        {},
    )
    gpus = fields.read(
        "unnamed",
        "gres_per_node",
        lambda per_node: gpus_of_job(tres, _asked(per_node), _given(job, tres, state)),
        GpusOfJob(tres, {}),
    )
    return JobView(
        job_id=job_id,
        array_job_id=array_job_id,
        task_index=task_index,
        # The untouched tasks can also end together: none of them can be released any more.
        untouched=frozenset() if state is JobState.ENDED else untouched,
        name=_text(job, "name"),
        user=user_name(uid),
        uid=uid,
        account=_text(job, "account"),
        partition=_text(job, "partition"),
        qos=_text(job, "qos"),
        state=state,
        reason=_text(job, "state_reason") or "None",
        held=state in HOLDABLE and priority == 0,
        priority=max(priority, 0),
        admin_comment=_text(job, "admin_comment"),
        comment=_text(job, "comment"),
        tres=gpus.tres,
        unnamed=gpus.unnamed,
        nodes=fields.read("nodes", "allocated_nodes", lambda text: hosts(text or ""), ()),
        submit_s=fields.read("submit_s", "submit_time", _whole, None),
        start_s=fields.read("start_s", "start_time", _whole, None),
        end_s=end_s if limit_s is not None or state in OVER else None,
        eligible_s=fields.read("eligible_s", "eligible_time", _whole, None),
        time_limit_s=limit_s,
        restarts=fields.read("restarts", "requeue_count", int, 0),
        ended=str(job.state) if state is JobState.ENDED else "",
        het_job_id=fields.read("het_job_id", "heterogeneous_id", _het_job_id, -1),
        unread=fields.unread,
    )


def step_views(
    job_ids: Iterable[int], steps: Mapping[int, Mapping[Any, Any]], told: ReportsUnread
) -> tuple[StepView, ...]:
    """Steps of srun with reserved ports, of these jobs.

    ``steps`` is ``JobSteps.load_all()``: by job id, then by step: a number, or a word such as
    ``batch`` for a step that is not srun's.
    """
    steps_found = (
        (job, name, step) for job in job_ids for name, step in _first(steps.get(job, {}))
    )
    views = each("step", steps_found, _step_view, told, lambda step: f"{step[0]}.{step[1]}")
    return tuple(view for view in views if view is not None)


def _first(steps: Mapping[Any, Any]) -> list[tuple[int, Any]]:
    """The first steps of srun, of one job."""
    names = sorted(name for name in steps if isinstance(name, int))
    return [(name, steps[name]) for name in names[:MOST_STEPS]]


def _step_view(step_found: tuple[int, int, Any]) -> StepView | None:
    job_id, name, step = step_found
    if not step.reserved_ports:
        return None
    return StepView(
        job_id=job_id,
        step=str(name),
        # pyslurm has cut the text at every comma, those in brackets too.
        nodes=hosts(",".join(step.allocated_nodes)),
        ports=numbers(step.reserved_ports),
    )


_Place = tuple[int | None, int | None, frozenset[int]]
_NO_PLACE: _Place = (None, None, frozenset())


def _place(job: Any) -> _Place:
    """Array, index and untouched indices, as in ``JobView``."""
    if job.array_id is None:
        return _NO_PLACE
    array_job_id = int(job.array_id)
    waiting = frozenset(numbers(job.array_tasks_waiting or ""))
    if len(waiting) > 1:
        return array_job_id, None, waiting
    return array_job_id, next(iter(waiting), int(job.array_task_id or 0)), frozenset()


def _asked(per_node: Any) -> AskedGpus:
    """What it asks for on each node: pyslurm shows nothing of what is asked for otherwise."""
    return AskedGpus(",".join(f"{name}:{count}" for name, count in (per_node or {}).items()))


def _given(job: Any, tres: Mapping[str, str], state: JobState) -> str:
    """What a job holds on all nodes, where its TRES do not name all of it."""
    if state not in ALLOTTED or names_all(tres):
        return ""
    places = job.get_resource_layout_per_node().values()
    return ",".join(
        f"{name}:{gres['count']}" for place in places for name, gres in place["gres"].items()
    )


def _whole(number: Any) -> int | None:
    return None if number is None else int(number)


def _het_job_id(number: Any) -> int:
    return int(number or 0)


def _limit_s(minutes: Any) -> int | None:
    """The limit in seconds; None for no limit, for which pyslurm's word is UNLIMITED."""
    return None if minutes in {None, "UNLIMITED"} else 60 * int(minutes)


def _text(record: Any, attribute: str) -> str:
    try:
        return getattr(record, attribute) or ""
    except UnicodeDecodeError as error:
        return error.object.decode(errors="replace")


def _tres(tres_found: Any) -> Mapping[str, str]:
    """TRES as Slurm writes them: ``{"cpu": "1", "mem": "20M", "gres/gpu:1g.10gb": "1"}``."""
    if tres_found is None:
        return {}
    counted = ((name, getattr(tres_found, name, None)) for name in _COUNTED)
    texts = {name: str(resource.count) for name, resource in counted if resource is not None}
    if getattr(tres_found, "mem", None) is not None:
        texts["mem"] = f"{tres_found.mem.count}M"
    texts |= {f"gres/{name}": str(gres.count) for name, gres in tres_found.gres.items()}
    return tres(",".join(f"{name}={count}" for name, count in texts.items()))
