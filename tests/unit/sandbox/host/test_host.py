"""Tests how commands of a sandbox become its users."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from slicewise.sandbox.host.host import Host
from slicewise.sandbox.host.layout import Layout
from slicewise.sandbox.host.state import Program, State
from slicewise.sandbox.host.users import User

ROOT, ALICE = User("root", 0, 0), User("alice", 61001, 61001)


@pytest.mark.parametrize(
    ("alice", "words", "umask"),
    [
        (ALICE, ["setpriv", "--reuid=61001", "--regid=61001", "--groups=61001", "--"], 0o022),
        (ROOT, [], -1),
    ],
)
def test_a_command_becomes_its_user_without_a_copy_of_this_process(
    alice: User, words: list[str], umask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[list[str], dict[str, Any]]] = []
    monkeypatch.setattr(subprocess, "run", lambda argv, **options: ran.append((argv, options)))
    program = Program(tmp_path, tmp_path, tmp_path)
    users = {"root": ROOT, "alice": alice, "slurm": ROOT, "slicewise": ROOT}
    host = Host(State(Layout(tmp_path, 0), users, program, device_nodes=False))
    host.run("alice", ("/bin/true", "x"))
    ((argv, options),) = ran
    assert argv == [*words, "/bin/true", "x"]
    assert options["umask"] == umask
    assert options.keys().isdisjoint({"user", "group", "extra_groups", "preexec_fn"})
