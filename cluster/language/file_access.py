"""Decides whether a user reaches a file: by uid, groups, and mode and ACL of all on the way."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntFlag
from itertools import takewhile
from shlex import quote
from stat import S_ISDIR, S_ISLNK

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.findings import Finding, Mend, Place, error, warning

MOST_LINKS = 40
"""Symbolic links that the kernel follows on one way."""
_OTHERS_WRITE, _STICKY, _ANY_ENTERS = 0o002, 0o1000, 0o111
_ACL_USER, _ACL_GROUP_OBJ, _ACL_GROUP, _ACL_MASK = 0x02, 0x04, 0x08, 0x10


class Right(IntFlag):
    """What somebody wants to do, as in each digit of a mode; to enter is also to run a program."""

    ENTER = 1
    WRITE = 2
    READ = 4


_VERBS = {Right.ENTER: "enter", Right.WRITE: "write to", Right.READ: "read"}


@dataclass(frozen=True)
class Person:
    """Somebody as the kernel knows them.

    Attributes:
        groups: gids of all groups.
    """

    name: str
    uid: int
    groups: frozenset[int] = frozenset()


EVERY_USER = Person("every user", -1)
"""Who owns nothing and is in no group of a file."""


@dataclass(frozen=True)
class AclEntry:
    """One entry of a POSIX ACL: its tag as in Linux, its rights, and whose they are."""

    tag: int
    rights: int
    whose: int


@dataclass(frozen=True)
class Inode:
    """A file or folder, with what its mode and ACL allow.

    Attributes:
        owner, group: names of ``uid`` and ``gid``, or their numbers.
        acl: entries beside the mode; empty if there are none.
    """

    path: str
    mode: int
    uid: int = 0
    gid: int = 0
    owner: str = "root"
    group: str = "root"
    acl: tuple[AclEntry, ...] = ()

    @property
    def whose(self) -> str:
        """Mode and owners, in words."""
        return f"mode {self.mode & 0o7777:04o}, {self.owner}:{self.group}"


@dataclass(frozen=True)
class Way:
    """The way to a file.

    Attributes:
        asked: its path, as somebody names it.
        folders: those to enter, in their order, also behind symbolic links.
        target: the file itself; None if it, or something on the way, is not there.
        missing: path of what is not there; "" if all is.
        links: the symbolic links that were followed.
        is_unseen: whether somebody who looks may not see all of it; then no target is known.
    """

    asked: str
    folders: tuple[Inode, ...] = ()
    target: Inode | None = None
    missing: str = ""
    links: tuple[Inode, ...] = ()
    is_unseen: bool = False


@dataclass(frozen=True)
class Need:
    """What somebody must be able to do with a file, and what does not work without it.

    Attributes:
        may_be_missing: whether it is no fault that the file is not there.
        named_in: the file that has its path.
    """

    way: Way
    person: Person
    right: Right
    why: str
    may_be_missing: bool = True
    named_in: str = "slicewise.toml"


def may(inode: Inode, person: Person, right: Right) -> bool:
    """Whether the kernel lets the person do that with this file or folder, once they are there."""
    if person.uid == 0:
        is_run = right is Right.ENTER and not _is_folder(inode)
        return not is_run or bool(inode.mode & _ANY_ENTERS)
    if person.uid == inode.uid:
        return bool(inode.mode >> 6 & right)
    if inode.acl:
        return _acl_allows(inode, person, right)
    return bool(inode.mode >> (3 if inode.gid in person.groups else 0) & right)


def _is_folder(inode: Inode) -> bool:
    return S_ISDIR(inode.mode)


def _acl_allows(inode: Inode, person: Person, right: Right) -> bool:
    """Named users, then all groups that fit, each within the mask; else everybody's rights."""
    mask = next((entry.rights for entry in inode.acl if entry.tag == _ACL_MASK), 7)
    for entry in inode.acl:
        if entry.tag == _ACL_USER and entry.whose == person.uid:
            return bool(entry.rights & mask & right)
    groups = [
        entry.rights
        for entry in inode.acl
        if (entry.tag == _ACL_GROUP_OBJ and inode.gid in person.groups)
        or (entry.tag == _ACL_GROUP and entry.whose in person.groups)
    ]
    if groups:
        return any(rights & mask & right for rights in groups)
    return bool(inode.mode & right)


def barrier(way: Way, person: Person, right: Right) -> tuple[Inode, Right] | None:
    """Return the first folder, or the file, that keeps the person off, and which right it lacks."""
    for folder in way.folders:
        if not may(folder, person, Right.ENTER):
            return folder, Right.ENTER
    for one in Right:
        if way.target is not None and one in right and not may(way.target, person, one):
            return way.target, one
    return None


def unmet(needs: Iterable[Need], looked_at: Iterable[Way] = ()) -> Iterator[Finding]:
    """Say what somebody needs and can't do, at what on the way, and the line that lets them.

    What keeps somebody from several files is said once. So are the ways, of these and of those that
    are looked at beside them, of which nothing is known.
    """
    needs = tuple(needs)
    yield from _unseen((*(need.way for need in needs), *looked_at))
    barred: dict[tuple[Person, Inode, Right], list[Need]] = {}
    for need in needs:
        bar = barrier(need.way, need.person, need.right)
        if bar is not None:
            barred.setdefault((need.person, *bar), []).append(need)
        elif need.way.missing and not need.may_be_missing:
            yield _missing(need)
    # Who needs something here is one of Slicewise's, such as the launcher of the gateway's folder.
    users = {need.person.name for need in needs}
    for (person, inode, lacks), together in barred.items():
        ways = [way.way for way in together]
        finding = _barred(person, inode, lacks, together)
        yield not_led(finding, ways, inode, users)


