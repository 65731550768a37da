"""Tests reading sacct: recorded replies, requeues, arrays, waits, and lines that can't be read."""

from pathlib import Path

import pytest
from builders.history_text import text_lines

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.slurm.job_history import (
    HISTORY_FIELDS,
    history_lines,
    parse_history,
)
from slicewise.cluster.language.slurm.unread import Unread, ignored
from slicewise.simulation.history import lines
from slicewise.simulation.history.lines import UnreadLines
from slicewise.simulation.history.sacct import PUBLISHED_FIELDS, read_sacct
from slicewise.simulation.rules.history.jobs import HistoryJob, JobHistory

PART_S = 0.5
"""Both ends of a run are known to the second."""

ASSETS = Path(__file__).parents[3] / "assets" / "slurm"
VERSIONS = ("22.05.8", "24.11.5", "26.05.5")
TRES = "billing=1,cpu=4,gres/gpu:1g.10gb=2,gres/gpu=2,mem=1G,node=1"


def row(**changed: str) -> str:
    said = {
        "JobIDRaw": "7",
        "User": "alice",
        "Account": "vision",
        "QOS": "normal",
        "Partition": "gpu",
        "Submit": "1000",
        "Eligible": "1000",
        "Start": "1100",
        "End": "1400",
        "State": "COMPLETED",
        "TimelimitRaw": "10",
        "NNodes": "1",
        "ReqTRES": TRES,
        "AllocTRES": TRES,
        **changed,
    }
    said.setdefault("JobID", said["JobIDRaw"])
    return "|".join(said.get(field, "") for field in HISTORY_FIELDS)


def read(*rows: str, header: str = "|".join(HISTORY_FIELDS)) -> JobHistory:
    return read_sacct(text_lines("\n".join((header, *rows))), UnreadLines("jobs.txt"))


def test_the_history_is_whole_from_the_first_end_of_a_run() -> None:
    early = row(JobIDRaw="3", Submit="10", Eligible="10", Start="20", End="900")
    requeued = row(JobIDRaw="4", End="700", State="REQUEUED")
    waits = row(JobIDRaw="5", Start="Unknown", End="Unknown", State="PENDING")
    assert read(early, requeued, waits, row()).whole_from_s == 700
    assert read(waits).whole_from_s is None


def only(*rows: str) -> HistoryJob:
    history = read(*rows)
    assert not history.first_unread
    (job,) = history.jobs
    return job


def test_a_job_has_what_it_asked_for():
    job = only(row())
    assert job == HistoryJob(
        job_id=7,
        user="alice",
        account="vision",
        partition="gpu",
        qos="normal",
        submit_s=1000,
        run_s=pytest.approx(300, abs=PART_S),
        time_limit_s=600,
        gpus={"1g.10gb": 2},
        nodes=1,
        cpus=4,
        memory_mib=1024,
        started_s=1100,
    )
    assert job.gpus == {"1g.10gb": 2}


def test_a_dependency_or_a_begin_time_counts_from_when_the_job_was_eligible():
    assert only(row(Eligible="1050")).submit_s == 1050


def test_a_start_before_the_eligible_time_is_when_it_came():
    assert only(row(Eligible="1200")).submit_s == 1100


def test_a_job_without_an_eligible_time_came_when_it_was_submitted_if_it_ran():
    assert only(row(Eligible="Unknown")).submit_s == 1000
    history = read(
        row(Eligible="Unknown", Start="Unknown", State="CANCELLED by 1000", AllocTRES="")
    )
    assert (history.jobs, history.left_out) == ((), {"they were never eligible to run": 1})


def test_seconds_of_suspension_are_not_run():
    assert only(row(Suspended="00:01:40")).run_s == pytest.approx(200, abs=PART_S)
    assert only(row(Suspended="00:01:40", ElapsedRaw="250")).run_s == pytest.approx(250, abs=PART_S)


