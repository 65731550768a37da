"""Tests the formats of histories, each by a file of a few lines, and hostile files."""

import gzip
import lzma
from pathlib import Path

import pytest

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.simulation.history import lines
from slicewise.simulation.history.formats import read_history
from slicewise.simulation.rules.history.jobs import JobHistory, even_nodes

UB = (
    "-dt {} -e submit_batch_job | -sim-walltime 2009.00 --uid=user003 -J jobid_3 -N 2 -n 18 "
    "-t {} -q general -p compute --mem={} {} pseudo.job\n"
)
HELIOS = (
    "job_id,user,vc,jobname,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,"
    "duration,queue\n"
)
SWF = "; UnixStartTime: 1000\n;Computer: any\n"


def read(folder: Path, text: str, name: str = "jobs.txt") -> JobHistory:
    path = folder / name
    path.write_bytes(text.encode())
    return read_history(path)


def test_philly(tmp_path: Path):
    history = read(
        tmp_path,
        "timestamp,duration,num_gpus,gpu_time,cluster\n"
        "1970-01-02 00:00:01,66.0,16,1056.0,11cb48\n"
        "1970-01-02 00:00:00,5.5,1,5.5,6214e9\n",
    )
    first, second = history.jobs
    assert (first.job_id, first.account, first.submit_s, first.run_s) == (3, "6214e9", 86_400, 5.5)
    assert (second.gpus, second.nodes, second.time_limit_s) == ({"": 16}, 2, None)


def test_chronus(tmp_path: Path):
    (job,) = read(
        tmp_path,
        "job_id,user,num_gpu,submit_time,iterations,model_name,duration,interval\n"
        "5,vc_6214e9,1,8555,5049,vgg16,747,14\n",
    ).jobs
    assert (job.job_id, job.account, job.submit_s, job.run_s) == (5, "vc_6214e9", 8555, 747)


def test_helios_jobs(tmp_path: Path):
    history = read(
        tmp_path,
        f"{HELIOS}"
        "1,u1,vcA,j,16,64,2,COMPLETED,1970-01-01 00:00:10,1970-01-01 00:00:30,1970-01-01 00:01:30,"
        "60,20\n"
        "2,u2,vcB,j,0,4,1,CANCELLED,1970-01-01 00:00:20,None,1970-01-01 00:01:00,0,40\n"
        "3,u2,vcB,j,1,4,1,COMPLETED,None,None,None,0,40\n",
    )
    first, second = history.jobs
    assert (first.partition, first.gpus, first.nodes, first.cpus) == ("vcA", {"": 16}, 2, 64)
    assert (first.submit_s, first.started_s, first.run_s) == (10, 30, 60)
    assert (second.gpus, second.is_cancelled_waiting, second.run_s) == ({}, True, 40)
    assert history.first_unread.endswith("line 4: no time of submission")
    assert history.assumed == ("Times without a UTC offset are taken for UTC.",)


def test_a_helios_job_that_ends_before_it_came_is_left_out(tmp_path: Path):
    line = "2,u2,vcB,j,0,4,1,CANCELLED,2020-04-01 01:00:00,None,2020-04-01 00:30:00,0,40\n"
    other = "3,u2,vcB,j,0,4,1,CANCELLED,2020-04-01 01:00:00+02:00,None,2020-04-01 00:30:00Z,0,9\n"
    history = read(tmp_path, HELIOS + line + other)
    assert [(job.job_id, job.run_s) for job in history.jobs] == [(3, 5400)]
    assert history.left_out == {"by their times they end before they start": 1}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("1:30", 90),
        ("1:00:30", 3630),
        ("3-00:00:00", 259_200),
        ("1-2", 93_600),
        ("1-2:30", 95_400),
        ("UNLIMITED", None),
    ],
)
def test_ub_events(tmp_path: Path, text: str, seconds: int | None):
    (job,) = read(tmp_path, UB.format("11.50", text, "2G", "--gres=gpu:2")).jobs
    assert (job.submit_s, job.run_s, job.time_limit_s) == (11.5, 2009, seconds)
    assert (job.user, job.qos, job.partition) == ("user003", "general", "compute")
    assert (job.gpus, job.nodes, job.cpus, job.memory_mib) == ({"": 4}, 2, 18, 4096)


def test_other_events_and_other_gpus_of_ub_are_counted(tmp_path: Path):
    history = read(
        tmp_path,
        UB.format("1", "60", "100", "")
        + "-dt 2.0 -e cancel_job | -J 3\n"
        + UB.format("3", "soon", "100", "")
        + UB.format("3", "60", "much", "")
        + UB.format("3", "60", "100", "--gres=gpu:+1"),
    )
    assert (len(history.jobs), history.unread) == (1, 4)


