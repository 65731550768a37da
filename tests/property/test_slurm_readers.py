"""Property: whatever Slurm prints of one record, the others are read as without it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest
from effort import examples
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.language.jobs import JobState, JobView
from slicewise.cluster.language.slurm import values
from slicewise.cluster.language.slurm.accounting import RUN_FIELDS, parse_runs
from slicewise.cluster.language.slurm.job_rows import (
    JOB_FIELDS,
    parse_jobs,
    parse_pending,
    parse_rows,
    read_rows,
    records,
)
from slicewise.cluster.language.slurm.parse import (
    ASSOCIATION_FIELDS,
    QOS_FIELDS,
    parse_associations,
    parse_nodes,
    parse_partitions,
    parse_qos,
    parse_step,
    parse_step_ids,
)
from slicewise.cluster.language.slurm.planned_starts import (
    PLAN_FIELDS,
    RESERVED_FIELDS,
    parse_cores,
    parse_devices,
    parse_plans,
    parse_reservations,
    parse_reserved,
    parse_threads,
)
from slicewise.cluster.language.slurm.priorities import parse_priorities
from slicewise.cluster.language.slurm.requests import REQUEST_FIELDS, parse_requests
from slicewise.cluster.language.slurm.unread import Unread, ignored
from slicewise.cluster.slurm.nodes import NodeConfig, parse_places
from slicewise.cluster.slurm.pyslurm_records import job_view
from slicewise.cluster.slurm.unread_log import UnreadLog

pytestmark = pytest.mark.usefixtures("clock")

SEPARATOR = "x00ff00ffx"

WORDS = (
    *("", "(null)", "N/A", "None", "NONE", "Unknown", "INVALID", "UNLIMITED", "Partition_Limit"),
    *("INFINITE", "NOT_SET", "infinite", "4294967294", "4294967295", "18446744073709551615", "-1"),
    *("1-00:00:00", "UNLIMITED-1", "#" * 31, "?", "SIGNALING", "STOPPED", "REVOKED", "EXPEDITING"),
    *("gpu[01", "gpu01]", "gpu[03-01]", "n[0-999999]m[0-999999]", "[]", ",", "a,,b", "0-8:0"),
    *("5_[1-3", "0-99999999999999999", "1,2,...", "9" * 5000, "²", "cpu=1,gres/gpu:1g.10gb=1K"),
    *("gres/gpu:1g.10gb=", "gres/gpu:1g.10gb=-1", "billing=1e9", "mem=4?", "gpu:a:2(IDX:9-)"),
    *("a b=c", "x JobId=1 UserId=root(0)", "line\nbreak", "NodeName=gpu01 State=IDLE", "a|b", "\r"),
    *("\x00", "\x1b[31m", "ä", "\ufffd", "'\"", "`id`", "=", "%s", "../..", " ", "\t", "{}"),
)
"""Slurm's own words for nothing and for too much, texts that were cut, and texts of users."""

ODD = st.one_of(st.sampled_from(WORDS), st.text(max_size=12))

JOB = {
    **dict.fromkeys(JOB_FIELDS, "N/A"),
    "JobId": "7",
    "ArrayJobId": "7",
    "UserId": "1000",
    "State": "RUNNING",
    "UserName": "alice",
    "PriorityLong": "1",
    "RestartCnt": "0",
    "TimeLimit": "UNLIMITED",
    "EndTime": "NONE",
    "tres-alloc": "cpu=1,gres/gpu:1g.10gb=1",
    "NodeList": "gpu01",
    "StartTime": "1795222565",
}
FREE = frozenset({"Name", "UserName", "Account", "Partition", "QOS", "Reason", "Comment"})


def printed(rows: Sequence[Mapping[str, str]]) -> str:
    return "".join("".join(row[f] + SEPARATOR for f in JOB_FIELDS) + "\n" for row in rows)


def read(told: Callable[[Unread], None], *rows: Mapping[str, str]) -> tuple[JobView, ...]:
    return parse_jobs(parse_rows(printed(rows), JOB_FIELDS, SEPARATOR), {}, told)


def test_a_job_without_a_time_limit_is_a_job_like_others() -> None:
    told: list[Unread] = []
    (job,) = read(told.append, JOB)
    assert (job.time_limit_s, job.end_s, job.start_s) == (None, None, 1795222565)
    assert (job.unread, told) == (frozenset(), [])