def test_a_requeued_job_is_one_job_that_needed_its_last_run():
    job = only(
        row(Submit="2000", Eligible="2120", Start="2200", End="2500", State="COMPLETED"),
        row(Start="1100", End="1900", State="REQUEUED"),
    )
    assert (job.submit_s, job.started_s, job.run_s) == (1000, 1100, pytest.approx(300, abs=PART_S))


def test_a_requeued_job_that_was_cancelled_waiting_needed_its_longest_run_at_least():
    job = only(
        row(Start="1100", End="1900", State="PREEMPTED"),
        row(Submit="1900", Start="1950", End="2000", State="NODE_FAIL"),
        row(Submit="2000", Start="None", End="2500", State="CANCELLED by 0", AllocTRES="billing=1"),
    )
    assert (job.run_s, job.is_cancelled_waiting) == (pytest.approx(800, abs=PART_S), False)


def test_a_number_that_slurm_has_given_again_is_another_job():
    history = read(row(), row(Submit="9000", Eligible="9000", Start="9000", End="9010"))
    assert [job.submit_s for job in history.jobs] == [1000, 9000]


def test_a_job_that_was_cancelled_waiting_waits_as_long():
    job = only(row(Start="None", End="1600", State="CANCELLED by 1000", AllocTRES=""))
    assert (job.is_cancelled_waiting, job.run_s, job.started_s) == (True, 600, None)


def test_some_versions_write_a_start_for_jobs_that_were_cancelled_waiting():
    job = only(row(Start="1600", End="1600", State="CANCELLED", AllocTRES="", ElapsedRaw="0"))
    assert (job.is_cancelled_waiting, job.started_s) == (True, None)


def test_untouched_tasks_of_an_array_are_a_job_each():
    cancelled = {"Start": "None", "End": "1600", "State": "CANCELLED", "AllocTRES": ""}
    history = read(
        row(JobIDRaw="7", JobID="7_[3-5,8%2]", **cancelled), row(JobIDRaw="9", JobID="7_1")
    )
    assert [job.job_id for job in history.jobs] == [7, 7, 7, 7, 9]
    assert {job.array_job_id for job in history.jobs} == {7}
    assert only(row(JobIDRaw="7")).array_job_id is None


def test_jobs_that_still_run_or_wait_are_counted():
    waiting = {"Start": "Unknown", "End": "Unknown", "State": "PENDING", "AllocTRES": ""}
    history = read(
        row(End="Unknown", State="RUNNING", ElapsedRaw="250"),
        row(JobIDRaw="8", **waiting),
        row(JobIDRaw="9", **waiting, TimelimitRaw="UNLIMITED"),
    )
    assert [(job.job_id, job.run_s) for job in history.jobs] == [
        (7, pytest.approx(250, abs=PART_S)),
        (8, 600),
    ]
    assert history.open_ended == 2
    assert history.left_out == {"how long they would have run is not known": 1}
    assert not any(job.is_cancelled_waiting for job in history.jobs)


@pytest.mark.parametrize(
    ("requested", "allotted", "gpus"),
    [
        ("cpu=1,gres/gpu=4,node=1", "cpu=1,gres/gpu:a100=4,gres/gpu=4,node=1", {"": 4}),
        ("cpu=1,node=1", "cpu=1,gres/gpu:a100=4,gres/gpu=4,node=1", {"a100": 4}),
        ("", "gres/gpu:a100=2,gres/gpu=3,node=1", {"a100": 2, "": 1}),
        ("cpu=1,gres/shard=3,node=1", "", {"shard": 3}),
        ("cpu=1,mem=1.50G,node=1", "", {}),
    ],
)
def test_gpus_without_a_type_have_none(requested: str, allotted: str, gpus: dict[str, int]):
    job = only(row(ReqTRES=requested, AllocTRES=allotted, ElapsedRaw="300"))
    assert job.gpus == gpus


