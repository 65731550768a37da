"""Tests reading planned starts and reservations, as Slurm 22.05.8 prints them."""

import pytest

from slicewise.cluster.language.jobs import PlannedStart, ReservationView
from slicewise.cluster.language.slurm.planned_starts import (
    by_job,
    parse_cores,
    parse_devices,
    parse_plans,
    parse_reservations,
    parse_threads,
)
from slicewise.cluster.language.slurm.unread import Unread, ignored

RESERVATIONS = """\
ReservationName=maint StartTime=1795312067 EndTime=1795315667 Duration=01:00:00 Nodes=gpu[01-02] \
NodeCnt=2 CoreCnt=32 Features=(null) PartitionName=(null) Flags=MAINT,IGNORE_JOBS,SPEC_NODES \
TRES=cpu=32 Users=root Groups=(null) Accounts=(null) Licenses=(null) State=INACTIVE \
BurstBuffer=(null) Watts=n/a MaxStartDelay=(null)
ReservationName=licenses StartTime=1795312000 EndTime=1795315000 Duration=00:50:00 Nodes=(null) \
NodeCnt=0 CoreCnt=0 Features=(null) PartitionName=(null) Flags= TRES=(null) Users=root \
Groups=(null) Accounts=(null) Licenses=a:1 State=INACTIVE BurstBuffer=(null) Watts=n/a
"""


def row(job_id: str, start: str, nodes: str) -> dict[str, str]:
    return {"JobId": job_id, "StartTime": start, "SchedNodes": nodes}


def test_reservations() -> None:
    flags = frozenset({"MAINT", "IGNORE_JOBS", "SPEC_NODES"})
    assert parse_reservations(RESERVATIONS, ignored) == (
        ReservationView("maint", 1795312067, 1795315667, ("gpu01", "gpu02"), flags),
        ReservationView("licenses", 1795312000, 1795315000, (), frozenset()),
    )


DIVIDED = """\
ReservationName=half StartTime=1795312067 EndTime=1795315667 Duration=01:00:00 Nodes=gpu[01-02] \
NodeCnt=2 CoreCnt=5 Features=(null) PartitionName=gpu Flags=SPEC_NODES   NodeName=gpu01 CoreIDs=0-1\
   NodeName=gpu02 CoreIDs=4,6-7 TRES=cpu=5 Users=root,alice Groups=(null) Accounts=(null) \
Licenses=(null) State=INACTIVE BurstBuffer=(null) Watts=n/a MaxStartDelay=(null)
"""


def test_of_a_node_that_is_reserved_in_part_the_cores_are_known() -> None:
    (half,) = parse_reservations(DIVIDED, ignored)
    assert half.cores == {"gpu01": frozenset({0, 1}), "gpu02": frozenset({4, 6, 7})}
    assert all(one.cores == {} for one in parse_reservations(RESERVATIONS, ignored))


JOB = """\
JobId=5 JobName={name}
   NodeList=gpu01
   NumNodes=1 NumCPUs=3 NumTasks=1 CPUs/Task=3 ReqB:S:C:T=0:0:*:*
     Nodes=gpu01 CPU_IDs=4,6-7 Mem=20 GRES=gpu:1g.10gb:1(IDX:0)
   MinCPUsNode=1 MinMemoryNode=20M MinTmpDiskNode=0
"""
NODES = """\
gpu01 1
gpu02 2
"""


