"""Tests the benchmark of requests to slurmctld: what sdiag prints is read, and misses are told."""

import pytest
from rich.console import Console

from benchmarks import rpcs

SDIAG = """\
Remote Procedure Call statistics by message type
	REQUEST_PARTITION_INFO      ( 2009) count:{partitions} ave_time:450 total_time:{us}
	REQUEST_STATS_INFO                      ( 2035) count:7     ave_time:450 total_time:99
	MESSAGE_EPILOG_COMPLETE                 ( 6012) count:2     ave_time:450 total_time:900

Remote Procedure Call statistics by user
	slurm           (   64030) count:1178   ave_time:480    total_time:565440

Pending RPC statistics
	No pending RPCs
"""


def totals(at_s: float, partitions: int, us: int, cpu_s: float) -> rpcs.Totals:
    text = SDIAG.format(partitions=partitions, us=us)
    return rpcs.Totals(at_s, rpcs.rpcs_of(text), cpu_s, 2 * cpu_s)


def test_what_was_asked_meanwhile_is_told_by_kind_without_sdiags_own():
    found = rpcs.between(totals(100, 10, 1000, 5.0), totals(130, 40, 31_000, 5.3))
    assert (found["requests"], found["per_min"]) == (30, 60)
    assert found["by_kind_per_min"] == {"REQUEST_PARTITION_INFO": 60}
    assert found["mean_ms"] == {"REQUEST_PARTITION_INFO": 1.0}
    assert (found["busy"], found["slurmctld_cpu"], found["daemon_cpu"]) == (0.001, 0.01, 0.02)


@pytest.mark.parametrize(
    ("scene", "partitions", "us", "missed"),
    [
        ("idle", 20, 31_000, 0),
        ("idle", 21, 31_000, 1),
        ("replicas", 21, 31_000, 1),
        # There is no aim for what happens in a burst, but for what it costs slurmctld.
        ("burst", 21, 31_000, 0),
        ("many_jobs", 20, 1_600_000, 1),
    ],
)
def test_a_missed_aim_is_told(
    scene: str, partitions: int, us: int, missed: int, monkeypatch: pytest.MonkeyPatch
):
    console = Console(width=160, record=True, quiet=False)
    monkeypatch.setattr(rpcs, "Console", lambda **_: console)
    found = rpcs.between(totals(100, 10, 1000, 5.0), totals(130, partitions, us, 5.3))
    aims = {"aim_per_min": rpcs.AIM_PER_MIN, "aim_busy": rpcs.AIM_BUSY}
    rpcs.show({"scenes": {scene: found}, **aims})
    assert console.export_text().count("missed") == missed
