"""Tests which Lua slurmctld links, according to its plugin's file."""

from pathlib import Path

import pytest

from slicewise.slurm_plugin.lua.linked_lua import interpreter


async def test_an_interpreter_is_the_one_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Enterprise Linux has one, called lua."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert await interpreter("5.9") == ""
    lua = tmp_path / "lua"
    lua.write_text("#!/bin/sh\necho -n Lua 5.9\n")
    lua.chmod(0o755)
    assert await interpreter("5.9") == "lua"
    assert await interpreter("5.8") == ""
