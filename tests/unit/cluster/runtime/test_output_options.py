"""Tests what ``--json``, ``-o`` and ``--watch`` print, for any command."""

import json
from collections.abc import Iterator
from typing import Any

import json_checker
import pytest
import yaml
from rich.text import Text
from typer.testing import CliRunner

from slicewise.cluster.language.errors import UnreachableError
from slicewise.cluster.runtime import output_options
from slicewise.launcher.cli.command_table import COMMANDS
from slicewise.launcher.main import app, loaded


def said(*words: str) -> str:
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_yaml_says_what_json_says():
    costs = ("mig", "costs", "--all")
    as_json = json.loads(said(*costs, "--json"))
    assert json.loads(said(*costs, "-o", "json")) == as_json
    assert yaml.safe_load(said(*costs, "-o", "yaml")) == as_json
    assert yaml.safe_load(said(*costs, "-oyaml", "--json")) == as_json
    assert json.loads(said(*costs, "--json")) == as_json, "one command's format stays its own"


def test_another_format_is_refused():
    result = CliRunner().invoke(app, ("mig", "costs", "--all", "-o", "xml"))
    assert (result.exit_code, result.stdout) == (2, "")


def commands() -> Iterator[tuple[str, Any]]:
    for name, one in COMMANDS.items():
        yield from json_checker.commands(name, loaded(name, one))


def test_every_command_with_json_has_yaml():
    having = {
        path: {spelling for option in command.params for spelling in option.opts}
        for path, command in commands()
    }
    with_json = {path for path, spellings in having.items() if "--json" in spellings}
    assert {path for path, spellings in having.items() if "-o" in spellings} == with_json
    assert len(with_json) > 50


def watch(monkeypatch: pytest.MonkeyPatch, looks: list[object], *, as_json: bool) -> None:
    def look() -> object:
        if not looks:
            raise KeyboardInterrupt
        seen = looks.pop(0)
        if isinstance(seen, Exception):
            raise seen
        return seen

    monkeypatch.setattr(output_options.time, "sleep", lambda _: None)
    output_options.show(look, lambda seen: Text(f"<{seen}>"), watch=True, as_json=as_json)


def test_watching_prints_what_changes_for_programs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    watch(monkeypatch, ["a", "a", "b"], as_json=True)
    assert capsys.readouterr().out == '"a"\n"b"\n'
    watch(monkeypatch, ["a", "a", "b"], as_json=False)
    assert capsys.readouterr().out == "<a>\n<b>\n"


def test_a_terminal_is_drawn_anew_and_survives_a_look_that_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(output_options.sys.stdout, "isatty", lambda: True)
    silent = UnreachableError("SW-DAEMON-DOWN", "Nobody is there.")
    watch(monkeypatch, ["a", silent, "b"], as_json=False)
    assert "<b>" in capsys.readouterr().out
    with pytest.raises(UnreachableError):
        watch(monkeypatch, [silent], as_json=False)


@pytest.mark.parametrize("as_json", [True, False])
def test_a_pipe_survives_a_look_that_fails_and_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], as_json: bool
):
    """A restart of the daemon ended it."""
    silent = UnreachableError("SW-DAEMON-DOWN", "Nobody is there.")
    watch(monkeypatch, ["a", silent, silent, "a", "b", silent], as_json=as_json)
    said = capsys.readouterr()
    assert said.out == ('"a"\n"b"\n' if as_json else "<a>\n<b>\n")
    assert said.err.count("Nobody is there.") == 2
    with pytest.raises(UnreachableError):
        watch(monkeypatch, [silent], as_json=as_json)
