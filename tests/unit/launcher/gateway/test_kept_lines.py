"""Tests what is read of the file into which HAProxy writes, and when it is removed."""

import os
from pathlib import Path
from typing import Any

import pytest

from slicewise.launcher.gateway import kept_lines
from slicewise.launcher.gateway.kept_lines import KeptLines


def write(file: Path, text: str) -> None:
    with file.open("a", encoding="utf-8") as opened:
        opened.write(text)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "slicewise-usage" / "lines"


def test_whole_lines_are_read_once_and_by_the_next_reader_again(file: Path, clock: Any):
    kept = KeptLines(file)
    assert file.parent.stat().st_mode & 0o777 == 0o770
    assert kept.news() == []
    write(file, "a\nb\nc")
    assert kept.news() == ["a", "b"]
    write(file, "d\n")
    assert (kept.news(), kept.news()) == (["cd"], [])
    assert KeptLines(file).news() == ["a", "b", "cd"]


def test_more_than_is_read_at_once_is_said(file: Path, clock: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kept_lines, "_AT_ONCE_BYTES", 4)
    kept = KeptLines(file)
    write(file, "aa\nbb\n")
    assert (kept.news(), kept.is_behind) == (["aa"], True)
    assert (kept.news(), kept.is_behind) == (["bb"], False)


def test_what_is_written_down_is_removed_once_no_thread_writes_there(
    file: Path, clock: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(kept_lines, "_LET_GO_BYTES", 1)
    kept, moved = KeptLines(file), file.with_suffix(".moved")
    write(file, "a\nb\n")
    kept.news()
    kept.let_go(clock.passed_s)
    assert moved.exists()
    assert not file.exists()
    # One thread has not opened the new file yet.
    write(file, "2 later\n")
    write(moved, "2 before\n")
    assert kept.news() == ["2 before", "2 later"]
    clock.passed_s += 60
    assert kept.news() == []
    read_s = kept_lines.time.monotonic()  # type: ignore[attr-defined]
    # A line that was read before waits.
    kept.let_go(read_s - 1)
    assert moved.exists()
    assert KeptLines(file).news() == ["a", "b", "2 before", "2 later"]
    clock.passed_s += 1
    kept.let_go(kept_lines.time.monotonic())  # type: ignore[attr-defined]
    assert not moved.exists()
    assert KeptLines(file).news() == ["2 later"]


def test_what_is_left_of_a_torn_line_spoils_no_other(file: Path, clock: Any):
    kept = KeptLines(file)
    write(file, "\n1 a\n\n2 to\n3 b\n")
    assert kept.news() == ["1 a", "2 to", "3 b"]


def test_a_file_that_was_removed_is_not_read_for_ever(file: Path, clock: Any):
    kept = KeptLines(file)
    write(file, "a\n")
    assert kept.news() == ["a"]
    file.unlink()
    write(file, "b\n")
    assert (kept.news(), kept.news()) == ([], ["b"])


def test_one_of_two_launchers_moves_the_file(
    file: Path, clock: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(kept_lines, "_LET_GO_BYTES", 1)
    first, second = KeptLines(file), KeptLines(file)
    write(file, "a\n")
    assert first.news() == second.news() == ["a"]
    first.let_go(clock.passed_s)
    write(file, "b\n")
    second.let_go(clock.passed_s)
    assert (file.read_text(), file.with_suffix(".moved").read_text()) == ("b\n", "a\n")
    assert first.news() == ["b"]


def test_no_pipe_is_waited_for(file: Path, clock: Any):
    kept = KeptLines(file)
    os.mkfifo(file)
    with pytest.raises(OSError, match="seek"):
        kept.news()


def test_a_directory_that_this_user_may_not_enter_is_said(tmp_path: Path, clock: Any):
    (tmp_path / "usage").write_text("")
    with pytest.raises(OSError, match="exists"):
        KeptLines(tmp_path / "usage" / "lines")
