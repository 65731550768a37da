"""Reads the Standard Workload Format of the Parallel Workloads Archive: 18 numbers a job.

Its jobs have processors and no GPUs. ``;`` begins a comment; some say when time 0 was, and how many
nodes and processors the machine had.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from slicewise.simulation.history.csv_rows import count, seconds
from slicewise.simulation.history.lines import Line, UnreadLines, once, read_each
from slicewise.simulation.rules.history.jobs import HistoryJob, JobHistory, in_order

FIELDS = 18
_SAID = re.compile(
    r";\s*(?P<key>UnixStartTime|MaxNodes|MaxProcs)\s*:\s*(?P<number>[0-9]{1,10})(?![\w,.])",
    re.IGNORECASE,
)
_UNKNOWN = -1.0
_LONGEST_ID = 18
_CANCELLED = "5"
_PARTS = frozenset({"2", "3", "4"})
"""Status of a line with one of several runs of a job, which one with status 0 or 1 sums up."""
_OF_PARTS = "they have parts of jobs (status 2, 3, 4), which are summed up in a line each"
_OF_NO_JOB = "they have parts of jobs (status 2, 3, 4) that no line sums up"


def is_swf(first: str) -> bool:
    """Whether a file with this first line is of this format."""
    return first.lstrip().startswith(";") or _numbers(first)


def _numbers(text: str) -> bool:
    words = text.split()
    return len(words) == FIELDS and all(
        word.lstrip("-").replace(".", "", 1).isdecimal() for word in words
    )


@dataclass
class _Machine:
    """What comments say so far, and how many parts each job has.

    Attributes:
        said: numbers by the comment's key, in lower case.
        undated: jobs before a comment that says when time 0 was.
    """

    said: dict[str, int] = field(default_factory=dict)
    undated: int = 0
    parts: Counter[str] = field(default_factory=Counter)

    @property
    def on_a_node(self) -> int:
        """Processors of a node; 0 if that is not said."""
        nodes, processors = self.said.get("maxnodes", 0), self.said.get("maxprocs", 0)
        return -(-processors // nodes) if nodes else 0


def read_swf(lines: Iterable[Line], unread: UnreadLines) -> JobHistory:
    """Read the jobs; groups are accounts, and queues are partitions where no partition is said."""
    machine = _Machine()
    whole = read_each(_whole_jobs(lines, machine), lambda line: _job(line, machine), unread)
    jobs = once(in_order(whole), unread)
    if machine.undated:
        unread.assume(
            "No comment says when time 0 was: times of"
            f" {machine.undated} jobs are replayed from 1970 on."
        )
    if unsized := sum(not job.cpus for job in jobs):
        unread.assume(f"Of {unsized} jobs no number of processors is said: they take up none.")
    numbers = {str(job.job_id) for job in jobs} if machine.parts else set()
    for number, parts in machine.parts.items():
        unread.leave_out(_OF_PARTS if number in numbers else _OF_NO_JOB, parts)
    return unread.history(jobs)


def _whole_jobs(lines: Iterable[Line], machine: _Machine) -> Iterator[Line]:
    """Lines of jobs, without comments and without parts of jobs."""
    for number, text in lines:
        if text.lstrip().startswith(";"):
            if match := _SAID.match(text.lstrip()):
                machine.said[match["key"].lower()] = int(match["number"])
            continue
        words = text.split()
        if len(words) == FIELDS and words[10] in _PARTS:
            machine.parts[words[0]] += 1
        else:
            yield number, text


def _job(line: Line, machine: _Machine) -> HistoryJob:
    words = line[1].split()
    if len(words) != FIELDS:
        raise ValueError(f"{len(words)} numbers in place of {FIELDS}")
    submit, wait, run, allotted, _, used_kib, asked, limit, asked_kib, status = words[1:11]
    user, group, _, queue, partition = words[11:16]
    # More than were asked for is what came with whole nodes; fewer is no machine's promise.
    processors = max(_known(asked) or 0.0, _known(allotted) or 0.0)
    memory_kib = _known(asked_kib) or _known(used_kib) or 0.0
    wait_s, run_s, limit_s = _known(wait), _known(run), _known(limit)
    is_cancelled_waiting = status == _CANCELLED and not run_s
    if is_cancelled_waiting:
        run_s = wait_s
    if run_s is None:
        raise ValueError("no run time")
    if len(words[0]) > _LONGEST_ID:
        raise ValueError(f"no number of a job: {words[0]}")
    submit_s = machine.said.get("unixstarttime", 0) + seconds(submit)
    cpus, on_a_node = count(str(processors)), machine.on_a_node
    job_id = int(words[0])
    machine.undated += "unixstarttime" not in machine.said
    return HistoryJob(
        job_id=job_id,
        user=_name(user),
        account=_name(group),
        partition=_name(partition) or _name(queue),
        qos="",
        submit_s=submit_s,
        run_s=run_s,
        time_limit_s=int(limit_s or 0) or None,  # Nobody asks for 0 s.
        gpus={},
        nodes=-(-cpus // on_a_node) if on_a_node else 0,
        cpus=cpus,
        memory_mib=int(memory_kib * processors) >> 10,
        started_s=None if is_cancelled_waiting or wait_s is None else submit_s + wait_s,
        is_cancelled_waiting=is_cancelled_waiting,
    )


def _known(text: str) -> float | None:
    return None if float(text) == _UNKNOWN else seconds(text)


def _name(text: str) -> str:
    return "" if text == "-1" else text
