"""Planned starts and reservations, as Slurm 22.05.8 prints them."""

import pytest

from cluster.errors import OutsideError
from cluster.jobs import PlannedStart, ReservationView
from cluster.slurm.plans import parse_plans, parse_reservations

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
    assert parse_reservations(RESERVATIONS) == (
        ReservationView("maint", 1795312067, 1795315667, ("gpu01", "gpu02"), flags),
        ReservationView("licenses", 1795312000, 1795315000, (), frozenset()),
    )


def test_without_reservations_there_are_none() -> None:
    assert parse_reservations("No reservations in the system\n") == ()


def test_plans_are_of_jobs_with_a_time_and_a_place() -> None:
    rows = (
        row("13", "1795313520", "gpu[03-04]"),
        row("13", "1795313520", "gpu[03-04]"),
        row("12", "1795312344", "gpu03"),
        row("10", "N/A", "(null)"),
        row("11", "1795312344", "(null)"),
    )
    assert parse_plans(rows) == (
        PlannedStart(12, 1795312344, ("gpu03",)),
        PlannedStart(13, 1795313520, ("gpu03", "gpu04")),
    )


def test_a_time_that_no_version_prints_is_an_error() -> None:
    with pytest.raises(OutsideError):
        parse_plans((row("1", "soon", "gpu01"),))
