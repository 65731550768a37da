"""Opens files in places where other users may have put anything."""

import errno
import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def open_file(path: Path, *, is_link_followed: bool = True) -> BinaryIO:
    """Open a file; raises OSError for anything else: opening a FIFO would wait for its writer."""
    flags = os.O_RDONLY | os.O_NONBLOCK | (0 if is_link_followed else os.O_NOFOLLOW)
    file = os.fdopen(os.open(path, flags), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "that is no file")
    return file


@contextmanager
def as_user(name: str) -> Iterator[None]:
    """Look at files as their user does, if it is root who looks; raises OSError without one.

    Links that the user has put there, soft or hard, in the path or at its end, lead to what the
    user may read anyway.
    """
    if os.geteuid() != 0:
        yield
        return
    try:
        user = pwd.getpwnam(name)
    except (KeyError, ValueError):
        raise OSError(errno.ENOENT, f"this host has no user {name}") from None
    groups, group = os.getgroups(), os.getegid()
    os.setgroups(os.getgrouplist(user.pw_name, user.pw_gid))
    try:
        os.setegid(user.pw_gid)
        os.seteuid(user.pw_uid)
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)
        os.setgroups(groups)
