"""Tests which jobs that waited before the gate closed get their tenant's QOS."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from builders.jobs import a_job
from builders.settings import SITE_TOML
from builders.tenants import tenant
from stand_ins.daemon_in_process import answer_from, record_handlers
from stand_ins.scripted import ScriptedSlurm, settings
from stand_ins.slurm_database import LimitLedger
from typer.testing import CliRunner

from slicewise.cluster.language.jobs import JobState, JobView
from slicewise.cluster.language.slurm.interface import Association, JobChange, Target, Tasks
from slicewise.launcher.main import app
from slicewise.slurm_plugin.cli.commands import adopt as command
from slicewise.slurm_plugin.rules.admission.adoption import adoption

pytestmark = pytest.mark.usefixtures("clock")

TENANTS = ("vision", "nlp", "bio")
ROWS = tuple(
    Association("c", account, "", "root", frozenset(qos), "normal", {})
    for account, qos in {
        "vision": ("normal", "long", "slicewise_vision"),
        "nlp": ("normal", "slicewise_nlp"),
        "bio": ("normal",),
        "removed": ("normal", "slicewise_removed"),
    }.items()
)


def job(job_id: int, account: str = "vision", **changes: Any) -> JobView:
    """A job that came past admission."""
    return a_job(job_id, account, **({"qos": "normal", "admin_comment": ""} | changes))


ARRAY = job(7, array_job_id=7, untouched=frozenset({1, 2}), qos="long")
ALONE = job(9, account="nlp", partition="cpu,gpu")
STRANGER = job(10, account="physics")
EARLY = job(13, account="bio")
UNTYPED = job(11, tres={"cpu": "1", "gres/gpu": "1"})


def test_what_waits_in_a_qos_of_the_site_gets_its_tenants() -> None:
    held = job(12, held=True, reason="JobHeldUser")
    jobs = (ARRAY, ALONE, STRANGER, UNTYPED, held)
    found = adoption(jobs, frozenset({"gpu"}), TENANTS, ROWS)
    assert found.moves == {
        Tasks(7, frozenset({1, 2})): "slicewise_vision",
        9: "slicewise_nlp",
        12: "slicewise_vision",
    }
    assert (found.no_tenant, found.no_qos, found.untyped) == ((STRANGER,), (), (UNTYPED,))


def test_jobs_from_before_their_type_was_named_are_moved() -> None:
    """They have had a type all the time, which is not in their TRES."""
    before = {"tres": {"cpu": "1", "gres/gpu": "2"}}
    typed = job(14, unnamed={"1g.10gb": 2}, **before)
    partly = job(15, unnamed={"1g.10gb": 1}, **before)
    found = adoption((typed, partly), frozenset({"gpu"}), TENANTS, ROWS)
    assert (found.moves, found.untyped) == ({14: "slicewise_vision"}, (partly,))


def test_the_qos_of_a_removed_tenant_makes_no_tenant() -> None:
    removed = job(1, account="removed")
    found = adoption((removed,), frozenset({"gpu"}), TENANTS, ROWS)
    assert (found.moves, found.no_tenant) == ({}, (removed,))


def test_a_tenant_that_may_not_use_its_qos_yet_is_one() -> None:
    """Its QOS may exist: another cluster on the same slurmdbd has made it."""
    found = adoption((EARLY,), frozenset({"gpu"}), TENANTS, ROWS)
    assert (found.moves, found.no_tenant, found.no_qos) == ({}, (), (EARLY,))


def test_a_decided_job_that_was_given_back_to_the_site_is_adopted_again() -> None:
    tag = "slicewise:1 token=ab12 tenant=vision flexible"
    found = adoption((job(1, admin_comment=tag),), frozenset({"gpu"}), TENANTS, ROWS)
    assert found.moves == {1: "slicewise_vision"}


@pytest.mark.parametrize(
    "changes",
    [
        {"state": JobState.RUNNING},
        {"qos": "slicewise_vision"},
        {"qos": "slicewise_vision_borrowed"},
        {"partition": "cpu"},
        {"tres": {"cpu": "1"}},
        {"admin_comment": "slicewise:1 token=ab12 tenant=vision undecided"},
        {"unread": frozenset({"tres"})},
    ],
)
def test_all_others_stay(changes: Mapping[str, Any]) -> None:
    found = adoption((job(1, **changes),), frozenset({"gpu"}), TENANTS, ROWS)
    assert (found.moves, found.no_tenant, found.no_qos, found.untyped) == ({}, (), (), ())


class _Slurm(ScriptedSlurm):
    refuses: Mapping[Target, str] = MappingProxyType({9: "Invalid qos specification"})

    async def associations(self) -> tuple[Association, ...]:
        return ROWS

    async def update(self, changes: Mapping[Target, JobChange]) -> Mapping[Target, str]:
        await super().update(changes)
        return self.refuses


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Slurm:
    (tmp_path / "slicewise.toml").write_text(SITE_TOML)
    monkeypatch.setenv("SLICEWISE_CONFIG", str(tmp_path / "slicewise.toml"))
    slurm = _Slurm(ARRAY, ALONE, STRANGER, UNTYPED, EARLY)
    ledger = LimitLedger()
    ledger.shown = {name: tenant(name, 1000) for name in TENANTS}
    answer_from(monkeypatch, record_handlers(settings(), ledger))
    monkeypatch.setattr(command, "open_slurm", lambda _: slurm)
    return slurm


def said(*words: str, status: int = 0) -> str:
    answer = CliRunner().invoke(app, ["admission", "adopt", *words])
    assert answer.exit_code == status, answer.output
    return answer.stdout


def test_a_dry_run_changes_nothing(slurm: _Slurm) -> None:
    text = said("--dry-run")
    assert "slicewise_vision: 1 would be moved" in text
    assert [name for name, _ in slurm.done if name.startswith("update")] == []


def test_of_many_jobs_all_are_in_the_json(slurm: _Slurm) -> None:
    slurm.shown = tuple(job(100 + n, tres=UNTYPED.tres) for n in range(8))
    assert "104 (vision) and 3 more, which --json lists." in said("--dry-run")
    assert len(json.loads(said("--dry-run", "--json"))["untyped"]) == 8


def test_what_slurm_refuses_is_said(slurm: _Slurm) -> None:
    assert json.loads(said("--json", status=1)) == {
        "moved": {"7_[1-2]": "slicewise_vision"},
        "refused": {"9": "Invalid qos specification"},
        "no_tenant": {"10": "physics"},
        "no_qos": {"13": "bio"},
        "untyped": {"11": "vision"},
    }
    changed = [(name, target) for name, target in slurm.done if name.startswith("update")]
    assert [target for _, target in changed] == [[1, 2], 9]


def test_each_is_said_to_a_person(slurm: _Slurm) -> None:
    text = " ".join(said(status=1).split())
    assert "slicewise_vision: 1 moved" in text
    assert "Slurm refused 9: Invalid qos specification" in text
    assert "never start: 10 (physics)." in text
    assert "without a QOS yet (is the daemon in mode enforce?): 13 (bio)." in text
    assert "(hold or cancel): 11 (vision)." in text
    slurm.shown = ()
    assert said().startswith("No job waits")


def test_where_slurm_refuses_nothing_all_went_well(slurm: _Slurm) -> None:
    slurm.refuses = {}
    assert "slicewise_nlp: 1 moved" in said()
