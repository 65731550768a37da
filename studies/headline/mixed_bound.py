"""What any first-come rule could do at most under the mixed load, beside the same replicas.

What replicas hold is taken from a system's run, with their headroom. All else goes to jobs, whoever
came first, and nothing is lost: no time passes between two jobs, and a job that makes room goes on
later from where it was. As everywhere in these figures, a job's last second, in which it gives its
GPU back, counts as its work.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from slicewise.simulation.rules.cluster import Scheduling
from studies.headline.changes import Change
from studies.headline.mixed_load import COSTS, MixedLoad
from studies.headline.mixed_shares import of_services
from studies.headline.mixed_systems import MixedRecord

_DONE_S = 1e-6


@dataclass(frozen=True)
class Bound:
    """Slice-seconds of jobs' work while figures count.

    Attributes:
        as_cut_s: on the instances that there are.
        any_cut_s: on the same slices, cut at every moment as jobs ask for.
    """

    as_cut_s: float
    any_cut_s: float


@dataclass
class _Job:
    slices: float
    left_s: float


def bound(record: MixedRecord, load: MixedLoad) -> Bound:
    """What is done at most where replicas hold what they did in that run."""
    there = record.instances or load.instances
    held = [*of_services(record.services)]
    slices = {kind: count * COSTS[kind] / 1000 for kind, count in there.items()}
    each = (
        _work_s(record, load, {kind: of}, [one for one in held if one.name == kind])
        for kind, of in slices.items()
    )
    return Bound(sum(each), _work_s(record, load, slices, held))


def _work_s(
    record: MixedRecord, load: MixedLoad, slices: Mapping[str, float], held: Iterable[Change]
) -> float:
    """What jobs of these types do on as many slices, first come, first served."""
    coming = (
        (job.submit_s, 0.0, _Job(COSTS[kind] / 1000, job.run_s + Scheduling.complete_s))
        for job in sorted(record.site.jobs, key=lambda one: one.number)
        for kind, count in job.gpus.items()
        if kind in slices
        for _ in range(count)
    )
    taken = ((one.at_s, -one.held * COSTS[one.name] / 1000, None) for one in held)
    steps: list[tuple[float, float, _Job | None]] = [*coming, *taken, (load.end_s, 0.0, None)]
    steps.sort(key=lambda step: step[0])
    room, present, done_s, now_s = sum(slices.values()), list[_Job](), 0.0, load.begin_s
    for at_s, together in groupby(steps, key=lambda step: step[0]):
        until_s = min(at_s, load.end_s)
        while now_s < until_s:
            running = [*_running(present, room)]
            step_s = min([until_s - now_s, *(job.left_s for job in running)])
            counts_s = max(0.0, now_s + step_s - max(now_s, load.warm_s))
            done_s += counts_s * sum(job.slices for job in running)
            for job in running:
                job.left_s -= step_s
            if any(job.left_s <= _DONE_S for job in running):
                present = [job for job in present if job.left_s > _DONE_S]
            now_s += step_s
        for _, more, come in together:
            room += more
            if come is not None:
                present.append(come)
    return done_s


def _running(present: Sequence[_Job], room: float) -> Iterator[_Job]:
    """Those that came first, and of the others whoever has room beside them."""
    for job in present:
        if job.slices <= room:
            room -= job.slices
            yield job
        if room < 1:
            return
