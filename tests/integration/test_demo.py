"""The demo, whole: what it promises, what it leaves behind, Ctrl-C in the middle."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from run_folder import path_for

from slicewise.sandbox.host import process

pytestmark = pytest.mark.integration

PROJECT = Path(__file__).resolve().parents[2]
DIRECTORY = path_for("demo")


def demo(reports: Path) -> "subprocess.Popen[str]":
    # A shell that runs tests in the background has them ignore SIGINT.
    argv = ("env", "--default-signal=INT", sys.executable, "-m", "slicewise.sandbox.demo")
    options = ("--dir", str(DIRECTORY), "--report-dir", str(reports))
    return subprocess.Popen(
        (*argv, *options),
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_ctrl_c_in_the_middle_leaves_nothing_and_a_second_run_keeps_every_promise(
    tmp_path: Path,
) -> None:
    first = demo(tmp_path)
    assert first.stdout is not None
    for line in first.stdout:
        if re.search(r"[1-9] ready", line):
            break
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=300)
    assert first.returncode == 130
    assert process.leftovers(DIRECTORY, ()) == ()
    assert not DIRECTORY.exists()

    second = demo(tmp_path)
    said, _ = second.communicate(timeout=1800)
    assert second.returncode == 0, said
    assert process.leftovers(DIRECTORY, ()) == ()
    assert not DIRECTORY.exists()
    report = json.loads((tmp_path / "demo.json").read_text())
    assert report["failed"] == 0
    assert report["requests"] > 700
    assert report["replicas_max"] >= 4
    assert report["replicas_end"] == 0
    assert report["woke_from_zero"] is True
    assert report["refused_over_quota"]["code"] == "SW-QUOTA-NONE"
    assert report["ledger_imbalance"] == 0
    assert set(report["slice_seconds_by_tenant"]) == {"guest", "nlp", "research", "vision"}
    for books in report["slice_seconds_by_tenant"].values():
        assert books["ledger"] == pytest.approx(books["sacct"], rel=0.01)
        assert books["ledger"] > 0
    assert [one["shortfall"] for one in report["promises"] if not one["is_kept"]] == []
    chat = report["chat"]
    services = report["services"]
    assert set(services) == {"vision/captions", "nlp/chat", chat["service"]}
    assert {n for n, one in services.items() if one["borrowed_max"]} == {
        "vision/captions",
        "nlp/chat",
    }
    assert (chat["service"], chat["replicas_before"], chat["replicas_end"]) == ("guest/talk", 0, 0)
    assert (chat["requests"], chat["failed"], chat["tokens"]) == (5, 0, 500)
    assert chat["first_token_s"] > 0
    assert chat["slice_seconds"]["ledger"] == chat["slice_seconds"]["sacct"] > 0
    assert {loan["lender"] for loan in report["loans"]} == {"vision", "nlp"}
    assert report["lent_at_the_end"] == 0
    assert [job["tenant"] for job in report["batch_jobs"]] == ["guest"] * 2 + ["nlp"] * 3
    assert all(job["ended_s"] is not None for job in report["batch_jobs"])
    assert report["filler"]["tasks_done"] == 16
    assert report["filler"]["gave_way"] > 0
    assert [one["state"] for one in report["repartitions"]] == ["done"]
    assert (tmp_path / "demo.png").stat().st_size > 10_000