@settings(max_examples=examples(100, nightly=8000), deadline=None)
@given(odd=st.dictionaries(st.sampled_from(JOB_FIELDS[1:]), ODD, max_size=6))
def test_a_row_of_squeue_costs_its_own_job_only(odd: Mapping[str, str]) -> None:
    told: list[Unread] = []
    good = JOB | {"JobId": "8", "ArrayJobId": "8"}
    expected = read(ignored, good)[0]
    found = read(told.append, good, JOB | odd, good | {"JobId": "9"})
    assert [job.job_id for job in found] == [8, 7, 9]
    assert found[0] == expected
    job = found[1]
    assert bool(job.unread) == bool(told)
    assert {one.name for one in told} <= {"7"}
    assert all(one.field not in FREE for one in told)
    # What can't be read has not ended.
    if job.state is JobState.ENDED:
        assert "State" in odd
        assert "state" not in job.unread
    assert all(isinstance(count, int) for count in job.gpus.values())
    assert isinstance(job.is_doubtful, bool)


@settings(max_examples=examples(100, nightly=4000), deadline=None)
@given(
    odd=st.dictionaries(st.sampled_from(JOB_FIELDS[1:]), ODD, max_size=6),
    change=st.dictionaries(st.sampled_from(JOB_FIELDS[1:]), ODD, max_size=2),
)
def test_a_look_with_rows_that_were_there_before_reads_what_a_first_look_would(
    odd: Mapping[str, str], change: Mapping[str, str]
) -> None:
    good = JOB | {"JobId": "8", "ArrayJobId": "8"}
    before = read_rows((good, JOB | odd), {}, ignored)
    now = (good | {"JobId": "9"}, good, JOB | odd, JOB | {"JobId": "6"} | odd | change)
    first: list[Unread] = []
    later: list[Unread] = []
    kept = read_rows(now, before, later.append)
    assert records(kept.values(), {}) == parse_jobs(now, {}, first.append)
    assert first == later, "what can't be read is told at each look"
    same = {job.job_id for job in kept.values() if any(job is one for one in before.values())}
    assert same == {8} | {job.job_id for job in before.values() if not job.unread}


@pytest.mark.parametrize("word", [word for word in WORDS if len(word) > 10 or not word.isdecimal()])
def test_without_its_number_nobody_knows_whose_row_is_missing(word: str) -> None:
    with pytest.raises(SlicewiseError, match="SW-SLURM-FAILED"):
        read(ignored, JOB, JOB | {"JobId": word})


@given(kept=st.integers(1, 2 * len(JOB_FIELDS) - 1), more=st.text(max_size=9))
def test_a_list_that_was_cut_within_a_row_is_no_look(kept: int, more: str) -> None:
    cells = printed([JOB, JOB]).split(SEPARATOR)
    text = SEPARATOR.join(cells[:kept]) + SEPARATOR
    if kept != len(JOB_FIELDS):
        with pytest.raises(SlicewiseError, match="SW-SLURM-FAILED"):
            parse_rows(text, JOB_FIELDS, SEPARATOR)
    if more.strip():
        with pytest.raises(SlicewiseError, match="SW-SLURM-FAILED"):
            parse_rows(printed([JOB]) + more, JOB_FIELDS, SEPARATOR)
    with pytest.raises(SlicewiseError, match="SW-SLURM-FAILED"):
        parse_rows("squeue: something new", JOB_FIELDS, SEPARATOR)


def told_of(read_all: Callable[[Callable[[Unread], None]], Any]) -> tuple[Any, list[Unread]]:
    told: list[Unread] = []
    return read_all(told.append), told


@settings(max_examples=examples(80, nightly=6000), deadline=None)
@given(key=st.sampled_from(("Gres", "GresUsed", "Weight", "State", "Partitions")), odd=ODD)
def test_a_node_costs_itself_only(key: str, odd: str) -> None:
    line = " ".join(odd.split())
    good = "NodeName=gpu02 NodeAddr=gpu02\n   Gres=gpu:1g.10gb:7\n   State=IDLE Weight=3\n"
    text = f"NodeName=gpu01 NodeAddr=gpu01\n   {key}={line}\n\n{good}"
    (first, second), told = told_of(lambda told: parse_nodes(text, told))
    assert (first.name, second.weight, dict(second.gpus)) == ("gpu01", 3, {"1g.10gb": 7})
    assert {one.name for one in told} <= {"gpu01"}


