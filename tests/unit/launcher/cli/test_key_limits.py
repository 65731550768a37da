"""Tests ``slicewise key limit`` and ``key limits``: what the daemon is asked, and what is shown."""

import json
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from builders.settings import site_settings
from typer.testing import CliRunner

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.rpc.limit_messages import (
    LimitChangeRequest,
    LimitsAnswer,
    LimitsRequest,
    RequestLimits,
    SubjectLimits,
)
from slicewise.cluster.rpc.message import DoneAnswer
from slicewise.launcher.cli import key_limits
from slicewise.launcher.cli.keys import key_app

LIMITS = (
    SubjectLimits(tenant="vision", limits=RequestLimits(concurrent=0, models=("vision/chat",))),
    SubjectLimits(
        tenant="vision",
        person="anna",
        limits=RequestLimits(tokens_per_month=200_000_000, is_exact=True),
    ),
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    told: list[object] = []

    def call(request: object) -> object:
        told.append(request)
        return LimitsAnswer(limits=LIMITS) if request == LimitsRequest() else DoneAnswer()

    monkeypatch.setattr(key_limits, "DaemonClient", lambda _: SimpleNamespace(call=call))
    monkeypatch.setattr(key_limits, "load_settings", site_settings)
    return told


def run(*words: str) -> str:
    ran = CliRunner().invoke(key_app, words, catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    return ran.output


def test_only_what_is_named_is_changed(asked: list[object]) -> None:
    run("limit", "vision/anna", "--requests-per-minute", "0", "--exact", "--lift", "concurrent")
    run("limit", "--key", "a" * 12, "--model", "nlp/gpt", "--model", "vision/chat")
    assert asked == [
        LimitChangeRequest(
            tenant="vision",
            person="anna",
            limits=RequestLimits(requests_per_minute=0),
            is_exact=True,
            lifted=frozenset({"concurrent"}),
        ),
        LimitChangeRequest(
            key_id="a" * 12, limits=RequestLimits(models=("nlp/gpt", "vision/chat"))
        ),
    ]


@pytest.mark.parametrize("words", [(), ("vision", "--key", "a" * 12)])
def test_one_subject_is_named(asked: list[object], words: tuple[str, ...]) -> None:
    ran = CliRunner().invoke(key_app, ("limit", *words, "--concurrent", "1"))
    assert (ran.exit_code, asked) == (2, [])


def test_a_model_is_named_with_its_owner(asked: list[object]) -> None:
    with pytest.raises(InvalidInputError, match="SW-VALUE"):
        run("limit", "vision", "--model", "chat")
    assert asked == []


@pytest.mark.usefixtures("asked")
def test_limits_are_shown() -> None:
    shown = run("limits")
    for word in ("anna", "200,000,000", "refused", "vision/chat"):
        assert word in shown
    first, _ = json.loads(run("limits", "--json"))
    assert (first["limits"]["concurrent"], first["limits"]["tokens_per_month"]) == (0, None)
