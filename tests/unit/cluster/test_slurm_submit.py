import pytest

from cluster.errors import OutsideError
from cluster.slurm.submit import Submitted, read_reply


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
    assert caught.value.refusal.code == "SW-SBATCH"
    assert caught.value.refusal.message.splitlines() == [
        "vision has no quota.",
        "Ask for one. [SW-QUOTA-NONE]",
        "Batch job submission failed: Access/permission denied",
    ]


def test_no_words_and_no_id_are_failures_too() -> None:
    with pytest.raises(OutsideError, match="sbatch ended with 13"):
        read_reply(13, "", "")
    with pytest.raises(OutsideError, match="SW-SBATCH"):
        read_reply(0, "Submitted\n", "")
