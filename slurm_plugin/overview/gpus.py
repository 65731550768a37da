"""Says which instances the GPUs have, and which job sits on each."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from cluster.language.jobs import ALLOTTED, JobView, NodeView
from cluster.language.mig_profiles import profile_of
from cluster.rpc.overview_messages import GpuNow, InstanceNow
from slurm_plugin.common.qos_names import is_borrowed
from slurm_plugin.overview.facts import OverviewFacts, Reader, SurveyedGpu, service_of
from slurm_plugin.overview.slices import condition_of, managed_nodes
from slurm_plugin.quota.demand import gpus_on_nodes
from slurm_plugin.slurm_config.pads import is_pad

_Seats = Mapping[str, Mapping[str, Sequence[JobView]]]
"""By node and GRES type: a job for each instance that it holds there."""


def gpus_now(facts: OverviewFacts, reader: Reader) -> tuple[GpuNow, ...]:
    """Return every managed GPU by node and index, with the jobs that the reader may see.

    Slurm's list of jobs does not say which of a node's instances of one type a job has. If several
    jobs have some, they are shown in the order in which they started.
    """
    seats = _seats(facts.jobs)
    return tuple(
        gpu
        for node in managed_nodes(facts)
        for gpu in _gpus(node, _instances(node, seats, facts, reader), facts)
    )


def _seats(jobs: Iterable[JobView]) -> _Seats:
    found: dict[str, dict[str, list[JobView]]] = defaultdict(lambda: defaultdict(list))
    holding = (job for job in jobs if job.state in ALLOTTED)
    for job in sorted(holding, key=lambda one: (one.start_s or 0, one.job_id)):
        for node, gpus in gpus_on_nodes(job):
            for kind, count in gpus.items():
                found[node][kind] += [job] * count
    return found


def _instances(
    node: NodeView, seats: _Seats, facts: OverviewFacts, reader: Reader
) -> Mapping[int, InstanceNow]:
    """The node's instances by Slurm's index. The devices of a type are one run of indices."""
    found: dict[int, InstanceNow] = {}
    first = 0
    for kind, count in node.gpus.items():
        indices = range(first, first + count)
        first += count
        if is_pad(kind):
            continue
        jobs = list(seats.get(node.name, {}).get(kind, ()))
        held = [index for index in indices if index in node.gpus_held]
        held += indices[: max(0, node.gpus_allotted.get(kind, 0))] if not held else []
        # A job that ends holds its instance still, and Slurm shows it as free.
        held += [index for index in indices if index not in held][: max(0, len(jobs) - len(held))]
        plain = InstanceNow(gres_type=kind, size=_size(kind, facts))
        found |= dict.fromkeys(indices, plain)
        for nth, index in enumerate(sorted(held)):
            job = jobs[nth] if nth < len(jobs) and reader.may_see(jobs[nth]) else None
            found[index] = plain.model_copy(update={"is_held": True, **_of_job(job)})
    return found


def _of_job(job: JobView | None) -> Mapping[str, object]:
    if job is None:
        return {}
    return {
        "job": job.task,
        "tenant": job.account,
        "service": service_of(job),
        "is_borrowed": is_borrowed(job.qos),
    }


def _size(kind: str, facts: OverviewFacts) -> int:
    """Memory slices of an instance; of a whole GPU those of a board, so that it is the longest."""
    board = facts.boards.get(kind)
    if board is not None:
        return profile_of(board, kind).memory_slices
    return max((one.memory_slices for one in facts.boards.values()), default=1)


def _gpus(
    node: NodeView, instances: Mapping[int, InstanceNow], facts: OverviewFacts
) -> Iterator[GpuNow]:
    condition = condition_of(node)
    surveyed = facts.surveyed.get(node.name, ())
    placed = {index for gpu in surveyed for _, index in gpu.places if index is not None}
    if surveyed and placed == instances.keys():
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


def _placed(gpu: SurveyedGpu, instances: Mapping[int, InstanceNow]) -> Iterator[InstanceNow]:
    for place, index in gpu.places:
        where = {"start": place.start, "size": place.size}
        if index is None:
            yield InstanceNow(gres_type=place.profile, is_held=True, **where)
        else:
            yield instances[index].model_copy(update=where)