@pytest.mark.parametrize(
    ("text", "mib"), [("512K", 0), ("100M", 100), ("1.50G", 1536), ("2T", 2**21)]
)
def test_memory_in_units(text: str, mib: int):
    assert only(row(ReqTRES=f"cpu=1,mem={text},node=1")).memory_mib == mib


@pytest.mark.parametrize(
    "bad",
    [
        "nonsense",
        row(JobIDRaw="x"),
        row(JobIDRaw="9" * 19),
        row(Submit="yesterday"),
        row(Start=str(1 << 50)),
        row(ReqTRES="gres/gpu:a100=x"),
        row(ReqTRES="gres/gpu:a100=99999999999999999999"),
        row(ReqTRES="cpu=" + "9" * 5000),
        row(ReqTRES="cpu=1,node=2000000"),
        row() + "|more",
    ],
)
def test_a_bad_line_costs_only_itself(bad: str):
    history = read(row(), bad, row(JobIDRaw="8"))
    assert [job.job_id for job in history.jobs] == [7, 8]
    assert history.unread == 1
    assert history.first_unread.startswith("jobs.txt, line 3: ")
    assert len(history.first_unread) < 200


def test_gres_that_is_no_tres_is_told():
    history = read(row(), row(ReqTRES="cpu=1,gres/gpu:4,node=1"))
    assert history.first_unread == "jobs.txt, line 3: no count of GPUs: gres/gpu:4="


@pytest.mark.parametrize("task", ["7_3", "7+1"])
def test_the_number_of_a_task_or_of_a_part_of_a_job_is_its_own(task: str):
    assert only(row(JobIDRaw="", JobID=task)).job_id == 7


def test_an_array_of_impossible_size_is_refused():
    waiting = {"Start": "Unknown", "End": "Unknown", "State": "PENDING", "AllocTRES": ""}
    history = read(row(), row(JobID="9_[0-99999999999]", JobIDRaw="9", **waiting))
    assert (len(history.jobs), history.unread) == (1, 1)


def test_steps_are_no_jobs():
    history = read(row(), row(JobIDRaw="7.batch"), row(JobIDRaw="7.0"))
    assert (len(history.jobs), history.unread) == (1, 0)
    assert history.left_out == {"they are steps of jobs, such as 814.batch": 2}


def test_times_may_be_in_utc():
    assert only(row(Submit="1970-01-01T00:16:40", Eligible="1970-01-01T00:16:40")).submit_s == 1000


@pytest.mark.parametrize("fields", [HISTORY_FIELDS, PUBLISHED_FIELDS])
def test_without_a_header_the_number_of_columns_shows_which_they_are(fields: tuple[str, ...]):
    cells = dict(zip(HISTORY_FIELDS, row().split("|"), strict=True))
    text = "|".join(cells.get(field, "") for field in fields)
    history = read_sacct(text_lines(text), UnreadLines("jobs.txt"))
    assert [job.started_s for job in history.jobs] == [1100]


def test_a_missing_column_is_named():
    with pytest.raises(InvalidInputError, match="line 1: no column Submit, ReqTRES"):
        read(header="JobID|Start|End|State")
    with pytest.raises(InvalidInputError, match=r"its 3 columns have no names .* add a first line"):
        read(header="1|2|3")


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_has_the_fields(version: str):
    known = (ASSETS / version / "sacct-helpformat.txt").read_text(encoding="utf-8").split()
    assert set(HISTORY_FIELDS) <= set(known)
    assert set(PUBLISHED_FIELDS) <= set(known)


@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_tables_are_read(version: str):
    """A job's name with the separator in it costs that line alone."""
    text = (ASSETS / version / "sacct-P.txt").read_text(encoding="utf-8")
    history = read_sacct(text_lines(text), UnreadLines("sacct-P.txt"))
    named = sum(" | " in line for line in text.splitlines())
    assert history.unread == named
    by_id = {job.job_id: job for job in history.jobs}
    assert any(job.gpus == {"3g.40gb": 2} for job in by_id.values())
    assert any(job.is_cancelled_waiting for job in by_id.values())
    assert history.open_ended > 0
    assert len(by_id) == len(history.jobs)


