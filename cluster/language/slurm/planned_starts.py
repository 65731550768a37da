"""Parses planned starts of waiting jobs, reservations, and the cores and GPUs that jobs have."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from slicewise.cluster.language.jobs import PlannedStart, ReservationView
from slicewise.cluster.language.slurm.unread import ReportsUnread, each
from slicewise.cluster.language.slurm.values import (
    gpu_indices,
    hosts,
    named,
    names,
    numbers,
    time_s,
    whole,
)

PLAN_FIELDS = ("JobId", "StartTime", "SchedNodes")
RESERVED_FIELDS = ("JobId", "Reservation")
"""Fields that ``squeue -O`` is asked for, as are PLAN_FIELDS."""
_IDS = r"\d{1,5}(?:-\d{1,5})?"
_CORES = re.compile(rf"^ +Nodes=([\w.-]+) CPU_IDs=({_IDS}(?:,{_IDS})*) Mem=", re.MULTILINE)
_DEVICES = re.compile(r"^ +Nodes=([\w.-]+) CPU_IDs=\S+ Mem=\S+ GRES=(\S+)$", re.MULTILINE)
_JOB = re.compile(r"^JobId=(\d{1,10}) ", re.MULTILINE)
_THREADS = re.compile(r"^(\S+) ([1-9][0-9]{0,3})$", re.MULTILINE)


def parse_plans(rows: Sequence[Mapping[str, str]], told: ReportsUnread) -> tuple[PlannedStart, ...]:
    """Planned starts of jobs that backfill has placed; equal ones of an array's tasks only once."""
    plans = each("plan", rows, _plan, told, lambda row: row["JobId"])
    starts = {plan for plan in plans if plan is not None}
    return tuple(sorted(starts, key=lambda plan: (plan.start_s, plan.job_id)))


def _plan(row: Mapping[str, str]) -> PlannedStart | None:
    start_s, nodes = time_s(row["StartTime"]), hosts(row["SchedNodes"])
    is_placed = start_s is not None and nodes
    return PlannedStart(whole(row["JobId"]), start_s or 0, nodes) if is_placed else None


def parse_reservations(text: str, told: ReportsUnread) -> tuple[ReservationView, ...]:
    """Read ``scontrol --oneliner show reservation``.

    A reservation that can't be read is left out: Slurm itself starts nothing in it.
    """
    lines = (line for line in text.splitlines() if "ReservationName=" in line)
    return tuple(each("reservation", lines, _reservation, told, lambda line: line.split()[0]))


def _reservation(line: str) -> ReservationView:
    fields = dict(re.findall(r"(\w+)=(\S*)", line))
    cores = re.findall(r" NodeName=(\S+) CoreIDs=(\S+)", line)
    return ReservationView(
        name=fields["ReservationName"],
        start_s=time_s(fields["StartTime"]) or 0,
        end_s=time_s(fields["EndTime"]) or 0,
        nodes=hosts(fields.get("Nodes", "")),
        flags=names(fields.get("Flags", "")),
        cores={node: frozenset(numbers(ids)) for node, ids in cores},
    )


def parse_reserved(
    rows: Sequence[Mapping[str, str]], told: ReportsUnread
) -> Mapping[int, frozenset[str]]:
    """Names of reservations by the job that runs in them, from rows with JobId and Reservation."""
    named_by = each("reserved job", rows, _reserved, told, lambda row: row["JobId"])
    return {job_id: those for job_id, those in named_by if those}


def _reserved(row: Mapping[str, str]) -> tuple[int, frozenset[str]]:
    return whole(row["JobId"]), names(named(row["Reservation"]))


def parse_cores(text: str, threads: Mapping[str, int]) -> Mapping[str, frozenset[int]]:
    """Cores of a job with one node, by node, from ``scontrol show job -d``.

    ``threads`` are threads per core, by node. The job's owner may have written such lines into its
    name, so a node that is in two lines is left out.
    """
    cores = _CORES.findall(text)
    count = Counter(node for node, _ in cores)
    return {
        node: frozenset(cpu // threads[node] for cpu in numbers(ids))
        for node, ids in cores
        if count[node] == 1 and node in threads
    }


def by_job(text: str) -> Mapping[int, str]:
    """Split ``scontrol show job`` of all jobs by job id.

    A user may have written a whole record into the name of a job, so an id that is in two is left
    out.
    """
    _, *parts = _JOB.split(text)
    ids = [whole(job_id) for job_id in parts[::2]]
    count = Counter(ids)
    return {
        i: cores_of_node for i, cores_of_node in zip(ids, parts[1::2], strict=True) if count[i] == 1
    }


def parse_devices(text: str) -> Mapping[str, frozenset[int]]:
    """Indices of a job's GPUs, by node, from ``scontrol show job -d``.

    Nodes that share a line are left out and, as with cores, those that are in two lines.
    """
    devices = _DEVICES.findall(text)
    count = Counter(node for node, _ in devices)
    return {node: gpu_indices(gres) for node, gres in devices if count[node] == 1}


def parse_threads(text: str) -> Mapping[str, int]:
    """Threads per core, by node, from ``sinfo --Node --format='%N %Z'``."""
    return {node: whole(threads) for node, threads in _THREADS.findall(text)}
