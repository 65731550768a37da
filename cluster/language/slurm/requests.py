"""Reads from ``squeue`` what a job's user asked for, in Slurm's words."""

from collections.abc import Mapping, Sequence

from slicewise.cluster.language.slurm.interface import JobRequest
from slicewise.cluster.language.slurm.unread import ReportsUnread, each
from slicewise.cluster.language.slurm.values import hosts, is_whole, whole

REQUEST_FIELDS = (
    "JobId",
    "tres-per-node",
    "tres-per-job",
    "tres-per-socket",
    "tres-per-task",
    "NumNodes",
    "NumTasks",
    "OverSubscribe",
    "Requeue",
)
"""Fields that ``squeue -O`` is asked for."""

EXCLUDED_FORMAT = "%A %x"
"""Job id and excluded nodes, as ``squeue -o`` takes it: ``-O`` has no such field."""

_NOTHING = frozenset({"N/A", "(null)", "gres:", "gres/"})


def parse_requests(
    rows: Sequence[Mapping[str, str]], told: ReportsUnread
) -> Mapping[int, JobRequest]:
    """Requests by job id; the untouched tasks of an array share one."""
    return dict(each("request", rows, _request, told, lambda row: row["JobId"]))


def parse_excluded(text: str, told: ReportsUnread) -> Mapping[int, frozenset[str]]:
    """Excluded nodes by job id; a job whose list can't be read is left out."""
    rows = [line.partition(" ") for line in text.splitlines() if line.strip()]
    return dict(each("excluded nodes", rows, _excluded, told, lambda row: row[0]))


def _excluded(row: tuple[str, str, str]) -> tuple[int, frozenset[str]]:
    return whole(row[0]), frozenset(hosts(row[2].strip()))


def _request(row: Mapping[str, str]) -> tuple[int, JobRequest]:
    return whole(row["JobId"]), JobRequest(
        gres=_text(row["tres-per-node"]),
        tres_per_job=_text(row["tres-per-job"]),
        tres_per_socket=_text(row["tres-per-socket"]),
        tres_per_task=_text(row["tres-per-task"]),
        min_nodes=_least(row["NumNodes"]),
        tasks=_least(row["NumTasks"]),
        exclusive=row["OverSubscribe"] == "NO",
        requeue=row["Requeue"] == "1",
    )


def _text(value: str) -> str:
    return "" if value in _NOTHING else value


def _least(value: str) -> int | None:
    """The smallest number of ``2`` or ``1-2``; None if there is no number."""
    first = value.split("-", maxsplit=1)[0]
    return whole(first) if is_whole(first) else None
