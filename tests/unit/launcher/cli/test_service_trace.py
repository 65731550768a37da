"""Tests what ``slicewise service trace`` prints of a service's starts."""

import json
from pathlib import Path

import json_checker
import pytest
from builders.settings import SITE_TOML
from stand_ins.daemon_answers import answer_in_its_place
from typer.testing import CliRunner, Result

from slicewise.cluster.language.starts import MOMENTS, StartTrace, Weights
from slicewise.cluster.rpc.read_messages import (
    ServiceStarts,
    ServiceStartsAnswer,
    ServiceStartsRequest,
)
from slicewise.launcher.cli import service as cli

WOKEN = StartTrace(
    814,
    0,
    {moment: 1000.0 + 0.5 * number for number, moment in enumerate(MOMENTS[:-1])},
    "ready",
    Weights("remote", 1 << 30, "room"),
    "gpu1",
)
STARTS = (
    StartTrace(814, 1, {"desired": 900.0, "released": 900.25, "ended": 907.0}, "ended"),
    WOKEN,
    StartTrace(814, 1, {"desired": 1100.0, "released": 1100.5}, seen_s=1103.5),
)


@pytest.fixture(autouse=True)
def _two_tenants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slicewise.toml").write_text(SITE_TOML.format(directory=tmp_path))
    monkeypatch.setenv("SLICEWISE_CONFIG", str(tmp_path / "slicewise.toml"))
    known = (
        ServiceStarts(tenant="nlp", name="new", starts=()),
        ServiceStarts(tenant="vision", name="chat", starts=STARTS),
    )
    answer_in_its_place(
        monkeypatch,
        ServiceStartsRequest,
        lambda request: ServiceStartsAnswer(
            services=tuple(
                one
                for one in known
                if request.tenant in {None, one.tenant} and one.name == request.name
            )
        ),
    )


def run(*words: str) -> Result:
    return CliRunner().invoke(cli.service_app, ["trace", *words])


def test_each_start_is_a_line_with_what_took_longest():
    lines = run("chat").output.splitlines()
    ended, woken, starting = (line.split() for line in lines[1:4])
    assert ended[2:5] == ["814_1", "remote", "ended"]
    assert woken[2:5] == ["814_0", "gpu1", "remote"]
    assert woken[5:9] == ["(room)", "1.0", "GiB,", "2.0"]
    assert woken[9:12] == ["GiB/s", "ready", "6.00"]
    assert starting[2:6] == ["814_1", "remote", "starting", "3.50"]
    assert lines[1].endswith("ended 6.75 s, grant 0.25 s")


def test_the_newest_start_is_told_phase_by_phase_and_each_class_with_its_quantiles():
    said = run("chat").output
    assert "The newest start, 814_1:" in said
    assert "Slurm finds a slice" in said
    assert "remote: of 1 start that became ready half took 6.00 s at most, 95 % 6.00 s" in said
    assert "room: the disk, or its quota, has no room" in said
    assert "removed: " not in said


def test_programs_get_each_moment_and_phases_that_add_up():
    shown = json.loads(run("vision/chat", "--json").output)
    json_checker.check("service trace", shown)
    woken = shown["starts"][1]
    assert list(woken["at_s"]) == list(MOMENTS[:-1])
    assert sum(phase["seconds"] for phase in woken["phases"]) == woken["total_s"] == 6.0
    assert woken["node"] == "gpu1"
    read = [woken[name] for name in ("weights_bytes", "bytes_per_s", "fallback")]
    assert read == [1 << 30, 2.0 * (1 << 30), "room"]
    starting = shown["starts"][2]
    assert [starting[name] for name in ("node", "weights_bytes", "bytes_per_s")] == [None] * 3
    assert shown["classes"] == [{"start_class": "remote", "starts": 1, "p50_s": 6.0, "p95_s": 6.0}]


def test_a_service_that_never_started_says_so():
    assert "no start has been seen yet" in run("new").output
    assert json.loads(run("new", "--json").output)["starts"] == []