@settings(max_examples=examples(80, nightly=6000), deadline=None)
@given(words=st.lists(ODD, max_size=7))
@example(words=["gpu01", "gpu", "gpu:a:1", "gpu01"])
@example(words=["gpu01", "gpu", "gpu:a:1", "gpu01", "1", "more"])
@example(words=["gpu01", "gpu", "gpu:a:1", "gpu01", "+?"])
def test_where_a_node_is_costs_its_own_row_only(words: Sequence[str]) -> None:
    line = " ".join(word for odd in words for word in odd.split())
    assume(not line.startswith("gpu02"))
    good = "gpu02 gpu gpu:1g.10gb:7 10.0.0.2 3"
    places, told = told_of(lambda told: parse_places(f"{good}\n{line}\n{good}\n", told))
    assert places["gpu02"] == NodeConfig(frozenset({"gpu"}), "gpu:1g.10gb:7", "10.0.0.2", 3)
    assert all(one.record == "place" for one in told)
    assert bool(told) == (len(places) == 1)


@settings(max_examples=examples(60, nightly=4000), deadline=None)
@given(odd=ODD)
def test_a_partition_a_reservation_and_a_priority_cost_themselves_only(odd: str) -> None:
    line = " ".join(odd.split())
    text = f"PartitionName=a TRESBillingWeights={line}\n\nPartitionName=b QoS=q\n"
    (_, second), _ = told_of(lambda told: parse_partitions(text, told))
    assert (second.name, second.qos) == ("b", "q")
    rest = "StartTime=1 EndTime=2 Nodes=gpu01\n"
    text = (
        f"ReservationName=r StartTime={line} EndTime={line} Nodes={line}\nReservationName=s {rest}"
    )
    found, _ = told_of(lambda told: parse_reservations(text, told))
    assert (found[-1].name, found[-1].nodes) == ("s", ("gpu01",))
    text = f"7|{line}|5|0|0|0|0|0|0|0|{line}\n8|1|2|0|0|0|0|0|0|0|\n"
    rows, _ = told_of(lambda told: parse_priorities(text, (7, 8), told))
    assert rows[-1].job_id == 8


@settings(max_examples=examples(80, nightly=6000), deadline=None)
@given(odd=st.lists(ODD, min_size=12, max_size=12))
def test_accounting_costs_its_own_row_only(odd: Sequence[str]) -> None:
    # sacct uses a separator that users can't know; an account's name may hold a line break.
    cells = [cell.replace("|", "/").replace("\n", " ").replace("\r", " ") for cell in odd]
    good = "7|7|alice|vision|gpu|100|200|COMPLETED|10|billing=5||normal"
    text = "|".join(cells) + "\n" + good + "\n"
    runs, _ = told_of(lambda told: parse_runs(text, 0, told))
    assert len(RUN_FIELDS) == len(cells)
    assert (runs[-1].job_id, runs[-1].end_s) == (7, 200)


@settings(max_examples=examples(80, nightly=6000), deadline=None)
@given(odd=ODD, field=st.integers(0, 6))
def test_associations_and_qos_cost_their_own_row_only(odd: str, field: int) -> None:
    cell = odd.replace("\n", " ").replace("|", "/")
    row = ["c", "odd", "", "", "root", "", "", "", "", "", "", "", ""]
    row[(1, 2, 3, 7, 8, 11, 12)[field]] = cell
    text = "|".join(row) + "\nc|vision|||root|normal||billing=3|||||\n"
    found, told = told_of(lambda told: parse_associations(text, text, ASSOCIATION_FIELDS, told))
    assert len(ASSOCIATION_FIELDS) == len(row)
    assert (found[-1].account, dict(found[-1].grp_tres)) == ("vision", {"billing": 3})
    assert all(one.record == "association" for one in told)
    limits = f"odd|{'|'.join([cell] * 9)}\nnormal|||||00:01:00|cluster|||00:00:30\n"
    qos, _ = told_of(lambda told: parse_qos(limits, told))
    assert len(QOS_FIELDS) == 10
    assert [(one.name, one.preempt_exempt_s, one.grace_s) for one in qos[1:]] == [
        ("normal", 60, 30)
    ]


