"""Tests what compile and uninstall say before they change anything."""

import asyncio
import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from builders.settings import SITE_TOML, site_settings
from builders.tenants import tenant
from stand_ins.daemon_in_process import answer_from
from stand_ins.scripted import ScriptedSlurm, job, sync_of
from stand_ins.slurm_database import LimitLedger, Row, SlurmDatabase
from typer.testing import CliRunner

from slicewise.cluster.language.errors import InvalidInputError, SlicewiseError, UnreachableError
from slicewise.cluster.language.slurm.interface import Qos
from slicewise.cluster.runtime.console import plain
from slicewise.launcher.main import app
from slicewise.slurm_plugin.api.compile_desk import CompileDesk
from slicewise.slurm_plugin.api.reads import Reads
from slicewise.slurm_plugin.cli.commands import uninstall_run as commands
from slicewise.slurm_plugin.cli.commands.compile import compile_command
from slicewise.slurm_plugin.cli.views.limits import (
    differences_table,
    out_of_band_text,
)
from slicewise.slurm_plugin.quota_cycle.uninstall import no_daemon, shown
from slicewise.slurm_plugin.rules.limits.desired import Difference
from slicewise.slurm_plugin.rules.limits.drift import OutOfBandChange
from slicewise.slurm_plugin.rules.quota.types import LimitKey

pytestmark = pytest.mark.usefixtures("clock")

TOML = (
    SITE_TOML
    + """\
[daemon]
mode = "observe"
"""
)
KEY = LimitKey("account", "vision", "grptres=billing")


@pytest.fixture(autouse=True)
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slicewise.toml").write_text(TOML)
    monkeypatch.setenv("SLICEWISE_CONFIG", str(tmp_path / "slicewise.toml"))


def test_the_lines_for_slurm_conf_need_no_server(capsys: pytest.CaptureFixture[str]):
    compile_command(slurm_conf=True)
    lines = capsys.readouterr().out.splitlines()
    weights = "CPU=0,Mem=0,GRES/gpu:1g.10gb=1000"
    words = f'QOS=slicewise_gate TRESBillingWeights="{weights}"'
    assert lines[-1] == f"# add to the line of partition gpu: {words}"
    compile_command(slurm_conf=True, as_json=True)
    assert json.loads(capsys.readouterr().out) == lines


def test_the_lines_for_slurm_conf_are_in_the_sites_own_unit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    toml = TOML.replace("[cluster]\n", "[cluster]\nbilling_per_slice = 8\n")
    (tmp_path / "slicewise.toml").write_text(toml)
    compile_command(slurm_conf=True)
    assert 'TRESBillingWeights="CPU=0,Mem=0,GRES/gpu:1g.10gb=8"' in capsys.readouterr().out


def answered(monkeypatch: pytest.MonkeyPatch, mode: str) -> SlurmDatabase:
    """Slurm as a daemon in that mode has it that answers here."""
    slurm = SlurmDatabase([Row("vision", parent="root")])
    ledger = LimitLedger()
    ledger.shown = {"vision": tenant("vision", 3000)}
    site = site_settings(daemon={"mode": mode})
    cluster_state = sync_of(ScriptedSlurm())
    asyncio.run(cluster_state.turn())
    reads = Reads(site, slurm, ledger, cluster_state)  # type: ignore[arg-type]
    desk = CompileDesk(site, slurm, ledger, cluster_state, reads)  # type: ignore[arg-type]
    answer_from(monkeypatch, desk.handlers())
    return slurm


def test_nothing_is_compiled_where_the_daemon_only_observes(monkeypatch: pytest.MonkeyPatch):
    slurm = answered(monkeypatch, "observe")
    with pytest.raises(InvalidInputError, match="SW-MODE"):
        compile_command()
    assert slurm.commands == []


def test_the_daemon_compiles_and_says_what_it_has_changed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    slurm = answered(monkeypatch, "enforce")
    compile_command(dry_run=True, as_json=True)
    planned = json.loads(capsys.readouterr().out)
    assert ("slicewise_vision" in str(planned["differences"]), slurm.commands) == (True, [])
    compile_command(as_json=True)
    done = json.loads(capsys.readouterr().out)
    assert ["add", "qos"] in [words[:2] for words in done["changes"]]
    assert (done["refused"], done["waits"]) == ([], [])
    compile_command()
    assert "Slurm has every limit as the ledger says." in capsys.readouterr().out


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
    differences = [Difference(KEY, "", "6000", "limit"), users]
    cells = [[str(cell) for cell in one.cells] for one in differences_table(differences).columns]
    assert cells == [
        ["account", "user"],
        ["vision", "alice in vision"],
        ["grptres=billing", "qos"],
        ["-", "-"],
        ["6000", "slicewise_vision"],
        ["limit", "own"],
    ]
    assert plain(differences)[1] == {
        "entity": "user",
        "name": "vision",
        "user": "alice",
        "field": "qos",
        "now": "",
        "desired": "slicewise_vision",
        "why": "own",
    }


