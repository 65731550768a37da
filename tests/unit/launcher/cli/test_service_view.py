"""Tests what ``service status`` prints while it watches."""

import json
from collections.abc import Sequence

import pytest
from typer.testing import CliRunner

from cluster.rpc.messages import ServiceView, SlotView, ViewAnswer
from launcher.cli import service_view
from launcher.cli.service import service_app
from launcher.services.overview import ServiceObservation, join


def seen(*states: str) -> Sequence[ServiceObservation]:
    view = ServiceView(
        array_job_id=814,
        tenant="vision",
        name="chat",
        user="alice",
        submit_s=0,
        directives={},
        profile="1g.10gb",
        cost_millislices=1000,
        slots=tuple(
            SlotView.model_validate({"index": index, "state": state})
            for index, state in enumerate(states)
        ),
    )
    answer = ViewAnswer(observed_s=1.0, complete=True, services=(view,), tenants=())
    return join(answer, None, "http://gateway", last_line=lambda *_: "")


def test_watched_as_json_each_change_is_a_line(monkeypatch: pytest.MonkeyPatch):
    looks = [seen("held", "held"), seen("held", "held"), seen("released", "held")]

    async def observe(_: object) -> Sequence[ServiceObservation]:
        if not looks:
            raise KeyboardInterrupt
        return looks.pop(0)

    monkeypatch.setattr(service_view, "load_settings", lambda: None)
    monkeypatch.setattr(service_view, "observe", observe)
    monkeypatch.setattr(service_view, "_WATCH_S", 0.0)
    result = CliRunner().invoke(service_app, ["status", "chat", "--watch", "--json"])
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [len(line["slots"]["held"]) for line in lines] == [2, 1]
    assert result.exit_code == 0
