"""Tests service wait and apply with --wait and --start: what is shown, ordered, said at the end."""

import asyncio
import io
import json
import os
import re
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from builders.replica_keys import create_identity
from builders.service_views import a_report, a_service, a_slot
from builders.settings import SITE_TOML
from stand_ins.daemon_answers import answer_in_its_place
from typer.testing import CliRunner, Result

from slicewise.cluster.language.errors import InvalidInputError, SlicewiseError, UnreachableError
from slicewise.cluster.rpc.messages import (
    CheckRequest,
    ServiceView,
    SubmitAnswer,
    ViewAnswer,
    ViewRequest,
)
from slicewise.cluster.rpc.order_messages import OrderRequest, ServiceOrder
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.settings.read import load_settings
from slicewise.cluster.slurm.sbatch import Submitted
from slicewise.launcher.cli import service as cli
from slicewise.launcher.cli import service_wait
from slicewise.launcher.services import address
from slicewise.launcher.services.overview import ServiceObservation, join
from slicewise.launcher.services.waiting import WaitGoal, Waiting

pytestmark = pytest.mark.usefixtures("clock")

Seen = ServiceObservation | Exception | None
Looks = Callable[..., list[OrderRequest]]

SETTINGS = (
    SITE_TOML
    + """\
[gateway]
url = "http://gw:8080"
directory = "{directory}/gateway"
identity = "{directory}/gateway.crt"
"""
)


def view(state: str, **order: int) -> ServiceView:
    slot = {"index": 0, "state": state}
    if state == "running":
        slot |= {"job_id": 900, "node": "n1", "start_s": 90}
    return a_service(slots=(a_slot(**slot),), order=ServiceOrder(**order), is_followed=True)


def seen(state: str, *, failures: int = 0, **order: int) -> ServiceObservation:
    report = a_report(
        desired_replicas=0, ready=((814, 0),) if state == "ready" else (), failed_starts=failures
    )
    slots = {"ready": "running", "starting": "running"}
    found = ViewAnswer(
        observed_s=100.0,
        complete=True,
        services=(view(slots.get(state, state), **order),),
        tenants=(),
        service_reports=(report,),
    )
    return join(found, None, "http://gw:8080", last_line=lambda *_: "loading [bold]llama")[0]


ASLEEP, READY, STARTS = seen("held"), seen("ready"), seen("starting")
WOKEN = {"min_replicas": 1, "max_replicas": 1}


