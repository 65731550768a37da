"""Tests slicewise simulate end to end, on a small site: what it prints, writes and refuses."""

import json
from pathlib import Path

import pytest
from stand_ins.small_site_command import Said, lending_without_limit, simulating


@pytest.fixture
def change(tmp_path: Path) -> Path:
    return lending_without_limit(tmp_path)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Said:
    return simulating(monkeypatch)


def test_more_processes_give_the_same(said: Said, change: Path):
    words = ("--change", change, "--json", "--from", "2026-10-01", "--days", 4)
    one, two = (json.loads(said(*words, "--workers", number)) for number in (1, 2))
    assert one.pop("seconds") != two.pop("seconds")
    assert one == two
