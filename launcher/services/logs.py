"""Reads the logs of a service's replicas: files that Slurm writes as its user, one for each slot.

That user can put anything in their place, so no reader waits for a file, or takes all of it into
memory, and root reads as that user.
"""

import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.printable import printable
from slicewise.cluster.language.service import can_follow
from slicewise.cluster.rpc.messages import ServiceView
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.launcher.rules.engines.engine import Engine
from slicewise.launcher.rules.engines.failed_start import cause
from slicewise.launcher.rules.engines.registry import engine_of
from slicewise.launcher.services.plain_file import as_user, open_file
from slicewise.launcher.services.service_file import logs_of

_CHUNK_BYTES = 65_536
_MOST_BYTES = 4 * 1024 * 1024
"""Bytes read of one log at a time."""
_START = b" starting on "
"""Part of the first line that a run's batch script writes."""
_BEGINS = re.compile(rb"[0-9-]+T[0-9:+-]+ \S+ starting on ")
_TIME = re.compile(rb"[0-9]{4}-[0-9-]{5}T[0-9:]{8}[+-][0-9]{4}")
"""What the batch script begins its lines with."""
_COLOURS = re.compile(rb"\x1b\[[0-9;]*m")
"""What servers begin and end coloured words with."""
_NOTICE = re.compile(r"srun:|\s*$|[0-9-]+T[0-9:+-]+ \S+\.[0-9]+\.[0-9]+ ")
"""Lines that explain no failure: srun's message about its end, what the script says."""
_LINE_LENGTH = 130
_UNDER_WAY = frozenset({"starting", "running", "ending"})


@dataclass(frozen=True)
class Line:
    """One line of a slot's log, without characters that control a terminal."""

    slot: int
    line: str


Q = ParamSpec("Q")
T = TypeVar("T")


def _as_its_user(
    read: Callable[Concatenate[ServiceView, Q], T],
) -> Callable[Concatenate[ServiceView, Q], T]:
    @wraps(read)
    def reading(view: ServiceView, /, *others: Q.args, **named: Q.kwargs) -> T:
        try:
            with as_user(view.user):
                return read(view, *others, **named)
        except OSError as error:
            raise _no_logs(view, str(error.strerror)) from None

    return reading


def log_file(view: ServiceView, index: int) -> Path:
    """Return the file into which Slurm writes the slot's log.

    ``service apply`` says another place than the batch script, which can't make a directory before
    Slurm opens the file.
    """
    where, slot = Path(view.directory), f"{view.array_job_id}_{index}.log"
    scripted = where / f"{view.name}-{slot}"
    with suppress(OSError):
        if scripted.exists():
            return scripted
    return where / logs_of(view.name) / slot


def _earlier(log: Path) -> Path:
    """Return the file that has what the batch script has cut off the log last."""
    return log.with_name(f"{log.name}.1")


def followed_generation(living: Sequence[ServiceView]) -> ServiceView:
    """Return the generation with logs to show, of those that live, the newest first.

    That is the newest, unless its replicas are those of one before it: they have only loaded other
    adapters.
    """
    newest = living[0]
    current = (service for service in living if can_follow(service.directives, newest.directives))
    runs = (
        service
        for service in (newest, *current)
        if any(s.state in _UNDER_WAY for s in service.slots)
    )
    return next(runs, newest)


@_as_its_user
def chosen_slots(view: ServiceView, slot: int | None) -> tuple[int, ...]:
    """Return the given slot; else those under way that have a log, else the one last written.

    Raises InvalidInputError (SW-NOTHING) if there is nothing to read.
    """
    if slot is not None:
        return (_require_slot(view, slot),)
    written = _written(view)
    running = tuple(s.index for s in view.slots if s.state in _UNDER_WAY and s.index in written)
    if not written:
        raise _no_logs(view, "no replica has written one, or this host does not see them")
    return running or (max(written, key=written.__getitem__),)


def _require_slot(view: ServiceView, slot: int) -> int:
    if not 0 <= slot < len(view.slots):
        raise InvalidInputError(
            Code.NAME_UNKNOWN,
            f"--slot {slot}: there is no such slot.",
            f"Its array has the slots 0 to {len(view.slots) - 1}.",
        )
    return slot


def _written(view: ServiceView) -> Mapping[int, float]:
    """Return when each log was last written, by slot."""
    modified_s: dict[int, float] = {}
    for slot in view.slots:
        try:
            modified_s[slot.index] = log_file(view, slot.index).stat().st_mtime
        except OSError:
            continue
    return modified_s


def _no_logs(view: ServiceView, why: str) -> InvalidInputError:
    return InvalidInputError(
        Code.NOTHING,
        f"No log of {view.tenant}/{view.name} (array job {view.array_job_id}) can be read: {why}.",
        f"The logs are {log_file(view, 0).parent.name}/{view.array_job_id}_SLOT.log in "
        f"{view.directory or 'its directory'}, and belong to {view.user}.",
    )


Offsets = Mapping[int, int]
"""Bytes read so far, by slot."""


@dataclass(frozen=True)
class Chosen:
    """Which lines of a log are wanted.

    Attributes:
        count: most lines; None: all.
        since_s: only lines written from this time on, Unix seconds; None: all.
        previous: only lines of the run before the last one.
    """

    count: int | None
    since_s: float | None = None
    previous: bool = False

    @property
    def needs_all(self) -> bool:
        """Whether the lines wanted may be anywhere in the log."""
        return self.count is None or self.since_s is not None or self.previous