def test_swf(tmp_path: Path):
    history = read(
        tmp_path,
        SWF + "1 5 20 60 4 -1 1024 -1 3600 -1 1 7 3 -1 2 -1 -1 -1\n"
        "2 6 30 -1 -1 -1 -1 8 3600 2048 5 7 -1 -1 2 4 -1 -1\n"
        "3 7 -1 -1 -1 -1 -1 8 3600 -1 1 7 3 -1 2 -1 -1 -1\n"
        "4 1 2\n",
    )
    first, second = history.jobs
    assert (first.submit_s, first.started_s, first.run_s) == (1005, 1025, 60)
    assert (first.cpus, first.memory_mib, first.account, first.partition) == (4, 4, "3", "2")
    assert (second.is_cancelled_waiting, second.run_s, second.partition) == (True, 30, "4")
    assert (second.cpus, second.memory_mib, second.account) == (8, 16, "")
    assert (history.unread, history.assumed) == (2, ())
    assert first.nodes == second.nodes == 0  # No comment says how many nodes the machine had.


def test_swf_of_a_machine_of_which_nodes_and_processors_are_said(tmp_path: Path):
    head = f"{SWF}; MaxNodes: 64 (8 of them large)\n; MaxProcs: 4096\n"
    jobs = read(
        tmp_path,
        head + "".join(f"{n} {n} 0 60 {cpus} -1 -1 -1 60 -1 1 7 3 -1 2 -1 -1 -1\n" for n, cpus in
        enumerate((1, 64, 65, 512, 509), 1)),
    ).jobs  # fmt: skip
    assert [job.nodes for job in jobs] == [1, 1, 2, 8, 8]


def test_swf_job_that_was_allotted_whole_nodes_has_all_of_their_processors(tmp_path: Path):
    line = "{} 0 0 60 {} -1 -1 {} 60 -1 1 7 3 -1 2 -1 -1 -1\n"
    cases = ((8, 1), (4, 8), (-1, 6), (5, -1))
    text = "".join(line.format(nth, *case) for nth, case in enumerate(cases, 1))
    assert [job.cpus for job in read(tmp_path, SWF + text).jobs] == [8, 8, 6, 5]


def test_swf_s_parts_of_jobs_are_summed_up_in_a_line_of_their_own(tmp_path: Path):
    """Status 2, 3 and 4; their submit time is -1, or that of the job."""
    part = "7 {} 5 50 4 -1 -1 4 60 -1 {} 1 1 -1 1 -1 -1 -1\n"
    text = part.format(3, 1).replace(" 50 ", " 150 ", 1)
    text += part.format(3, 2) + part.format(-1, 2) + part.format(-1, 3)
    history = read(tmp_path, SWF + text + part.format(3, 4).replace("7", "8", 1))
    assert [(job.job_id, job.run_s) for job in history.jobs] == [(7, 150)]
    assert (history.unread, sorted(history.left_out.values())) == (0, [1, 3])


def test_swf_that_does_not_say_what_a_job_had(tmp_path: Path):
    history = read(tmp_path, "1 5 20 60 -1 -1 -1 -1 3600 -1 1 7 3 -1 2 -1 -1 -1\n")
    assert [one.split(":")[0] for one in history.assumed] == [
        "No comment says when time 0 was",
        "Of 1 jobs no number of processors is said",
    ]


@pytest.mark.parametrize("form", ["swf", "helios"])
def test_jobs_that_are_in_a_file_twice_are_one(tmp_path: Path, form: str):
    text = {
        "swf": SWF + 2 * "1 5 20 60 4 -1 -1 -1 3600 -1 1 7 3 -1 2 -1 -1 -1\n",
        "helios": HELIOS + 2 * "1,u1,vcA,j,8,64,1,COMPLETED,2020-04-01 00:00:10,"
        "2020-04-01 00:00:30,2020-04-01 00:01:30,60,20\n",
    }[form]
    history = read(tmp_path, text)
    assert (len(history.jobs), list(history.left_out.values())) == (1, [1])


def test_swf_without_comments(tmp_path: Path):
    (job,) = read(tmp_path, "1 5 20 60 4 -1 -1 -1 3600 -1 1 7 3 -1 2 -1 -1 -1\n").jobs
    assert job.submit_s == 5