def test_written_runs_read_the_same():
    rows = [row(), row(JobIDRaw="8", End="Unknown", State="RUNNING", TimelimitRaw="UNLIMITED")]
    runs = parse_history("".join(f"{one}\n" for one in rows), ignored)
    again = "\n".join(history_lines(runs))
    assert read_sacct(text_lines(again), UnreadLines("a")) == read(*rows)


def test_a_run_that_slurm_prints_unreadably_is_told_and_left_out():
    told: list[Unread] = []
    text = f"{row(JobIDRaw='8', Submit='Unknown')}\n{row()}\n"
    assert [one.job_id for one in parse_history(text, told.append)] == [7]
    assert [(one.record, one.name) for one in told] == [("run", "8")]


def test_licences_are_not_written():
    (run,) = parse_history(row(AllocTRES=f"{TRES},license/secret=1") + "\n", ignored)
    assert "secret" not in "\n".join(history_lines([run]))


def test_no_more_runs_are_kept_than_jobs_may_follow(monkeypatch: pytest.MonkeyPatch):
    """Each is a run of the same job, so the number of jobs alone would bound nothing."""
    monkeypatch.setattr(lines, "MOST_JOBS", 3)
    several = [row(Start=f"{1100 + n}", State="REQUEUED") for n in range(4)]
    assert len(read(*several[:3]).jobs) == 1
    with pytest.raises(InvalidInputError, match="line 5: more than 3 jobs or runs"):
        read(*several)


@pytest.mark.parametrize(
    "far", [{"End": "99999999999"}, {"ElapsedRaw": "99999999999"}, {"TimelimitRaw": "9999999999"}]
)
def test_times_that_no_calendar_has_cost_their_line_alone(far: dict[str, str]):
    found = read(row(), row(JobIDRaw="8", **far))
    assert [job.job_id for job in found.jobs] == [7]
    assert found.first_unread.endswith("line 3: a time that no calendar has")


def test_runs_do_not_all_take_whole_seconds():
    """Otherwise they would end in step with Slurm's backfill; on average nothing changes."""
    jobs = read(*(row(JobIDRaw=str(number), JobID=str(number)) for number in range(1, 201))).jobs
    parts_s = [job.run_s - 300 for job in jobs]
    assert all(abs(part_s) <= PART_S for part_s in parts_s)
    assert sum(parts_s) / len(parts_s) == pytest.approx(0.0, abs=0.01)
    assert len({round(part_s, 2) for part_s in parts_s}) > 50


PLAIN = "JobID|User|Account|Partition|Submit|Start|End|State|Timelimit|Elapsed|ReqTRES|AllocTRES"


def plain(**changed: str) -> str:
    """A row of the columns that people export."""
    said = {
        "JobID": "7",
        "User": "alice",
        "Account": "vision",
        "Partition": "gpu",
        "Submit": "2025-10-01T00:00:00",
        "Start": "2025-10-01T00:00:10",
        "End": "2025-10-01T01:00:10",
        "State": "COMPLETED",
        "Timelimit": "02:00:00",
        "Elapsed": "01:00:00",
        "ReqTRES": TRES,
        "AllocTRES": TRES,
        **changed,
    }
    return "|".join(said[field] for field in PLAIN.split("|"))


MIDNIGHT_S = 1_759_276_800  # 2025-10-01 in UTC.


@pytest.mark.parametrize(
    ("text", "limit_s"),
    [
        ("1-12:00:30", 129_630),
        ("48:00:00", 172_800),
        ("30:00", 1800),
        ("00:30.500", 30),
        ("UNLIMITED", None),
        ("Partition_Limit", None),
        ("", None),
    ],
)
def test_time_limits_as_people_export_them(text: str, limit_s: int | None):
    (job,) = read(plain(Timelimit=text), header=PLAIN).jobs
    assert job.time_limit_s == limit_s


