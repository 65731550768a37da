"""Builds views of services, slots, tenants and GPU types from Slurm's records."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from slicewise.cluster.language.jobs import (
    ALLOTTED,
    JobState,
    JobTag,
    JobView,
    NodeView,
    StepView,
    certificate,
    last_words,
    model_files,
)
from slicewise.cluster.language.service import MAX_SLOTS, whole_number
from slicewise.cluster.language.slurm.node_states import boots, is_asleep, is_drained
from slicewise.cluster.language.units import Millislices
from slicewise.cluster.rpc.messages import (
    SOON_S,
    WHEN_REPLACED_S,
    BudgetView,
    ServiceView,
    SlotState,
    SlotView,
    TenantView,
)
from slicewise.slurm_plugin.rules.admission.snapshot import GpuType, Living
from slicewise.slurm_plugin.rules.common.costs import job_cost, run_cost
from slicewise.slurm_plugin.rules.common.free_instances import free_instances
from slicewise.slurm_plugin.rules.common.qos_names import holder_of, is_borrowed
from slicewise.slurm_plugin.rules.quota.jobs import wanted_on_nodes
from slicewise.slurm_plugin.rules.services.avoidance import could_run, room


@dataclass(frozen=True)
class Observation:
    """One look at Slurm.

    Attributes:
        at_s: Unix seconds when the look began, by slurmctld's clock.
        directives: directives in the scripts of services' arrays, by array job id.
        directories: directories from which users submitted these arrays, by array job id.
    """

    at_s: float
    jobs: tuple[JobView, ...]
    nodes: tuple[NodeView, ...]
    steps: tuple[StepView, ...]
    directives: Mapping[int, Mapping[str, str]] = field(hash=False)
    directories: Mapping[int, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class _Place:
    """A node, with the millislices that jobs hold on it."""

    node: NodeView
    held_millislices: int


def service_arrays(jobs: Iterable[JobView]) -> Mapping[int, JobTag]:
    """Tags of all arrays that are services and have not ended, by array job id."""
    tags: dict[int, JobTag] = {}
    for job in jobs:
        tag = JobTag.find(job.admin_comment)
        alive = job.state is not JobState.ENDED
        if alive and job.array_job_id is not None and tag is not None and tag.service is not None:
            tags[job.array_job_id] = tag
    return tags


def with_tasks(
    jobs: Iterable[JobView], arrays: Collection[int], tasks: Iterable[JobView]
) -> tuple[JobView, ...] | None:
    """The jobs, of which those of these arrays are the ``tasks`` that were read of them alone.

    None where that may be wrong: Slurm may leave out tasks of an array that is read alone, and
    does not name the types of GPUs that were asked for without one.
    """
    jobs, new = tuple(jobs), {task.job_id: task for task in tasks}
    before = [job for job in jobs if job.array_job_id in arrays]
    is_typed = not any(job.unnamed or job.untyped_gpus for job in (*before, *new.values()))
    if not is_typed or not _living(before) <= _indices(new.values()):
        return None
    left = (new.pop(job.job_id, None) if job.array_job_id in arrays else job for job in jobs)
    return (*(job for job in left if job is not None), *new.values())


def _living(tasks: Iterable[JobView]) -> AbstractSet[tuple[int | None, int]]:
    return _indices(task for task in tasks if task.state is not JobState.ENDED)


def _indices(tasks: Iterable[JobView]) -> AbstractSet[tuple[int | None, int]]:
    return {
        (task.array_job_id, index)
        for task in tasks
        for index in (task.untouched if task.task_index is None else {task.task_index})
    }


def tokens(jobs: Iterable[JobView], since_s: float) -> frozenset[str]:
    """Tokens of Slicewise's jobs that were submitted at ``since_s`` (Unix seconds) or later."""
    newest = (job for job in jobs if job.submit_s is not None and job.submit_s >= since_s)
    tags = (JobTag.find(job.admin_comment) for job in newest)
    return frozenset(tag.token for tag in tags if tag is not None)