@settings(max_examples=examples(80, nightly=6000), deadline=None)
@given(odd=ODD)
def test_plans_requests_and_steps_cost_their_own_job_only(odd: str) -> None:
    plan = dict(zip(PLAN_FIELDS, ("8", "5", "gpu01"), strict=True))
    plans, _ = told_of(lambda told: parse_plans([dict.fromkeys(PLAN_FIELDS, odd), plan], told))
    assert (8, 5, ("gpu01",)) in [(one.job_id, one.start_s, one.nodes) for one in plans]
    request = {**dict.fromkeys(REQUEST_FIELDS, "N/A"), "JobId": "8"}
    asked, _ = told_of(
        lambda told: parse_requests([dict.fromkeys(REQUEST_FIELDS, odd), request], told)
    )
    assert 8 in asked
    inside = dict(zip(RESERVED_FIELDS, ("8", "maintenance"), strict=True))
    reserved, _ = told_of(
        lambda told: parse_reserved([dict.fromkeys(RESERVED_FIELDS, odd), inside], told)
    )
    assert reserved[8] == {"maintenance"}
    pending, _ = told_of(lambda told: parse_pending(f"{odd.strip()}\n9_[0-3]\n", told))
    assert pending[9] == {0, 1, 2, 3}
    parse_step_ids(f"{odd}.0\n{odd}")
    threads = parse_threads(f"gpu01 {odd}\n")
    parse_cores(f"     Nodes=gpu01 CPU_IDs={odd} Mem=1\n", {"gpu01": 2, **threads})
    parse_devices(f"     Nodes=gpu01 CPU_IDs=1 Mem=1 GRES={odd}\n")
    (job,) = read(ignored, JOB)
    with suppress(SlicewiseError):  # commands.py leaves it out
        parse_step(f"   State=RUNNING NodeList={odd}\n   ResvPorts={odd}\n", job, "0")


class Record:
    """As pyslurm's: some attributes are missing, some of another type."""

    def __init__(self, **attributes: Any) -> None:
        self.attributes = attributes

    def __getattr__(self, name: str) -> Any:
        try:
            return self.attributes[name]
        except KeyError:
            raise AttributeError(name) from None


PYSLURM = {
    "id": 7,
    "state": "RUNNING",
    "array_id": None,
    "user_id": 1000,
    "priority": 1,
    "name": "n",
    "account": "a",
    "partition": "gpu",
    "qos": "q",
    "state_reason": None,
    "admin_comment": None,
    "comment": None,
    "allocated_tres": None,
    "requested_tres": None,
    "allocated_nodes": None,
    "submit_time": 1,
    "start_time": 2,
    "end_time": 9,
    "eligible_time": 1,
    "time_limit": 10,
    "requeue_count": 0,
    "array_tasks_waiting": None,
    "array_task_id": None,
    "gres_per_node": None,
    "get_resource_layout_per_node": dict,
}


@settings(max_examples=examples(80, nightly=6000), deadline=None)
@given(
    key=st.sampled_from([key for key in PYSLURM if key not in FREE and key != "id"]),
    odd=st.one_of(ODD, st.none(), st.floats(), st.lists(ODD, max_size=2), st.integers()),
)
def test_a_record_of_pyslurm_is_read_or_told_of(key: str, odd: Any) -> None:
    told: list[Unread] = []
    try:
        job = job_view(Record(**PYSLURM | {key: odd}), str, told.append)
    except (TypeError, ValueError):
        return  # the commands are asked then
    assert job.job_id == 7
    assert job.state is not JobState.ENDED or key == "state"
    for number in (job.submit_s, job.start_s, job.end_s, job.time_limit_s, job.priority):
        assert number is None or isinstance(number, int)


def test_pyslurm_makes_up_no_end_for_what_has_no_limit() -> None:
    for unlimited in ("UNLIMITED", None):
        job = job_view(Record(**PYSLURM | {"time_limit": unlimited}), str, ignored)
        assert (job.time_limit_s, job.end_s) == (None, None)


@settings(max_examples=examples(100, nightly=10_000), deadline=None)
@given(odd=ODD)
def test_a_value_is_read_or_refused(odd: str) -> None:
    readers = (values.time_s, values.duration_s, values.numbers, values.hosts, values.tres)
    for one in (*readers, values.limits, values.weights):
        with suppress(SlicewiseError):
            one(odd)


def test_what_is_logged_is_bounded_and_quoted() -> None:
    lines: list[Mapping[str, object]] = []
    log = UnreadLog(lambda _, **fields: lines.append(fields))
    rows = [JOB | {"JobId": str(n), "TimeLimit": f"\x1b\n{'x' * 5000}"} for n in range(1, 300)]
    for _ in range(3):
        read(log, *rows)
    assert len(lines) == 100
    assert log.counts["job"] == 3 * 299
    assert all(str(line["text"]).isascii() and len(str(line["text"])) <= 80 for line in lines)
    assert str(lines[0]["text"]).startswith("\\x1b\\nxxx")
