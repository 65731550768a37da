"""Tests many changes by one scontrol: its input, and which change a complaint belongs to."""

from collections.abc import Iterable

import pytest

from slicewise.cluster.language.slurm.interface import JobChange, Tasks
from slicewise.cluster.slurm.batch import (
    fits_on_a_line,
    own_words,
    refusals,
    update_script,
    update_words,
    weights_script,
)

MARK = "x0f0fx"
TASKS = Tasks(22, frozenset({0, 1, 2, 4}))

# scontrol 22.05: a job that has ended, an array of which one task runs, an unknown job. What it
# prints of each unknown keyword ends the complaints of the change before.
COMPLAINT = f"""scontrol: s_p_parse_file: file "/etc/slurm/gpus.conf" is empty
invalid keyword: {MARK}
invalid keyword: {MARK}
Job has already finished for job 9
invalid keyword: {MARK}
22_0-2,4: No error
22_3: Job is no longer pending execution
invalid keyword: {MARK}
Invalid job id specified for job 4000000
invalid keyword: {MARK}"""


def test_each_change_is_a_line_and_each_line_has_a_mark() -> None:
    changes = {
        814: JobChange(site_factor=-3, throttle=0),
        TASKS: JobChange(site_factor=500, time_limit_min=7),
    }
    said = [update_words(*each, {}) for each in changes.items()]
    assert update_script(said, MARK) == (
        f"{MARK}\nupdate JobId=814 SiteFactor=-3 ArrayTaskThrottle=0\n{MARK}\n"
        f"update JobId=22_[0-2,4] SiteFactor=500 TimeLimit=7\n{MARK}\n"
    )


def where(indices: Iterable[int], change: JobChange, *untouched: int) -> list[str]:
    found = update_words(
        Tasks(22, frozenset(indices)), change, {22: frozenset(untouched), 23: frozenset(range(9))}
    )
    assert len({words[2:] for words in found}) == 1
    return [words[1].removeprefix("JobId=") for words in found]


@pytest.mark.parametrize(
    "change",
    [
        JobChange(qos="slicewise_vision_borrowed"),
        JobChange(qos="slicewise_vision_borrowed", site_factor=3),
        JobChange(gres="gpu:1g.10gb:1"),
        JobChange(gres=""),
        JobChange(tres_per_job="gres:gpu:1g.10gb:1"),
        JobChange(tres_per_task="gres:gpu:1g.10gb:1"),
        JobChange(excluded_nodes=frozenset({"gpu01"})),
    ],
)
def test_what_a_list_would_change_in_its_first_task_only_names_each(change: JobChange) -> None:
    assert where((1, 2, 3, 7), change) == ["22_1,22_2,22_3,22_7"]
    # Some of those that share a record are split from it, and then there are several.
    assert where((1, 2, 3), change, 1, 2, 3, 4) == ["22_1,22_2,22_3"]
    assert where((1, 2, 3, 7), change, 2, 3) == ["22_[2-3]", "22_1,22_7"]
    assert where((1, 2), change, 1, 2) == ["22_[1-2]"]
    assert where((5,), change, 1, 2) == ["22_[5]"]
    many = where(range(250), change)
    assert [word.count("_") for word in many] == [100, 100, 50]


def test_excluded_nodes_replace_those_of_before_and_none_clear_them() -> None:
    for nodes, text in (({"gpu02", "gpu01"}, "gpu01,gpu02"), (set[str](), "")):
        (words,) = update_words(814, JobChange(excluded_nodes=frozenset(nodes)), {})
        assert words == ("update", "JobId=814", f"ExcNodeList={text}")


def test_lines_are_no_longer_than_scontrol_reads() -> None:
    change = JobChange(qos="slicewise_vision_borrowed")
    (whole,) = update_words(
        Tasks(22, frozenset(range(0, 9000, 2))), change, {22: frozenset(range(0, 9000, 2))}
    )
    assert not fits_on_a_line(whole)
    for words in update_words(Tasks(4_000_000, frozenset(range(10**6, 10**6 + 300))), change, {}):
        assert fits_on_a_line(words)


def test_complaints_find_their_job() -> None:
    assert refusals(COMPLAINT, MARK, (814, 9, TASKS, 4_000_000)) == {
        9: "Job has already finished for job 9",
        TASKS: "22_3: Job is no longer pending execution",
        4_000_000: "Invalid job id specified for job 4000000",
    }


def test_what_is_said_of_slurm_conf_is_no_refusal() -> None:
    """A site that includes an empty file had each first change of a script refused."""
    assert 814 not in refusals(COMPLAINT, MARK, (814, 9, TASKS, 4_000_000))


@pytest.mark.parametrize(
    ("complaint", "words"),
    [
        (f"invalid keyword: {MARK}\ninvalid keyword: {MARK}\nsegfault", "segfault"),
        (f"invalid keyword: {MARK}\ninvalid keyword: {MARK}", "scontrol ended before it was made"),
    ],
)
def test_what_scontrol_did_not_come_to_is_refused(complaint: str, words: str) -> None:
    assert refusals(complaint, MARK, (1, 2, 3)) == {2: words, 3: words}


def test_without_any_mark_all_are_refused() -> None:
    assert refusals("fatal: no slurm.conf", MARK, (1, 2)) == dict.fromkeys(
        (1, 2), "fatal: no slurm.conf"
    )


def test_no_complaint_is_no_refusal() -> None:
    marks = "\n".join([f"invalid keyword: {MARK}"] * 3)
    assert refusals(marks, MARK, (1, 2)) == {}
    assert own_words("5_0-2: No error\n5_4-6: No error") == ""


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        (JobChange(site_factor=10_000), True),
        (JobChange(qos="slicewise_vision_borrowed"), True),
        (JobChange(gres="gpu:1g.10gb:1"), True),
        (JobChange(gres=""), True),
        (JobChange(admin_comment="slicewise:1 token=ab tenant=vision"), False),
        (JobChange(qos="a\nupdate"), False),
        (JobChange(qos="'a'"), False),
        (JobChange(qos='"'), False),
        (JobChange(qos="ä"), False),
    ],
)
def test_values_that_scontrol_would_misread_get_a_command_of_their_own(
    change: JobChange, fits: bool
) -> None:
    (words,) = update_words(814, change, {})
    assert fits_on_a_line(words) is fits


def test_nodes_of_the_same_weight_stand_on_one_line_and_no_line_is_too_long() -> None:
    assert weights_script({"gpu02": 7, "gpu03": 5, "gpu01": 7}) == (
        "update NodeName=gpu03 Weight=5\nupdate NodeName=gpu01,gpu02 Weight=7\n"
    )
    lines = weights_script({f"{'n' * 60}{number}": 7 for number in range(200)}).splitlines()
    assert sum(line.count(",") + 1 for line in lines) == 200
    assert max(map(len, lines)) < 4095
