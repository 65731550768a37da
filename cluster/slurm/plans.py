"""What Slurm has planned: starts of waiting jobs, reservations."""

import re
from collections.abc import Mapping, Sequence

from cluster.jobs import PlannedStart, ReservationView
from cluster.slurm.values import hosts, names, time_s

PLAN_FIELDS = ("JobId", "StartTime", "SchedNodes")
"""What ``squeue -O`` is asked for."""


def parse_plans(rows: Sequence[Mapping[str, str]]) -> tuple[PlannedStart, ...]:
    """Those for which backfill has found a place; an array's tasks with the same one, once."""
    found = {
        PlannedStart(int(row["JobId"]), start_s, nodes)
        for row in rows
        if (start_s := time_s(row["StartTime"])) is not None and (nodes := hosts(row["SchedNodes"]))
    }
    return tuple(sorted(found, key=lambda plan: (plan.start_s, plan.job_id)))


def parse_reservations(text: str) -> tuple[ReservationView, ...]:
    """``scontrol --oneliner show reservation``."""
    found = (dict(re.findall(r"(\w+)=(\S*)", line)) for line in text.splitlines())
    return tuple(_reservation(one) for one in found if "ReservationName" in one)


def _reservation(found: Mapping[str, str]) -> ReservationView:
    return ReservationView(
        name=found["ReservationName"],
        start_s=time_s(found["StartTime"]) or 0,
        end_s=time_s(found["EndTime"]) or 0,
        nodes=hosts(found.get("Nodes", "")),
        flags=names(found.get("Flags", "")),
    )
