import json
import os
import subprocess
import sys
from importlib import metadata
from typing import Any

import pytest
import typer

from cluster.language.codes import Code
from cluster.language.errors import InvalidInputError, OutsideError, SlicewiseError
from launcher import main


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
        "hint": "Copy etc/slicewise.toml there, or set SLICEWISE_CONFIG.",
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
        (("repartition", "history", "--limit", "0"), "It must be greater than or equal to 1."),
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


def at_a_terminal(*words: str, **environment: str) -> str:
    """What the command writes on a terminal."""
    code = f"import sys; from launcher.main import main; sys.argv[1:] = {words!r}; main()"
    run_it = f"import pty, sys; pty.spawn([sys.executable, '-c', {code!r}])"
    clean = {key: value for key, value in os.environ.items() if key not in _COLOURS}
    return subprocess.run(
        [sys.executable, "-c", run_it],
        env={**clean, "TERM": "xterm-256color", **environment},
        capture_output=True,
        check=False,
        text=True,
        stdin=subprocess.DEVNULL,
    ).stdout


_COLOURS = {"NO_COLOR", "FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS"}


@pytest.mark.parametrize("words", [("mig", "-h"), ("mig", "--oops"), ("service", "list"), ("-h",)])
def test_with_no_color_nothing_has_a_style(words: tuple[str, ...]):
    missing = {"SLICEWISE_CONFIG": "/nowhere/slicewise.toml"}
    assert "\x1b[" in at_a_terminal(*words, **missing)
    plain = at_a_terminal(*words, NO_COLOR="1", **missing)
    assert plain
    assert "\x1b" not in plain


@pytest.mark.parametrize("words", [("service", "schema"), ("service", "schema", "--json")])
def test_output_without_room_is_one_message(words: tuple[str, ...]):
    with open("/dev/full", "w") as full:  # noqa: PTH123
        ended = in_a_process(*words, stdout=full)
    assert ended.returncode == 2
    assert "SW-OUTPUT" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "ignored" not in ended.stderr


def test_a_closed_stdout_ends_no_command():
    words = ("service", "schema")
    code = f"exec {sys.executable} -m launcher.main {' '.join(words)} >&-"
    ended = subprocess.run(["/bin/sh", "-c", code], stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_character_set_without_a_character_ends_no_command():
    ended = in_a_process("mig", "--oops", PYTHONIOENCODING="ascii", stdout=subprocess.PIPE)
    assert ended.returncode == 2
    assert "No such option" in ended.stderr
    text = "import sys; from launcher import main; sys.argv = ['slicewise', '--version'];"
    shows = f"{text} main._take_any_output(); print(chr(0x2192))"
    printed = subprocess.run(
        [sys.executable, "-c", shows],
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert printed.stdout == "?\n"


def in_a_process(*words: str, stdout: Any, **environment: str) -> Any:
    return subprocess.run(
        [sys.executable, "-m", "launcher.main", *words],
        env=os.environ | environment,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
