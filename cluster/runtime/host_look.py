"""Looks at this host as others see it: ways to files, users, room on disks, who holds ports."""

import os
import pwd
import socket
import stat
import struct
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from grp import getgrgid
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from slicewise.cluster.language.file_access import MOST_LINKS, AclEntry, Inode, Person, Way
from slicewise.cluster.language.host_findings import Holder, Space
from slicewise.cluster.runtime.user_names import user_name

_PROC = Path("/proc")
_ACL = "system.posix_acl_access"
_LISTENS = "0A"
_COMMAND_LENGTH = 200
_UNITS = tuple(map(Path, ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")))
_MASK = Path("/dev/null")
_SYSTEMD = Path("/run/systemd/system")


def way_to(path: Path | str) -> Way:
    """Return the way to a file, as far as this user can look at it."""
    rest = list(reversed(Path(path).absolute().parts[1:]))
    here, folders, links = "/", [inode_of("/")], list[Inode]()

    def way(target: Inode | None = None, missing: str = "", *, is_unseen: bool = False) -> Way:
        return Way(str(path), tuple(folders), target, missing, tuple(links), is_unseen)

    while rest:
        name = rest.pop()
        if name == "..":
            here = os.path.dirname(here)  # noqa: PTH120 -- of a text
            continue
        full_path = os.path.join(here, name)  # noqa: PTH118 -- of a text
        try:
            inode = inode_of(full_path)
            leads = Path(full_path).readlink() if stat.S_ISLNK(inode.mode) else None
        except (FileNotFoundError, NotADirectoryError):
            return way(missing=full_path)
        except OSError:
            return way(is_unseen=True)
        if leads is not None:
            links.append(inode)
            if len(links) > MOST_LINKS:
                return way(missing=full_path)
            here = "/" if leads.is_absolute() else here
            rest.extend(reversed(leads.parts[1:] if leads.is_absolute() else leads.parts))
        elif rest:
            folders.append(inode)
            here = full_path
        else:
            return way(inode)
    return way(folders.pop())


def inode_of(path: str) -> Inode:
    """Return owner and mode of a file, also of a link; raises OSError if it can't be seen."""
    status = os.lstat(path)
    acl: tuple[AclEntry, ...] = ()
    if not stat.S_ISLNK(status.st_mode):
        with suppress(OSError):
            acl = tuple(_acl(os.getxattr(path, _ACL, follow_symlinks=False)))
    uid, gid = status.st_uid, status.st_gid
    return Inode(path, status.st_mode, uid, gid, user_name(uid), _group_name(gid), acl)


def _acl(packed: bytes) -> Iterator[AclEntry]:
    """Read what Linux keeps: a version, then a tag, rights and an id for each entry."""
    for tag, rights, whose in struct.iter_unpack("<HHI", packed[4:]):
        yield AclEntry(tag, rights, whose)


def _group_name(gid: int) -> str:
    try:
        return getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def person(name: str, *more_gids: int) -> Person | None:
    """Return a user of this host, with these groups added; None if there is none of that name."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return Person(name, entry.pw_uid, frozenset((*os.getgrouplist(name, entry.pw_gid), *more_gids)))


def running_as(pid: int) -> Person | None:
    """Return as whom a process runs, with its own groups; None if there is none of that number."""
    with suppress(OSError, ValueError, KeyError, IndexError):
        text = (_PROC / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
        words = {line.partition(":")[0]: line.split()[1:] for line in text.splitlines()}
        uid = int(words["Uid"][1])
        gids = map(int, (words["Gid"][1], *words["Groups"]))
        return Person(user_name(uid), uid, frozenset(gids))
    return None


def parent_of(pid: int) -> int:
    """Return the process that has started this one; 0 if that is not known."""
    with suppress(OSError, ValueError, IndexError):
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        return int(text.rpartition(")")[2].split()[1])
    return 0


def space(path: Path, what: str, runs: str = "") -> Iterator[Space]:
    """Yield the room in a folder, where ``runs`` is started; nothing if it is not to be seen."""
    with suppress(OSError):
        space = os.statvfs(path)
        yield Space(
            str(path),
            what,
            space.f_bavail * space.f_frsize,
            space.f_blocks * space.f_frsize,
            space.f_favail,
            space.f_files,
            is_read_only=bool(space.f_flag & os.ST_RDONLY),
            is_noexec=bool(space.f_flag & os.ST_NOEXEC),
            runs=runs,
        )


def file_system(path: Path) -> str:
    """Return the kind of the file system that holds a folder, as the kernel has it; or ""."""
    with suppress(OSError):
        device = path.stat().st_dev
        number = f"{os.major(device)}:{os.minor(device)}"
        for line in _text(_PROC / "self" / "mountinfo").splitlines():
            mount, _, kind = line.partition(" - ")
            if mount.split()[2] == number:
                return kind.split()[0]
    return ""


def holders(ports: Collection[int]) -> tuple[Holder, ...]:
    """Return who listens on these TCP ports: root sees everybody, others themselves."""
    inodes = {
        inode: (address, port)
        for table in ("tcp", "tcp6")
        for address, port, inode in listening(_text(_PROC / "net" / table))
        if port in ports
    }
    if not inodes:
        return ()
    return tuple(
        Holder(*inodes[inode], pid, *_program(pid))
        for pid in sorted(int(path.name) for path in _PROC.iterdir() if path.name.isdigit())
        for inode in sorted(_sockets_of(pid) & inodes.keys())
    )


def listening(table: str) -> Iterator[tuple[str, int, str]]:
    """Read address, port and inode of each socket that listens, from ``/proc/net/tcp`` or tcp6."""
    for line in table.splitlines()[1:]:
        words = line.split()
        if len(words) > 9 and words[3] == _LISTENS:  # noqa: PLR2004 -- the place of the inode
            host, _, port = words[1].partition(":")
            yield _address(host), int(port, 16), words[9]


def _address(text: str) -> str:
    """Read such as ``0100007F``: words of four bytes, each in this machine's order."""
    words = struct.unpack(f">{len(text) // 8}I", bytes.fromhex(text))
    packed = struct.pack(f"={len(words)}I", *words)
    if len(words) == 1:
        return socket.inet_ntop(socket.AF_INET, packed)
    shown = socket.inet_ntop(socket.AF_INET6, packed)
    return shown.removeprefix("::ffff:") if "." in shown else shown


def _sockets_of(pid: int) -> frozenset[str]:
    inodes = set()
    with suppress(OSError):
        for path in (_PROC / str(pid) / "fd").iterdir():
            with suppress(OSError):
                inodes.add(str(path.readlink()).removeprefix("socket:[").removesuffix("]"))
    return frozenset(inodes)


def _program(pid: int) -> tuple[str, str, str]:
    """Return a process's program, user and command."""
    who = running_as(pid)
    words = _text(_PROC / str(pid) / "cmdline").split("\0")
    name = _text(_PROC / str(pid) / "comm").strip()
    return name, who.name if who else "?", " ".join(words)[:_COMMAND_LENGTH]


def _text(file: Path) -> str:
    with suppress(OSError):
        return file.read_text(encoding="utf-8", errors="replace")
    return ""


def processes(program: str, user: str) -> Iterator[int]:
    """Yield the processes of a user whose program has this name, which anybody may give to one."""
    if (wanted := person(user)) is None:
        return
    for path in _PROC.iterdir():
        if path.name.isdigit() and _text(path / "comm").strip() == program:
            who = running_as(int(path.name))
            if who is not None and who.uid == wanted.uid:
                yield int(path.name)


def working_directory(pid: int) -> Path | None:
    """Return where a process works; None if that is not to be seen."""
    with suppress(OSError):
        return (_PROC / str(pid) / "cwd").readlink()
    return None


def has_systemd() -> bool:
    """Whether systemd runs this host."""
    return _SYSTEMD.exists()


def disabled_units(units: Iterable[str]) -> tuple[str, ...]:
    """Return which of these units of systemd are here and are not started with the host."""
    if not has_systemd():
        return ()
    return tuple(unit for unit in units if _is_unit(unit) and not _is_enabled(unit))


def _is_unit(unit: str) -> bool:
    return any((folder / unit).exists() for folder in _UNITS)


def _is_enabled(unit: str) -> bool:
    if any((folder / unit).resolve() == _MASK for folder in _UNITS):
        return False
    links = (f"*.wants/{unit}", f"*.requires/{unit}")
    return any(any(folder.glob(link)) for folder in _UNITS for link in links)


def missing_files(package: str) -> tuple[str, ...]:
    """Return which files of an installed package are not there.

    What pip notes of it, and byte code, may be gone: the DEB and RPM packages leave some out.
    """
    try:
        files = distribution(package).files or ()
    except PackageNotFoundError:
        return ()
    return tuple(
        str(file)
        for file in files
        if file.suffix not in {".pyc", ".pyo"} and ".dist-info/" not in str(file)
        if not Path(str(file.locate())).exists()
    )
