"""Which question ``slicewise why`` asks, by its options."""

from typing import NoReturn

import pytest
from builders.settings import site_settings
from typer.testing import CliRunner

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.message import Request
from slicewise.slurm_plugin.cli.commands import why as command

SETTINGS = site_settings()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the daemon was asked; it refuses all."""
    questions: list[str] = []

    def refuse(_client: DaemonClient, request: Request) -> NoReturn:
        (about,) = request.model_dump().values()
        questions.append(f"{type(request).__name__} {about}")
        raise InvalidInputError("SW-FORBIDDEN", "No.")

    monkeypatch.setattr(DaemonClient, "call", refuse)
    monkeypatch.setattr(command, "load_settings", lambda: SETTINGS)
    monkeypatch.delenv("SLICEWISE_DATABASE_URL", raising=False)
    return questions


@pytest.mark.parametrize(
    ("words", "question"),
    [
        (["814"], "WhyRequest 814"),
        (["vision/bert", "--json"], "WhyRequest vision/bert"),
        (["814", "--priority"], "PriorityRequest 814"),
        (["--priority", "814_3", "--json"], "PriorityRequest 814_3"),
        (["vision", "--limits"], "HeadroomRequest vision"),
        (["--limits", "vision", "--json"], "HeadroomRequest vision"),
    ],
)
def test_each_option_asks_one_question(asked: list[str], words: list[str], question: str):
    ended = CliRunner().invoke(command.why_app, words)
    assert isinstance(ended.exception, InvalidInputError)
    assert asked == [question]


def test_limits_and_priority_are_two_questions(asked: list[str]):
    ended = CliRunner().invoke(command.why_app, ["814", "--limits", "--priority"])
    assert ended.exit_code == 2
    assert "Choose --limits of a tenant, or --priority of a job." in ended.output
    assert asked == []


def test_without_a_name_it_is_about_the_own_tenant(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(command, "own_tenant", lambda named: named or "vision")
    for words in ([], ["--limits"]):
        CliRunner().invoke(command.why_app, words)
    assert asked == ["WhyRequest vision", "HeadroomRequest vision"]
    ended = CliRunner().invoke(command.why_app, ["--priority"])
    assert (ended.exit_code, len(asked)) == (2, 2)
