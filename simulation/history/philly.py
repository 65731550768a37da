"""Reads two published extracts of Microsoft's Philly traces, which have no waits and no users.

One is ElasticFlow's (``timestamp,duration,num_gpus,gpu_time,cluster``), where ``cluster`` is the
virtual cluster; the other is Chronus', with the virtual cluster as ``user`` and times from 0 on.
"""

from collections.abc import Iterable, Iterator

from slicewise.simulation.history.csv_rows import Row, count, moment_s, read_rows, seconds
from slicewise.simulation.history.lines import Line, UnreadLines, once
from slicewise.simulation.rules.history.jobs import HistoryJob, JobHistory, even_nodes, in_order

PHILLY_COLUMNS = ("timestamp", "duration", "num_gpus", "cluster")
CHRONUS_COLUMNS = ("job_id", "user", "num_gpu", "submit_time", "duration")
_ON_A_NODE = 8
"""GPUs of most of Philly's nodes."""


def read_philly(lines: Iterable[Line], unread: UnreadLines) -> JobHistory:
    """Read ElasticFlow's extract; jobs are numbered by their lines."""

    def read(number: int, row: Row) -> HistoryJob:
        submit_s = moment_s(row["timestamp"], unread)
        if submit_s is None:
            raise ValueError("no time of submission")
        return _job(number, row["cluster"], submit_s, row["duration"], row["num_gpus"])

    return _history(read_rows(lines, PHILLY_COLUMNS, read, unread), unread)


def read_chronus(lines: Iterable[Line], unread: UnreadLines) -> JobHistory:
    """Read Chronus' extract."""

    def read(_: int, row: Row) -> HistoryJob:
        submit_s = seconds(row["submit_time"])
        job_id = int(row["job_id"][:18])
        return _job(job_id, row["user"], submit_s, row["duration"], row["num_gpu"])

    unread.assume("The trace's times begin at 0: they are replayed from 1970 on.")
    return _history(read_rows(lines, CHRONUS_COLUMNS, read, unread), unread)


def _history(jobs: Iterator[HistoryJob], unread: UnreadLines) -> JobHistory:
    unread.assume(f"GPUs of a job are spread over nodes of {_ON_A_NODE}: the trace names no nodes.")
    return unread.history(once(in_order(jobs), unread))


def _job(job_id: int, account: str, submit_s: float, run: str, gpus: str) -> HistoryJob:
    wanted = count(gpus)
    return HistoryJob(
        job_id=job_id,
        user="",
        account=account,
        partition="",
        qos="",
        submit_s=submit_s,
        run_s=seconds(run),
        time_limit_s=None,
        gpus={"": wanted} if wanted else {},
        nodes=even_nodes(wanted, _ON_A_NODE),
    )
