"""Checks what both programs need of their host: room on disks, ports, units, their own files."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from shlex import quote

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.findings import Finding, Mend, Place, error, warning

_FULL_BYTES, _SCARCE_BYTES, _FULL_INODES, _SCARCE_INODES = 16 << 20, 256 << 20, 100, 1000
_SCARCE_PART = 20
"""A twentieth of a small disk is enough."""
_ANYWHERE = frozenset({"0.0.0.0", "::", "*", ""})  # noqa: S104 -- compared only
_MOST_SHOWN = 3
OWN_PROGRAMS = ("slicewise", "slicewise.launcher.main")


@dataclass(frozen=True)
class Space:
    """Room in a folder, for users other than root.

    Attributes:
        what: whose folder it is, in words.
        total_inodes: 0 where the file system has no fixed number.
        is_read_only, is_noexec: how it is mounted.
        runs: what is started there, in words; "" if nothing is.
    """

    path: str
    what: str
    free_bytes: int
    total_bytes: int
    free_inodes: int = 0
    total_inodes: int = 0
    is_read_only: bool = False
    is_noexec: bool = False
    runs: str = ""


@dataclass(frozen=True)
class Holder:
    """A process that listens on a port.

    Attributes:
        address: on which of the host's addresses.
        command: its arguments, with blanks between.
    """

    address: str
    port: int
    pid: int
    program: str
    user: str
    command: str = ""

    @property
    def text(self) -> str:
        """Who it is, in words."""
        return f"{self.program} (pid {self.pid}, user {self.user})"


def space_checks(spaces: Iterable[Space]) -> Iterator[Finding]:
    """Name folders that are full, can't be written, or start no program; a full disk once."""
    seen: set[tuple[int, ...]] = set()
    for space in spaces:
        if space.is_read_only:
            yield error(
                Code.DISK_FULL,
                f"{space.path} ({space.what}) is mounted read-only",
                "nothing can be written there",
                Mend(Place.HOST, f"mount -o remount,rw {_mount_of(space)}"),
                advice="The kernel does so after errors of the disk: dmesg says.",
            )
        if space.is_noexec and space.runs:
            yield error(
                Code.PACKAGE,
                f"{space.path} ({space.what}) is mounted with noexec",
                f"{space.runs} can't be started there",
                Mend(Place.HOST, f"mount -o remount,exec {_mount_of(space)}"),
            )
        disk = (space.free_bytes, space.total_bytes, space.free_inodes, space.total_inodes)
        if disk not in seen:
            seen.add(disk)
            yield from _room(space)


def _mount_of(space: Space) -> str:
    """Return a shell's word for the file system of a folder, which any user may have named."""
    return f'"$(findmnt -n -o TARGET -T {quote(space.path)})"'


def _room(space: Space) -> Iterator[Finding]:
    part_bytes, part_inodes = space.total_bytes // _SCARCE_PART, space.total_inodes // _SCARCE_PART
    where = f"{space.path} ({space.what})"
    look = Mend(Place.HOST, f"du -xhd1 {_mount_of(space)} | sort -h")
    why = "what is written there fails, or is cut off"
    if space.total_bytes and space.free_bytes < min(_FULL_BYTES, part_bytes):
        yield error(Code.DISK_FULL, f"No space is left for {where}", why, look)
    elif space.total_bytes and space.free_bytes < min(_SCARCE_BYTES, part_bytes):
        mib = space.free_bytes >> 20
        yield warning(Code.DISK_FULL, f"{mib} MiB are left for {where}", why, look)
    count = Mend(Place.HOST, f"du --inodes -xd1 {_mount_of(space)} | sort -n")
    if space.total_inodes and space.free_inodes < min(_FULL_INODES, part_inodes):
        yield error(Code.DISK_FULL, f"No inode is left for {where}", why, count)
    elif space.total_inodes and space.free_inodes < min(_SCARCE_INODES, part_inodes):
        yield warning(
            Code.DISK_FULL, f"{space.free_inodes} inodes are left for {where}", why, count
        )


def held_by_others(
    holders: Iterable[Holder],
    host: str,
    port: int,
    users: Collection[str],
    programs: Collection[str] = OWN_PROGRAMS,
) -> tuple[Holder, ...]:
    """Return who listens where one of ``programs`` should, which runs as one of ``users``.

    Anybody may call a program what they like: its user counts, and the name among that user's own.
    Nobody if the right one listens there, too: systemd holds a port open for HAProxy.
    """
    rights = [
        holder
        for holder in holders
        if holder.port == port and ({holder.address, host} & _ANYWHERE or holder.address == host)
    ]

    def is_right(holder: Holder) -> bool:
        called = f"{holder.program} {holder.command}"
        return holder.user in users and any(name in called for name in programs)

    return () if any(map(is_right, rights)) else tuple(rights)


def port_checks(
    holders: Iterable[Holder], wanted: Iterable[tuple[str, str, int]], users: Collection[str]
) -> Iterator[Finding]:
    """Say which ports others hold than ``users``; ``wanted`` are settings with host and port."""
    holders = tuple(holders)
    for setting, host, port in wanted:
        for holder in held_by_others(holders, host, port, users)[:1]:
            yield error(
                Code.PORT_HELD,
                f"{holder.text} listens on port {port}, which {setting} names",
                "Slicewise's own program does not start there, or nobody reaches it",
                Mend(Place.HOST, f"ss -ltnp sport = :{port}"),
                advice=f"End that program, or name a free port in {setting}.",
            )


def unit_checks(disabled: Iterable[str]) -> Iterator[Finding]:
    """Name units of systemd that are here and do not start with the host."""
    for unit in disabled:
        yield warning(
            Code.UNIT_OFF,
            f"{unit} is not enabled",
            "after a restart of this host systemd does not start it",
            Mend(Place.HOST, f"systemctl enable {unit}"),
            advice=f"If it is masked: systemctl unmask {unit}",
        )


def package_checks(missing: Collection[str]) -> Iterator[Finding]:
    """Say which of Slicewise's own files are gone."""
    if missing:
        shown = ", ".join(sorted(missing)[:_MOST_SHOWN])
        more = len(missing) - _MOST_SHOWN
        yield error(
            Code.PACKAGE,
            f"Files of Slicewise's own are missing: {shown}" + (f" and {more} more" * (more > 0)),
            "commands and servers fail where they need them",
            advice="Install the same version again.",
        )