def services(
    observation: Observation,
    costs: Mapping[str, Millislices],
    memory_mib: Mapping[str, int | None] = MappingProxyType({}),
) -> tuple[ServiceView, ...]:
    """Every living service with a readable script, ordered by array job id.

    ``memory_mib`` is what a process sees of a GPU, by GRES type.
    """
    arrays = service_arrays(observation.jobs)
    jobs_by_array: dict[int, list[JobView]] = defaultdict(list)
    for job in observation.jobs:
        if job.array_job_id is not None and job.array_job_id in arrays:
            jobs_by_array[job.array_job_id].append(job)
    places = {
        node.name: _Place(node, run_cost(node.gpus_allotted, costs)) for node in observation.nodes
    }
    views = (
        _service(array, tag, jobs_by_array[array], observation, costs, places=places)
        for array, tag in sorted(arrays.items())
        if array in observation.directives
    )
    answers: dict[tuple[object, ...], bool] = {}
    has_asleep = any(map(is_asleep, observation.nodes))
    return tuple(
        view.model_copy(
            update={
                "memory_mib": memory_mib.get(view.profile),
                "wakes_node": has_asleep
                and _wakes_node(jobs_by_array[view.array_job_id], observation.nodes, answers),
            }
        )
        for view in views
        if view is not None
    )


def _wakes_node(
    jobs: Sequence[JobView], nodes: Iterable[NodeView], answers: dict[tuple[object, ...], bool]
) -> bool:
    """Whether what these jobs ask for is free, but not on as many awake nodes as each needs.

    ``answers`` are those for other services, by what they ask for.
    """
    job = next((job for job in jobs if job.gpus), None)
    if job is None:
        return False
    gpus, needed = wanted_on_nodes(job)
    wish = (job.partition, tuple(gpus.items()), needed)
    if wish not in answers:
        free = [node for node in nodes if could_run(node, job, gpus) and room(node, gpus)]
        awake = sum(not (is_asleep(node) or boots(node)) for node in free)
        answers[wish] = awake < needed <= len(free)
    return answers[wish]


def living(
    services: Iterable[ServiceView], jobs: Iterable[JobView]
) -> Mapping[tuple[str, str], Living]:
    """The oldest array of each service, with its owner and the number of arrays.

    Keys are tenant and service name.
    """
    owners = {job.array_job_id: job.uid for job in jobs}
    newest_first = sorted(services, key=lambda service: -service.array_job_id)
    arrays = Counter((s.tenant, s.name) for s in newest_first)
    return {
        (key := (s.tenant, s.name)): Living(s.array_job_id, owners[s.array_job_id], arrays[key])
        for s in newest_first
    }


def _service(
    array: int,
    tag: JobTag,
    jobs: Sequence[JobView],
    observation: Observation,
    costs: Mapping[str, Millislices],
    *,
    places: Mapping[str, _Place],
) -> ServiceView | None:
    """View of one service; None if the script differs from what was admitted: no service then."""
    directives = observation.directives[array]
    if (directives.get("tenant"), directives.get("name")) != (tag.tenant, tag.service):
        return None
    gpus = next((job.gpus for job in jobs if job.gpus), {})
    return ServiceView(
        array_job_id=array,
        tenant=tag.tenant,
        name=directives["name"],
        user=jobs[0].user,
        submit_s=min(job.submit_s or 0 for job in jobs),
        directives=dict(directives),
        profile=next(iter(gpus), ""),
        # Where users may change waiting slots, a cheap one does not stand for all.
        cost_millislices=max(run_cost(job.gpus, costs) for job in jobs),
        slots=_slots(jobs, directives, observation, places),
        directory=observation.directories.get(array, ""),
    )


def start_age_s(services: Iterable[ServiceView], now_s: float) -> float | None:
    """Seconds since the latest release or allotment of a slot that has not fully started.

    Such a slot has no known ports or certificate yet. None if there is no such slot.
    """
    times = (
        s.released_s if s.state == "released" else s.start_s
        for service in services
        for s in service.slots
        if s.state in {"released", "starting"} or (s.state == "running" and not s.certificate)
    )
    # A slot that is not eligible yet, such as a requeued one, can't start.
    ages = (now_s - at_s for at_s in times if at_s is not None and at_s <= now_s)
    return min(ages, default=None)


