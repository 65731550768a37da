"""Reads a history of jobs in any of the formats; its first line shows which it is."""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path

from slicewise.simulation.history import helios, helios_counts, philly
from slicewise.simulation.history.csv_rows import columns_of
from slicewise.simulation.history.helios_counts import read_helios_counts
from slicewise.simulation.history.lines import Line, UnreadLines, lines_of, opened
from slicewise.simulation.history.sacct import is_sacct, read_sacct
from slicewise.simulation.history.swf import is_swf, read_swf
from slicewise.simulation.history.ub_events import read_ub_events
from slicewise.simulation.rules.history.jobs import JobHistory

_WITHOUT_P = re.compile(r"\s*JobID(Raw)?\s", re.IGNORECASE)

Reader = Callable[[Iterable[Line], UnreadLines], JobHistory]


def read_history(path: Path, seed: int = 0) -> JobHistory:
    """Read the jobs of a file, which may be compressed (gzip, xz).

    ``seed`` is for Helios' counts, which are no jobs. Raises InvalidInputError (SW-INPUT-FILE)
    for a file that can't be read, is of no known format or has no job that can be read.
    """
    unread = UnreadLines(str(path))
    with opened(path) as file:
        lines: Iterator[Line] = lines_of(file, unread)
        first = next(lines, None)
        if first is None:
            raise unread.nothing(1, "the file is empty")
        reader = _reader_of(first[1], seed)
        if reader is None:
            raise unread.error(first[0], _why_none(first[1]))
        history = reader(chain([first], lines), unread)
    if not history.jobs:
        raise unread.nothing(first[0], _why_no_job(unread))
    return history


def _why_no_job(unread: UnreadLines) -> str:
    """What became of lines that are no job."""
    left_out = "; ".join(f"{lines} are left out: {why}" for why, lines in unread.left_out.items())
    return f"no job follows{f'; of its lines {left_out}' if left_out else ''}"


def _why_none(first: str) -> str:
    """What is wrong with a first line that is of no format."""
    if _WITHOUT_P.match(first):
        return "sacct cuts values in columns of fixed width: write the file by sacct -P"
    if first.lstrip().startswith("{"):
        return "it is JSON: write a history by sacct -P, with the columns that the page names"
    return "no format of job histories begins like this"


def _reader_of(first: str, seed: int) -> Reader | None:
    if first.startswith("-dt"):
        return read_ub_events
    if is_sacct(first):
        return read_sacct
    if is_swf(first):
        return read_swf
    columns = set(columns_of(first))
    by_columns: tuple[tuple[Iterable[str], Reader], ...] = (
        (helios_counts.COLUMNS, partial(read_helios_counts, seed=seed)),
        (helios.COLUMNS, helios.read_helios),
        (philly.PHILLY_COLUMNS, philly.read_philly),
        (philly.CHRONUS_COLUMNS, philly.read_chronus),
    )
    return next((reader for needed, reader in by_columns if columns.issuperset(needed)), None)