def _unseen(ways: Iterable[Way]) -> Iterator[Finding]:
    if paths := {way.asked for way in ways if way.is_unseen}:
        yield warning(
            Code.ROOT,
            f"This user can't see the way to {', '.join(sorted(paths))}",
            "who reaches these files is not known",
            advice="Run slicewise doctor as root. Where root may see no more, as on NFS with"
            " root_squash, look there as who owns them.",
        )


def not_led(
    finding: Finding, ways: Iterable[Way], inode: Inode, owners: Collection[str]
) -> Finding:
    """Return the finding, without its commands if others than root and ``owners`` may lead them.

    Who owns a link or a folder on the way may put any file of the host behind it, and root's
    command would change that one. A link of an owner's must lead to what is theirs.
    """
    for way in ways:
        for entry in _leading(way, inode, owners):
            kind = "link" if S_ISLNK(entry.mode) else "folder"
            reason = (
                f"No command is shown: {entry.path}, a {kind} on the way, belongs to {entry.owner},"
                " who may lead it to a file of others."
            )
            return replace(finding, mends=(), advice=f"{finding.advice} {reason}".lstrip())
    return finding


def _leading(way: Way, inode: Inode, owners: Collection[str]) -> Iterator[Inode]:
    for link in way.links:
        if link.owner != "root" and not (link.owner in owners and link.owner == inode.owner):
            yield link
    for folder in takewhile(lambda entry: entry != inode, way.folders):
        if folder.owner not in {"root", *owners}:
            yield folder


def _barred(person: Person, inode: Inode, lacks: Right, needs: Sequence[Need]) -> Finding:
    who = "Not every user can" if person == EVERY_USER else f"User {person.name} can't"
    behind = dict.fromkeys(need.way.asked for need in needs if need.way.target != inode)
    named = {need.way.asked for need in needs} - behind.keys() - {inode.path}
    of = f", of {', '.join(sorted(named))}," if named else ""
    so = f", on the way to {', '.join(behind)}" if behind else ""
    verb = "execute" if lacks is Right.ENTER and not _is_folder(inode) else _VERBS[lacks]
    return error(
        Code.FILE_RIGHTS,
        f"{who} {verb} {inode.path}{of} ({inode.whose}){so}",
        needs[0].why,
        Mend(Place.HOST, _letting(inode, person, lacks)),
    )


def _letting(inode: Inode, person: Person, right: Right) -> str:
    """Return the command that gives this right to nobody but the person, and takes none away."""
    letter, path = _letters(right).replace("-", ""), quote(inode.path)
    if person == EVERY_USER:
        return f"chmod o+{letter} {path}"
    if person.uid == inode.uid:
        return f"chmod u+{letter} {path}"
    # An entry of their own counts in place of all that their groups give them.
    kept = [right for right in Right if may(inode, person, right)]
    entries = [f"u:{person.name}:{_letters(right, *kept)}", *_masked(inode, person)]
    return f"setfacl -m {','.join(entries)} {path}"


def _masked(inode: Inode, person: Person) -> Iterator[str]:
    """Yield the other entries as they count: setfacl widens the mask over what it has hidden."""
    mask = next((entry.rights for entry in inode.acl if entry.tag == _ACL_MASK), 7)
    names = {_ACL_USER: "u:{}", _ACL_GROUP: "g:{}", _ACL_GROUP_OBJ: "g:"}
    for entry in inode.acl:
        is_own = (entry.tag, entry.whose) == (_ACL_USER, person.uid)
        if entry.tag in names and entry.rights & ~mask and not is_own:
            counts = [right for right in Right if right & entry.rights & mask]
            yield f"{names[entry.tag].format(entry.whose)}:{_letters(*counts)}"


def _letters(*rights: Right) -> str:
    """Return such as ``r-x``."""
    letters = ((Right.READ, "r"), (Right.WRITE, "w"), (Right.ENTER, "x"))
    return "".join(letter if right in rights else "-" for right, letter in letters)


def _missing(need: Need) -> Finding:
    part = "" if need.way.missing == need.way.asked else f": there is no {need.way.missing}"
    return error(
        Code.FILE_MISSING,
        f"{need.way.asked} is not there{part}",
        need.why,
        advice=f"Put it there, or correct its path in {need.named_in}.",
    )


def replaceable(way: Way, owners: Collection[str]) -> Iterator[Finding]:
    """Name what on the way lets others than root and ``owners`` put another file in this place."""
    for inode in (*way.links, *way.folders):
        if inode.owner not in {"root", *owners}:
            yield error(
                Code.FILE_RIGHTS,
                f"{inode.path}, on the way to {way.asked}, belongs to {inode.owner}",
                "that user can put another file in its place",
                advice="Let Slicewise use a place to which only root's folders and links lead.",
            )
    for folder in way.folders:
        if folder.mode & _OTHERS_WRITE and not folder.mode & _STICKY:
            finding = error(
                Code.FILE_RIGHTS,
                f"{folder.path}, on the way to {way.asked}, has mode {folder.mode & 0o7777:04o}",
                "every user of this host can put another file in its place",
                Mend(Place.HOST, f"chmod o-w {quote(folder.path)}"),
            )
            yield not_led(finding, [way], folder, owners)
