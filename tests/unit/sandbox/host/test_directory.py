import errno
import os
import shutil
from pathlib import Path

import pytest

from slicewise.cluster.language.errors import InvalidInputError, SlicewiseError
from slicewise.sandbox.host.directory import (
    MARKER,
    checked,
    claimed,
    closed_parent,
    empty,
    require_room,
    storable,
)


@pytest.mark.parametrize("name", ["with space", "new\nline", "quote'", "hash#", "per%cent", "a,b"])
def test_characters_that_configuration_files_cannot_quote_are_refused(tmp_path: Path, name: str):
    with pytest.raises(InvalidInputError, match="SW-OUTPUT"):
        checked(tmp_path / name)


def test_a_directory_too_long_for_sockets_is_refused():
    with pytest.raises(InvalidInputError, match="107 bytes"):
        checked(Path("/tmp") / ("x" * 70))


def test_a_foreign_directory_is_refused_and_left_alone(tmp_path: Path):
    tmp_path.joinpath("precious").write_text("x")
    with pytest.raises(InvalidInputError, match="SW-OUTPUT"):
        checked(tmp_path)
    assert tmp_path.joinpath("precious").read_text() == "x"


def test_a_marked_directory_is_claimed_once():
    path = Path(f"/tmp/slicewise-claim-{os.getpid()}")
    with claimed(path):
        assert checked(path) == path
        with pytest.raises(SlicewiseError, match="SW-BUSY"), claimed(path):
            pass
    path.joinpath("sub").mkdir()
    empty(path)
    assert [entry.name for entry in path.iterdir()] == [MARKER]
    path.joinpath(MARKER).unlink()
    path.rmdir()


def test_the_first_closed_parent_is_named(tmp_path: Path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    found = closed_parent(closed / "inner" / "sandbox")
    assert found in (closed, *closed.parents)
    assert found is not None
    assert not found.stat().st_mode & 0o001


@pytest.mark.parametrize("path", ["/proc/slicewise", "/dev/null/slicewise"])
def test_where_no_directory_can_be_made_is_refused(path: str):
    with pytest.raises(InvalidInputError, match="SW-OUTPUT"), claimed(Path(path)):
        pass


@pytest.mark.parametrize(
    "failure",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        shutil.Error([("from", "to", "[Errno 28] No space left on device: 'from' -> 'to'")]),
    ],
)
def test_a_full_disk_is_told_as_such(tmp_path: Path, failure: OSError):
    told = pytest.raises(InvalidInputError, match=r"No space left on device.*SW-OUTPUT")
    with told, storable(tmp_path):
        raise failure


def test_another_failure_of_the_system_is_not_blamed_on_the_directory(tmp_path: Path):
    with pytest.raises(FileNotFoundError), storable(tmp_path):
        (tmp_path / "nothing").read_text()


def test_a_disk_without_room_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("slicewise.sandbox.host.directory.ROOM_MB", 10**9)
    with pytest.raises(InvalidInputError, match="MB of room"):
        require_room(tmp_path)
