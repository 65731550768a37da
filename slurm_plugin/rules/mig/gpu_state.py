"""Builds the repartition planner's view of GPUs from a node's last survey, Slurm's files and
jobs.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from slicewise.cluster.language.gpus.gpu_faults import has_capabilities
from slicewise.cluster.language.gpus.inventory import Gpu as SeenGpu
from slicewise.cluster.language.gpus.inventory import Inventory
from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.cluster.language.gpus.mig_profiles import Board
from slicewise.cluster.language.gpus.repartitions import (
    Repartition,
    RepartitionState,
)
from slicewise.cluster.language.gpus.vendors import accelerator
from slicewise.cluster.language.jobs import JobState, JobTag, JobView, NodeView
from slicewise.cluster.language.slurm.node_states import RESERVED
from slicewise.slurm_plugin.rules.common.qos_names import holder_of, is_borrowed
from slicewise.slurm_plugin.rules.mig.candidates import (
    GpuState,
    InstanceState,
    JobHolder,
    ReplicaHolder,
)
from slicewise.slurm_plugin.rules.mig.node_checks import differences, unfit
from slicewise.slurm_plugin.rules.slurm_config.gres import Device
from slicewise.slurm_plugin.rules.slurm_config.node_lines import Positions, room

Holder = JobHolder | ReplicaHolder

_OLD_S = 86_400
_OWN_LINE = re.compile(r"\s*NodeName\s*=\s*([\w.-]+)(?=\s)", re.IGNORECASE)
_SHARED_LINE = re.compile(r"\s*(?:NodeName|Name)\s*=", re.IGNORECASE)


@dataclass(frozen=True)
class NodeLook:
    """What is known about a node.

    Attributes:
        inventory: result of the last survey; None if there was none.
        age_s: seconds since that survey.
        devices: devices of each of its GPUs that jobs can be given, by UUID.
        positions: its devices as Slurm's files have them, or a text on what is wrong with its lines
            there.
    """

    node: NodeView
    inventory: Inventory | None
    age_s: float
    devices: Mapping[str, Sequence[Device]] = field(hash=False)
    positions: Positions | str

    @cached_property
    def indices(self) -> Mapping[Device, int]:
        """Slurm's index of each device."""
        return {device: i for i, device in enumerate(self.positions) if isinstance(device, Device)}


@dataclass(frozen=True)
class Past:
    """Repartitions in the journal, by the UUID of their GPU.

    Attributes:
        in_work: repartitions that are not finished.
        cut_ago_s: seconds since the last repartition ended, rolled back or not.
        in_vain: GPUs of which the last one ended otherwise than done.
    """

    in_work: Mapping[str, Repartition] = field(default_factory=dict, hash=False)
    cut_ago_s: Mapping[str, int] = field(default_factory=dict, hash=False)
    in_vain: frozenset[str] = frozenset()


def past(
    unfinished: Iterable[Repartition], newest_first: Iterable[Repartition], now_s: float
) -> Past:
    """Summarise the journal's repartitions by GPU."""
    ago_s: dict[str, int] = {}
    in_vain: set[str] = set()
    for repartition in newest_first:
        gpu = repartition.gpu
        if repartition.ended_s is not None and gpu not in ago_s:
            ago_s[gpu] = max(0, int(now_s - repartition.ended_s))
            if repartition.state is not RepartitionState.DONE:
                in_vain.add(gpu)
    return Past(
        {repartition.gpu: repartition for repartition in unfinished}, ago_s, frozenset(in_vain)
    )


def lines_by_node(text: str) -> Mapping[str, str]:
    """Lines of slurm.conf or gres.conf by node: its own lines, with those that several nodes share.

    "" has the shared lines alone, which are all lines of any other node.
    """
    own = defaultdict[str, list[str]](list)
    shared: list[str] = []
    for line in text.split("\n"):
        match = _OWN_LINE.match(line)
        if match is not None:
            own[match[1]].append(line)
        elif _SHARED_LINE.match(line):
            shared.append(line)
    return {"": "\n".join(shared)} | {
        name: "\n".join((*shared, *lines)) for name, lines in own.items()
    }


