"""Tests who reaches a file: by uid, groups, modes, ACLs and every folder on the way."""

import stat
from collections.abc import Iterable
from dataclasses import replace

import pytest

from slicewise.cluster.language.file_access import (
    EVERY_USER,
    AclEntry,
    Inode,
    Need,
    Person,
    Right,
    Way,
    barrier,
    may,
    replaceable,
    unmet,
)
from slicewise.cluster.language.findings import Finding

READ, WRITE, ENTER = Right.READ, Right.WRITE, Right.ENTER
SLURM = Person("slurm", 64030, frozenset({64030, 700}))
ROOT = Person("root", 0)
USER, GROUP_OBJ, GROUP, MASK = 0x02, 0x04, 0x08, 0x10


def folder(path: str, mode: int = 0o755, uid: int = 0, gid: int = 0) -> Inode:
    return Inode(path, stat.S_IFDIR | mode, uid, gid)


def file(mode: int, uid: int = 0, gid: int = 0, *acl: AclEntry) -> Inode:
    return Inode("/etc/slicewise/database-url", stat.S_IFREG | mode, uid, gid, acl=acl)


@pytest.mark.parametrize(
    ("found", "person", "right", "is_let"),
    [
        (file(0o644), SLURM, READ, True),
        (file(0o600), SLURM, READ, False),
        (file(0o640, 0, 700), SLURM, READ, True),
        (file(0o640, 0, 701), SLURM, READ, False),
        # The first that fits decides: its owner has no more than the owner's rights.
        (file(0o044, 64030), SLURM, READ, False),
        (file(0o604, 0, 700), SLURM, READ, False),
        (file(0o644), SLURM, WRITE, False),
        (file(0o000), ROOT, WRITE, True),
        (file(0o644), ROOT, ENTER, False),
        (file(0o001), ROOT, ENTER, True),
        (folder("/root", 0o600), ROOT, ENTER, True),
        (file(0o644), EVERY_USER, READ, True),
        (file(0o640), EVERY_USER, READ, False),
        # ACLs: a named user, a named group, and the mask over both.
        (file(0o640, 0, 0, AclEntry(USER, 4, 64030)), SLURM, READ, True),
        (file(0o640, 0, 0, AclEntry(USER, 4, 64031)), SLURM, READ, False),
        (file(0o640, 0, 0, AclEntry(GROUP, 4, 700)), SLURM, READ, True),
        (file(0o600, 0, 0, AclEntry(USER, 6, 64030), AclEntry(MASK, 0, 0)), SLURM, READ, False),
        (file(0o644, 0, 0, AclEntry(USER, 0, 64030)), SLURM, READ, False),
        (file(0o644, 0, 0, AclEntry(GROUP, 0, 700)), SLURM, READ, False),
        (file(0o674, 0, 700, AclEntry(GROUP_OBJ, 0, 0), AclEntry(MASK, 7, 0)), SLURM, READ, False),
        (file(0o674, 0, 5, AclEntry(GROUP_OBJ, 0, 0), AclEntry(MASK, 7, 0)), SLURM, READ, True),
    ],
)
def test_the_kernel_lets_whom_it_lets(
    found: Inode, person: Person, right: Right, is_let: bool
) -> None:
    assert may(found, person, right) is is_let


WAY = Way("/etc/slicewise/database-url", (folder("/"), folder("/etc"), folder("/etc/slicewise")))


def texts(*needs: Need) -> list[str]:
    return [one.what for one in unmet(needs)]


def mends(found: Iterable[Finding]) -> list[str]:
    return [mend.line for one in found for mend in one.mends]


def need(way: Way, person: Person = SLURM, right: Right = READ, *, is_needed: bool = False) -> Need:
    return Need(way, person, right, "the daemon does not start", not is_needed)


def test_every_folder_on_the_way_must_be_entered() -> None:
    good = replace(WAY, target=file(0o640, 0, 700))
    assert texts(need(good)) == []
    closed = replace(good, folders=(*WAY.folders[:2], folder("/etc/slicewise", 0o700)))
    assert barrier(closed, SLURM, READ) == (closed.folders[2], ENTER)
    (said,) = texts(need(closed), need(replace(closed, asked="/etc/slicewise/slicewise.toml")))
    assert said == (
        "User slurm can't enter /etc/slicewise (mode 0700, root:root), on the way to"
        " /etc/slicewise/database-url, /etc/slicewise/slicewise.toml"
    )
    # A folder that others may read and not enter is closed, too.
    listed = replace(good, folders=(folder("/", 0o754), *WAY.folders[1:]))
    assert barrier(listed, SLURM, READ) == (listed.folders[0], ENTER)
    assert texts(need(closed, ROOT)) == []


def test_a_program_is_executed_and_not_entered() -> None:
    program = replace(WAY, asked="/opt/server", target=Inode("/opt/server", 0o100644))
    (said,) = texts(replace(need(program, EVERY_USER), right=ENTER))
    assert said == "Not every user can execute /opt/server (mode 0644, root:root)"


