"""Tests the benchmark of commands: missed aims are reported, and of which commands."""

import pytest
from rich.console import Console

from benchmarks import commands


def test_it_measures_each_once_and_a_yardstick():
    words = [each for _, each in commands.COMMANDS]
    assert len(set(words)) == len(words) > 21
    assert words.count(commands.YARDSTICK) == 1


@pytest.mark.parametrize(
    ("words", "user", "cpu_s", "said"),
    [
        ("slicewise mig costs", commands.USER, 0.25, "0.25"),
        ("slicewise mig costs", commands.USER, 0.26, "0.25: missed"),
        ("slicewise tenant list", commands.OPERATOR, 0.26, "0.25: missed"),
        # PostgreSQL's client alone takes more.
        ("slicewise ledger verify", commands.OPERATOR, 0.31, "0.008"),
        (commands.YARDSTICK, commands.USER, 0.004, "0.008"),
    ],
)
def test_a_missed_aim_is_told(
    words: str, user: str, cpu_s: float, said: str, monkeypatch: pytest.MonkeyPatch
):
    console = Console(width=100, record=True, quiet=False)
    monkeypatch.setattr(commands, "Console", lambda: console)
    commands.show({"commands": {words: {"user": user, "cpu_s": cpu_s, "wall_s": 0.008}}})
    assert console.export_text().splitlines()[-1].rstrip().endswith(said)
