"""Tests which Lua slurmctld links, according to its plugin's file."""

from pathlib import Path

import pytest

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.slurm_plugin.lua import linked_lua
from slicewise.slurm_plugin.lua.linked_lua import linked_version


@pytest.mark.parametrize(
    ("names", "version"),
    [
        (b"liblua5.1.so.0\0liblua.so\0liblua-5.1.so\0liblua.so.5.1", "5.1"),
        (b"liblua.so\0liblua-5.3.so\0liblua5.3.so.0", "5.3"),
        (b"liblua-5.4.so", "5.4"),
        (b"liblua.so.5.4", "5.4"),
    ],
)
def test_the_plugin_names_it(tmp_path: Path, names: bytes, version: str) -> None:
    (tmp_path / linked_lua.PLUGIN).write_bytes(b"\x7fELF\0" + names + b"\0")
    assert linked_version(("/nowhere", str(tmp_path))) == version


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (b"", "names no Lua"),
        (b"liblua.so", "names no Lua"),
        (b"liblua5.1.so\0liblua-5.4.so", "names 5.1, 5.4"),
    ],
)
def test_a_plugin_that_does_not_say_it_is_not_guessed_at(
    tmp_path: Path, names: bytes, words: str
) -> None:
    (tmp_path / linked_lua.PLUGIN).write_bytes(names)
    with pytest.raises(InvalidInputError, match="SW-ADMISSION-LUA") as raised:
        linked_version((str(tmp_path),))
    assert words in raised.value.refusal.message
    assert "--lua" in raised.value.refusal.hint


def test_away_from_slurmctld_it_must_be_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linked_lua, "_USUAL", ())
    with pytest.raises(InvalidInputError, match="that file is not here"):
        linked_version(())
