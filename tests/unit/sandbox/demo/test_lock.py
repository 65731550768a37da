"""Tests that a second demo leaves the first one's cluster alone."""

import os
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.sandbox.demo import cli, run
from slicewise.sandbox.demo.lock import only_demo

pytestmark = pytest.mark.usefixtures("clock")

PLACE = "demo"


class CutShortError(Exception):
    """The demo began its cluster."""


@pytest.fixture
def touched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the demos did to their directories."""
    found: list[str] = []

    def up(*_: object, **__: object) -> None:
        found.append("up")
        raise CutShortError

    monkeypatch.setattr(run, "down", lambda _: found.append("down"))
    monkeypatch.setattr(run.Sandbox, "up", up)
    return found


def demo(tmp_path: Path) -> None:
    run.run(run.Options(tmp_path / PLACE, tmp_path, keep=False), Console(quiet=True))


def test_a_second_demo_says_who_runs_and_touches_nothing(
    tmp_path: Path, touched: list[str]
) -> None:
    with only_demo(tmp_path / PLACE):
        said = CliRunner().invoke(cli.app, ["--dir", str(tmp_path / PLACE)])
    assert said.exit_code == 1
    (line,) = said.output.splitlines()
    assert f"(process {os.getpid()})" in line
    assert "SW-BUSY" in line
    assert touched == []


def test_a_running_demo_has_the_lock_until_it_has_taken_its_cluster_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, touched: list[str]
) -> None:
    refused: list[SlicewiseError] = []

    def another(_: Path) -> None:
        touched.append("down")
        with pytest.raises(SlicewiseError, match="SW-BUSY") as error:
            demo(tmp_path)
        refused.append(error.value)

    monkeypatch.setattr(run, "down", another)
    with pytest.raises(CutShortError):
        demo(tmp_path)
    assert (touched, len(refused)) == (["down", "up", "down"], 2)


def test_an_ended_demo_and_one_elsewhere_keep_nobody_out(
    tmp_path: Path, touched: list[str]
) -> None:
    with only_demo(tmp_path / "elsewhere"):
        for _ in range(2):
            with pytest.raises(CutShortError):
                demo(tmp_path)
    assert touched == ["down", "up", "down"] * 2


def test_no_link_in_place_of_the_lock_is_followed(tmp_path: Path, touched: list[str]) -> None:
    mine = tmp_path / "mine"
    mine.write_text("kept", encoding="utf-8")
    (tmp_path / f"{PLACE}.lock").symlink_to(mine)
    with pytest.raises(SlicewiseError, match="SW-OUTPUT"):
        demo(tmp_path)
    assert (mine.read_text(encoding="utf-8"), touched) == ("kept", [])