def test_a_time_without_a_unit_is_not_guessed():
    """TimelimitRaw has minutes, ElapsedRaw seconds."""
    for bad in ({"Timelimit": "120"}, {"Elapsed": "3600"}):
        history = read(plain(**bad), header=PLAIN)
        assert (history.jobs, history.unread) == ((), 1)
        assert "time without a unit" in history.first_unread


def test_an_invalid_time_limit_is_said():
    history = read(plain(Timelimit="INVALID", Elapsed="INVALID"), header=PLAIN)
    assert history.jobs[0].run_s == pytest.approx(3600, abs=PART_S)
    assert "A time limit that sacct shows as INVALID is taken for none." in history.assumed


def test_what_still_runs_or_waits_says_how_long_in_plain_columns_too():
    waiting = {"Start": "Unknown", "End": "Unknown", "State": "PENDING", "AllocTRES": ""}
    history = read(
        plain(End="Unknown", State="RUNNING", Elapsed="03:00:00"),
        plain(JobID="8", **waiting, Timelimit="12:00:00", Elapsed="00:00:00"),
        header=PLAIN,
    )
    assert [round(job.run_s) for job in history.jobs] == [10_800, 43_200]
    assert (history.open_ended, dict(history.left_out)) == (2, {})


@pytest.mark.parametrize(
    ("submit", "unix_s", "is_said"),
    [
        ("2025-10-01T02:00:00+0200", MIDNIGHT_S, False),
        ("2025-10-01T02:00:00+02:00", MIDNIGHT_S, False),
        ("2025-10-01T02:00:00+02", MIDNIGHT_S, False),
        ("2025-10-01T00:00:00Z", MIDNIGHT_S, False),
        ("2025-09-30 17:00:00-0700", MIDNIGHT_S, False),
        (str(MIDNIGHT_S), MIDNIGHT_S, False),
        ("2025-10-01T00:00:00", MIDNIGHT_S, True),
        ("2025-10-01 00:00", MIDNIGHT_S, True),
    ],
)
def test_offsets_of_times_count_and_their_lack_is_said(submit: str, unix_s: int, is_said: bool):
    times = {"Submit": submit, "Start": str(MIDNIGHT_S + 10), "End": str(MIDNIGHT_S + 3610)}
    history = read(plain(**times), header=PLAIN)
    assert history.jobs[0].submit_s == unix_s
    assert ("Times without a UTC offset are taken for UTC." in history.assumed) == is_said


@pytest.mark.parametrize(
    "time", ["2025-10-01", "01/10/2025 00:00:00", "Wed 01 Oct 2025", "00:00:00", "1759276800000"]
)
def test_times_that_can_not_be_read_for_sure_are_not_read(time: str):
    history = read(plain(Submit=time), header=PLAIN)
    assert (history.jobs, history.unread) == ((), 1)


def test_a_job_over_the_end_of_summer_time_runs_as_long_as_it_ran():
    times = {
        "Submit": "2025-10-26T02:30:00+0200",
        "Start": "2025-10-26T02:30:10+0200",
        "End": "2025-10-26T02:10:10+0100",
    }
    for elapsed in ("00:40:00", ""):
        history = read(plain(**times, Elapsed=elapsed), header=PLAIN)
        (job,) = history.jobs
        assert (job.submit_s, job.started_s) == (1_761_438_600, 1_761_438_610)
        assert job.run_s == pytest.approx(2400, abs=PART_S)


def test_a_job_that_ends_before_it_starts_runs_as_long_as_elapsed_says_or_is_left_out():
    times = {"Start": "2025-10-26T02:30:10", "End": "2025-10-26T02:10:10"}
    history = read(
        plain(**times, Elapsed="00:40:00"),
        plain(JobID="8", **times, Elapsed=""),
        plain(JobID="9", Start="None", End="2025-09-30T23:00:00", State="CANCELLED by 7"),
        header=PLAIN,
    )
    assert [job.run_s for job in history.jobs] == [pytest.approx(2400, abs=PART_S)]
    assert history.left_out == {"by their times they end before they start": 2}
    assert any("ran as long as Elapsed says" in one for one in history.assumed)


