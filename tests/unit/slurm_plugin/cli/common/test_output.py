"""Tests files that are written completely or not at all."""

import os
import stat
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

import pytest

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.slurm_plugin.cli.common.output import whole_binary_file, whole_file

Opened = Callable[[Path], AbstractContextManager[IO[Any]]]
BOTH = pytest.mark.parametrize("opened", [whole_file, whole_binary_file])


def test_a_file_gets_its_name_once_all_is_written(tmp_path: Path):
    path = tmp_path / "report.html"
    path.write_text("before")
    with whole_file(path) as file:
        file.write("é\r\n" * 10_000)
        assert path.read_text() == "before"
    assert path.read_bytes() == ("é\r\n" * 10_000).encode()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with whole_binary_file(path) as file:
        file.write(b"\0")
        assert Path(file.name).parent == tmp_path
    assert path.read_bytes() == b"\0"
    assert list(tmp_path.iterdir()) == [path]


@BOTH
@pytest.mark.parametrize("place", ["no/such.zip", "."])
def test_a_place_that_takes_no_file_is_refused_before_the_work(
    opened: Opened, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    with (
        pytest.raises(InvalidInputError, match="can't be written") as refused,
        opened(Path(place)),
    ):
        pytest.fail("the work had begun")
    assert refused.value.refusal.code == "SW-OUTPUT"
    assert list(tmp_path.iterdir()) == []


@BOTH
def test_no_device_and_no_pipe_gets_a_file_in_its_place(opened: Opened, tmp_path: Path):
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to("/dev/null")
    for path in (pipe, link):
        with pytest.raises(InvalidInputError, match="a device, a pipe") as refused, opened(path):
            pytest.fail("the work had begun")
        assert refused.value.refusal.code == "SW-OUTPUT"
    assert pipe.is_fifo()
    assert {one.name for one in tmp_path.iterdir()} == {"pipe", "link"}


@BOTH
def test_an_error_of_the_work_itself_goes_through(opened: Opened, tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="sacct"), opened(tmp_path / "site.zip"):
        raise FileNotFoundError(2, "No such file or directory", "sacct")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@BOTH
def test_a_full_disk_is_said_of_the_file_that_was_named(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Whether it is noticed while the work writes, or at its end."""

    def full(**_how: object) -> tuple[int, str]:
        name = tmp_path / ".export-full"
        name.touch()
        return os.open("/dev/full", os.O_WRONLY), str(name)

    monkeypatch.setattr("slicewise.slurm_plugin.cli.common.output.mkstemp", full)
    text = "x" if opened is whole_file else b"x"
    for length in (1, 1 << 20):
        with (
            pytest.raises(InvalidInputError, match=r"site\.zip can't be written: No space left"),
            opened(tmp_path / "site.zip") as file,
        ):
            file.write(text * length)
        assert list(tmp_path.iterdir()) == []
