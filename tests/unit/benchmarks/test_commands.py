"""Tests the benchmark of commands: missed aims are reported, with the user they belong to."""

import pytest
from rich.console import Console

from benchmarks import commands


def test_it_measures_twenty_and_a_yardstick():
    assert len(commands.COMMANDS) == 21
    assert len(set(commands.COMMANDS)) == 21


@pytest.mark.parametrize(
    ("words", "user", "cpu_s", "said"),
    [
        ("slicewise mig costs", commands.USER, 0.3, "0.3"),
        ("slicewise mig costs", commands.USER, 0.31, "0.3: missed"),
        ("slicewise tenant list", commands.OPERATOR, 0.31, "0.5"),
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