@pytest.fixture
def looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Looks:
    """What is seen, look by look (the last one stays); what was ordered is returned."""
    (tmp_path / "slicewise.toml").write_text(SETTINGS.format(directory=tmp_path))
    (tmp_path / "gateway").mkdir()
    create_identity(load_settings(tmp_path / "slicewise.toml").gateway)
    (tmp_path / "models" / "m" / "1").mkdir(parents=True)
    (tmp_path / "models" / "m" / "1" / "model.py").touch()
    (tmp_path / "chat.toml").write_text(
        f'[service]\nname = "chat"\ntenant = "vision"\nmodel_repository = "{tmp_path}/models"\n'
        'model = "m"\nprofile = "1g.10gb"\n'
    )
    monkeypatch.setenv("SLICEWISE_CONFIG", str(tmp_path / "slicewise.toml"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(service_wait, "_POLL_S", 0.0)
    monkeypatch.setattr(service_wait, "_GIVES_BACK_S", 0.0)

    async def answers(*_: object) -> str:
        return ""

    monkeypatch.setattr(address, "wait_for_route", answers)
    monkeypatch.setattr(address, "wait_until_followed", answers)
    monkeypatch.setattr(cli, "submit_service", lambda *_: Submitted(814, ()))
    monkeypatch.setattr(cli, "why_no_start", lambda script: "")
    admitted = SubmitAnswer(action="admit", gres="gpu:1g.10gb:1")
    answer_in_its_place(monkeypatch, CheckRequest, lambda _: admitted)
    services = (view("held"),)
    now = ViewAnswer(observed_s=1.0, complete=True, services=services, tenants=())
    answer_in_its_place(monkeypatch, ViewRequest, lambda _: now)

    def show(*left: Seen | Callable[[], None]) -> list[OrderRequest]:
        ordered: list[OrderRequest] = []
        rest = list(left)

        async def observe(_: Settings) -> tuple[ServiceObservation, ...]:
            found = rest.pop(0) if len(rest) > 1 else rest[0]
            if isinstance(found, Exception):
                raise found
            if found is None or isinstance(found, ServiceObservation):
                return () if found is None else (found,)
            found()
            await asyncio.sleep(60)
            return ()

        monkeypatch.setattr(service_wait, "observe", observe)
        answer_in_its_place(monkeypatch, OrderRequest, ordered.append)
        return ordered

    return show


def run(*words: str) -> Result:
    return CliRunner().invoke(cli.service_app, words)


def refusal(result: Result) -> str:
    assert isinstance(result.exception, SlicewiseError)
    return result.exception.refusal.text()


BUSY = UnreachableError("SW-DAEMON-BLIND", "The daemon can't see all of Slurm now.")


WAKE = "nothing wakes it but a request, or slicewise service scale chat --min 1"


def test_wait_shows_each_change_once(looks):
    looks(ASLEEP, STARTS, BUSY, STARTS, READY)
    result = run("wait", "chat")
    assert (result.exit_code, result.stdout) == (0, "vision/chat is ready\n")
    assert result.stderr.splitlines() == [
        f"vision/chat: asleep: {WAKE}",
        "vision/chat: waking (1 starting)",
    ]


def test_who_waits_for_sleep_needs_nothing_that_wakes(looks):
    looks(READY, ASLEEP)
    assert "wakes" not in run("wait", "chat", "--for", "asleep").stderr


def test_start_of_a_service_that_failed_tries_a_start(looks):
    """What failed before is forgotten: otherwise the command ends at once, and nothing is tried."""
    failing = seen("held", failures=12, **WOKEN)
    ordered = looks(failing, failing, STARTS, READY, ASLEEP)
    result = run("apply", "chat.toml", "--start")
    assert result.exit_code == 0
    assert [one.what for one in ordered] == ["scale", "restart", "scale"]


def test_start_ends_where_the_start_that_it_tries_fails_as_well(looks):
    failing = seen("held", failures=12, **WOKEN)
    ordered = looks(failing, STARTS, seen("held", failures=3, **WOKEN))
    result = run("apply", "chat.toml", "--start")
    assert (result.exit_code, result.exception.refusal.code) == (1, "SW-SERVICE-FAILING")
    assert [one.what for one in ordered] == ["scale", "restart", "scale"]


def test_wait_as_json_is_what_status_shows(looks):
    looks(ASLEEP)
    shown = json.loads(run("wait", "chat", "--for", "asleep", "--json").stdout)
    assert (shown["service"], shown["state"]) == ("vision/chat", "asleep")
    looks(READY, None)
    assert json.loads(run("wait", "chat", "--for", "gone", "--json").stdout) == {
        "service": "vision/chat",
        "state": "gone",
    }


def test_a_service_that_is_not_there_is_gone(looks, monkeypatch: pytest.MonkeyPatch):
    """A script that deletes a service and waits ended with SW-SERVICE-UNKNOWN."""
    looks(READY)
    result = run("wait", "nix", "--for", "gone")
    assert (result.exit_code, result.stdout) == (0, "nix is gone\n")
    assert "SW-SERVICE-UNKNOWN" in refusal(run("wait", "nix", "--for", "asleep"))


def test_what_is_not_so_in_time_is_said_with_what_to_do(looks):
    looks(ASLEEP)
    result = run("wait", "chat", "--timeout", "0")
    assert result.exit_code == 1
    assert refusal(result) == (
        "vision/chat is not ready after 0 s; it is asleep. Wake it: send a request, or slicewise"
        " service scale chat --min 1 [SW-TIMEOUT]"
    )
    looks(STARTS)
    assert "it is waking (1 starting). See: slicewise service status chat" in refusal(
        run("wait", "chat", "--timeout", "0")
    )
    looks(BUSY)
    assert "SW-DAEMON-BLIND" in refusal(run("wait", "chat", "--timeout", "0"))


def test_on_a_terminal_the_last_line_of_the_log_is_shown(looks, monkeypatch: pytest.MonkeyPatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    looks(STARTS, READY)
    shown = Terminal()
    monkeypatch.setattr("sys.stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    waiting = Waiting("vision/chat", WaitGoal.READY)
    asyncio.run(service_wait.wait_for(load_settings(), waiting, 5.0))
    assert "vision/chat: waking (1 starting)" in shown.getvalue()
    assert "814_0: loading [bold]llama" in shown.getvalue()
    assert "\x1b[2m" in shown.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    shown.truncate(0)
    looks(STARTS, READY)
    asyncio.run(service_wait.wait_for(load_settings(), waiting, 5.0))
    assert "vision/chat: waking (1 starting)" in shown.getvalue()
    # The cursor still moves: only styles end with m.
    assert not re.search(r"\x1b\[[0-9;]*m", shown.getvalue())


def test_apply_waits_until_a_new_service_can_be_woken_or_is_ready(looks):
    looks(None, replace(ASLEEP, is_routed=False), ASLEEP)
    assert (
        "vision/chat is asleep: the first request wakes it"
        in run("apply", "chat.toml", "--wait").stdout
    )
    looks(STARTS, READY)
    said = json.loads(run("apply", "chat.toml", "--wait", "--json").stdout)
    assert (said["array_job_id"], said["state"]) == (814, "ready")


def test_apply_that_waits_in_vain_ends_with_1_and_has_said_what_it_did(looks):
    looks(seen("held", failures=3))
    result = run("apply", "chat.toml", "--wait", "--json")
    assert json.loads(result.stdout)["array_job_id"] == 814
    assert result.exit_code == 1
    assert "SW-SERVICE-FAILING" in refusal(result)


def scale(least: int | None, most: int | None) -> OrderRequest:
    return OrderRequest(array_job_id=814, what="scale", min_replicas=least, max_replicas=most)


def test_start_starts_one_replica_and_gives_it_back(looks):
    ordered = looks(seen("starting", **WOKEN), seen("ready", **WOKEN), ASLEEP)
    result = run("apply", "chat.toml", "--start")
    assert ordered == [scale(1, 1), scale(None, None)]
    assert "vision/chat: replica 814_0 on n1 was ready after" in result.stdout
    assert "(10 s on its slice) and has answered an inference. Its slice is given back." in (
        result.stdout
    )
    looks(seen("ready", **WOKEN), STARTS)
    result = run("apply", "chat.toml", "--start", "--json")
    # On its way down it looked as if it woke again.
    assert result.stderr == ""
    started = json.loads(result.stdout)["started"]
    assert started["ready_after_s"] >= 0.0
    assert started | {"ready_after_s": 0.0} == {
        "replica": "814_0",
        "node": "n1",
        "ready_after_s": 0.0,
        "on_slice_s": 10,
        "inferred": True,
        "given_back": False,
    }


def test_a_service_that_is_awake_by_its_bounds_is_only_waited_for(looks, monkeypatch):
    ordered = looks(seen("ready", **WOKEN))
    awake = ViewAnswer(
        observed_s=1.0, complete=True, services=(view("running", **WOKEN),), tenants=()
    )
    answer_in_its_place(monkeypatch, ViewRequest, lambda _: awake)
    assert "It keeps its slice for now" in run("apply", "chat.toml", "--start").stdout
    assert ordered == []


@pytest.mark.parametrize(
    ("last", "exit_code"),
    [
        (seen("held", failures=3, **WOKEN), 1),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), 128 + signal.SIGTERM),
    ],
)
def test_a_start_that_fails_or_is_terminated_leaves_no_order(looks, last, exit_code: int):
    ordered = looks(seen("starting", **WOKEN), last)
    assert run("apply", "chat.toml", "--start").exit_code == exit_code
    assert ordered == [scale(1, 1), scale(None, None)]


DOWN = UnreachableError("SW-DAEMON-DOWN", "The daemon is down.", "Start it.")
UNSURE = UnreachableError("SW-DAEMON-UNSURE", "No answer.", "Look first.")
STANDBY = InvalidInputError("SW-DAEMON-STANDBY", "Another daemon leads.")
ENDED = InvalidInputError("SW-SERVICE-UNKNOWN", "There is none.")
REFUSED = InvalidInputError("SW-FORBIDDEN", "It is not yours.")


def fails(monkeypatch: pytest.MonkeyPatch, *left: Exception | None) -> list[OrderRequest]:
    """Let the next orders end so; the last way stays. What was ordered is returned."""
    rest, ordered = list(left), []

    def answer(order: OrderRequest) -> None:
        ordered.append(order)
        if (error := rest.pop(0) if len(rest) > 1 else rest[0]) is not None:
            raise error

    answer_in_its_place(monkeypatch, OrderRequest, answer)
    return ordered


def test_bounds_are_restored_once_the_daemon_answers_again(looks, monkeypatch):
    looks(seen("ready", **WOKEN), ASLEEP)
    ordered = fails(monkeypatch, None, DOWN, UNSURE, STANDBY, None)
    assert run("apply", "chat.toml", "--start").exit_code == 0
    assert ordered == [scale(1, 1), *[scale(None, None)] * 4]


def test_bounds_are_restored_if_the_first_order_may_have_been_done(looks, monkeypatch):
    looks(ASLEEP)
    ordered = fails(monkeypatch, UNSURE, None)
    assert "SW-DAEMON-UNSURE" in refusal(run("apply", "chat.toml", "--start"))
    assert ordered == [scale(1, 1), scale(None, None)]


def test_an_order_that_was_refused_has_nothing_to_restore(looks, monkeypatch):
    looks(ASLEEP)
    ordered = fails(monkeypatch, REFUSED, None)
    assert "SW-FORBIDDEN" in refusal(run("apply", "chat.toml", "--start"))
    assert ordered == [scale(1, 1)]


def test_a_service_that_has_ended_has_no_bounds_to_restore(looks, monkeypatch):
    looks(seen("ready", **WOKEN), ASLEEP)
    ordered = fails(monkeypatch, None, ENDED)
    assert run("apply", "chat.toml", "--start").exit_code == 0
    assert ordered == [scale(1, 1), scale(None, None)]


def test_bounds_that_can_not_be_restored_are_said(looks, monkeypatch):
    looks(seen("ready", **WOKEN))
    monkeypatch.setattr(service_wait, "_RESTORES_S", 0.0)
    fails(monkeypatch, None, DOWN)
    assert "slicewise service scale vision/chat --reset [SW-DAEMON-DOWN]" in refusal(
        run("apply", "chat.toml", "--start")
    )
