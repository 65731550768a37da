"""A run of the tests that is told to end, or is killed, leaves no process and no folder."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from run_folder import folder_of
from waiting import until_is

from slicewise.sandbox.host import process

pytestmark = pytest.mark.integration

PROJECT = Path(__file__).resolve().parents[2]
TESTS = ("tests/integration/test_recent_use.py", "tests/integration/test_repartition_journal.py")
"""Each worker starts a sandbox for one of them."""
ENDED = {"-n0": 1, "-n2": 2}
"""How many sandboxes are on their way when the run is told to end."""


def run_of_tests(workers: str) -> "subprocess.Popen[bytes]":
    # A shell that runs tests in the background has them ignore SIGINT.
    argv = ("env", "--default-signal=INT", sys.executable, "-m", "pytest", "-q", workers)
    environment = {name: value for name, value in os.environ.items() if "XDIST" not in name}
    return subprocess.Popen(
        (*argv, *TESTS),
        cwd=PROJECT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.parametrize(
    ("workers", "number"),
    [("-n0", signal.SIGTERM), ("-n0", signal.SIGKILL), ("-n2", signal.SIGINT)],
)
def test_nothing_is_left(workers: str, number: signal.Signals) -> None:
    run = run_of_tests(workers)
    folder = folder_of(run.pid)
    try:
        until_is(lambda: len(list(folder.glob("cluster-*/log/slurmdbd.log"))), ENDED[workers], 300)
        sandboxes = list(folder.glob("cluster-*"))
        run.send_signal(number)
        assert run.wait(timeout=300) != 0
    finally:
        run.kill()
    # A run that is killed can't wait for its caretaker.
    until_is(folder.exists, False)
    assert [process.leftovers(place, ()) for place in (folder, *sandboxes)] == [()] * (
        1 + len(sandboxes)
    )
