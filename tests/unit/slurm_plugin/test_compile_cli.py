"""What compile and uninstall say before they touch anything."""

import fcntl
import json
from pathlib import Path

import pytest

from cluster.errors import InvalidInputError, SlicewiseError
from slurm_plugin.cli.compile import compile_command
from slurm_plugin.cli.present_limits import differences_json, differences_table, hand_change_text
from slurm_plugin.decide.drift import HandChange
from slurm_plugin.decide.limits import Difference
from slurm_plugin.decide.policy import LimitKey
from slurm_plugin.uninstall import no_daemon

TOML = """
[cluster]
name = "c"
partitions = ["gpu"]
[gpus."A100-80GB"]
types = ["1g.10gb"]
[daemon]
mode = "observe"
"""
KEY = LimitKey("account", "vision", "grptres=billing")


@pytest.fixture(autouse=True)
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slicewise.toml").write_text(TOML)
    monkeypatch.setenv("SLICEWISE_CONFIG", str(tmp_path / "slicewise.toml"))


def test_the_lines_for_slurm_conf_need_no_server(capsys: pytest.CaptureFixture[str]):
    compile_command(slurm_conf=True)
    lines = capsys.readouterr().out.splitlines()
    weights = "CPU=0,Mem=0,GRES/gpu:1g.10gb=1000"
    assert lines[-1] == f'PartitionName=gpu QOS=slicewise_gate TRESBillingWeights="{weights}"'
    compile_command(slurm_conf=True, as_json=True)
    assert json.loads(capsys.readouterr().out) == lines


def test_the_lines_for_slurm_conf_are_in_the_sites_own_unit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    toml = TOML.replace("[cluster]\n", "[cluster]\nbilling_per_slice = 8\n")
    (tmp_path / "slicewise.toml").write_text(toml)
    compile_command(slurm_conf=True)
    assert 'TRESBillingWeights="CPU=0,Mem=0,GRES/gpu:1g.10gb=8"' in capsys.readouterr().out


def test_nothing_is_compiled_where_the_daemon_only_observes():
    with pytest.raises(InvalidInputError, match="SW-COMPILE-MODE"):
        compile_command()


def test_uninstalling_waits_until_the_daemon_is_stopped(tmp_path: Path):
    with (tmp_path / "daemon.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(SlicewiseError, match="SW-DAEMON-RUNNING"), no_daemon(tmp_path):
            raise AssertionError


def test_no_daemon_starts_while_uninstalling(tmp_path: Path):
    lock = tmp_path / "daemon.lock"
    lock.touch()
    with no_daemon(tmp_path), lock.open("w") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_where_no_daemon_ever_ran_no_lock_is_left(tmp_path: Path):
    with no_daemon(tmp_path / "run"):
        assert not (tmp_path / "run").exists()


def test_a_difference_shows_what_is_and_what_should_be():
    users = Difference(LimitKey("account", "vision", "qos"), "", "slicewise_vision", "own", "alice")
    differences = [Difference(KEY, "", "6000", "ceiling"), users]
    cells = [[str(cell) for cell in one.cells] for one in differences_table(differences).columns]
    assert cells == [
        ["account", "user"],
        ["vision", "alice in vision"],
        ["grptres=billing", "qos"],
        ["-", "-"],
        ["6000", "slicewise_vision"],
        ["ceiling", "own"],
    ]
    assert differences_json(differences)[1] == {
        "entity": "user",
        "name": "vision",
        "user": "alice",
        "field": "qos",
        "now": "",
        "wanted": "slicewise_vision",
        "why": "own",
    }


def test_a_change_by_hand_is_told_in_a_sentence():
    said = hand_change_text(HandChange(KEY, "6000", ""))
    assert said == "account vision: grptres=billing was 6000, somebody made it not set"