def start_marks(jobs: Iterable[JobView]) -> frozenset[tuple[int | None, str, bool]]:
    """Return what changes of an array's tasks when a start is nearly complete or has failed, and
    when a run has ended.

    A replica writes its certificate into its job's comment at about the time when it gets ports.
    """
    under_way = {JobState.PENDING, JobState.CONFIGURING, JobState.RUNNING}
    marks = ((job.task_index, job.comment, job.state in under_way) for job in jobs)
    return frozenset(mark for mark in marks if mark[1] or not mark[2])


def _slot_count(directives: Mapping[str, str]) -> int:
    """Number of slots of a service. Admission has checked that the array has this size."""
    return min(whole_number(directives, "max_replicas", 1), MAX_SLOTS)


def _slots(
    jobs: Iterable[JobView],
    directives: Mapping[str, str],
    observation: Observation,
    places: Mapping[str, _Place],
) -> tuple[SlotView, ...]:
    # On several nodes the other ranks of the server are steps, too, to which Slurm gives ports
    # unasked. The first step answers clients; its last port is for the other ranks.
    last = None if whole_number(directives, "nodes", 1) == 1 else -1
    steps = {
        step.job_id: replace(step, ports=step.ports[:last])
        for step in sorted(observation.steps, key=lambda step: int(step.step), reverse=True)
        if step.ports
    }
    slots: dict[int, SlotView] = {}
    for job in jobs:
        for index in job.untouched if job.task_index is None else {job.task_index}:
            slots[index] = _slot(job, index, steps.get(job.job_id), places, observation.at_s)
    count = range(_slot_count(directives))
    return tuple(slots.get(i, SlotView(index=i, state="gone")) for i in count)


def _slot(
    job: JobView,
    index: int,
    step: StepView | None,
    places: Mapping[str, _Place],
    now_s: float,
) -> SlotView:
    state = _slot_state(job, step)
    resting = SlotView(
        index=index,
        state=state,
        reason=job.reason,
        released_s=None if state == "held" else job.eligible_s,
        is_borrowed=is_borrowed(job.qos),
        last_failure=last_words(job),
        job_id=job.job_id if state == "gone" else None,
        slurm_state=job.ended,
        is_requeued=_is_requeued(job, now_s),
    )
    if state in {"held", "released", "gone"}:
        return resting
    # Its server runs on the first of its nodes, as the batch script does.
    place = places.get(job.nodes[0]) if job.nodes else None
    node = None if place is None else place.node
    nodes = [places[name].node for name in job.nodes if name in places]
    ends_in_s, why = (None, "") if state == "ending" else _leaves(job, nodes, now_s)
    return resting.model_copy(
        update={
            "job_id": job.job_id,
            "node": job.nodes[0] if job.nodes else "",
            "address": node.address if node is not None else "",
            "node_held_millislices": place.held_millislices if place is not None else None,
            "ports": step.ports if step is not None else (),
            "certificate": certificate(job),
            "files_digest": model_files(job),
            "start_s": job.start_s,
            "time_left_s": _time_left_s(job, now_s),
            "is_configuring": job.state is JobState.CONFIGURING,
            "ends_in_s": ends_in_s,
            "ends_why": why,
        }
    )


_PREEMPTED_BY_S = 60
"""An end more than this many seconds before the time limit's is a preemption.

Slurm itself moves an end by half a minute where it rounds a limit.
"""


def _leaves(job: JobView, nodes: Iterable[NodeView], now_s: float) -> tuple[int | None, str]:
    """Seconds until the run must end, and why; (None, "") if job and nodes show no reason.

    A preemption with GraceTime shows as an end earlier than the time limit's.
    """
    if job.end_s is not None and job.start_s is not None and job.time_limit_s is not None:
        early_s = job.start_s + job.time_limit_s - job.end_s
        if early_s > _PREEMPTED_BY_S:
            return max(0, int(job.end_s - now_s)), "it is preempted"
    drained = next(filter(is_drained, nodes), None)
    return (None, "") if drained is None else (WHEN_REPLACED_S, f"node {drained.name} is drained")


