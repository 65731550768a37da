"""Reads from ``sprio`` what each pending job's priority is made of, as Slurm has it now."""

from collections.abc import Collection, Mapping

from slicewise.cluster.language.slurm.interface import PriorityRow
from slicewise.cluster.language.slurm.unread import ReportsUnread, each
from slicewise.cluster.language.slurm.values import plain, weights, whole

_PARTS = {
    "age": "A",
    "assoc": "B",
    "fairshare": "F",
    "jobsize": "J",
    "partition": "P",
    "qos": "Q",
    "nice": "N",
}
"""sprio's letters for the parts of a priority, which are added; only nice is subtracted."""
_WEIGHTS = {
    "age": "Age",
    "assoc": "Assoc",
    "fairshare": "FairShare",
    "jobsize": "JobSize",
    "partition": "Partition",
    "qos": "QOS",
    "tres": "TRES",
}

PRIORITY_FORMAT = "|".join(f"%{letter}" for letter in ("i", "Y", "S", *_PARTS.values(), "T"))
"""The format for ``sprio -o``. No part of it is text of a user."""


def parse_priorities(
    text: str, job_ids: Collection[int], told: ReportsUnread
) -> tuple[PriorityRow, ...]:
    """Read rows of ``sprio -h -o``; of a job in several partitions, that of the highest priority.

    Rows are chosen here because newer versions' ``-j`` with several ids finds only the first.
    """
    wanted = frozenset(job_ids)
    rows_by_job: dict[int, PriorityRow] = {}
    lines = text.splitlines()
    for row in each("priority", lines, _row, told, lambda line: line.split("|")[0]):
        row_before = rows_by_job.get(row.job_id)
        if row.job_id in wanted and (row_before is None or row_before.priority < row.priority):
            rows_by_job[row.job_id] = row
    return tuple(rows_by_job.values())


def factor_weights(config: Mapping[str, str]) -> Mapping[str, str]:
    """slurm.conf's PriorityWeight... by the names of a row's parts; "" where none is set.

    The weight of TRES is a list: ``CPU=1000,Mem=2000``.
    """
    return {name: plain(config.get(f"PriorityWeight{key}", "")) for name, key in _WEIGHTS.items()}


def weight_points(weight: str) -> int:
    """What a factor of this weight can add at most."""
    return round(sum(weights(weight if "=" in weight else f"all={weight or 0}").values()))


def _row(line: str) -> PriorityRow:
    job_id, priority, site, *parts, weighted = line.split("|")
    amounts = {name: whole(part) for name, part in zip(_PARTS, parts, strict=True)}
    amounts["tres"] = round(sum(weights(weighted.strip()).values()))
    return PriorityRow(whole(job_id), whole(priority), whole(site), amounts)