def left_out(look: NodeLook) -> str:
    """Why nothing can be planned on a node; "" if something can."""
    return next(_obstacles(look), "")


def _obstacles(look: NodeLook) -> Iterator[str]:
    node, positions = look.node, look.positions
    if look.inventory is not None and not accelerator(look.inventory.vendor).has_parts:
        yield f"{look.inventory.vendor} changes the mode of whole GPUs only: Slicewise leaves it"
    if words := unfit(node):
        yield f"Slurm says {words}"
    if node.states & RESERVED:
        yield "it is reserved"
    if look.inventory is None:
        yield f"it was never surveyed: slicewise repartition survey {node.name}"
    elif look.age_s > _OLD_S:
        hours = f"{look.age_s / 3600:.0f} h"
        yield f"its last survey is {hours} old: slicewise repartition survey {node.name}"
    if isinstance(positions, str):
        yield positions
    elif look.inventory is not None:
        yield from differences(node, positions)
        if len(positions) != (most := room(look.inventory)):
            yield (
                f"Slurm has {len(positions)} devices for it, not {most}: add pads with slicewise"
                " node gres"
            )
        if {device for those in look.devices.values() for device in those} != look.indices.keys():
            yield "its GPUs are not cut as gres.conf says: slicewise repartition survey, node gres"


def gpus(
    look: NodeLook, holders: Mapping[int, Holder], cut: Past
) -> Iterator[tuple[Board, GpuState]]:
    """The GPUs in MIG mode of a node that is not left out. ``holders`` are by Slurm's index."""
    for gpu in look.inventory.gpus if look.inventory is not None else ():
        # A node may falsely claim to have a GPU that is being cut on another node.
        if gpu.mig and gpu.board is not None and gpu.uuid not in cut.in_work:
            instances = tuple(_instances(look, gpu, holders))
            ago_s, in_vain = cut.cut_ago_s.get(gpu.uuid), gpu.uuid in cut.in_vain
            name = look.node.name
            yield gpu.board, GpuState(gpu.uuid, name, instances, ago_s, in_vain=in_vain)


def gpus_in_work(look: NodeLook, cut: Past) -> Iterator[tuple[Board, GpuState]]:
    """GPUs with an unfinished repartition, as they will be cut; none of a node that Slurm can't
    use.
    """
    for gpu in look.inventory.gpus if look.inventory is not None else ():
        repartition = cut.in_work.get(gpu.uuid)
        if repartition is not None and gpu.board is not None and not unfit(look.node):
            after = tuple(map(InstanceState, repartition.after))
            yield gpu.board, GpuState(gpu.uuid, look.node.name, after, in_work=True)


def holders(
    node: NodeView,
    jobs: Iterable[JobView],
    indices: Mapping[int, Mapping[str, frozenset[int]]],
    now_s: float,
    *,
    move_s: int,
    term_s: float,
    preempting: Mapping[int, int],
) -> Mapping[int, Holder]:
    """The holder of each of the node's devices that is held, by Slurm's index.

    Jobs on loan may be ended once they have run for ``term_s``. For so many successors of the
    replicas in ``preempting``, by job id, Slurm preempts such jobs.

    Users can write lines into their jobs' names that look like Slurm's, and so claim devices or
    hide their own. So the holder of a device that no job, or more than one, seems to hold counts as
    a job that can't be moved.
    """
    named = defaultdict[int, list[Holder]](list)
    for job in jobs:
        holder = _holding(job, now_s, move_s, term_s)
        if isinstance(holder, ReplicaHolder) and (most := preempting.get(job.job_id)):
            holder = replace(holder, preempts=most, tenant=holder_of(job))
        for index in indices.get(job.job_id, {}).get(node.name, ()):
            named[index].append(holder)
    return {
        index: named[index][0] if len(named[index]) == 1 else JobHolder("?")
        for index in node.gpus_held
    }


