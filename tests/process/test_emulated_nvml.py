"""Tests how the emulated driver's library is built."""

from pathlib import Path

import pytest

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.sandbox.nvml.library import library


def test_it_is_built_once(tmp_path: Path) -> None:
    first = library(tmp_path)
    built_at = first.stat().st_mtime_ns
    assert library(tmp_path) == first
    assert first.stat().st_mtime_ns == built_at
    assert [path.name for path in first.parent.iterdir()] == ["libnvidia-ml.so.1"]


def test_without_a_compiler_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlicewiseError, match=r"there is no cc.*Install gcc.*SW-PROGRAM"):
        library(tmp_path)


def test_what_the_compiler_says_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho nvml.c: no stdio.h >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlicewiseError, match=r"nvml\.c: no stdio\.h"):
        library(tmp_path)
