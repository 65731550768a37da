"""Tests what the launcher asks of a daemon of its own version, and of an earlier one."""

from typing import Any

import pytest

from cluster.language.errors import InvalidInputError
from cluster.rpc.client import DaemonClient
from cluster.rpc.messages import (
    DesiredSlotsAnswer,
    DesiredSlotsRequest,
    NumberedViewRequest,
    ViewAnswer,
    ViewRequest,
)
from cluster.settings.file import DaemonSettings
from launcher.process.daemon_calls import DaemonCalls

VIEW = ViewAnswer(observed_s=1.0, complete=True, services=(), tenants=())
NUMBERED = VIEW.model_copy(update={"asked": {7: 41}})


class Scripted:
    """Answers as a daemon does that knows these requests; keeps what it was asked."""

    def __init__(self, **refused: str) -> None:
        self.refused = refused
        self.asked: list[Any] = []

    async def ask(self, request: Any) -> Any:
        self.asked.append(request)
        if code := self.refused.get(type(request).__name__):
            raise InvalidInputError(code, "No.")
        answers = {NumberedViewRequest: NUMBERED, ViewRequest: VIEW}
        return answers.get(type(request), DesiredSlotsAnswer())


def calls_of(monkeypatch: pytest.MonkeyPatch, daemon: Scripted) -> DaemonCalls:
    monkeypatch.setattr(DaemonClient, "ask", lambda _, request: daemon.ask(request))
    return DaemonCalls(DaemonSettings())


async def test_the_view_tells_which_requests_were_taken(monkeypatch: pytest.MonkeyPatch):
    daemon = Scripted()
    assert await calls_of(monkeypatch, daemon).view() == NUMBERED
    assert daemon.asked == [NumberedViewRequest()]


async def test_an_earlier_daemon_is_asked_for_its_view_and_sent_no_number(
    monkeypatch: pytest.MonkeyPatch,
):
    daemon = Scripted(NumberedViewRequest="SW-WIRE")
    calls = calls_of(monkeypatch, daemon)
    assert (await calls.view()).asked is None
    await calls.set_desired_slots(7, frozenset({0}), "", 0.0, (), after=None)
    sent = daemon.asked[-1]
    assert isinstance(sent, DesiredSlotsRequest)
    assert b"after" not in sent.sent()[1]


async def test_a_view_that_is_refused_for_another_reason_is_not_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
):
    daemon = Scripted(NumberedViewRequest="SW-FORBIDDEN")
    with pytest.raises(InvalidInputError, match="SW-FORBIDDEN"):
        await calls_of(monkeypatch, daemon).view()
    assert len(daemon.asked) == 1
