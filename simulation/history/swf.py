"""Reads the Standard Workload Format of the Parallel Workloads Archive: 18 numbers a job.

Its jobs have CPUs and no GPUs. ``;`` begins a comment; UnixStartTime in one is the time of 0.
"""

import re
from collections.abc import Iterable, Iterator

from simulation.history.csv_rows import count, seconds
from simulation.history.jobs import HistoryJob, JobHistory, in_order
from simulation.history.lines import Line, UnreadLines, read_each

FIELDS = 18
_START = re.compile(r";\s*UnixStartTime:\s*(?P<unix_s>[0-9]{1,10})\b")
_UNKNOWN = -1.0
_CANCELLED = "5"


def is_swf(first: str) -> bool:
    """Whether a file with this first line is of this format."""
    return first.startswith(";") or _numbers(first)


def _numbers(text: str) -> bool:
    words = text.split()
    return len(words) == FIELDS and all(
        word.lstrip("-").replace(".", "", 1).isdecimal() for word in words
    )


def read_swf(lines: Iterable[Line], unread: UnreadLines) -> JobHistory:
    """Read the jobs; groups are accounts, and queues are partitions where no partition is said."""
    start = [0.0]
    jobs = in_order(
        read_each(_without_comments(lines, start), lambda line: _job(line, start[0]), unread)
    )
    return JobHistory(jobs, unread.count, unread.first)


def _without_comments(lines: Iterable[Line], start: list[float]) -> Iterator[Line]:
    for number, text in lines:
        if not text.startswith(";"):
            yield number, text
        elif found := _START.match(text):
            start[0] = float(found["unix_s"])


def _job(line: Line, start_s: float) -> HistoryJob:
    words = line[1].split()
    if len(words) != FIELDS:
        raise ValueError(f"{len(words)} numbers in place of {FIELDS}")
    submit, wait, run, allotted, _, used_kib, asked, limit, asked_kib, status = words[1:11]
    user, group, _, queue, partition = words[11:16]
    processors = _known(asked) or _known(allotted) or 0.0
    memory_kib = _known(asked_kib) or _known(used_kib) or 0.0
    wait_s, run_s, limit_s = _known(wait), _known(run), _known(limit)
    is_cancelled_waiting = status == _CANCELLED and not run_s
    if is_cancelled_waiting:
        run_s = wait_s
    if run_s is None:
        raise ValueError("no run time")
    submit_s = start_s + seconds(submit)
    return HistoryJob(
        job_id=int(words[0][:18]),
        user=_name(user),
        account=_name(group),
        partition=_name(partition) or _name(queue),
        qos="",
        submit_s=submit_s,
        run_s=run_s,
        time_limit_s=None if limit_s is None else int(limit_s),
        gpus={},
        cpus=count(str(processors)),
        memory_mib=int(memory_kib * processors) >> 10,
        started_s=None if is_cancelled_waiting or wait_s is None else submit_s + wait_s,
        is_cancelled_waiting=is_cancelled_waiting,
    )


def _known(text: str) -> float | None:
    return None if float(text) == _UNKNOWN else seconds(text)


def _name(text: str) -> str:
    return "" if text == "-1" else text
