"""Tests service history and rollback: what is shown, which generation is submitted again."""

import json
from pathlib import Path

import pytest
from builders.replica_keys import create_identity
from builders.service_views import a_generation, a_service
from builders.settings import SITE_TOML
from stand_ins.daemon_answers import answer_in_its_place
from typer.testing import CliRunner, Result

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.language.service import directives_of_script
from slicewise.cluster.rpc.messages import CheckRequest, SubmitAnswer, ViewAnswer, ViewRequest
from slicewise.cluster.rpc.read_messages import (
    GenerationsAnswer,
    GenerationsRequest,
    SlicePriceAnswer,
    SlicePriceRequest,
)
from slicewise.cluster.settings.read import load_settings
from slicewise.cluster.slurm.sbatch import Submitted
from slicewise.launcher.cli import service as cli
from slicewise.launcher.services import address

SETTINGS = (
    SITE_TOML
    + """\
[gateway]
directory = "{directory}/gateway"
identity = "{directory}/gateway.crt"
"""
)

SHOWN = 2


def directives(place: Path, **more: str) -> dict[str, str]:
    return {
        "name": "chat",
        "tenant": "vision",
        "model_repository": f"{place}/models",
        "model": "m",
        "profile": "1g.10gb",
        **more,
    }


@pytest.fixture
def submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Scripts; the daemon has recorded 800 and 814, of which the newer lives.

    It shows as many generations as leave no place for 800 beside another tenant's.
    """
    (tmp_path / "slicewise.toml").write_text(SETTINGS.format(directory=tmp_path))
    (tmp_path / "gateway").mkdir()
    create_identity(load_settings(tmp_path / "slicewise.toml").gateway)
    (tmp_path / "models" / "m" / "1").mkdir(parents=True)
    (tmp_path / "models" / "m" / "1" / "model.py").touch()
    monkeypatch.setenv("SLICEWISE_CONFIG", str(tmp_path / "slicewise.toml"))
    monkeypatch.chdir(tmp_path)
    scripts: list[str] = []

    def submit(script: str, *_: str) -> Submitted:
        scripts.append(script)
        return Submitted(820, ())

    async def answers(*_: object) -> str:
        return ""

    monkeypatch.setattr(cli, "submit_service", submit)
    monkeypatch.setattr(cli, "why_no_start", lambda script: "")
    monkeypatch.setattr(address, "wait_for_route", answers)
    monkeypatch.setattr(address, "wait_until_followed", answers)
    changed = directives(tmp_path, concurrency="2")
    living = a_service(submit_s=1_700_000_000, directives=changed)
    records = tuple(
        a_generation(
            array,
            submitted_s=1_700_000_000 - 86_400 * (814 - array),
            tenant=tenant,
            directives=said,
        )
        for array, tenant, said in (
            (814, "vision", changed),
            (813, "nlp", {"tenant": "nlp"}),
            (800, "vision", directives(tmp_path)),
        )
    )
    view = ViewAnswer(observed_s=1.0, complete=True, services=(living,), tenants=())
    admitted = SubmitAnswer(action="admit", gres="gpu:1g.10gb:1")
    answer_in_its_place(monkeypatch, CheckRequest, lambda _: admitted)
    answer_in_its_place(monkeypatch, SlicePriceRequest, lambda _: SlicePriceAnswer())
    answer_in_its_place(monkeypatch, ViewRequest, lambda _: view)
    answer_in_its_place(
        monkeypatch,
        GenerationsRequest,
        lambda request: GenerationsAnswer(
            generations=tuple(
                one
                for one in records
                if one.name == request.name and request.tenant in {None, one.tenant}
            )[:SHOWN]
        ),
    )
    return scripts


def run(*words: str) -> Result:
    return CliRunner().invoke(cli.service_app, words)


def refusal(*words: str) -> str:
    failure = run(*words).exception
    assert isinstance(failure, SlicewiseError)
    return failure.refusal.code


def test_history_says_what_each_generation_has_changed(submitted):
    lines = [" ".join(line.split()) for line in run("history", "vision/chat").stdout.splitlines()]
    assert lines[0] == "array job submitted by state changes"
    assert lines[1].startswith("814 2023-11-1")
    assert lines[1].endswith("alice newest concurrency: 1 → 2")
    assert lines[2].endswith("alice ended")
    assert len(lines) == 3


def test_history_as_json(submitted):
    newest, first = json.loads(run("history", "vision/chat", "--json").stdout)
    assert (newest["array_job_id"], newest["state"], newest["user"]) == (814, "newest", "alice")
    assert newest["changes"] == [{"key": "concurrency", "before": "1", "after": "2"}]
    assert (first["array_job_id"], first["changes"]) == (800, [])
    assert "concurrency" not in first["directives"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("history", "nobody"), "SW-SERVICE-UNKNOWN"),
        (("rollback", "chat"), "SW-USAGE"),
        (("rollback", "vision/chat", "--to", "7"), "SW-NAME-UNKNOWN"),
    ],
)
def test_what_is_not_there_is_refused(submitted, words: tuple[str, ...], code: str):
    assert (refusal(*words), submitted) == (code, [])


def test_a_rollback_submits_the_generation_before(submitted):
    said = run("rollback", "vision/chat", "--dry-run").stdout
    assert "vision/chat would roll over from array job 814" in said
    assert "- concurrency = 2" in said
    assert submitted == []
    assert "rolls over from array job 814 to 820" in run("rollback", "vision/chat").stdout
    assert directives_of_script(submitted[0].splitlines())["concurrency"] == "1"


def test_a_rollback_to_what_runs_submits_nothing(submitted):
    result = run("rollback", "vision/chat", "--to", "814", "--json")
    assert json.loads(result.stdout)["action"] == "nothing"
    assert submitted == []
