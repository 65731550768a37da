"""Reads an archive of ``slicewise snapshot``, which anybody may have made."""

import io
import json
import lzma
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import BinaryIO, cast
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, LargeZipFile, ZipFile

from pydantic import ValidationError

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.slurm.unread import quoted
from slicewise.simulation.history.lines import UnreadLines, lines_of
from slicewise.simulation.history.sacct import read_sacct
from slicewise.simulation.rules.history.jobs import JobHistory
from slicewise.slurm_plugin.rules.snapshot.contents import (
    FORMAT,
    HISTORY,
    STATE,
    SiteSnapshot,
    from_values,
)

MOST_ARCHIVE_BYTES = 1 << 30
MOST_STATE_BYTES = 1 << 28
"""Uncompressed: a queue of some 300,000 jobs."""
_MOST_MEMBERS, _MOST_DIRECTORY_BYTES = 16, 1 << 16
_END = b"PK\x05\x06"
"""Begins the last record of an archive, which has 22 bytes; 20 before it may be one of Zip64's."""
_END_BYTES, _ZIP64, _ZIP64_BYTES = 22, b"PK\x06\x07", 20
_BROKEN = (
    BadZipFile,
    LargeZipFile,
    lzma.LZMAError,
    zlib.error,
    OSError,
    EOFError,
    NotImplementedError,
    RuntimeError,
    UnicodeError,
)
_LONGEST_TEXT, _LARGEST_NUMBER = 1 << 14, 1 << 64


@dataclass(frozen=True)
class TakenSnapshot:
    """An archive's contents; ``history`` is None if it has none."""

    snapshot: SiteSnapshot
    history: JobHistory | None


def is_archive(path: Path) -> bool:
    """Whether the file begins as an archive does; OSError if it can't be read."""
    with path.open("rb") as file:
        return file.read(2) == b"PK"


def read_snapshot(path: Path) -> TakenSnapshot:
    """Read the archive; only the two members that it must or may have are unpacked.

    Raises InvalidInputError (SW-INPUT-FILE) for anything but what ``slicewise snapshot`` writes,
    within bounds; SW-INPUT-FILE for a history in it of which nothing can be read.
    """
    try:
        with path.open("rb") as file:
            _check_directory(path, file)
            with ZipFile(file) as archive:
                state = _read(path, archive)
                snapshot = _snapshot(path, state)
                history = _history(path, archive) if HISTORY in archive.namelist() else None
    except _BROKEN as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise _refused(path, f"it can't be read: {_plain(why)}") from None
    since_s = snapshot.history_since_s
    if history is not None and since_s is not None:
        history = replace(history, whole_from_s=float(since_s))
    return TakenSnapshot(snapshot, history)


def _check_directory(path: Path, file: BinaryIO) -> None:
    """Look at the last record before the list of members is read into memory."""
    size = file.seek(0, io.SEEK_END)
    if size > MOST_ARCHIVE_BYTES:
        raise _refused(path, f"it has more than {MOST_ARCHIVE_BYTES} bytes")
    file.seek(max(0, size - _END_BYTES - _ZIP64_BYTES))
    tail = file.read()
    end = tail[-_END_BYTES:]
    if not end.startswith(_END) or tail[: len(_ZIP64)] == _ZIP64:
        raise _refused(path, "it is no archive that slicewise snapshot writes")
    members, directory_bytes = (
        int.from_bytes(end[10:12], "little"),
        int.from_bytes(end[12:16], "little"),
    )
    if members > _MOST_MEMBERS or directory_bytes > _MOST_DIRECTORY_BYTES:
        raise _refused(path, "it has too many members")
    file.seek(0)


def _read(path: Path, archive: ZipFile) -> bytes:
    if archive.namelist().count(STATE) != 1:
        raise _refused(path, f"it has no {STATE}")
    with _opened(path, archive, STATE) as member:
        # Its header may say less than it unpacks to.
        text = member.read(MOST_STATE_BYTES + 1)
    if len(text) > MOST_STATE_BYTES:
        raise _refused(path, f"{STATE} has more than {MOST_STATE_BYTES} bytes")
    return text


def _opened(path: Path, archive: ZipFile, name: str) -> BinaryIO:
    """Open a member. Other packings than these take as much memory as the member asks for."""
    if archive.getinfo(name).compress_type not in {ZIP_STORED, ZIP_DEFLATED}:
        raise _refused(path, f"{name} is packed as slicewise snapshot packs nothing")
    return cast("BinaryIO", archive.open(name))


def _snapshot(path: Path, text: bytes) -> SiteSnapshot:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _refused(path, f"{STATE} is no JSON: {_plain(str(error))}") from None
    form = values.get("format") if isinstance(values, dict) else None
    if form != FORMAT:
        raise _refused(path, f"its format is {_plain(repr(form))}, and {FORMAT} is known")
    for leaf in _leaves(values):
        if isinstance(leaf, str) and (len(leaf) > _LONGEST_TEXT or not _is_plain(leaf)):
            raise _refused(path, f"it holds text that no site has: {_plain(leaf)}")
        # Not a number, as JSON may say it, is neither larger nor smaller.
        if isinstance(leaf, int | float) and not abs(leaf) <= _LARGEST_NUMBER:
            raise _refused(path, f"it holds a number that no site has: {_plain(repr(leaf))}")
    try:
        snapshot = from_values(values)
        _ = snapshot.site_settings
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise _refused(path, f"{_plain(where)}: {_plain(first['msg'])}") from None
    except InvalidInputError as error:
        raise _refused(path, f"settings: {_plain(error.refusal.message)}") from None
    _check_tree(
        path, "tenants", {name: tenant.parent for name, tenant in snapshot.ledger.tenants.items()}
    )
    _check_tree(
        path,
        "associations",
        {
            association.account: association.parent
            for association in snapshot.associations
            if not association.user
        },
    )
    return snapshot


def _check_tree(path: Path, what: str, above: Mapping[str, str]) -> None:
    """Refuse what would be walked up without end."""
    try:
        TopologicalSorter({name: (parent,) for name, parent in above.items()}).prepare()
    except CycleError as error:
        raise _refused(path, f"{what}: {_plain(error.args[1][0])} stands above itself") from None


def _leaves(values: object) -> Iterator[object]:
    """All that the value holds, keys too."""
    left = [values]
    while left:
        item = left.pop()
        if isinstance(item, dict):
            left += item
            left += item.values()
        elif isinstance(item, list):
            left += item
        else:
            yield item


def _is_plain(text: str) -> bool:
    """Whether it can be shown on a terminal: nothing in it moves the cursor."""
    return text.isprintable()


def _plain(text: str) -> str:
    return quoted(text).rstrip(".")


def _refused(path: Path, why: str) -> InvalidInputError:
    return InvalidInputError(
        Code.INPUT_FILE,
        f"{path}: {why}.",
        "Take it again by slicewise snapshot; a version of Slicewise reads what it and earlier ones"
        " wrote.",
    )


def _history(path: Path, archive: ZipFile) -> JobHistory:
    unread = UnreadLines(f"{path}, {HISTORY}")
    with _opened(path, archive, HISTORY) as member:
        return read_sacct(lines_of(member, unread), unread)
