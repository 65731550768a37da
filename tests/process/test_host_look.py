"""Looks at this host as the doctor does: ways, ACLs, ports, rooms on disks, units."""

import os
import pwd
import socket
import struct
from pathlib import Path

import pytest

from slicewise.cluster.language.file_access import AclEntry, Person, Right, barrier, unmet
from slicewise.cluster.runtime import host_look
from slicewise.cluster.runtime.host_look import (
    disabled_units,
    holders,
    listening,
    missing_files,
    parent_of,
    person,
    processes,
    running_as,
    space,
    way_to,
)
from slicewise.slurm_plugin.cli.commands.this_host import slurmds_needs

STRANGER = Person("stranger", 64999)


def test_a_way_has_each_folder_also_behind_links(tmp_path: Path):
    (tmp_path / "real" / "deep").mkdir(parents=True)
    file = tmp_path / "real" / "deep" / "file"
    file.write_text("x")
    (tmp_path / "link").symlink_to("real/../real")
    (tmp_path / "other").symlink_to(tmp_path / "link" / "deep" / "file")
    above = [str(one) for one in reversed(tmp_path.parents)]
    way = way_to(tmp_path / "other")
    assert [one.path for one in way.folders] == [
        *(*above, str(tmp_path)),
        *(*above[1:], str(tmp_path)),
        *(str(tmp_path / "real"), str(tmp_path / "real"), str(tmp_path / "real" / "deep")),
    ]
    assert [one.path for one in way.links] == [str(tmp_path / one) for one in ("other", "link")]
    assert way.target is not None
    assert (way.target.path, way.asked) == (str(file), str(tmp_path / "other"))


def test_what_is_not_there_and_loops_end_the_way(tmp_path: Path):
    assert way_to(tmp_path / "no" / "file").missing == str(tmp_path / "no")
    (tmp_path / "file").touch()
    assert way_to(tmp_path / "file" / "below").missing == str(tmp_path / "file" / "below")
    (tmp_path / "loop").symlink_to("loop")
    assert way_to(tmp_path / "loop").missing == str(tmp_path / "loop")
    root = way_to(Path("/"))
    assert root.target is not None
    assert (root.target.path, root.folders) == ("/", ())


def test_a_way_that_may_not_be_looked_at_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As root's on NFS with root_squash."""
    (tmp_path / "nfs").mkdir()
    found = os.lstat

    def squashed(path: str) -> os.stat_result:
        if path.endswith("nfs/file"):
            raise PermissionError(13, "Permission denied", path)
        return found(path)

    monkeypatch.setattr(host_look.os, "lstat", squashed)
    way = way_to(tmp_path / "nfs" / "file")
    assert (way.is_unseen, way.target, way.missing) == (True, None, "")
    needs = slurmds_needs({"Prolog": str(tmp_path / "nfs" / "file")})
    assert [one.code for one in unmet(needs)] == ["SW-ROOT"]


def test_a_folder_above_that_is_closed_keeps_a_stranger_off(tmp_path: Path):
    inner = tmp_path / "closed" / "inner"
    inner.mkdir(parents=True)
    (inner / "file").touch(0o644)
    (tmp_path / "closed").chmod(0o700)
    link = tmp_path / "link"
    link.symlink_to(inner)
    for each in (tmp_path, *tmp_path.parents):
        if each.stat().st_uid == os.geteuid():
            each.chmod(each.stat().st_mode | 0o011)
    found = barrier(way_to(link / "file"), STRANGER, Right.READ)
    assert found is not None
    assert (found[0].path, found[1]) == (str(tmp_path / "closed"), Right.ENTER)


def test_acls_are_read(tmp_path: Path):
    file = tmp_path / "file"
    file.touch(0o640)
    rows = [(1, 6, -1), (2, 4, 64999), (4, 4, -1), (0x10, 4, -1), (0x20, 0, -1)]
    packed = struct.pack("<I", 2) + b"".join(
        struct.pack("<HHI", tag, rights, whose & 0xFFFFFFFF) for tag, rights, whose in rows
    )
    try:
        os.setxattr(file, "system.posix_acl_access", packed)
    except OSError:
        pytest.skip("this file system has no ACLs")
    found = way_to(file).target
    assert found is not None
    assert AclEntry(2, 4, 64999) in found.acl
    assert barrier(way_to(file), STRANGER, Right.WRITE) is not None


TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1
   1: 0100007F:1F91 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 4712 1
   2: {0}:0050 {0}:0000 0A 0:0 0:0 0 0 0 8 1
"""


def test_sockets_that_listen_are_read():
    assert list(listening(TCP.format(32 * "0"))) == [("127.0.0.1", 8080, "4711"), ("::", 80, "8")]


def test_who_holds_a_port_is_this_process():
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        (found,) = [one for one in holders([port]) if one.pid == os.getpid()]
    assert (found.address, found.port) == ("127.0.0.1", port)
    assert f"(pid {os.getpid()}, user " in found.text
    assert holders([port]) == ()


def test_users_and_processes_have_their_groups():
    own = running_as(os.getpid())
    assert own is not None
    assert (own.uid, own.groups) == (os.geteuid(), frozenset({os.getegid(), *os.getgroups()}))
    assert running_as(1 << 30) is None
    assert parent_of(os.getpid()) == os.getppid()
    assert person("no-such-user") is None
    root = person("root", 7)
    assert root is not None
    assert {0, 7} <= root.groups


def test_a_program_counts_by_its_user_too_as_anybody_names_one_as_they_like():
    name, own = Path("/proc/self/comm").read_text().strip(), running_as(os.getpid())
    assert own is not None
    assert os.getpid() in processes(name, own.name)
    other = next(one.pw_name for one in pwd.getpwall() if one.pw_uid != own.uid)
    assert os.getpid() not in processes(name, other)
    assert list(processes(name, "no-such-user")) == []


def test_room_is_that_of_the_folder(tmp_path: Path):
    (found,) = space(tmp_path, "a test's files")
    assert 0 < found.free_bytes <= found.total_bytes
    assert not found.is_read_only
    assert list(space(tmp_path / "none", "nothing")) == []


def test_units_that_do_not_start_with_the_host_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    own = tmp_path / "etc"
    (own / "multi-user.target.wants").mkdir(parents=True)
    monkeypatch.setattr(host_look, "_UNITS", (own, tmp_path / "lib"))
    (tmp_path / "lib").mkdir()
    for name in ("a.service", "b.service"):
        (tmp_path / "lib" / name).touch()
    (own / "multi-user.target.wants" / "a.service").symlink_to(tmp_path / "lib" / "a.service")
    monkeypatch.setattr(host_look, "_SYSTEMD", tmp_path)
    assert disabled_units(["a.service", "b.service", "c.service"]) == ("b.service",)
    (own / "a.service").symlink_to("/dev/null")  # as systemctl mask does
    assert disabled_units(["a.service"]) == ("a.service",)
    monkeypatch.setattr(host_look, "_SYSTEMD", tmp_path / "none")
    assert disabled_units(["b.service"]) == ()


def test_the_package_is_whole_or_its_files_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert missing_files("slicewise") == ()
    info = tmp_path / "whole-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: whole\nVersion: 1\n")
    kept, lost = "templates/kept.j2", "templates/lost.j2"
    names = (kept, lost, "x/__pycache__/y.pyc", "whole-1.dist-info/direct_url.json")
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in names))
    (tmp_path / "templates").mkdir()
    (tmp_path / kept).touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert missing_files("whole") == (lost,)
    assert missing_files("no-such-package") == ()
