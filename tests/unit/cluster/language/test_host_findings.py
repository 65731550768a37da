"""Tests what is said of a host: full disks, held ports, units and files of the package."""

from dataclasses import replace

import pytest

from slicewise.cluster.language.host_findings import (
    Holder,
    Space,
    held_by_others,
    package_checks,
    port_checks,
    space_checks,
    unit_checks,
)

GIB = 1 << 30
ROOM = Space("/var/spool/slurmctld", "slurmctld's state", 50 * GIB, 100 * GIB, 9**6, 9**7)


@pytest.mark.parametrize(
    ("space", "found"),
    [
        (ROOM, []),
        (replace(ROOM, free_bytes=0), ["error: No space"]),
        (replace(ROOM, free_bytes=200 << 20), ["warning: 200 MiB are left"]),
        (replace(ROOM, free_inodes=0), ["error: No inode"]),
        (replace(ROOM, free_inodes=500), ["warning: 500 inodes are left"]),
        # Some file systems make inodes as they need them.
        (replace(ROOM, free_inodes=0, total_inodes=0), []),
        # A twentieth of a small one is enough, such as of /run.
        (replace(ROOM, free_bytes=40 << 20, total_bytes=100 << 20), []),
        (replace(ROOM, free_bytes=4 << 20, total_bytes=100 << 20), ["error: No space"]),
        (replace(ROOM, free_bytes=0, total_bytes=0), []),
        (replace(ROOM, is_read_only=True), ["error: /var/spool/slurmctld"]),
    ],
)
def test_a_full_folder_is_named(space: Space, found: list[str]) -> None:
    said = [f"{one.severity}: {one.what}" for one in space_checks([space])]
    assert len(said) == len(found)
    for text, begins in zip(said, found, strict=True):
        assert text.startswith(begins)
        assert "/var/spool/slurmctld (slurmctld's state)" in text


def test_a_full_disk_is_said_once() -> None:
    full = replace(ROOM, free_bytes=0)
    assert len(list(space_checks([full, replace(full, path="/run")]))) == 1


ANYWHERE = "0.0.0.0"  # noqa: S104 -- compared only
NGINX = Holder(ANYWHERE, 8080, 71, "nginx", "www-data", "nginx: master")
HAPROXY = replace(NGINX, pid=72, program="haproxy", user="root")
SYSTEMD = replace(NGINX, pid=1, program="systemd", user="root")
DAEMON = Holder("10.0.0.1", 6830, 90, "python3", "slurm", "/opt/slicewise/bin/slicewise daemon")


def test_whoever_holds_a_port_is_named_unless_the_right_one_does() -> None:
    def others(*holders: Holder, host: str = "10.0.0.1", port: int = 8080) -> tuple[Holder, ...]:
        return held_by_others(holders, host, port, {"root"}, ("haproxy", "systemd"))

    assert others(NGINX) == (NGINX,)
    assert others(NGINX, HAPROXY) == ()
    assert others(SYSTEMD, host="*") == ()
    assert others(NGINX, host="*", port=8081) == ()
    # On another address of the host.
    assert others(replace(NGINX, address="10.0.0.2")) == ()
    assert others(replace(NGINX, address="10.0.0.2"), host=ANYWHERE) != ()
    # Any user may call a program so.
    assert others(replace(HAPROXY, user="eve")) != ()


def test_a_port_of_the_daemons_that_another_holds_is_found_by_its_setting() -> None:
    wanted, users = [("[daemon] listen", "10.0.0.1", 6830)], {"root", "slurm"}
    assert list(port_checks([DAEMON], wanted, users)) == []
    (found,) = port_checks([replace(NGINX, port=6830)], wanted, users)
    assert found.code == "SW-PORT-HELD"
    assert found.what == (
        "nginx (pid 71, user www-data) listens on port 6830, which [daemon] listen names"
    )
    (imitated,) = port_checks([replace(DAEMON, user="eve")], wanted, users)
    assert imitated.what.startswith("python3 (pid 90, user eve) listens")


def test_units_and_files_are_named() -> None:
    (unit,) = unit_checks(["slicewise-daemon.service"])
    assert unit.mends[0].line == "systemctl enable slicewise-daemon.service"
    (lost,) = package_checks(["templates/haproxy.cfg.j2", "a", "b", "c"])
    assert lost.what == "Files of Slicewise's own are missing: a, b, c and 1 more"
    # /run and logs are often mounted so, which harms nobody.
    assert list(space_checks([replace(ROOM, is_noexec=True)])) == []
    (noexec,) = space_checks([replace(ROOM, is_noexec=True, runs="scripts of jobs")])
    assert (noexec.code, "noexec" in noexec.what) == ("SW-PACKAGE", True)
    assert noexec.why == "scripts of jobs can't be started there"


def test_a_path_that_a_user_chose_is_one_word_of_the_command():
    folder = "/run/user/1000/a;touch x;$(id)"
    full = Space(folder, "PostgreSQL's data", 0, 1 << 30, 0, 1000)
    lines = [mend.line for finding in space_checks([full]) for mend in finding.mends]
    assert len(lines) == 2
    for line in lines:
        assert f"-T '{folder}')\"" in line
