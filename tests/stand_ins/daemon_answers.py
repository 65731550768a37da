"""Answers in the daemon's place, by the kind of request."""

from collections.abc import Callable
from typing import Any

import pytest

from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.message import Request


def answer_in_its_place(
    monkeypatch: pytest.MonkeyPatch, kind: type[Request], answer: Callable[[Any], object]
) -> None:
    """Answer requests of this kind so from now on; others as before."""
    before = DaemonClient.call

    def call(self: DaemonClient, request: Any) -> Any:
        return answer(request) if isinstance(request, kind) else before(self, request)

    monkeypatch.setattr(DaemonClient, "call", call)