def to_be_replaced(slot: SlotView, why: str) -> SlotView:
    """The slot, marked as if its node were drained.

    A slot that must end soon is returned as it is: it is replaced for that reason already.
    """
    is_soon = slot.ends_in_s is not None and slot.ends_in_s < SOON_S
    if is_soon or slot.state not in {"starting", "running"}:
        return slot
    return slot.model_copy(update={"ends_in_s": WHEN_REPLACED_S, "ends_why": why})


def _slot_state(job: JobView, step: StepView | None) -> SlotState:
    match job.state:
        case JobState.PENDING | JobState.SPECIAL_EXIT:
            return "held" if job.held else "released"
        case JobState.CONFIGURING | JobState.RUNNING | JobState.SUSPENDED:
            return "running" if step is not None else "starting"
        case JobState.ENDED:
            return "gone"
        case _:
            return "ending"


def _is_requeued(job: JobView, now_s: float) -> bool:
    """Whether Slurm requeues the job whose run is ending.

    Slurm already shows the next run then: no start, or a planned one with all of the time limit. A
    run that has ended by itself keeps its own start and end. A node that could not start the run
    gives it back, too: that is a failed start.
    """
    if job.state is not JobState.COMPLETING or job.unread or job.reason.startswith("launch"):
        return False
    if job.start_s is None or job.end_s is None:
        return True
    is_planned = job.time_limit_s is not None and job.end_s - job.start_s >= job.time_limit_s
    return is_planned and job.end_s > now_s


def _time_left_s(job: JobView, now_s: float) -> int | None:
    if job.start_s is None or job.time_limit_s is None:
        return None
    return max(0, int((job.end_s or job.start_s + job.time_limit_s) - now_s))


def used_by_tenant(
    jobs: Iterable[JobView], partitions: frozenset[str], costs: Mapping[str, Millislices]
) -> Mapping[str, int]:
    """Millislices that each tenant's jobs hold now in these partitions (``holder``)."""
    used: dict[str, int] = defaultdict(int)
    for job in jobs:
        if job.state in ALLOTTED and job.partition in partitions:
            used[holder_of(job)] += job_cost(job, costs)
    return dict(used)


def tenant_views(
    nominal: Mapping[str, int],
    own: Mapping[str, int],
    together: Mapping[str, int],
    limits: Mapping[str, int],
    budgets: Mapping[str, BudgetView],
) -> tuple[TenantView, ...]:
    """Views of all tenants with a nominal, sorted by name.

    ``own`` is what each tenant's own jobs hold, ``together`` includes the tenants below it.
    ``limits`` are those in force; an unknown one is None in the view. ``budgets`` are those that
    bind, by tenant.
    """
    return tuple(
        TenantView(
            name=tenant,
            nominal_millislices=amount,
            in_use_millislices=together.get(tenant, 0),
            own_in_use_millislices=own.get(tenant, 0),
            limit_millislices=limits.get(tenant),
            budget=budgets.get(tenant),
        )
        for tenant, amount in sorted(nominal.items())
    )


def gpu_types(
    nodes: Sequence[NodeView],
    costs: Mapping[str, Millislices],
    memory_mib: Mapping[str, int | None],
    waiting: Mapping[str, int],
) -> Mapping[str, GpuType]:
    """The GRES types that nodes have, and for which a cost is set.

    ``waiting``: number of instances for which jobs wait, by type.
    """
    free = free_instances(nodes)
    by_type: dict[str, list[NodeView]] = defaultdict(list)
    for node in nodes:
        for name, count in node.gpus.items():
            if count and name in costs:
                by_type[name].append(node)
    return {
        name: GpuType(
            name=name,
            cost_millislices=costs[name],
            memory_mib=memory_mib.get(name),
            total=sum(node.gpus[name] for node in those if not node.is_shapes),
            free=free[name],
            partitions=frozenset().union(*(node.partitions for node in those)),
            beside=frozenset(
                gres_type for node in those if not node.is_shapes for gres_type in node.gpus
            )
            - {name},
            waiting=waiting.get(name, 0),
            on_nodes=tuple(node.gpus[name] for node in those if not node.is_shapes),
        )
        for name, those in by_type.items()
    }