def test_columns_that_are_missing_are_said():
    header = "JobID|Submit|Start|End|State|ReqTRES"
    history = read(f"7|1000|1100|1400|COMPLETED|{TRES}", header=header)
    (job,) = history.jobs
    assert (job.submit_s, job.time_limit_s) == (1000, None)
    assert [one.split(":")[0] for one in history.assumed] == [
        "No column TimelimitRaw or Timelimit",
        "No column ElapsedRaw or Elapsed",
        "No column Eligible",
        "No column Account",
        "No column User",
        "No column Partition",
    ]


XDMOD = {
    "JobID": "301",
    "JobIDRaw": "301",
    "Cluster": "alpha",
    "Partition": "gpu",
    "QOS": "long",
    "Account": "phys",
    "Submit": "2025-10-01T00:00:00",
    "Eligible": "2025-10-01T00:00:00",
    "Start": "2025-10-01T00:00:10",
    "End": "2025-10-01T01:00:10",
    "Elapsed": "01:00:00",
    "State": "COMPLETED",
    "NNodes": "1",
    "ReqGRES": "PER_NODE:gres/gpu:1",
    "ReqTRES": "billing=4,cpu=4,gres/gpu=1,mem=8G,node=1",
    "AllocTRES": "billing=4,cpu=4,gres/gpu=1,mem=8G,node=1",
    "Timelimit": "02:00:00",
    "JobName": "a|b",
}
XDMOD_COLUMNS = (
    "JobID,JobIDRaw,Cluster,Partition,Account,Group,GID,User,UID,Submit,Eligible,Start,End,Elapsed,"
    "ExitCode,State,NNodes,NCPUS,ReqCPUS,ReqMem,ReqGRES,ReqTRES,AllocTRES,Timelimit,NodeList,JobName"
)


@pytest.mark.parametrize(
    "columns",
    [
        XDMOD_COLUMNS,
        XDMOD_COLUMNS.replace("Partition,", "Partition,QOS,").replace("ReqGRES,", ""),
        XDMOD_COLUMNS.replace("ReqGRES,", ""),
        XDMOD_COLUMNS.replace("AllocTRES,", ""),
    ],
)
@pytest.mark.parametrize("end", ["", "|"])
def test_the_files_of_xdmod_have_no_names_of_columns(columns: str, end: str):
    """Its versions have 25 or 26, of which some stand elsewhere. A job's name may be anything."""
    text = "|".join(XDMOD.get(name, "") for name in columns.split(","))
    assert text.count("|") in {25, 26}
    history = read_sacct(text_lines(f"{text}{end}\n"), UnreadLines("jobs.txt"))
    (job,) = history.jobs
    assert (job.account, job.time_limit_s, job.gpus, job.cpus) == ("phys", 7200, {"": 1}, 4)
    assert job.run_s == pytest.approx(3600, abs=PART_S)
    assert job.qos == ("long" if "QOS" in columns else "")
    assert history.assumed[0].endswith("are taken for those of Open XDMoD.")


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("PER_NODE:gres/gpu:a100:2", {"a100": 4}),
        ("gpu:2", {"": 4}),
        ("PER_JOB:gpu:a100:2", {"a100": 2}),
        ("PER_TASK:gpu:2", None),
        ("PER_SOCKET:gpu:a100:1", None),
    ],
)
def test_gres_stand_in_where_accounting_counts_no_gpus(gres: str, gpus: dict[str, int] | None):
    """Of how many tasks a job has no column says."""
    bare = {
        "ReqTRES": "cpu=4,mem=8G,node=2",
        "AllocTRES": "",
        "ReqGRES": gres,
    }
    text = "|".join(
        (XDMOD | bare | {"NNodes": "2"}).get(one, "") for one in XDMOD_COLUMNS.split(",")
    )
    unread = UnreadLines("jobs.txt")
    found = read_sacct(text_lines(text), unread).jobs
    assert [(job.gpus, job.nodes) for job in found] == ([] if gpus is None else [(gpus, 2)])
    assert unread.count == (gpus is None)


