from pathlib import Path
from types import SimpleNamespace

import pytest

from slicewise.sandbox import restart_main
from slicewise.sandbox.host.process import Process
from slicewise.sandbox.restart import ended
from slicewise.sandbox.servers.slurm import responds


def program(name: str) -> Process:
    return Process(name, "slurm", 1, 1, 0.0)


def test_what_has_ended_is_started_in_the_order_of_need():
    names = ("launcher", "slurmctld", "slurmd-gpu02", "munged", "postgres", "napper")
    processes = {name: program(name) for name in names}
    found = ended(processes, lambda process: process.name == "postgres")
    assert found == ("munged", "slurmctld", "slurmd-gpu02", "launcher")


def test_a_server_that_was_never_started_has_not_ended():
    assert ended({"munged": program("munged")}, lambda _: False) == ("munged",)


def test_a_server_that_is_not_there_is_answered_by_those_that_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    state = SimpleNamespace(processes={"munged": program("munged"), "daemon": program("daemon")})
    monkeypatch.setattr(restart_main, "load", lambda _: state)
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    for name in ("", "--help", "slurmd", "slicewise-daemon"):
        with pytest.raises(SystemExit, match="Name one of: munged, daemon;"):
            restart_main.main(tmp_path, name)


def test_a_node_responds_also_while_jobs_run_there():
    assert [responds(state) for state in ("idle", "mixed", "drained", "allocated")] == [True] * 4
    assert not any(responds(state) for state in ("", "idle*", "mixed*", "down", "unknown*"))
