"""Explains for which job each run ends, and why a job has no room."""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence

from slicewise.slurm_plugin.rules.quota.jobs import JobKey, Shape, WaitingJob
from slicewise.slurm_plugin.rules.reclaim.running import Running


def beneficiaries(
    needs: Iterable[WaitingJob],
    places: Mapping[JobKey, Sequence[str]],
    free: Mapping[str, Mapping[str, int]],
    gone: Sequence[Running],
) -> Mapping[int, JobKey]:
    """The key of the job for which each run ends, by the run's job id; the first of several."""
    needs = tuple(needs)
    goes_for = _on_places(needs, places, free, gone)
    waiting: dict[str, deque[JobKey]] = defaultdict(deque)
    for need in needs:
        if need.is_single:
            waiting[need.shape[0][0]].append(need.key)
    for run in gone:
        if run.job_id not in goes_for:
            keys = [
                key for gres_type, count in run.total for key in _next(waiting[gres_type], count)
            ]
            goes_for[run.job_id] = keys[0] if keys else _alike(needs, run).key
    return goes_for


def _alike(needs: Sequence[WaitingJob], run: Running) -> WaitingJob:
    """The first job that needs some of what the run has; else the first of all jobs."""
    kinds = {gres_type for gres_type, _ in run.total}
    jobs = (need for need in needs if any(gres_type in kinds for gres_type, _ in need.shape))
    return next(jobs, needs[0])


def _next(waiting: deque[JobKey], count: int) -> Sequence[JobKey]:
    return [waiting.popleft() for _ in range(min(count, len(waiting)))]


def _on_places(
    needs: Iterable[WaitingJob],
    places: Mapping[JobKey, Sequence[str]],
    free: Mapping[str, Mapping[str, int]],
    gone: Iterable[Running],
) -> dict[int, JobKey]:
    """For each run that ends on the nodes of a job with ``places``: the key of that job."""
    left = {
        (node, gres_type): count
        for node, counts in free.items()
        for gres_type, count in counts.items()
    }
    given: dict[tuple[str, str], list[Running]] = defaultdict(list)
    for run in gone:
        for node, instance in run.instances.items():
            for gres_type in instance:
                given[node, gres_type].append(run)
    goes_for: dict[int, JobKey] = {}
    for need in needs:
        for node in places.get(need.key, ()):
            for gres_type, count in need.shape:
                lacks = count - left.get((node, gres_type), 0)
                while lacks > 0 and given[node, gres_type]:
                    run = given[node, gres_type].pop(0)
                    goes_for.setdefault(run.job_id, need.key)
                    lacks -= run.instances[node][gres_type]
                left[node, gres_type] = -min(lacks, 0)
    return goes_for


def why_no_room(
    wanted: Iterable[tuple[Shape, int]],
    layers: Iterable[tuple[Iterable[Mapping[str, Mapping[str, int]]], str]],
) -> Mapping[tuple[Shape, int], str]:
    """Explain for each wanted shape and number of nodes why there is no room.

    The explanation is the text of the first layer with which there would be enough. A layer adds
    instances, by node and type, to the layers before it.
    """
    by_node: dict[str, Counter[str]] = defaultdict(Counter)
    open_ = set(wanted)
    why: dict[tuple[Shape, int], str] = {}
    for layer, words in layers:
        for instances in layer:
            for node, counts in instances.items():
                by_node[node].update(counts)
        enough = {shape for shape in open_ if _nodes_with(by_node, shape[0]) >= shape[1]}
        why |= dict.fromkeys(enough, words)
        open_ -= enough
    return why | {shape: _nowhere(*shape) for shape in open_}


def _nodes_with(free_by_node: Mapping[str, Counter[str]], shape: Shape) -> int:
    return sum(
        all(free[gres_type] >= count for gres_type, count in shape)
        for free in free_by_node.values()
    )


def _nowhere(shape: Shape, nodes: int) -> str:
    words = " and ".join(f"{count} x {gres_type}" for gres_type, count in shape)
    if nodes > 1:
        return f"no {nodes} nodes have {words} each that is free or lent"
    return f"no node has {words} that is free or lent"