@pytest.mark.parametrize("separator", [";", "\t", ",", "^", "~"])
def test_other_separators_quotes_and_spellings(separator: str):
    header = separator.join(f'"{name}"' for name in PLAIN.lower().split("|"))
    cells = separator.join(f'"{cell}"' for cell in plain().split("|"))
    (job,) = read(cells, header=header).jobs
    assert (job.job_id, job.gpus, job.time_limit_s) == (7, {"1g.10gb": 2}, 7200)


def test_files_that_follow_each_other_have_their_own_columns():
    turned = "|".join(reversed(PLAIN.split("|")))
    other = "|".join(reversed(plain(JobID="8").split("|")))
    history = read(plain(), turned, other, PLAIN, plain(JobID="9"), header=PLAIN)
    assert [(job.job_id, job.user) for job in history.jobs] == [
        (7, "alice"),
        (8, "alice"),
        (9, "alice"),
    ]
    assert (history.unread, dict(history.left_out)) == (0, {})


def clustered(cluster: str, text: str) -> str:
    return f"{cluster}|{text}"


def test_the_same_number_on_two_clusters_is_two_jobs_and_that_is_said():
    rows = [clustered("alpha", plain()), clustered("be\x1bta", plain())]
    history = read(*rows, rows[0], header=clustered("Cluster", PLAIN))
    assert len(history.jobs) == 2
    assert history.left_out == {"they are in the file once more": 1}
    (said,) = [one for one in history.assumed if "clusters" in one]
    assert said.startswith("Jobs of 2 clusters (alpha, be")
    assert said.isprintable()


WAITS = {"Start": "Unknown", "End": "Unknown", "State": "PENDING", "AllocTRES": ""}
RUNS = {"End": "Unknown", "State": "RUNNING", "Elapsed": "00:10:00"}


@pytest.mark.parametrize(
    "rows",
    [
        (plain(), plain()),
        (plain(**WAITS), plain()),
        (plain(**RUNS), plain()),
        (plain(**WAITS), plain(**RUNS), plain()),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_a_job_in_two_files_that_overlap_is_one(rows: tuple[str, ...], turned: bool):
    history = read(*(reversed(rows) if turned else rows), header=PLAIN)
    (job,) = history.jobs
    assert job.run_s == pytest.approx(3600, abs=PART_S)
    assert history.open_ended == 0
    assert history.left_out == {"they are in the file once more": len(rows) - 1}


def test_a_job_that_came_back_and_waits_is_no_copy():
    again = {**WAITS, "Submit": "2025-10-01T01:00:10"}
    for waits in (WAITS, again):
        history = read(plain(State="REQUEUED"), plain(**waits), header=PLAIN)
        assert (len(history.jobs), history.open_ended, history.left_out) == (1, 1, {})


def test_tasks_that_waited_in_one_file_and_ran_in_the_next_are_one_each():
    history = read(
        plain(JobID="814_[4-9%2]", **WAITS),
        *(plain(JobID=f"814_{index}") for index in (4, 5)),
        plain(JobID="814_[6-9%2]", **WAITS),
        header=PLAIN,
    )
    assert (len(history.jobs), history.open_ended) == (6, 4)


def test_a_job_may_be_named_like_a_row_of_names():
    """Who names his job so must not turn the columns of all that follows."""
    header = f"{PLAIN}|JobName"
    history = read(f"{plain()}|{PLAIN}", f"{plain(JobID='8')}|x", header=header)
    assert [job.job_id for job in history.jobs] == [7, 8]
