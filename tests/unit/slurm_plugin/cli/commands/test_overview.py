"""Tests what ``slicewise overview`` prints, and its exit code."""

import json

import pytest
from builders.nodes import a_node
from builders.overview_world import ROOT, facts
from builders.settings import site_settings
from builders.why_world import running
from stand_ins.daemon_answers import answer_in_its_place
from typer.testing import CliRunner

from slicewise.cluster.rpc.overview_messages import OverviewAnswer, OverviewRequest
from slicewise.slurm_plugin.cli.commands import overview as command
from slicewise.slurm_plugin.rules.overview.overview import overview

pytestmark = pytest.mark.usefixtures("clock")

WELL = overview(facts(running(1)), ROOT)
DRAINED = overview(facts(nodes=(a_node("node1", "IDLE", "DRAIN"),)), ROOT)
DOWN = overview(facts(nodes=(a_node("node1", "DOWN"), a_node("node2", "IDLE", "DRAIN"))), ROOT)


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> None:
    found = site_settings()
    monkeypatch.setattr(command, "load_settings", lambda: found)


@pytest.mark.parametrize(("answer", "code"), [(WELL, 0), (DRAINED, 9), (DOWN, 1)])
@pytest.mark.parametrize("words", [[], ["--json"]])
def test_the_worst_finding_is_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, answer: OverviewAnswer, code: int, words: list[str]
):
    answer_in_its_place(monkeypatch, OverviewRequest, lambda _: answer)
    ended = CliRunner().invoke(command.overview_app, words)
    assert ended.exit_code == code
    if words:
        assert OverviewAnswer.model_validate(json.loads(ended.stdout)) == answer
    else:
        commands = [one.command for one in answer.attention]
        assert all(one in ended.stdout for one in commands)
        assert ("Nothing needs attention." in ended.stdout) == (not commands)
