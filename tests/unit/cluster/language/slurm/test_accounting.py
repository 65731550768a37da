"""Tests reading sacct: recorded replies of three Slurm versions, and what accounting loses."""

from pathlib import Path

import pytest

from slicewise.cluster.language.slurm.accounting import RUN_FIELDS, jobs_without_start, parse_runs
from slicewise.cluster.language.slurm.unread import Unread, ignored

ASSETS = Path(__file__).parents[4] / "assets" / "slurm"
VERSIONS = ("22.05.8", "24.11.5", "26.05.5")


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_has_the_fields_of_sacct(version: str) -> None:
    known = (ASSETS / version / "sacct-helpformat.txt").read_text(encoding="utf-8").split()
    assert set(RUN_FIELDS) <= set(known)


def sacct_text(version: str) -> str:
    """The recorded table with the columns that are asked for; it lacks Partition."""
    table = (ASSETS / version / "sacct-P.txt").read_text(encoding="utf-8")
    header, *lines = table.splitlines()
    names = header.split("|")
    # The third column is a job's name, which may hold the separator.
    cells = ([*line.split("|", 2)[:2], "", *line.rsplit("|", len(names) - 3)[1:]] for line in lines)
    rows = ({"Partition": "gpu", **dict(zip(names, row, strict=True))} for row in cells)
    return "".join("|".join(row[field] for field in RUN_FIELDS) + "\n" for row in rows)


@pytest.mark.parametrize("version", VERSIONS)
def test_requeued_runs_stand_one_by_one(version: str) -> None:
    runs = parse_runs(sacct_text(version), 0, ignored)
    slot = [run for run in runs if run.task.endswith("_1")]
    assert [run.state for run in slot] == ["REQUEUED"]
    assert slot[0].end_s is not None
    assert slot[0].job_id == int(slot[0].task.split("_")[0]) + 2
    assert slot[0].tres["gres/gpu:1g.10gb"] == "1"
    assert {run.qos for run in runs} <= {"guaranteed", "borrowed", "premium"}
    assert len({(run.job_id, run.start_s) for run in runs}) == len(runs)


@pytest.mark.parametrize("version", VERSIONS)
def test_running_runs_have_no_end(version: str) -> None:
    runs = parse_runs(sacct_text(version), 2**40, ignored)
    assert {run.state for run in runs} == {"RUNNING"}
    assert {run.task.partition("_")[2] for run in runs if "_" in run.task} == {"0", "2"}
    assert all(run.end_s is None for run in runs)
    assert {run.time_limit_s for run in runs} == {600, 1800}


def test_runs_that_ended_before_and_jobs_that_never_ran_are_left_out() -> None:
    text = (
        "7|7|alice|vision|gpu|100|200|COMPLETED|10|billing=5||normal\n"
        "8|8|alice|vision|gpu|100|201|CANCELLED by 1001|UNLIMITED|billing=5||normal\n"
        "9|9|alice|vision|gpu|Unknown|Unknown|PENDING|10|||normal\n"
        "9|9|alice|vision|gpu|None|300|CANCELLED|10|billing=1||normal\n"
    )
    (run,) = parse_runs(text, 200, ignored)
    assert (run.job_id, run.start_s, run.end_s, run.state) == (8, 100, 201, "CANCELLED")
    assert (run.time_limit_s, run.tres) == (None, {"billing": "5"})


def test_a_run_that_no_version_prints_costs_itself_only() -> None:
    told: list[Unread] = []
    odd = (
        "5|5|alice|vision|gpu|soon|200|COMPLETED|10|billing=5||normal\n"
        "6|6|alice|vision|gpu|100|later|COMPLETED|10|billing=5||normal\n"
        "8|8|alice|vision|gpu|100|200|COMPLETED|10|gres/gpu:1g.10gb=many||normal\n"
        "9.batch|9.batch||vision||150|201|FAILED||||\n"
    )
    good = "7|7|alice|vision|gpu|100|200|COMPLETED|10|billing=5||normal\n"
    for text in (odd + good, good + odd):
        told.clear()
        assert [run.job_id for run in parse_runs(text, 0, told.append)] == [7]
        assert sorted(one.name for one in told) == ["5", "6", "8"]


