"""The loads: jobs of public clusters by virtual cluster, and how many GPUs each of them has.

studies/headline/README.md says what each trace is and where it comes from. The traces are not in
this repository: SLICEWISE_CLUSTER_TRACES says where they lie.
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path

from slicewise.simulation.history.csv_rows import count, read_rows
from slicewise.simulation.history.formats import read_history
from slicewise.simulation.history.helios_counts import COLUMNS
from slicewise.simulation.history.lines import UnreadLines, lines_of, opened
from slicewise.simulation.rules.history.jobs import HistoryJob

GPUS_OF_NODE = 8
GPU = "v100"
HELIOS = "helios_earth_2020-05_vc_minute.csv.xz"
PHILLY = "philly_elasticflow.csv.xz"
PHILLY_TARGET = 0.8
"""Mean demand of a virtual cluster as a share of the GPUs that it gets: Philly's are not known."""
PHILLY_DAYS = (42.0, 70.0)
"""Which days of the trace are replayed: the four weeks that ask for most GPUs."""
_HOUR_S, _DAY_S = 3600, 86_400.0
_MOST_TIMES = 4.0
"""Times the real run time, at most, that a job asks for; nobody knows what was asked for."""
_MOST_SPREAD = 2
"""Times the fewest nodes, at most, over which a job is spread so that all have as many GPUs."""


@dataclass(frozen=True)
class Minute:
    """What was counted of one virtual cluster at the end of a minute."""

    running_gpus: int
    waiting_gpus: int


@dataclass(frozen=True)
class Load:
    """Jobs, and the cluster that they came to.

    Attributes:
        gpus: of each virtual cluster: its own nodes, and what is guaranteed to it.
        begin_s, end_s: Unix seconds between which jobs come.
        has_nodes: whether jobs go over nodes of eight GPUs; else each virtual cluster is one node,
            and so is the pool.
        recorded: what was counted at the end of each minute since ``begin_s``, by virtual cluster;
            empty where nothing was.
    """

    name: str
    jobs: tuple[HistoryJob, ...] = field(hash=False)
    gpus: Mapping[str, int] = field(hash=False)
    begin_s: float
    end_s: float
    has_nodes: bool = True
    recorded: Mapping[str, Sequence[Minute]] = field(default_factory=dict, hash=False)


def helios(folder: Path, seed: int, days: float | None = None) -> Load:
    """Helios' Earth in May 2020; a virtual cluster has the most GPUs that ever ran or were idle.

    Jobs are made of counts, which say nothing of nodes: placed on nodes of eight they would wait
    for nodes as Helios' jobs did not.
    """
    path = folder / HELIOS
    gpus: defaultdict[str, int] = defaultdict(int)
    recorded: defaultdict[str, list[Minute]] = defaultdict(list)
    unread = UnreadLines(str(path))
    with opened(path) as file:
        lines = lines_of(file, unread)
        for name, has, minute in read_rows(lines, (*COLUMNS, "idle_gpu"), _minute, unread):
            gpus[name] = max(gpus[name], has)
            recorded[name].append(minute)
    history = read_history(path, seed)
    whole_s = 60.0 * max(len(minutes) for minutes in recorded.values())
    end_s = whole_s if days is None else min(whole_s, days * _DAY_S)
    return Load(
        name="helios",
        jobs=ready(history.jobs, seed, 0.0, end_s, has_nodes=False),
        gpus=dict(gpus),
        begin_s=0.0,
        end_s=end_s,
        has_nodes=False,
        recorded=recorded,
    )


def _minute(_: int, row: Mapping[str, str]) -> tuple[str, int, Minute]:
    running, idle = count(row["running_gpu"]), count(row["idle_gpu"])
    return row["vc"].lower(), running + idle, Minute(running, count(row["pending_gpu"]))


def philly(folder: Path, seed: int, days: float | None = None) -> Load:
    """Philly's jobs of four weeks of 2017, on virtual clusters of the size that ``sized`` says."""
    jobs = read_history(folder / PHILLY, seed).jobs
    first, last = PHILLY_DAYS
    begin_s, last_s = (jobs[0].submit_s + day * _DAY_S for day in (first, last))
    end_s = last_s if days is None else min(last_s, begin_s + days * _DAY_S)
    gpus = sized([job for job in jobs if begin_s <= job.submit_s < last_s], last_s - begin_s)
    return Load("philly", ready(jobs, seed, begin_s, end_s), gpus, begin_s, end_s)


def sized(
    jobs: Sequence[HistoryJob], span_s: float, target: float = PHILLY_TARGET
) -> Mapping[str, int]:
    """Whole nodes for each virtual cluster: its mean demand is ``target`` of them, or less.

    Each has room for its largest job.
    """
    demand_s: defaultdict[str, float] = defaultdict(float)
    largest: defaultdict[str, int] = defaultdict(int)
    for job in jobs:
        wanted = sum(job.gpus.values())
        demand_s[job.account] += wanted * job.run_s
        nodes, each = spread(wanted)
        largest[job.account] = max(largest[job.account], nodes if each else 0)
    return {
        name: GPUS_OF_NODE
        * max(1, largest[name], ceil(demand_s[name] / span_s / target / GPUS_OF_NODE))
        for name in sorted(demand_s)
    }


def ready(
    jobs: Iterable[HistoryJob], seed: int, begin_s: float, end_s: float, *, has_nodes: bool = True
) -> tuple[HistoryJob, ...]:
    """The jobs with GPUs that come between both times, each with a time limit."""
    rng = random.Random(seed)  # noqa: S311 -- not for secrets
    found = []
    for job in jobs:
        # Drawn for all, so that a shorter span has the same jobs.
        limit_s = drawn_limit_s(job.run_s, rng)
        wanted = sum(job.gpus.values())
        if wanted and begin_s <= job.submit_s < end_s:
            nodes, each = spread(wanted) if has_nodes else (1, wanted)
            name = job.account.lower()
            one = replace(
                job,
                account=name,
                user=name,
                gpus={GPU: nodes * each},
                nodes=nodes,
                time_limit_s=limit_s,
            )
            found.append(one)
    return tuple(found)


def drawn_limit_s(run_s: float, rng: random.Random) -> int:
    """A time limit for a job of which nobody knows what it asked for: whole hours."""
    return _HOUR_S * ceil(run_s * rng.uniform(1.0, _MOST_TIMES) / _HOUR_S)


def whole_gpus_job(
    number: int, tenant: str, at_s: float, gpus: int, *, run_s: float, limit_s: int
) -> HistoryJob:
    """A job of a tenant that asks for so many GPUs, over nodes of eight."""
    nodes, each = spread(gpus)
    return HistoryJob(
        job_id=number,
        user=tenant,
        account=tenant,
        partition="",
        qos="",
        submit_s=at_s,
        run_s=run_s,
        time_limit_s=limit_s,
        gpus={GPU: nodes * each},
        nodes=nodes,
    )


def spread(gpus: int) -> tuple[int, int]:
    """Over how many nodes a job goes, and its GPUs on each.

    The same number on each, as most jobs ask for; what can't be divided so is rounded up.
    """
    fewest = ceil(gpus / GPUS_OF_NODE)
    for nodes in range(fewest, _MOST_SPREAD * fewest + 1):
        if nodes and gpus % nodes == 0:
            return nodes, gpus // nodes
    return fewest, ceil(gpus / fewest) if fewest else 0