def with_last_ones(
    gpu_states: Sequence[GpuState], elsewhere: Collection[str]
) -> tuple[GpuState, ...]:
    """The GPUs with one instance of each profile fixed, unless ``elsewhere`` has the profile.

    If no node has a type any more, Slurm holds its waiting jobs for good, and refuses new ones.
    """
    last: dict[str, tuple[str, Placement]] = {}
    placed = [
        (gpu.name, instance) for gpu in gpu_states if not gpu.in_work for instance in gpu.instances
    ]
    for name, instance in sorted(placed, key=lambda pair: _rank(pair[1])):
        last.setdefault(instance.placement.profile, (name, instance.placement))
    fixed = {place for profile, place in last.items() if profile not in elsewhere}
    names = {name for name, _ in fixed}
    return tuple(
        replace(
            gpu,
            instances=tuple(
                _fixed(instance) if (gpu.name, instance.placement) in fixed else instance
                for instance in gpu.instances
            ),
        )
        if gpu.name in names
        else gpu
        for gpu in gpu_states
    )


def _rank(instance: InstanceState) -> int:
    """The place in the order in which instances are chosen to stay fixed: those that can't move
    anyway come first.
    """
    match instance.holder:
        case JobHolder(on_loan_s=None):
            return 0
        case ReplicaHolder():
            return 1
        case JobHolder():
            return 2
        case None:
            return 3


def _fixed(instance: InstanceState) -> InstanceState:
    match instance.holder:
        case JobHolder():
            return replace(instance, holder=replace(instance.holder, on_loan_s=None))
        case ReplicaHolder(name=name):
            return replace(instance, holder=JobHolder(name))
        case None:
            # The instance is practically free, but it must stay.
            return replace(instance, holder=JobHolder("the last of its type", 0))


def _holding(job: JobView, now_s: float, move_s: int, term_s: float) -> Holder:
    tag = JobTag.find(job.admin_comment)
    is_task = job.array_job_id is not None
    name = holder_name(job)
    if job.state is JobState.COMPLETING:
        return JobHolder(name, 0)
    if tag is None or tag.service is None or not is_task:
        ends_in_s = None if job.end_s is None else max(0, int(job.end_s - now_s))
        return JobHolder(name, ends_in_s, _on_loan_s(job, now_s, term_s))
    of_service = f"{tag.tenant}/{tag.service} ({name})"
    is_one = sum(job.gpus.values()) == 1
    return ReplicaHolder(of_service, move_s) if is_one else JobHolder(of_service)


def holder_name(job: JobView) -> str:
    """A batch job's name in a plan."""
    return f"job {job.task}"


def _on_loan_s(job: JobView, now_s: float, term_s: float) -> int | None:
    """Seconds for which a job has run on loan; None if it may not be ended.

    A job of several instances stays: all of them would be lost for a cut that needs one.
    """
    if not is_borrowed(job.qos) or job.state is not JobState.RUNNING or job.start_s is None:
        return None
    if sum(job.gpus.values()) != 1:
        return None
    ran_s = int(now_s - job.start_s)
    return ran_s if ran_s >= term_s else None


def _instances(
    look: NodeLook, gpu: SeenGpu, holders: Mapping[int, Holder]
) -> Iterator[InstanceState]:
    """The GPU's instances with their holders.

    An instance that Slurm can't give to jobs was made outside Slurm, and counts as held.
    """
    devices = devices_at(look, gpu)
    for instance in gpu.instances:
        device = devices.get(instance.placement)
        holder = (
            holders.get(look.indices[device]) if device is not None else JobHolder("not Slurm's")
        )
        yield InstanceState(instance.placement, holder)


def devices_at(look: NodeLook, gpu: SeenGpu) -> Mapping[Placement, Device]:
    """Devices of a GPU that Slurm can give to jobs, by placement."""
    given = (
        instance
        for instance in gpu.instances
        if len(instance.computes) == 1 and has_capabilities(instance)
    )
    return dict(
        zip((instance.placement for instance in given), look.devices[gpu.uuid], strict=True)
    )