def test_what_lets_them_lets_nobody_else() -> None:
    for found, line in (
        (file(0o600), "setfacl -m u:slurm:r-- /etc/slicewise/database-url"),
        # Others are in their groups, too; and their own entry counts in place of the group's.
        (file(0o600, 0, 700), "setfacl -m u:slurm:r-- /etc/slicewise/database-url"),
        (file(0o630, 0, 700), "setfacl -m u:slurm:rwx /etc/slicewise/database-url"),
        (
            file(0o600, 0, 0, AclEntry(USER, 2, 64030), AclEntry(USER, 6, 7), AclEntry(MASK, 2, 0)),
            "setfacl -m u:slurm:rw-,u:7:-w- /etc/slicewise/database-url",
        ),
        (file(0o040, 64030), "chmod u+r /etc/slicewise/database-url"),
    ):
        assert mends(unmet([need(replace(WAY, target=found))])) == [line]
    everybody = need(replace(WAY, target=file(0o640)), EVERY_USER)
    assert mends(unmet([everybody])) == ["chmod o+r /etc/slicewise/database-url"]
    assert texts(everybody) == [
        "Not every user can read /etc/slicewise/database-url (mode 0640, root:root)"
    ]


def test_a_file_behind_a_link_is_named_by_both() -> None:
    way = Way("/etc/slurm/job_submit.lua", WAY.folders, file(0o600))
    (said,) = texts(need(way))
    assert said == (
        "User slurm can't read /etc/slicewise/database-url, of /etc/slurm/job_submit.lua,"
        " (mode 0600, root:root)"
    )


def test_a_folder_to_write_into_must_be_entered_as_well() -> None:
    way = Way("/run/slicewise", (folder("/"), folder("/run")), folder("/run/slicewise", 0o702))
    assert barrier(way, SLURM, WRITE | ENTER) == (way.target, ENTER)
    assert barrier(way, SLURM, WRITE) is None


def test_what_is_not_there_is_said_where_it_is_needed() -> None:
    gone = replace(WAY, missing="/etc/slicewise/database-url")
    assert texts(need(gone)) == []
    (found,) = unmet([need(gone, is_needed=True)])
    assert (found.code, found.what) == ("SW-FILE-MISSING", f"{gone.asked} is not there")
    elsewhere = replace(gone, missing="/etc/slicewise")
    assert texts(need(elsewhere, is_needed=True)) == [
        f"{gone.asked} is not there: there is no /etc/slicewise"
    ]


def test_a_folder_in_which_all_may_write_is_named_unless_it_is_sticky() -> None:
    for mode, is_open in ((0o777, True), (0o1777, False), (0o775, False)):
        way = replace(WAY, folders=(folder("/etc", mode),), target=file(0o600))
        assert [one.code for one in replaceable(way, ())] == ["SW-FILE-RIGHTS"] * is_open


EVES = Inode("/tmp/url", stat.S_IFLNK | 0o777, 7, owner="eve")
SLURMS = replace(EVES, uid=64030, owner="slurm")


def test_what_a_stranger_has_put_on_the_way_is_named_and_never_led_through() -> None:
    home = replace(folder("/home/eve"), owner="eve", uid=7)
    for way in (
        replace(WAY, target=file(0o600), links=(EVES,)),
        replace(WAY, target=file(0o600), folders=(home,)),
        # A link of theirs to what is theirs is harmless; one to what is root's is not.
        replace(WAY, target=file(0o600), links=(SLURMS,)),
    ):
        (found,) = unmet([need(way)])
        assert (found.code, found.mends) == ("SW-FILE-RIGHTS", ())
        whose = (*way.links, *way.folders)[0]
        assert f"{whose.path}, a " in found.advice
        assert f"belongs to {whose.owner}, who" in found.advice
        assert bool(mends(replaceable(way, {"slurm"}))) is False
        assert [one.code for one in replaceable(way, {"slurm"})] == (
            [] if whose is SLURMS else ["SW-FILE-RIGHTS"]
        )
    own = Inode("/run/url", stat.S_IFREG | 0o200, 64030, owner="slurm")
    assert mends(unmet([need(replace(WAY, target=own, links=(SLURMS,)))])) == ["chmod u+r /run/url"]


def test_who_owns_a_file_and_its_folder_may_put_a_link_in_its_place() -> None:
    """The kernel follows it in root's chmod."""
    home, engines = (
        replace(folder(path, mode), owner="eve", uid=7)
        for path, mode in (("/home/eve", 0o755), ("/home/eve/engines", 0o700))
    )
    way = Way("/home/eve/engines/vllm", (folder("/"), folder("/home"), home, engines), file(0o755))
    (found,) = unmet([need(way, EVERY_USER, ENTER)])
    assert not found.mends
    assert "/home/eve, a folder on the way, belongs to eve" in found.advice


def test_folders_of_who_needs_something_beside_are_no_strangers() -> None:
    launcher = Person("slicewise", 64999)
    own = replace(folder("/g"), owner="slicewise", uid=launcher.uid)
    socket = Way("/g/s", (folder("/"), own), Inode("/g/s", stat.S_IFSOCK | 0o600))
    haproxys = need(socket, Person("haproxy", 99), WRITE)
    assert mends(unmet([haproxys])) == []
    assert mends(unmet([haproxys, need(Way("/g", (), own), launcher)])) == [
        "setfacl -m u:haproxy:-w- /g/s"
    ]


def test_a_way_that_can_not_be_seen_is_said_once() -> None:
    way = replace(WAY, is_unseen=True)
    (found,) = unmet([need(way), need(way, EVERY_USER)], [way])
    assert (found.code, found.what) == (
        "SW-ROOT",
        f"This user can't see the way to {WAY.asked}",
    )