def test_an_account_with_any_name_spoils_no_other_run() -> None:
    text = (
        "7|7|carol|c|d|gpu|100|200|COMPLETED|10|billing=5||normal\n"
        "8|8|carol|new\nline|gpu|100|201|COMPLETED|10|billing=5||normal\n"
        "9|9|alice|vision|gpu|100|201|COMPLETED|10|billing=5||normal\n"
    )
    assert [(run.job_id, run.account) for run in parse_runs(text, 0, ignored)] == [
        (7, "c|d"),
        (9, "vision"),
    ]


LOST = "7|5_2|alice|vision|gpu|None|300|REQUEUED|10|billing=5||normal\n"
WITH_STEPS = (
    "7|5_2|alice|vision|gpu|Unknown|300|REQUEUED|10|billing=5||normal\n"
    "7.batch|5_2.batch||vision||290|303|FAILED||||\n"
    "7.0|5_2.0||vision||291|303|CANCELLED||||\n"
    "7|5_2|alice|vision|gpu|310|320|REQUEUED|10|billing=5||normal\n"
    "7.batch|5_2.batch||vision||310|321|FAILED||||\n"
)


def test_a_run_without_start_has_that_of_its_batch_step() -> None:
    first, second = parse_runs(LOST + WITH_STEPS, 200, ignored)
    assert (first.job_id, first.task, first.start_s, first.end_s) == (7, "5_2", 290, 300)
    assert (first.user, first.partition, first.state) == ("alice", "gpu", "REQUEUED")
    assert (first.time_limit_s, first.tres) == (600, {"billing": "5"})
    assert (second.start_s, second.end_s) == (310, 320)


def test_a_run_that_is_told_twice_is_one() -> None:
    row = "7|5_2|alice|vision|gpu|310|320|REQUEUED|10|billing=5||normal\n"
    assert len(parse_runs(row + WITH_STEPS, 305, ignored)) == 1


def test_a_run_without_start_and_batch_step_is_left_out() -> None:
    others = (
        "8.batch|8.batch||vision||290|303|FAILED||||\n7.0|5_2.0||vision||291|303|CANCELLED||||\n"
    )
    assert parse_runs(LOST + others, 200, ignored) == ()


ASKED = "billing=2000,cpu=1,gres/gpu:1g.10gb=2,gres/gpu=2,node=1"


@pytest.mark.parametrize(
    ("allotted", "charged"),
    [
        ("billing=0,cpu=0,gres/gpu:1g.10gb=0,gres/gpu=0,node=0", {"1g.10gb": 2}),
        ("gres/gpu:1g.10gb=1,gres/gpu:3g.40gb=1,gres/gpu=2", {"1g.10gb": 2, "3g.40gb": 1}),
        ("gres/gpu:1g.10gb=4,gres/gpu=4", {"1g.10gb": 4}),
        ("gres/gpu:1g.10gb=999999999999999999,gres/gpu=-1", {"1g.10gb": 2}),
        ("gres/gpu:1g.10gb=NONE,gres/gpu=18446744073709551613", {"1g.10gb": 2}),
        ("cpu=NONE,node=-1,billing=9999999999999999999,gres/gpu:1g.10gb=0", {"1g.10gb": 2}),
        ("billing=1", {"1g.10gb": 2}),
        ("", {"1g.10gb": 2}),
    ],
)
def test_a_run_had_no_fewer_gpus_than_it_asked_for(allotted: str, charged: dict[str, int]) -> None:
    """From Slurm 25.11 on its user may write anything else, or take all away."""
    row = f"7|7|alice|vision|gpu|100|200|COMPLETED|10|{allotted}|{ASKED}|normal\n"
    (run,) = parse_runs(row, 0, ignored)
    assert (run.gpus, run.tres.get("cpu", "0")) == (charged, "0")


def test_a_run_that_never_had_nodes_had_no_gpus() -> None:
    row = f"7|7|alice|vision|gpu|200|200|CANCELLED|10||{ASKED}|normal\n"
    (run,) = parse_runs(row, 0, ignored)
    assert run.gpus == {}


def test_which_jobs_have_a_run_without_start() -> None:
    pending = "9|9|alice|vision|gpu|Unknown|Unknown|PENDING|10|||normal\n"
    assert jobs_without_start(LOST + pending) == {7}
    assert jobs_without_start(WITH_STEPS.split("\n", 1)[1]) == frozenset()
