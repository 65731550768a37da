"""Reads events files of the University at Buffalo's Slurm simulator: one submission a line.

``-dt 11.00 -e submit_batch_job | -sim-walltime 2009 --uid=user003 -J jobid_3 -N 2 -n 18 -t
3-00:00:00 -q general-compute -p general-compute --mem=250G --gres=gpu:2 pseudo.job``
"""

import re
from collections.abc import Iterable, Mapping

from slicewise.cluster.language.gres import parse_gpu_requests
from slicewise.simulation.history.csv_rows import count, seconds
from slicewise.simulation.history.lines import Line, UnreadLines, read_each
from slicewise.simulation.rules.history.jobs import HistoryJob, JobHistory, in_order

_SUBMIT = "submit_batch_job"
_SHORT: Mapping[str, str] = {
    "-A": "account",
    "-N": "nodes",
    "-c": "cpus-per-task",
    "-n": "ntasks",
    "-p": "partition",
    "-q": "qos",
    "-sim-walltime": "sim-walltime",
    "-t": "time",
}
_NOTHING_FOLLOWS = frozenset({"--exclusive", "--requeue", "--no-requeue", "-H", "--hold"})
_MEMORY = re.compile(r"(?P<number>[0-9]{1,12})(?P<unit>[KMGT]?)B?")
_MIB = {"K": 2**-10, "": 1.0, "M": 1.0, "G": 2.0**10, "T": 2.0**20}
_TIME = re.compile(
    r"(?:(?P<days>[0-9]{1,6})-(?P<hours>[0-9]{1,6})(?P<rest>(?::[0-9]{1,6}){0,2})"
    r"|(?P<clock>[0-9]{1,9}(?::[0-9]{1,6}){0,2}))"
)
_UNITS_S = {1: (60,), 2: (60, 1), 3: (3600, 60, 1)}


def read_ub_events(lines: Iterable[Line], unread: UnreadLines) -> JobHistory:
    """Read the submissions; events of other kinds, such as cancellations, are counted as unread."""
    unread.assume("The file's times begin at 0: they are replayed from 1970 on.")
    return unread.history(in_order(read_each(lines, _job, unread)))


def _job(line: Line) -> HistoryJob:
    number, text = line
    head, _, submission = text.partition("|")
    event = _options(head.split(), {"-dt": "dt", "-e": "event"})
    if event.get("event") != _SUBMIT:
        raise ValueError(f"an event other than {_SUBMIT}")
    options = _options(submission.split(), _SHORT)
    nodes = max(1, count(options.get("nodes", "1").partition("-")[0]))
    gpus: dict[str, int] = {}
    for request in parse_gpu_requests(options.get("gres", "")):
        name = request.gres_type or ""
        gpus[name] = gpus.get(name, 0) + request.count * nodes
    tasks = count(options.get("ntasks", "1"))
    return HistoryJob(
        job_id=number,
        user=options.get("uid", ""),
        account=options.get("account", ""),
        partition=options.get("partition", ""),
        qos=options.get("qos", ""),
        submit_s=seconds(event["dt"]),
        run_s=seconds(options["sim-walltime"]),
        time_limit_s=_limit_s(options["time"]) if "time" in options else None,
        gpus=gpus,
        nodes=nodes,
        cpus=tasks * count(options.get("cpus-per-task", "1")),
        memory_mib=_memory_mib(options.get("mem", "0")) * nodes,
    )


def _options(words: list[str], short: Mapping[str, str]) -> Mapping[str, str]:
    """Options by their long names, from ``-n 18``, ``--mem=250G`` and ``--mem 250G``."""
    options: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        if word in _NOTHING_FOLLOWS or not word.startswith("-"):
            continue
        name, equals, value = word.partition("=")
        if not equals:
            value = next(rest, "")
        options[short.get(name, name.lstrip("-"))] = value
    return options


def _limit_s(text: str) -> int | None:
    """Seconds of sbatch's ``--time``: ``60`` (minutes), ``1:30:00``, ``3-00``, ``UNLIMITED``."""
    if text.upper() in {"UNLIMITED", "INFINITE"}:
        return None
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"no time limit: {text}")
    if match["clock"] is not None:
        parts = match["clock"].split(":")
        return sum(int(n) * s for n, s in zip(parts, _UNITS_S[len(parts)], strict=True))
    clock = [match["hours"], *match["rest"].split(":")[1:], "0", "0"]
    whole = sum(int(n) * s for n, s in zip(clock, (3600, 60, 1), strict=False))
    return int(match["days"]) * 86_400 + whole


def _memory_mib(text: str) -> int:
    match = _MEMORY.fullmatch(text.upper())
    if match is None:
        raise ValueError(f"no amount of memory: {text}")
    return int(int(match["number"]) * _MIB[match["unit"]])