@_as_its_user
def last_lines(
    view: ServiceView, slots: Iterable[int], chosen: Chosen
) -> tuple[tuple[Line, ...], Offsets]:
    """Return the chosen lines at the end of each log, and how far they reach.

    Raises InvalidInputError (SW-NOTHING) for a log that can't be read.
    """
    lines: list[Line] = []
    reached: dict[int, int] = {}
    for index in slots:
        try:
            texts, reached[index] = _ending(log_file(view, index), chosen)
        except OSError as error:
            raise _no_logs(view, f"slot {index}: {error.strerror}") from None
        if chosen.previous:
            texts = _run_before(texts)
        if chosen.since_s is not None:
            texts = _written_since(texts, chosen.since_s, engine_of(view.directives))
        kept = texts if chosen.count is None else texts[max(0, len(texts) - chosen.count) :]
        lines += (Line(index, plain(text)) for text in kept)
    return tuple(lines), reached


def _ending(log: Path, chosen: Chosen) -> tuple[list[bytes], int]:
    """Return a log's last lines, with those that were cut off it if there are not enough."""
    count = _MOST_BYTES if chosen.needs_all or chosen.count is None else chosen.count
    texts, end = _tail(log, count)
    if len(texts) < count:
        with suppress(OSError):
            texts = [*_tail(_earlier(log), count - len(texts))[0], *texts]
    return texts, end


def _run_before(texts: Sequence[bytes]) -> list[bytes]:
    """Return the lines of the run before the last one; none if there was no such run."""
    starts = [number for number, text in enumerate(texts) if _BEGINS.match(text)]
    if not starts:
        return []
    return list(texts[starts[-2] if len(starts) > 1 else 0 : starts[-1]])


def _written_since(texts: Sequence[bytes], since_s: float, engine: Engine) -> list[bytes]:
    """Return the lines from the first one on that was written then; most lines have no time."""
    for number, text in enumerate(texts):
        at_s = _time_s(text, engine)
        if at_s is not None and at_s >= since_s:
            return list(texts[number:])
    return []


def _time_s(text: bytes, engine: Engine) -> float | None:
    """Return when a line was written, by its own words; None if it does not say so."""
    match = _TIME.match(text)
    if match is None:
        return engine.log_time_s(text[:_LINE_LENGTH].decode(errors="replace"), wall_s())
    try:
        return datetime.fromisoformat(match[0].decode()).timestamp()
    except ValueError:
        return None


def _tail(path: Path, count: int) -> tuple[list[bytes], int]:
    with open_file(path) as file:
        start = end = file.seek(0, os.SEEK_END)
        text = b""
        while start and text.count(b"\n") <= count and len(text) < _MOST_BYTES:
            step = min(_CHUNK_BYTES, start)
            start = file.seek(start - step)
            text = file.read(step) + text
    lines = text.removesuffix(b"\n").split(b"\n") if text else []
    return lines[-count:] if count else [], end


def plain(text: bytes) -> str:
    """Return text that is safe on a terminal: a log's control characters would move its cursor.

    Colours are left out; every other control character becomes U+FFFD.
    """
    return printable(_COLOURS.sub(b"", text).decode(errors="replace").rstrip("\r"))


@_as_its_user
def offsets_now(view: ServiceView, slots: Iterable[int]) -> Offsets:
    """Return where each log ends now; one that is not there yet begins at 0."""
    return {index: _size(log_file(view, index)) for index in slots}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


@_as_its_user
def new_lines(view: ServiceView, read: Offsets) -> tuple[tuple[Line, ...], Offsets]:
    """Return whole lines written since, and how far they reach; an unreadable log has none."""
    lines: list[Line] = []
    reached: dict[int, int] = {}
    for index, offset in read.items():
        path = log_file(view, index)
        start = offset if _size(path) >= offset else 0
        try:
            with open_file(path) as file:
                file.seek(start)
                found = file.read(_MOST_BYTES)
        except OSError:
            found = b""
        whole, newline, _ = found.rpartition(b"\n")
        if len(found) == _MOST_BYTES and not newline:
            whole = found
        reached[index] = start + len(whole) + len(newline)
        lines += (Line(index, plain(text)) for text in whole.split(b"\n") if whole or newline)
    return tuple(lines), reached


def why_it_failed(view: ServiceView, index: int) -> str:
    """Return what a slot's last run has written of why it failed, in one line.

    "" unless the log is this user's own: a user who may read another's log is shown it by
    ``last_lines``.
    """
    lines = [line for line in _last_run(view, index) if not _NOTICE.match(line)]
    return cause(lines, engine_of(view.directives))


def last_line(view: ServiceView, index: int) -> str:
    """Return the last line that a slot's current run has written; "" as ``why_it_failed`` does."""
    lines = [line for line in _last_run(view, index) if not _NOTICE.match(line)]
    return engine_of(view.directives).log_message(lines[-1])[:_LINE_LENGTH] if lines else ""


def _last_run(view: ServiceView, index: int) -> list[str]:
    """Return the last lines of the slot's last run, without the first one; [] if it is not ours."""
    try:
        file = os.open(log_file(view, index), os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return []
    try:
        status = os.fstat(file)
        if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode):
            return []
        end = os.pread(file, _CHUNK_BYTES, max(0, status.st_size - _CHUNK_BYTES))
    finally:
        os.close(file)
    run = end.rpartition(_START)[2]
    return [plain(line) for line in run.split(b"\n")[1:]]
