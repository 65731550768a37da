"""Reads jobs of SenseTime's Helios traces, as published: one row a job."""

from collections.abc import Iterable

from slicewise.simulation.history.csv_rows import Row, count, moment_s, read_rows, seconds
from slicewise.simulation.history.lines import Line, UnreadLines, once
from slicewise.simulation.rules.history.jobs import ENDS_FIRST, HistoryJob, JobHistory, in_order

_LONGEST_ID = 18
COLUMNS = ("job_id", "user", "vc", "gpu_num", "node_num", "state", "submit_time", "duration")


def read_helios(lines: Iterable[Line], unread: UnreadLines) -> JobHistory:
    """Read the jobs; virtual clusters are accounts and partitions, as Helios had them."""

    def read(number: int, row: Row) -> HistoryJob | None:
        return _job(number, row, unread)

    return unread.history(once(in_order(read_rows(lines, COLUMNS, read, unread)), unread))


def _job(number: int, row: Row, unread: UnreadLines) -> HistoryJob | None:
    submit_s = moment_s(row["submit_time"], unread)
    started_s = moment_s(row.get("start_time", ""), unread)
    if submit_s is None:
        raise ValueError("no time of submission")
    is_cancelled_waiting = started_s is None and row["state"].startswith("CANCELLED")
    ended_s = moment_s(row.get("end_time", ""), unread) if is_cancelled_waiting else None
    if ended_s is not None and ended_s < submit_s:
        unread.leave_out(ENDS_FIRST)
        return None
    gpus = count(row["gpu_num"])
    job_id = row["job_id"]
    return HistoryJob(
        job_id=int(job_id) if job_id.isdecimal() and len(job_id) <= _LONGEST_ID else number,
        user=row["user"],
        account=row["vc"],
        partition=row["vc"],
        qos="",
        submit_s=submit_s,
        run_s=seconds(row["duration"]) if ended_s is None else ended_s - submit_s,
        time_limit_s=None,
        gpus={"": gpus} if gpus else {},
        nodes=max(1, count(row["node_num"])),
        cpus=count(row.get("cpu_num") or "0"),
        started_s=started_s,
        is_cancelled_waiting=is_cancelled_waiting,
    )
