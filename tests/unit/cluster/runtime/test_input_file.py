"""Tests that no more of a file that a user names is read than such a file may have."""

import io
import sys
from pathlib import Path

import pytest

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.runtime import input_file
from slicewise.cluster.runtime.input_file import bounded_text, input_text


def test_the_bound_itself_may_be_read_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(input_file, "MOST_CHARACTERS", 4)
    file = tmp_path / "given"
    file.write_text("äöüß")
    assert bounded_text(file) == input_text(file) == "äöüß"
    file.write_text("äöüß.")
    for read in (bounded_text, input_text):
        with pytest.raises(InvalidInputError, match="SW-VALUE"):
            read(file)


def test_standard_input_has_the_same_bound(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(input_file, "MOST_CHARACTERS", 4)
    monkeypatch.setattr(sys, "stdin", io.StringIO("1234"))
    assert input_text(Path("-")) == "1234"
    monkeypatch.setattr(sys, "stdin", io.StringIO("12345"))
    with pytest.raises(InvalidInputError, match="- has more than 4 characters"):
        input_text(Path("-"))


def test_what_is_no_text_is_named(tmp_path: Path):
    (tmp_path / "latin").write_bytes(b"\xe9")
    for file, why in (("latin", "it is not UTF-8 text"), ("none", "No such file or directory")):
        with pytest.raises(InvalidInputError, match=why):
            input_text(tmp_path / file)
