"""Tests what the launcher asks of the daemon."""

from typing import Any

import pytest

from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.messages import DesiredSlotsAnswer, DesiredSlotsRequest
from slicewise.cluster.settings.file import DaemonSettings
from slicewise.launcher.process.daemon_calls import DaemonCalls


async def test_desired_slots_are_sent_with_the_number_that_was_known(
    monkeypatch: pytest.MonkeyPatch,
):
    sent: list[Any] = []

    async def ask(_: DaemonClient, request: Any) -> DesiredSlotsAnswer:
        sent.append(request)
        return DesiredSlotsAnswer()

    monkeypatch.setattr(DaemonClient, "ask", ask)
    calls = DaemonCalls(DaemonSettings())
    await calls.set_desired_slots(7, frozenset({2, 0}), "", 0.0, ("gpu01",), after=41)
    assert sent == [
        DesiredSlotsRequest(
            array_job_id=7, slots=(0, 2), avoid_nodes=("gpu01",), replaces_version=41
        )
    ]
