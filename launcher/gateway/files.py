"""Writes files of the gateway's directory, each as a whole or not at all."""

import os
import shutil
from contextlib import suppress
from pathlib import Path

STATISTICS = "statistics.sock"
"""Name, in the gateway's directory, of the socket on which the launcher answers clients that ask
for a service's statistics."""
_MAY_READ = 0o640


def replace_file(path: Path, text: str, mode: int | None = None) -> None:
    """Replace a file's text: a reader sees the old text or the new one, never half of it.

    The file gets ``mode``, else the mode of the file that is there, else 0640; it is never wider
    meanwhile. It keeps owner and group of the file that is there, as far as this user may give
    them: root may render beside a HAProxy of another user. Raises OSError.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.unlink(missing_ok=True)
        draft.touch(_MAY_READ if mode is None else mode & _MAY_READ)
        draft.write_text(text, encoding="utf-8")
        # Before the mode, which must not be wider for another owner.
        with suppress(FileNotFoundError, PermissionError):
            before = path.lstat()
            os.chown(draft, before.st_uid, before.st_gid, follow_symlinks=False)
        if mode is not None:
            draft.chmod(mode)
        else:
            with suppress(FileNotFoundError):
                shutil.copymode(path, draft)
        draft.replace(path)
    except OSError:
        with suppress(OSError):
            draft.unlink()
        raise
