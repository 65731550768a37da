"""Reads and writes what accounting keeps of past jobs, with all that they asked for."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from sys import intern

from slicewise.cluster.language.gres import parse_tres
from slicewise.cluster.language.jobs import PastRun
from slicewise.cluster.language.slurm.parse import piped
from slicewise.cluster.language.slurm.unread import ReportsUnread, each
from slicewise.cluster.language.slurm.values import duration_s, named, time_s, unreadable

HISTORY_FIELDS = (
    "JobIDRaw",
    "JobID",
    "User",
    "Account",
    "QOS",
    "Partition",
    "Submit",
    "Eligible",
    "Start",
    "End",
    "State",
    "TimelimitRaw",
    "ElapsedRaw",
    "Suspended",
    "NNodes",
    "ReqTRES",
    "AllocTRES",
)
"""Fields that every version has. No user can write into them, but a coordinator names accounts."""

_ARRAY_OR_HET = re.compile(r"[_+]")
"""What follows the number in the id of an array's task, or of a part of a heterogeneous job."""
_LONGEST_ID = 18
_UNKNOWN = "Unknown"
_EVERYWHERE = ("billing", "cpu", "gres/", "mem", "node")


def parse_history(text: str, told: ReportsUnread) -> tuple[PastRun, ...]:
    """Read lines of ``sacct -D -X -P -n`` with ``HISTORY_FIELDS``; a bad line is left out."""
    rows = piped("run", text, HISTORY_FIELDS, told)
    return tuple(each("run", rows, past_run, told, lambda row: row["JobID"]))


def past_run(row: Mapping[str, str]) -> PastRun:
    """Read one row by sacct's names of its columns; only those of times and ids must be there.

    Names are kept once for all rows: there may be millions.

    Raises OutsideError (SW-SLURM-FAILED) or LookupError if it can't be read.
    """
    task = row.get("JobID") or row["JobIDRaw"]
    job_id = row.get("JobIDRaw") or _ARRAY_OR_HET.split(task, 1)[0]
    submit_s = time_s(row["Submit"])
    if not job_id.isdecimal() or len(job_id) > _LONGEST_ID or submit_s is None:
        raise unreadable("accounting", f"{task} submitted {row['Submit']}")
    start_s, end_s = time_s(row["Start"]), time_s(row["End"])
    return PastRun(
        job_id=int(job_id),
        task=task,
        user=intern(row.get("User", "")),
        account=intern(row.get("Account", "")),
        qos=intern(named(row.get("QOS", ""))),
        partition=intern(row.get("Partition", "")),
        submit_s=submit_s,
        eligible_s=time_s(row.get("Eligible", "")),
        start_s=start_s,
        end_s=end_s,
        state=intern(row["State"].partition(" ")[0]),
        time_limit_s=_limit_s(row),
        elapsed_s=_elapsed_s(row, start_s, end_s),
        nodes=_whole(row.get("NNodes", "")),
        requested=_tres(row.get("ReqTRES", "")),
        allotted=_tres(row.get("AllocTRES", "")),
    )


def _elapsed_s(row: Mapping[str, str], start_s: int | None, end_s: int | None) -> int | None:
    """Seconds by ElapsedRaw, by Elapsed, or else from start to end; None if they can't be known."""
    raw = row.get("ElapsedRaw", "")
    said = _number(raw) if raw.isdecimal() else _duration_s(raw or row.get("Elapsed", ""))
    if said is not None or start_s is None or end_s is None:
        return said
    ran_s = end_s - start_s - (duration_s(row.get("Suspended", "")) or 0)
    return ran_s if ran_s >= 0 else None


def _limit_s(row: Mapping[str, str]) -> int | None:
    """Seconds by TimelimitRaw, which has minutes, or by Timelimit; None is no limit of its own."""
    limit_text = row.get("TimelimitRaw", "")
    if limit_text.isdecimal():
        return 60 * _number(limit_text)
    return _duration_s(limit_text or row.get("Timelimit", ""))


def _duration_s(text: str) -> int | None:
    """Seconds of ``1-12:00:30``. A number alone has no unit that is known."""
    if text.isdecimal():
        raise unreadable("time without a unit", text)
    return duration_s(text)


def _number(text: str) -> int:
    if len(text) > _LONGEST_ID:
        raise unreadable("time", text)
    return int(text)


def _whole(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) <= _LONGEST_ID else 0


@lru_cache(1 << 14)
def _tres(text: str) -> Mapping[str, str]:
    return parse_tres(named(text))


def history_lines(runs: Iterable[PastRun]) -> Iterator[str]:
    """Write runs as ``sacct -P`` prints ``HISTORY_FIELDS``, the names of the columns first.

    Of the TRES only those that ``is_everywhere`` names.
    """
    yield "|".join(HISTORY_FIELDS)
    for run in runs:
        yield "|".join(_cells(run))


def _cells(run: PastRun) -> Sequence[str]:
    limit = "UNLIMITED" if run.time_limit_s is None else str(run.time_limit_s // 60)
    return (
        str(run.job_id),
        run.task,
        _word(run.user),
        _word(run.account),
        _word(run.qos),
        _word(run.partition),
        str(run.submit_s),
        _time_text(run.eligible_s),
        _time_text(run.start_s),
        _time_text(run.end_s),
        run.state,
        limit,
        "" if run.elapsed_s is None else str(run.elapsed_s),
        "",
        str(run.nodes),
        _tres_text(run.requested),
        _tres_text(run.allotted),
    )


def _word(text: str) -> str:
    return text.replace("|", "/")


def _time_text(unix_s: int | None) -> str:
    return _UNKNOWN if unix_s is None else str(unix_s)


def _tres_text(tres: Mapping[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in tres.items() if is_everywhere(name))


def is_everywhere(tres: str) -> bool:
    """Whether Slurm has the TRES at every site.

    Licences, burst buffers and the like have a site's own names; a licence may be named after the
    host of its server.
    """
    return tres.startswith(_EVERYWHERE)