@pytest.mark.parametrize("text", ["\ufeff{}", "{}", "{}\r"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_csv_of_spreadsheets(tmp_path: Path, text: str, separator: str):
    head = "timestamp,duration,num_gpus,gpu_time,cluster".replace(",", separator)
    row = separator.join(("1970-01-02T00:00:01+0100", '"66.0"', "16", "1056.0", "11cb48"))
    (job,) = read(tmp_path, f"{text.format(head)}\n{row}\n").jobs
    assert (job.submit_s, job.run_s, job.account) == (82_801, 66, "11cb48")


def test_text_of_16_bits_says_so(tmp_path: Path):
    path = tmp_path / "jobs.csv"
    path.write_bytes("timestamp,duration,num_gpus,gpu_time,cluster\n".encode("utf-16"))
    with pytest.raises(InvalidInputError, match="UTF-16 text; write it as UTF-8"):
        read_history(path)


@pytest.mark.parametrize(
    ("name", "pack"),
    [("a.swf.gz", gzip.compress), ("a.xz", lzma.compress), ("jobs.txt", gzip.compress)],
)
def test_files_may_be_compressed(tmp_path: Path, name: str, pack):
    path = tmp_path / name
    path.write_bytes(pack((SWF + "1 5 20 60 4 -1 -1 -1 3600 -1 1 7 3 -1 2 -1 -1 -1\n").encode()))
    assert len(read_history(path).jobs) == 1
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(InvalidInputError, match="can't be read"):
        read_history(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the file is empty"),
        ("hello\n", "no format of job histories"),
        ('{"meta": {\n', "line 1: it is JSON: write a history by sacct -P"),
        (
            "       JobID    JobName  Partition\n",
            "columns of fixed width: write the file by sacct -P",
        ),
        ("BZh91AY", "packed by bzip2; gzip and xz can be read"),
        ("\x7fELF\r\x02,\r1\n", "no format of job histories"),
        (
            "timestamp,duration,num_gpus,gpu_time,cluster\n1970-01-02,\r1,1,1,a\n",
            "line 2: new-line character",
        ),
        ("x" * (1 << 21), "line 1: longer than 1048576 bytes"),
        ("timestamp,duration,num_gpus,gpu_time,cluster\n", "no job follows"),
        (
            "timestamp,duration,num_gpus,gpu_time,cluster\nx,1,1,1,a\n",
            "^[^,]*, line 2: Invalid isoformat",
        ),
        ("timestamp,duration,num_gpus,gpu_time,cluster\n1970-01-02,1,1\n", "line 2: 3 columns"),
    ],
)
def test_a_file_that_is_none_says_so(tmp_path: Path, text: str, said: str):
    with pytest.raises(InvalidInputError, match=said) as caught:
        read(tmp_path, text)
    assert caught.value.refusal.code == "SW-INPUT-FILE"
    assert "jobs.txt" in str(caught.value)


def test_a_file_that_is_not_there_says_so(tmp_path: Path):
    with pytest.raises(InvalidInputError, match="No such file"):
        read_history(tmp_path / "none.csv")


@pytest.mark.parametrize("duration", ["-1", "nan", "inf", "1e300", "x", ""])
def test_no_number_is_taken_that_is_none(tmp_path: Path, duration: str):
    head = "timestamp,duration,num_gpus,gpu_time,cluster\n1970-01-02,1,1,1,a\n"
    assert read(tmp_path, f"{head}1970-01-02,{duration},1,1,a\n").unread == 1
    assert read(tmp_path, f"{head}1970-01-02,1,{duration or '0.5'},1,a\n").unread == 1


def test_a_long_line_costs_only_itself(tmp_path: Path):
    head = "timestamp,duration,num_gpus,gpu_time,cluster\n1970-01-02,1,1,1,a\n"
    history = read(tmp_path, f"{head}{'x' * (3 * lines.LONGEST_LINE)}\n1970-01-02,2,1,1,a\n")
    assert [job.run_s for job in history.jobs] == [1, 2]
    assert history.first_unread.endswith("line 3: longer than 1048576 bytes")


def test_what_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lines, "MOST_BYTES", 1 << 20)
    path = tmp_path / "bomb.xz"
    path.write_bytes(lzma.compress(b"; comment\n" * (1 << 18)))
    with pytest.raises(InvalidInputError, match="more than 1048576 bytes"):
        read_history(path)
    path.write_bytes(lzma.compress(b";" * (1 << 24)))
    with pytest.raises(InvalidInputError, match="more than 1048576 bytes"):
        read_history(path)


def test_no_more_jobs_are_kept_than_can_be_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lines, "MOST_JOBS", 2)
    head = "timestamp,duration,num_gpus,gpu_time,cluster\n"
    job = "1970-01-02,1,1,1,a\n"
    assert len(read(tmp_path, head + 2 * job).jobs) == 2
    with pytest.raises(InvalidInputError, match="line 4: more than 2 jobs"):
        read(tmp_path, head + 3 * job)


def test_bytes_that_are_no_text_cost_only_their_line(tmp_path: Path):
    path = tmp_path / "jobs.csv"
    path.write_bytes(
        b"timestamp,duration,num_gpus,gpu_time,cluster\n1970-01-02,1,1,1,a\n\xff\xfe\x1b[2J\n"
    )
    history = read_history(path)
    assert (len(history.jobs), history.unread) == (1, 1)
    assert history.first_unread.isprintable()


@pytest.mark.parametrize(("gpus", "nodes"), [(0, 1), (8, 1), (16, 2), (12, 2), (9, 3), (11, 11)])
def test_gpus_are_spread_evenly(gpus: int, nodes: int):
    assert even_nodes(gpus, 8) == nodes
