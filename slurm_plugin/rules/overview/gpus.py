"""Says which instances the GPUs have, and which job sits on each."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, zip_longest
from typing import Any

from slicewise.cluster.language.gpus.mig_profiles import profile_of
from slicewise.cluster.language.jobs import JobView, NodeView
from slicewise.cluster.rpc.overview_messages import GpuNow, InstanceNow
from slicewise.slurm_plugin.rules.common.qos_names import is_borrowed
from slicewise.slurm_plugin.rules.overview.overview_facts import (
    OverviewFacts,
    Reader,
    Seats,
    SurveyedGpu,
    service_of,
)
from slicewise.slurm_plugin.rules.overview.slices import condition_of, managed_nodes
from slicewise.slurm_plugin.rules.slurm_config.pads import is_pad


def gpus_now(facts: OverviewFacts, reader: Reader) -> tuple[GpuNow, ...]:
    """Return every managed GPU by node and index, with the jobs that the reader may see.

    Where it is not known which of a node's instances of one type a job has, its jobs are shown in
    the order in which they started.
    """
    return tuple(
        gpu
        for node in managed_nodes(facts)
        for gpu in _gpus(node, _instances(node, facts, reader), facts)
    )


def sharing_types(seats: Seats) -> tuple[JobView, ...]:
    """Return jobs that have instances of a type on a node where another job has some, too.

    Of these only Slurm's details say which instance is whose.
    """
    shared = (
        seated
        for by_type in seats.values()
        for seated in by_type.values()
        if len({job.job_id for job in seated}) > 1
    )
    return tuple({job.job_id: job for seated in shared for job in seated}.values())


def _instances(node: NodeView, facts: OverviewFacts, reader: Reader) -> Mapping[int, InstanceNow]:
    """The node's instances by Slurm's index. The devices of a type are one run of indices."""
    instances: dict[int, InstanceNow] = {}
    first = 0
    for gres_type, count in node.gpus.items():
        indices = range(first, first + count)
        first += count
        if is_pad(gres_type):
            continue
        plain = InstanceNow(gres_type=gres_type, size=_size(gres_type, facts))
        instances |= dict.fromkeys(indices, plain)
        seated = facts.seats.get(node.name, {}).get(gres_type, ())
        for index, job in _holders(node, gres_type, indices, seated, facts).items():
            seen = job if job is not None and reader.may_see(job) else None
            instances[index] = InstanceNow(
                gres_type=gres_type, size=plain.size, is_held=True, **_of_job(seen)
            )
    return instances


def _holders(
    node: NodeView, gres_type: str, indices: range, seated: Sequence[JobView], facts: OverviewFacts
) -> Mapping[int, JobView | None]:
    """The held instances of a type, each with its job; None is a job that Slurm does not show.

    Users can make their jobs look as if they had other devices: what two jobs claim to have is
    nobody's in particular.
    """
    held = [index for index in indices if index in node.gpus_held]
    held += indices[: node.gpus_allotted.get(gres_type, 0)] if not held else []
    # A job that ends holds its instance still, and Slurm shows it as free.
    held += [index for index in indices if index not in held][: max(0, len(seated) - len(held))]
    claims = defaultdict[int, list[JobView]](list)
    for job in {job.job_id: job for job in seated}.values():
        for index in facts.indices.get(job.job_id, {}).get(node.name, frozenset()) & set(held):
            claims[index].append(job)
    claimed = {index: jobs[0] for index, jobs in claims.items() if len(jobs) == 1}
    placed, left = Counter(job.job_id for job in claimed.values()), list[JobView]()
    for job in seated:
        placed[job.job_id] -= 1
        if placed[job.job_id] < 0:
            left.append(job)
    unknown = [index for index in sorted(held) if index not in claimed]
    others = dict(islice(zip_longest(unknown, left), len(unknown)))
    return {**others, **claimed}


def _of_job(job: JobView | None) -> Mapping[str, Any]:
    if job is None:
        return {}
    return {
        "job": job.task,
        "tenant": job.account,
        "service": service_of(job),
        "is_borrowed": is_borrowed(job.qos),
    }


def _size(gres_type: str, facts: OverviewFacts) -> int:
    """Memory slices of an instance; of a whole GPU those of a board, so that it is the longest."""
    board = facts.boards.get(gres_type)
    if board is not None:
        return profile_of(board, gres_type).memory_slices
    return max((board.memory_slices for board in facts.boards.values()), default=1)


def _gpus(
    node: NodeView, instances: Mapping[int, InstanceNow], facts: OverviewFacts
) -> Iterator[GpuNow]:
    condition = condition_of(node)
    surveyed = facts.surveyed.get(node.name, ())
    if surveyed and _fits(surveyed, instances):
        for gpu in surveyed:
            yield GpuNow(
                node=node.name,
                gpu=gpu.index,
                condition=condition,
                memory_slices=gpu.memory_slices,
                instances=tuple(_placed(gpu, instances)),
            )
    else:
        by_index = (instances[index] for index in sorted(instances))
        yield GpuNow(node=node.name, condition=condition, instances=tuple(by_index))


def _fits(surveyed: Iterable[SurveyedGpu], instances: Mapping[int, InstanceNow]) -> bool:
    """Whether a survey is of what Slurm has now; it is not if the node was cut again since."""
    placed = {index: place for gpu in surveyed for place, index in gpu.places if index is not None}
    return placed.keys() == instances.keys() and all(
        place.size == instances[index].size for index, place in placed.items() if place.profile
    )


def _placed(gpu: SurveyedGpu, instances: Mapping[int, InstanceNow]) -> Iterator[InstanceNow]:
    for place, index in gpu.places:
        where = {"start": place.start, "size": place.size}
        if index is None:
            yield InstanceNow(gres_type=place.profile, is_held=True, **where)
        else:
            yield instances[index].model_copy(update=where)
