import sys
from importlib import metadata

import pytest

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