def test_a_jobs_cores_are_those_of_its_cpus() -> None:
    threads = parse_threads(NODES)
    assert threads == {"gpu01": 1, "gpu02": 2}
    job = JOB.format(name="bert")
    assert parse_cores(job, threads) == {"gpu01": frozenset({4, 6, 7})}
    assert parse_cores(job, {"gpu01": 2}) == {"gpu01": frozenset({2, 3})}
    assert parse_cores("", threads) == parse_cores(job, {}) == {}


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("x\n     Nodes=gpu01 CPU_IDs=99 Mem=1 GRES=", False),
        ("x\n     Nodes=gpu09 CPU_IDs=99 Mem=1 GRES=", True),
        # A list that would fill the memory, or can't be read.
        ("x\n     Nodes=gpu02 CPU_IDs=0-999999999 Mem=1 GRES=", True),
        ("x\n     Nodes=gpu[0-999999999] CPU_IDs=1 Mem=1 GRES=", True),
        ("x\n     Nodes=gpu02 CPU_IDs=a Mem=1 GRES=", True),
    ],
)
def test_what_a_name_says_of_cores_deceives_nobody(name: str, known: bool) -> None:
    cores = {"gpu01": frozenset({4, 6, 7})} if known else {}
    assert parse_cores(JOB.format(name=name), parse_threads(NODES)) == cores


def test_a_jobs_devices_are_told_by_node() -> None:
    line = "     Nodes={} CPU_IDs=1 Mem=10 GRES={}\n"
    two = "gpu:1g.10gb:2(IDX:0,2),gpu:3g.40gb:1(IDX:5)"
    several = line.format("gpu01", two) + line.format("gpu02", "gpu:7g.80gb:1(IDX:7)")
    assert parse_devices(several) == {"gpu01": frozenset({0, 2, 5}), "gpu02": frozenset({7})}
    assert parse_devices(JOB.format(name="bert")) == {"gpu01": frozenset({0})}
    assert parse_devices(line.format("gpu[01-99]", two)) == {}


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("x\n     Nodes=gpu01 CPU_IDs=0 Mem=1 GRES=gpu:1g.10gb:1(IDX:3)", None),
        ("x\n     Nodes=gpu01 CPU_IDs=0 Mem=1 GRES=gpu:1g.10gb:1(IDX:0-999999)", None),
        ("x\n     Nodes=gpu09 CPU_IDs=0 Mem=1 GRES=gpu:1g.10gb:1(IDX:0-999999)", frozenset({0})),
    ],
)
def test_what_a_name_says_of_devices_hides_its_own_at_most(
    name: str, known: frozenset[int] | None
) -> None:
    assert parse_devices(JOB.format(name=name)).get("gpu01") == known


def test_of_jobs_with_the_same_number_nothing_is_known() -> None:
    text = "JobId=1 JobName=a\n   x=1\n\nJobId=2 JobName=b\nJobId=3 JobName=\n\nJobId=3 JobName=c"
    assert by_job(text) == {1: "JobName=a\n   x=1\n\n", 2: "JobName=b\n"}
    assert by_job("No jobs in the system\n") == {}


def test_without_reservations_there_are_none() -> None:
    assert parse_reservations("No reservations in the system\n", ignored) == ()


def test_plans_are_of_jobs_with_a_time_and_a_place() -> None:
    rows = (
        row("13", "1795313520", "gpu[03-04]"),
        row("13", "1795313520", "gpu[03-04]"),
        row("12", "1795312344", "gpu03"),
        row("10", "N/A", "(null)"),
        row("11", "1795312344", "(null)"),
    )
    assert parse_plans(rows, ignored) == (
        PlannedStart(12, 1795312344, ("gpu03",)),
        PlannedStart(13, 1795313520, ("gpu03", "gpu04")),
    )


def test_a_plan_that_no_version_prints_costs_its_own_job() -> None:
    told: list[Unread] = []
    rows = (row("1", "soon", "gpu01"), row("2", "1795312344", "gpu[01"), row("3", "7", "gpu01"))
    assert parse_plans(rows, told.append) == (PlannedStart(3, 7, ("gpu01",)),)
    assert [(one.record, one.name) for one in told] == [("plan", "1"), ("plan", "2")]


def test_a_reservation_that_no_version_prints_is_left_out() -> None:
    told: list[Unread] = []
    odd = "ReservationName=odd StartTime=soon EndTime=N/A Nodes=gpu01\n"
    assert parse_reservations(odd + RESERVATIONS, told.append) == parse_reservations(
        RESERVATIONS, ignored
    )
    assert [(one.record, one.name) for one in told] == [("reservation", "ReservationName=odd")]
