import pytest

from slicewise.cluster.language.errors import OutsideError
from slicewise.cluster.slurm.sbatch import Submitted, read_reply, read_trial


def test_the_id_and_what_the_user_is_told() -> None:
    told = "sbatch: slicewise: runs as borrowed\n"
    assert read_reply(0, "814\n", told) == Submitted(814, ("slicewise: runs as borrowed",))
    assert read_reply(0, "814;cluster\n", "") == Submitted(814, ())


def test_a_refusal_keeps_every_line() -> None:
    complaint = (
        "sbatch: error: vision has no quota.\nsbatch: error: Ask for one. [SW-QUOTA-NONE]\n"
        "sbatch: error: Batch job submission failed: Access/permission denied\n"
    )
    with pytest.raises(OutsideError) as caught:
        read_reply(1, "", complaint)
    assert caught.value.refusal.code == "SW-SLURM-FAILED"
    assert caught.value.refusal.message.splitlines() == [
        "vision has no quota.",
        "Ask for one. [SW-QUOTA-NONE]",
        "Batch job submission failed: Access/permission denied",
    ]


def test_no_words_and_no_id_are_failures_too() -> None:
    with pytest.raises(OutsideError, match="sbatch ended with 13"):
        read_reply(13, "", "")
    with pytest.raises(OutsideError, match="SW-SLURM-FAILED"):
        read_reply(0, "Submitted\n", "")


@pytest.mark.parametrize(
    ("status", "complaint", "against"),
    [
        (0, "sbatch: Job 3 to start at 2026-11-22T05:57:04 using 1 processors on n1\n", ""),
        (1, "allocation failure: Requested node configuration is not available\n", "Requested"),
        (1, "sbatch: error: Line one.\nallocation failure: Access/permission denied\n", "Access"),
        (1, "sbatch: error: Unable to open file x\n", "Unable"),
        (
            1,
            "sbatch: error: Not managed.\nsbatch: error: Go.\nsbatch: error: SW-SHARE\nDenied\n",
            "Not managed. Go. [SW-SHARE]",
        ),
        (2, "", "sbatch ended with 2"),
    ],
)
def test_a_trial_that_fails_says_why_in_one_line(status: int, complaint: str, against: str) -> None:
    said = read_trial(status, complaint)
    assert said.startswith(against)
    assert bool(said) == bool(status)
    assert "\n" not in said
