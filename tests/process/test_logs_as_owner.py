"""Reads logs as root, in a directory whose owner has put other things in their place."""

import os
import pwd
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from builders.service_views import a_service, slots_in

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.rpc.messages import ServiceView
from slicewise.launcher.services.logs import (
    Chosen,
    chosen_slots,
    last_lines,
    new_lines,
    offsets_now,
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root reads what others can't")

OWNER = "nobody"


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Path]:
    """The directory of a service of another user's, closed to all others."""
    user = pwd.getpwnam(OWNER)
    above = [one for one in (tmp_path, *tmp_path.parents) if one.stat().st_mode & 0o001 == 0]
    for one in above:
        one.chmod(one.stat().st_mode | 0o011)
    folder = tmp_path / "home" / "chat.logs"
    folder.mkdir(parents=True)
    (folder / "814_0.log").write_text("a log of its own\n")
    for one in (folder, folder.parent, folder / "814_0.log"):
        os.chown(one, user.pw_uid, user.pw_gid)
        one.chmod(0o700)
    return folder


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "shadow"
    file.write_text("root's own secret\n")
    file.chmod(0o600)
    return file


def view_of(logs: Path, user: str = OWNER) -> ServiceView:
    return a_service(slots=slots_in("running"), directory=str(logs.parent), user=user)


def texts(logs: Path) -> list[str]:
    lines, _ = last_lines(view_of(logs), (0,), Chosen(10))
    return [log_line.line for log_line in lines]


def test_a_log_is_read_as_its_owner_and_root_is_root_again(logs: Path):
    assert texts(logs) == ["a log of its own"]
    assert chosen_slots(view_of(logs), None) == (0,)
    assert (os.geteuid(), os.getegid()) == (0, 0)


def soft(log: Path, secret: Path) -> None:
    log.unlink()
    log.symlink_to(secret)


def hard(log: Path, secret: Path) -> None:
    log.unlink()
    log.hardlink_to(secret)


def above(log: Path, secret: Path) -> None:
    """Not the file is a link, but its directory."""
    folder = secret.parent / "roots"
    folder.mkdir(mode=0o700)
    secret.rename(folder / log.name)
    log.unlink()
    log.parent.rmdir()
    log.parent.symlink_to(folder)


@pytest.mark.parametrize("put", [soft, hard, above])
def test_root_reads_nothing_that_the_owner_could_not(
    logs: Path, secret: Path, put: Callable[[Path, Path], None]
):
    put(logs / "814_0.log", secret)
    with pytest.raises(InvalidInputError, match="SW-NOTHING") as caught:
        texts(logs)
    assert "secret" not in str(caught.value)
    assert new_lines(view_of(logs), {0: 0})[0] == ()
    assert os.geteuid() == 0


def test_a_fifo_and_a_device_are_no_logs(logs: Path):
    log = logs / "814_0.log"
    log.unlink()
    os.mkfifo(log, 0o666)
    with pytest.raises(InvalidInputError, match="SW-NOTHING"):
        texts(logs)
    log.unlink()
    log.symlink_to("/dev/zero")
    with pytest.raises(InvalidInputError, match="SW-NOTHING"):
        texts(logs)


def test_without_its_user_here_nothing_is_read(logs: Path):
    for read in (lambda one: last_lines(one, (0,), Chosen(1)), lambda one: offsets_now(one, (0,))):
        with pytest.raises(InvalidInputError, match="no user ghost"):
            read(view_of(logs, "ghost"))
