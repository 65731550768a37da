"""Tests the loop of ``slicewise top``: keys in, questions to the daemon, pictures out."""

import io
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from builders.overview_world import ROOT, facts
from builders.why_world import job, running
from rich.console import Console
from typer.testing import CliRunner

from slicewise.cluster.language.errors import InvalidInputError, UnreachableError
from slicewise.cluster.rpc.overview_messages import OverviewAnswer, OverviewRequest
from slicewise.cluster.rpc.read_messages import WhyAnswer, WhyRequest
from slicewise.slurm_plugin.cli.commands import top as command
from slicewise.slurm_plugin.rules.overview.overview import overview

pytestmark = pytest.mark.usefixtures("clock")

ANSWER = overview(facts(running(1), job(20, "Resources")), ROOT)


class Keys:
    """The user's end of standard input."""

    def __init__(self, end: int) -> None:
        self._end = end

    def type(self, keys: bytes) -> None:
        os.write(self._end, keys)

    def hang_up(self) -> None:
        os.close(self._end)


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> Iterator[Keys]:
    read, write = os.pipe()
    with os.fdopen(read) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield Keys(write)


class Daemon:
    """Answers, and then the user goes on typing."""

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self.asked: list[Any] = []
        self._answer = answer

    def call(self, request: Any) -> Any:
        self.asked.append(request)
        return self._answer(request)


def ran(daemon: Daemon, interval_s: float = 3600.0, first: OverviewAnswer = ANSWER) -> str:
    out = Console(file=io.StringIO(), width=80, height=24, force_terminal=True, color_system=None)
    command._Top(daemon, out, first, interval_s).run()  # type: ignore[arg-type]
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def test_it_shows_the_first_look_and_ends_when_told_to(keys: Keys):
    keys.type(b"q")
    daemon = Daemon(lambda _: ANSWER)
    text = ran(daemon)
    assert "vision" in text
    # What needs attention comes first; without that the tenants.
    assert "severity" in text
    assert "nominal" not in text
    keys.type(b"q")
    assert "nominal" in ran(daemon, first=ANSWER.model_copy(update={"attention": ()}))
    assert daemon.asked == []


def test_a_terminal_that_has_gone_ends_it(keys: Keys):
    keys.hang_up()
    assert "vision" in ran(Daemon(lambda _: ANSWER))


def test_enter_asks_why_and_shows_the_answer(keys: Keys, monkeypatch: pytest.MonkeyPatch):
    def answer(_: WhyRequest) -> WhyAnswer:
        if len(daemon.asked) == 2:
            # It is drawn what the first one said before this is read.
            keys.type(b"qq")
        return WhyAnswer(about="20", headline="Job 20 waits for a GPU.")

    monkeypatch.setattr(command, "_WHY_S", 0.0)
    keys.type(b"5\r")
    daemon = Daemon(answer)
    text = ran(daemon)
    assert daemon.asked[:1] == [WhyRequest(about="20")]
    assert "Job 20 waits for a GPU." in text


def test_it_looks_again_and_keeps_the_last_picture_where_the_daemon_fails(keys: Keys):
    def fail(_: OverviewRequest) -> Any:
        if len(daemon.asked) == 2:
            keys.type(b"q")
        raise UnreachableError("SW-DAEMON-DOWN", "The daemon does not answer.")

    daemon = Daemon(fail)
    text = ran(daemon, interval_s=0.0)
    assert daemon.asked[0] == OverviewRequest()
    assert "SW-DAEMON-DOWN" in text
    assert text.rindex("vision") > 0


def test_in_a_pipe_it_names_the_command_for_pipes():
    ended = CliRunner().invoke(command.top_app, [])
    assert isinstance(ended.exception, InvalidInputError)
    assert "slicewise overview" in ended.exception.refusal.hint