def test_a_change_by_hand_is_told_in_a_sentence():
    said = out_of_band_text(OutOfBandChange(KEY, "6000", ""))
    assert said == "account vision: grptres=billing was 6000, changed outside Slicewise to not set"


class Site:
    """A site with a tenant, as ``uninstall`` sees it: this Slurm, and the ledger if that is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.slurm = SlurmDatabase([Row("vision", parent="root")])
        self.slurm.partition_qos = ""
        own = {"slicewise_vision": 3000, "slicewise_vision_borrowed": 0}
        for name, limit in own.items():
            self.slurm.known[name] = Qos(name, {"billing": limit}, frozenset())
        self.slurm.rows["vision", ""].plus = frozenset(own)
        waiting = job(0, qos="slicewise_vision_borrowed", array_job_id=None, task_index=None)
        self.slurm.running = (waiting,)
        monkeypatch.setattr(commands, "open_slurm", lambda _: self.slurm)

        self.ledger: LimitLedger | None = None
        monkeypatch.setattr(commands, "opened_ledger", self._opened)

    @contextmanager
    def _opened(self, _: object) -> Iterator[LimitLedger]:
        if self.ledger is None:
            raise UnreachableError("SW-DATABASE-DOWN", "gone")
        yield self.ledger

    def said(self, *words: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ("uninstall", *words), catch_exceptions=False)
        return result.exit_code, result.stdout


def test_uninstalling_says_what_it_does_and_what_stays(monkeypatch: pytest.MonkeyPatch):
    site = Site(monkeypatch)
    move = "scontrol update JobId=900 QOS=slicewise_vision\n"
    code, planned = site.said("--dry-run")
    assert (code, move in planned, site.slurm.commands) == (0, True, [])
    code, said = site.said("--yes")
    assert code == 0
    assert said.index("sacctmgr add qos slicewise_uninstalled_c\n") < said.index(move)
    assert "QOS slicewise_vision stays as long as jobs are in it, 1 is held: 900." in said
    assert "1 job in 1 QOS of Slicewise: run slicewise uninstall --finish again" in said


def test_the_nodes_that_slots_avoid_are_in_the_plan_first(monkeypatch: pytest.MonkeyPatch):
    site = Site(monkeypatch)
    tag = "slicewise:1 token=ab12 tenant=vision service=bert"
    site.slurm.running = (job(0, admin_comment=f"{tag} avoids=gpu01"),)
    command = f"scontrol update 'JobId=814_[0]' 'AdminComment={tag}' ExcNodeList="
    assert command in site.said("--dry-run")[1]
    assert json.loads(site.said("--dry-run", "--json")[1])["given_back"] == [command]
    assert site.slurm.commands == []
    with pytest.raises(SlicewiseError, match=r"1 arrays' slots let back onto nodes.*SW-ABORTED"):
        site.said()
    assert json.loads(site.said("--yes", "--json")[1])["given_back"] == [command]


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_script_does_not_uninstall_unless_it_says_yes(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
):
    site = Site(monkeypatch)
    with pytest.raises(SlicewiseError, match=r"put back, 1 waiting.*SW-ABORTED"):
        site.said(*words)
    assert site.slurm.commands == []


def test_finishing_exits_75_while_something_stays(monkeypatch: pytest.MonkeyPatch):
    site = Site(monkeypatch)
    site.said("--yes")
    code, said = site.said("--finish", "--json")
    found = json.loads(said)
    assert (code, found["changes"], found["moved"]) == (75, [], {})
    assert found["in_use"] == {"slicewise_vision": {"running": 0, "waiting": 0, "held": 1}}
    site.slurm.running = ()
    code, said = site.said("--finish")
    assert code == 75, "the word of it stays until the ledger is there"
    assert "of Slicewise: run" not in said
    site.ledger = LimitLedger()
    code, said = site.said("--finish")
    assert (code, said.count("Slurm is as it was before.\n")) == (0, 1)


def test_of_many_jobs_the_first_ten_are_named_and_the_others_counted():
    assert shown([*map(str, range(814, 831))]).endswith("822, 823 and 7 more")
    assert shown(["814_1", "815"]) == "814_1, 815"
