"""Finds the GPUs of a job for whose type its TRES have no name.

Slurm writes a job's TRES when the job is submitted and when it starts, with the types that
AccountingStorageTRES names then. A type that is named there later is in no TRES of a job that was
running before, nor in those of one that waits until it starts, and no limit counts it. What a job
asks for names the type, and so does what it was given.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.gres import (
    ALL_GPUS,
    SHARED,
    GpuRequest,
    gpu_types_of_tres,
    parse_gpu_requests,
    parse_shared,
)
from slicewise.cluster.language.slurm.values import gpu_counts, shared_counts, untyped_gpus

_GIVEN = re.compile(r"^ +JOB_GRES=(\S+)$", re.MULTILINE)
_ASKED = re.compile(r"^ +TresPer(Node|Job|Socket|Task)=(\S+)$", re.MULTILINE)
_TASKS = re.compile(r"^ +NumNodes=\S+ NumCPUs=\S+ NumTasks=(\d{1,9}) ", re.MULTILINE)


@dataclass(frozen=True)
class AskedGpus:
    """What a job asks for, in Slurm's own text; ``tasks`` is how many tasks it has."""

    per_node: str = ""
    per_job: str = ""
    per_socket: str = ""
    per_task: str = ""
    tasks: int = 1

    @property
    def may_share(self) -> bool:
        """Whether it may ask for GPUs that jobs share, which Slurm counts apart."""
        return any(name in self.per_node for name in SHARED)


@dataclass(frozen=True)
class GpusOfJob:
    """The GPUs of a job.

    Attributes:
        tres: what Slurm says; where it counts no GPUs at all, also how many there are.
        unnamed: instances by GPU type that ``tres`` does not name.
    """

    tres: Mapping[str, str]
    unnamed: Mapping[str, int]


def gpus_of_job(tres: Mapping[str, str], asked: AskedGpus, given: str = "") -> GpusOfJob:
    """Complete a job's ``tres`` by what it asks for and, once it runs, by what it was ``given``.

    ``given`` is text such as ``gpu:1g.10gb:2,gpu:3g.40gb:1``, of all nodes together; it counts
    before what is asked for.
    """
    if names_all(tres) and not asked.may_share:
        return GpusOfJob(tres, {})
    named = gpu_types_of_tres(tres)
    counted = _gpus(named)
    total = int(tres[ALL_GPUS]) if ALL_GPUS in tres else None
    if given:
        counts = Counter({**gpu_counts(given), **shared_counts(given), "": untyped_gpus(given)})
    else:
        counts = _asked_for(asked, max(1, int(tres.get("node", "1"))))
    untyped = counts.pop("", 0)
    unnamed = {kind: count for kind, count in counts.items() if count and kind not in named}
    kinds = [kind for kind in unnamed if kind not in SHARED]
    if total is None:
        total = counted + sum(unnamed[kind] for kind in kinds) + untyped
        tres = {**tres, ALL_GPUS: str(total)} if total else tres
    if len(kinds) == 1 and not untyped:
        # Slurm knows how many sockets and tasks there are.
        unnamed[kinds[0]] = total - counted
    elif total <= counted:
        unnamed = {kind: unnamed[kind] for kind in unnamed.keys() - kinds}
    return GpusOfJob(tres, {kind: count for kind, count in unnamed.items() if count > 0})


def names_all(tres: Mapping[str, str]) -> bool:
    """Whether TRES count GPUs, and name the type of each."""
    return ALL_GPUS in tres and int(tres[ALL_GPUS]) == _gpus(gpu_types_of_tres(tres))


def _gpus(counts: Mapping[str, int]) -> int:
    return sum(count for kind, count in counts.items() if kind not in SHARED)


def _asked_for(asked: AskedGpus, nodes: int) -> Counter[str]:
    """Instances by type; those of no type by "". Each text says all: the first that is set counts.

    A socket counts as a node: how many there are is not shown.
    """
    several = (
        (asked.per_job, 1),
        (asked.per_node, nodes),
        (asked.per_task, max(1, asked.tasks)),
        (asked.per_socket, nodes),
    )
    for text, times in several:
        if parts := _parts(text):
            counts = Counter[str]()
            for part in parts:
                counts[part.gres_type or ""] += part.count * times
            return counts
    return Counter()


def _parts(text: str) -> tuple[GpuRequest, ...]:
    """The parts of a text that ask for GPUs; () if they can't be read, such as ``gpu:1k``."""
    try:
        return (*parse_gpu_requests(text), *parse_shared(text)) if text else ()
    except InvalidInputError:
        return ()


def shown_gpus(tres: Mapping[str, str], text: str, *, has_begun: bool) -> GpusOfJob | None:
    """Complete a job's ``tres`` by ``scontrol show job -d`` of this job alone.

    The job's owner may have written such lines into its name: None where one is there twice.
    """
    given = set(_GIVEN.findall(text)) if has_begun else set[str]()
    asked = set(_ASKED.findall(text))
    per, tasks = dict(asked), _TASKS.search(text)
    if len(given) > 1 or len(per) < len(asked):
        return None
    node, job, socket, task = (per.get(what, "") for what in ("Node", "Job", "Socket", "Task"))
    request = AskedGpus(node, job, socket, task, int(tasks[1]) if tasks else 1)
    return gpus_of_job(tres, request, next(iter(given), ""))
