"""The users of a sandbox: several if root starts it, one user in all roles otherwise.

The users exist only for the sandbox's own processes: libnss_wrapper shows them a passwd and a
group file of the sandbox. The machine's own files stay as they are.
"""

import os
import pwd
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import SlicewiseError

TENANT_USERS = ("alice", "bob", "carol")
ROLES = ("root", "slurm", "slicewise", "web", *TENANT_USERS)
_FIRST_UID = 61000
_UIDS_PER_SLOT = 8
_NAMED_FIELDS = 3


@dataclass(frozen=True)
class User:
    """A name and the ids that its processes run under."""

    name: str
    uid: int
    gid: int


def own_uids(slot: int) -> range:
    """User ids that belong only to the sandbox in that slot."""
    first = _FIRST_UID + _UIDS_PER_SLOT * slot
    return range(first, first + _UIDS_PER_SLOT)


def several_users(slot: int, slurm: User) -> Mapping[str, User]:
    """The user of each role, for a sandbox that root starts."""
    uids = own_uids(slot)
    own = {
        name: User(name, uid, uid)
        for name, uid in zip(("slicewise", *TENANT_USERS, "web"), uids, strict=False)
    }
    return {"root": User("root", 0, 0), "slurm": slurm, **own}


def one_user(user: User) -> Mapping[str, User]:
    """The same user in every role, for a sandbox that an ordinary user starts."""
    return dict.fromkeys(ROLES, user)


def current_user() -> User:
    """The user who runs this process; an id without a name is called ``user``."""
    uid, gid = os.getuid(), os.getgid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = "user"
    return User(name, uid, gid)


def packaged_slurm_user() -> User:
    """The user ``slurm`` of Slurm's packages; SlicewiseError (SW-PROGRAM) if missing."""
    try:
        entry = pwd.getpwnam("slurm")
    except KeyError:
        raise SlicewiseError(
            Code.PROGRAM,
            "There is no user slurm, which Slurm's packages make.",
            "Reinstall slurmctld.",
        ) from None
    return User("slurm", entry.pw_uid, entry.pw_gid)


def passwd_text(system: str, users: Mapping[str, User], home: Path) -> str:
    """The machine's passwd lines with the sandbox's users in place of any of that name or id."""
    wanted = {user.name: user for user in users.values()}
    lines = (
        f"{user.name}:x:{user.uid}:{user.gid}::{home / user.name}:/bin/bash"
        for user in wanted.values()
    )
    return _merged(system, wanted, {user.uid for user in wanted.values()}, lines)


def group_text(system: str, users: Mapping[str, User]) -> str:
    """The machine's group lines with a group of the same name for each of the sandbox's users."""
    wanted = {user.name: user for user in users.values() if user.uid == user.gid}
    lines = (f"{user.name}:x:{user.gid}:" for user in wanted.values())
    return _merged(system, wanted, {user.gid for user in wanted.values()}, lines)


def _merged(system: str, names: Mapping[str, User], numbers: set[int], lines: Iterable[str]) -> str:
    kept = (
        line
        for line in system.splitlines()
        if len(fields := line.split(":")) >= _NAMED_FIELDS
        and fields[0] not in names
        and fields[2] not in {str(number) for number in numbers}
    )
    return "\n".join((*kept, *lines)) + "\n"
