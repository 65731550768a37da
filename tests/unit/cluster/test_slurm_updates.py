"""Many changes for one scontrol: what it reads, and whose its complaints are."""

import pytest

from cluster.slurm.interface import JobChange, Tasks
from cluster.slurm.updates import (
    fits_on_a_line,
    own_words,
    refusals,
    update_script,
    weights_script,
)

MARK = "x0f0fx"
TASKS = Tasks(22, frozenset({0, 1, 2, 4}))

# scontrol 22.05: a job that has ended, an array of which one task runs, an unknown job. What it
# prints of each unknown keyword ends the complaints of the change before.
COMPLAINT = f"""invalid keyword: {MARK}
Job has already finished for job 9
invalid keyword: {MARK}
22_0-2,4: No error
22_3: Job is no longer pending execution
invalid keyword: {MARK}
Invalid job id specified for job 4000000
invalid keyword: {MARK}"""


def test_each_change_is_a_line_and_each_line_has_a_mark() -> None:
    changes = {
        814: JobChange(site_factor=-3),
        TASKS: JobChange(site_factor=500, qos="slicewise_vision"),
    }
    assert update_script(changes, MARK) == (
        f"update JobId=814 SiteFactor=-3\n{MARK}\n"
        f"update JobId=22_[0-2,4] QOS=slicewise_vision SiteFactor=500\n{MARK}\n"
    )


def test_complaints_find_their_job() -> None:
    assert refusals(COMPLAINT, MARK, (814, 9, TASKS, 4_000_000)) == {
        9: "Job has already finished for job 9",
        TASKS: "22_3: Job is no longer pending execution",
        4_000_000: "Invalid job id specified for job 4000000",
    }


def test_no_complaint_is_no_refusal() -> None:
    assert refusals(f"invalid keyword: {MARK}\ninvalid keyword: {MARK}", MARK, (1, 2)) == {}
    assert own_words("5_0-2: No error\n5_4-6: No error") == ""


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        (JobChange(site_factor=10_000), True),
        (JobChange(qos="slicewise-borrowed"), True),
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
    assert fits_on_a_line(change) is fits


def test_nodes_of_the_same_weight_stand_on_one_line_and_no_line_is_too_long() -> None:
    assert weights_script({"gpu02": 7, "gpu03": 5, "gpu01": 7}) == (
        "update NodeName=gpu03 Weight=5\nupdate NodeName=gpu01,gpu02 Weight=7\n"
    )
    lines = weights_script({f"{'n' * 60}{number}": 7 for number in range(200)}).splitlines()
    assert sum(line.count(",") + 1 for line in lines) == 200
    assert max(map(len, lines)) < 4095
