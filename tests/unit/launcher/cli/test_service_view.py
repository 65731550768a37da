"""Tests what ``service status`` prints while it watches."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from builders.service_views import a_report, a_service, a_slot, slots_in
from typer.testing import CliRunner

from slicewise.cluster.rpc.messages import ServiceQuality, ViewAnswer
from slicewise.launcher.cli import service_view
from slicewise.launcher.cli.service import service_app
from slicewise.launcher.cli.show_services import _facts
from slicewise.launcher.services.overview import ServiceObservation, join

pytestmark = pytest.mark.usefixtures("clock")


def seen(*states: str) -> Sequence[ServiceObservation]:
    view = a_service(submit_s=0, slots=slots_in(*states))
    answer = ViewAnswer(observed_s=1.0, complete=True, services=(view,), tenants=())
    return join(answer, None, "http://gateway", last_line=lambda *_: "")


def running(now_s: int, ready: bool = False, **slot: object) -> Sequence[ServiceObservation]:
    """A replica that began at second 0 and ends at second 90, as it is seen now."""
    said = {"state": "running", "job_id": 900, "node": "n1", "start_s": 0}
    leaves = {"ends_in_s": 90 - now_s, "ends_why": "its lease is over"}
    view = a_service(submit_s=0, slots=(a_slot(**{**said, **leaves, **slot}),))
    report = a_report(
        rate_per_s=now_s / 8,
        ready=((814, 0),) if ready else (),
        quality=ServiceQuality(span_s=now_s, answered=now_s),
    )
    answer = ViewAnswer(
        observed_s=now_s, complete=True, services=(view,), tenants=(), service_reports=(report,)
    )
    return join(answer, None, "http://gateway", last_line=lambda *_: "")


def test_watched_as_json_each_change_is_a_line(monkeypatch: pytest.MonkeyPatch):
    lines = watched(
        monkeypatch, seen("held", "held"), seen("held", "held"), seen("released", "held")
    )
    assert [len(line["slots"]["held"]) for line in lines] == [2, 1]


def test_time_that_passes_is_no_change(monkeypatch: pytest.MonkeyPatch):
    looks = [running(10), running(11), running(12, ready=True), running(13, ready=True)]
    lines = watched(monkeypatch, *looks, running(14, ready=True, ends_why="its node is drained"))
    shown = [(line["state"], line["replicas"][0], line["report"]["rate_per_s"]) for line in lines]
    assert [(one[0], one[1]["age_s"], one[1]["why"], one[2]) for one in shown] == [
        ("waking", 10, "ends in 80 s: its lease is over", 1.25),
        ("ready", 12, "ends in 78 s: its lease is over", 1.5),
        ("ready", 14, "ends in 76 s: its node is drained", 1.75),
    ]


def test_watched_in_a_pipe_each_change_is_printed(monkeypatch: pytest.MonkeyPatch):
    looks = (seen("held", "held"), seen("held", "held"), seen("released", "held"))
    states = [line for line in printed(monkeypatch, *looks) if line.startswith("state ")]
    assert len(states) == 2


def watched(
    monkeypatch: pytest.MonkeyPatch, *left: Sequence[ServiceObservation]
) -> Sequence[dict[str, Any]]:
    """The documents that the command prints for these looks."""
    return [json.loads(line) for line in printed(monkeypatch, *left, words=("--json",))]


def printed(
    monkeypatch: pytest.MonkeyPatch,
    *left: Sequence[ServiceObservation],
    words: Sequence[str] = (),
) -> Sequence[str]:
    """The lines that the command prints for these looks."""
    looks = list(left)

    async def observe(_: object) -> Sequence[ServiceObservation]:
        if not looks:
            raise KeyboardInterrupt
        return looks.pop(0)

    monkeypatch.setattr(service_view, "load_settings", lambda: None)
    monkeypatch.setattr(service_view, "observe", observe)
    monkeypatch.setattr(service_view, "_WATCH_S", 0.0)
    result = CliRunner().invoke(service_app, ["status", "chat", "--watch", *words])
    assert result.exit_code == 0
    return result.stdout.splitlines()


@pytest.mark.parametrize(
    ("audience", "words"),
    [("*", "all tenants"), ("bio,nlp", "bio, nlp, each with all below it"), ("", "")],
)
def test_who_may_ask_a_service_is_shown(audience: str, words: str):
    view = a_service(directives={"audience": audience})
    answer = ViewAnswer(observed_s=1.0, complete=True, services=(view,), tenants=())
    (service,) = join(answer, None, "http://gateway", last_line=lambda *_: "")
    shown = {heading: str(text) for heading, text in _facts(service)}
    assert shown.get("audience", "") == words
