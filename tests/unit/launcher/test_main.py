import json
import sys
from importlib import metadata

import pytest
import typer

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, OutsideError, SlicewiseError
from slicewise.launcher import main


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int | str | None:
    # As the sandbox's command starts it: Python then names the file.
    monkeypatch.setattr(sys, "argv", ["/somewhere/launcher/main.py", *words])
    with pytest.raises(SystemExit) as ended:
        main.main()
    return ended.value.code


def test_it_tells_its_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"slicewise {metadata.version('slicewise')}\n"


def test_usage_errors_name_the_command_that_people_type(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert run(monkeypatch, "sandbox", "upp") == 2
    assert "Usage: slicewise sandbox " in capsys.readouterr().err


def test_completion_is_for_the_command_that_people_type(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    assert run(monkeypatch, "--show-completion", "bash") == 0
    assert "_SLICEWISE_COMPLETE=complete_bash" in capsys.readouterr().out


@pytest.fixture
def _nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLICEWISE_CONFIG", "/nowhere/slicewise.toml")


@pytest.mark.usefixtures("_nowhere")
def test_a_failure_ends_with_the_exit_code_of_its_kind(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert run(monkeypatch, "service", "list") == 2
    message, _, code = capsys.readouterr().err.splitlines()
    assert (message, code) == ("/nowhere/slicewise.toml does not exist.", "SW-SETTINGS")

    def ended(error: SlicewiseError) -> int | str | None:
        def fail(**_: object) -> None:
            raise error

        monkeypatch.setattr(main, "app", fail)
        return run(monkeypatch)

    assert ended(InvalidInputError(Code.SERVICE_UNKNOWN, "There is none.")) == 3
    assert ended(OutsideError(Code.TIMEOUT, "Not yet.")) == 7


@pytest.mark.usefixtures("_nowhere")
def test_with_json_a_failure_is_one_line_of_json_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert run(monkeypatch, "service", "list", "--json") == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert json.loads(err) == {
        "code": "SW-SETTINGS",
        "message": "/nowhere/slicewise.toml does not exist.",
        "hint": "Copy it from slurmctld's host (an example: /usr/share/slicewise/slicewise.toml), "
        "or set SLICEWISE_CONFIG.",
        "exit_code": 2,
    }


def test_with_json_usage_errors_are_json_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert run(monkeypatch, "service", "status", "--json") == 2
    error = json.loads(capsys.readouterr().err)
    assert (error["code"], error["exit_code"]) == ("SW-USAGE", 2)
    assert error["message"].lower() == "missing argument 'name'."
    assert error["hint"] == "See: slicewise service status --help"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("ledger", "statement", "--by", "month"), "'month' is not one of"),
        (("rebalance", "show", "latest"), "It must be a valid integer."),
        (("repartition", "history", "--lines", "0"), "It must be greater than or equal to 1."),
        (("budget", "set", "vision", "--reason", "x"), "Give what to set: --period"),
    ],
)
def test_a_wrong_value_is_told_without_the_words_of_a_library(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    said: str,
):
    assert run(monkeypatch, *words, "--json") == 2
    message = json.loads(capsys.readouterr().err)["message"]
    assert said in message
    assert "Value error" not in message
    assert "Input should" not in message


def test_what_belongs_to_another_command_asks_for_no_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert run(monkeypatch, "sandbox", "shell", "--dir", "/nowhere", "--", "jq", "--json") == 3
    assert "SW-SANDBOX-DOWN" in capsys.readouterr().err
    assert run(monkeypatch, "sandbox", "status", "--dir", "/nowhere", "--json") == 3
    assert json.loads(capsys.readouterr().err)["code"] == "SW-SANDBOX-DOWN"


def test_a_question_that_is_not_answered_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def asks(**_: object) -> None:
        raise typer.Abort

    monkeypatch.setattr(main, "app", asks)
    assert run(monkeypatch, "uninstall") == 1
    assert "Aborted." in capsys.readouterr().err
    assert run(monkeypatch, "uninstall", "--json") == 1
    assert json.loads(capsys.readouterr().err)["code"] == "SW-ABORTED"
