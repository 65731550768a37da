"""Writes the archive of a snapshot. The same contents are the same bytes."""

from collections.abc import Iterable
from typing import IO
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from slicewise.slurm_plugin.rules.snapshot.contents import HISTORY, STATE, SiteSnapshot, to_json

_BEGIN = (1980, 1, 1, 0, 0, 0)
"""The first moment that an archive can have; no member has another one."""
_OWNERS_ONLY = 0o600 << 16


def write_archive(file: IO[bytes], snapshot: SiteSnapshot, history: Iterable[str] | None) -> None:
    """Write into a new file; ``history`` has lines without their breaks."""
    with ZipFile(file, "w") as archive:
        archive.writestr(_member(STATE), to_json(snapshot))
        if history is not None:
            with archive.open(_member(HISTORY), "w", force_zip64=True) as member:
                for line in history:
                    member.write(f"{line}\n".encode())


def _member(name: str) -> ZipInfo:
    info = ZipInfo(name, _BEGIN)
    info.compress_type = ZIP_DEFLATED
    info.external_attr = _OWNERS_ONLY
    return info
