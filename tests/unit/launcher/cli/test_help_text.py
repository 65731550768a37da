"""Tests that ``--help`` shows whole lines, and examples that can be copied."""

import shlex
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from slicewise.launcher.cli.command_table import COMMANDS
from slicewise.launcher.cli.help_text import fit_for_terminals
from slicewise.launcher.main import app, loaded

WIDTH = 80
PANEL = "╭"


@pytest.fixture(autouse=True)
def _width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))


def paths(command: Any, *words: str) -> Iterator[tuple[str, ...]]:
    yield words
    for name, child in getattr(command, "commands", {}).items():
        yield from paths(child, *words, name)


def prose(text: str) -> list[str]:
    return [line.strip() for line in text.partition(PANEL)[0].splitlines()]


def ragged(text: str) -> list[str]:
    """Lines of prose on which there was room for the first word of the next."""
    return [
        line
        for line, below in pairwise(prose(text))
        if line and below and len(f" {line} {below.split()[0]} ") <= WIDTH
    ]


def examples(text: str) -> list[str]:
    """As a shell reads them."""
    _, heading, below = text.partition("\n Example")
    lines = below.partition("\n")[2] if heading else ""
    return [line.strip() for line in lines.replace(" \\\n", " ").splitlines() if line.strip()]


@pytest.mark.parametrize("name", COMMANDS)
def test_no_help_is_ragged_and_every_example_can_be_copied(name: str):
    for words in paths(loaded(name, COMMANDS[name]), *name.split()):
        shown = CliRunner().invoke(app, [*words, "--help"], prog_name="slicewise").output
        if name != "sbatch":
            assert CliRunner().invoke(app, [*words, "-h"], prog_name="slicewise").output == shown
        assert ragged(shown) == []
        assert "…" not in shown
        assert max(map(len, shown.splitlines())) <= WIDTH
        assert examples(shown), words
        for example in examples(shown):
            assert shlex.split(example)[0] in {"slicewise", "systemctl"}


def new(flag: bool = False, named: str = "") -> None:
    """Make
    one.

    It has a first line that is not
    as long as the second one, and a third
    one.

    And a paragraph.
    """


def shown_help(*, fits: bool, capsys: pytest.CaptureFixture[str]) -> str:
    alone = typer.Typer(add_completion=False)
    alone.command(
        epilog="Examples: slicewise new one --flag"
        " | slicewise new --named 'a name of some length' --reason 'and why it is so' > file",
    )(new)
    command: Any = get_command(alone)
    if fits:
        fit_for_terminals(command)
    command(["--help"], prog_name="slicewise new", standalone_mode=False)
    return capsys.readouterr().out


def test_paragraphs_are_reflowed(capsys: pytest.CaptureFixture[str]):
    assert ragged(shown_help(fits=False, capsys=capsys)) != []
    assert list(filter(None, prose(shown_help(fits=True, capsys=capsys))))[1:] == [
        "Make one.",
        "It has a first line that is not as long as the second one, and a third one.",
        "And a paragraph.",
    ]


def test_an_example_has_a_line_and_goes_on_behind_a_backslash(capsys: pytest.CaptureFixture[str]):
    shown = shown_help(fits=True, capsys=capsys).partition("Examples:\n")[2]
    assert shown.rstrip().splitlines() == [
        "   slicewise new one --flag",
        "   slicewise new --named 'a name of some length' \\",
        "      --reason 'and why it is so' > file",
    ]


def test_a_flag_shows_no_type_and_an_option_with_a_value_does(capsys: pytest.CaptureFixture[str]):
    shown = shown_help(fits=True, capsys=capsys)
    assert "bool" not in shown
    assert "<str>" in shown


def test_a_tree_without_a_command_shows_its_examples_too():
    shown = CliRunner().invoke(app, ["tenant-quota"], prog_name="slicewise")
    assert "slicewise tenant-quota loans" in examples(shown.output)
