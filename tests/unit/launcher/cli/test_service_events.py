"""Tests service events: what is shown of one service, and of several with its name."""

import json
from pathlib import Path

import json_checker
import pytest
from builders.settings import SITE_TOML
from stand_ins.daemon_answers import answer_in_its_place
from typer.testing import CliRunner, Result

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.rpc.read_messages import (
    ServiceEvent,
    ServiceEvents,
    ServiceEventsAnswer,
    ServiceEventsRequest,
)
from slicewise.launcher.cli import service as cli

EVENTS = (
    ServiceEvent(at_s=100, array_job_id=814, slot=0, node="gpu1", what="started"),
    ServiceEvent(at_s=130, array_job_id=814, slot=0, what="failed", why="ended with 137"),
)


@pytest.fixture
def _two_tenants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slicewise.toml").write_text(SITE_TOML.format(directory=tmp_path))
    monkeypatch.setenv("SLICEWISE_CONFIG", str(tmp_path / "slicewise.toml"))
    known = (
        ServiceEvents(tenant="nlp", name="chat", events=()),
        ServiceEvents(tenant="vision", name="chat", events=EVENTS),
    )
    answer_in_its_place(
        monkeypatch,
        ServiceEventsRequest,
        lambda request: ServiceEventsAnswer(
            services=tuple(one for one in known if request.tenant in {None, one.tenant})
        ),
    )


def run(*words: str) -> Result:
    return CliRunner().invoke(cli.service_app, ["events", *words])


@pytest.mark.usefixtures("_two_tenants")
def test_events_are_shown_in_order_with_their_cause():
    said = run("vision/chat").output.splitlines()
    assert said[-2].split()[2:] == ["814_0", "gpu1", "started"]
    assert said[-1].split()[2:] == ["814_0", "failed", "ended", "with", "137"]
    shown = json.loads(run("vision/chat", "--json").output)
    json_checker.check("service events", shown)
    assert [(one["at_s"], one["what"], one["why"]) for one in shown] == [
        (100, "started", None),
        (130, "failed", "ended with 137"),
    ]


@pytest.mark.usefixtures("_two_tenants")
def test_of_several_services_of_that_name_one_must_be_named():
    refused = run("chat").exception
    assert isinstance(refused, SlicewiseError)
    assert "vision/chat" in f"{refused.refusal.message} {refused.refusal.hint}"
