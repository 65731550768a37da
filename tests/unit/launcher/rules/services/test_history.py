"""Tests what a service's generations have changed, and which one a rollback goes back to."""

import pytest
from builders.service_specs import DIRECTIVES
from builders.service_views import a_generation, a_service

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.rpc.messages import ServiceView
from slicewise.cluster.rpc.read_messages import GenerationRecord
from slicewise.launcher.rules.services.apply_plan import KeyChange
from slicewise.launcher.rules.services.history import history, to_go_back_to


def record(array: int, **directives: str) -> GenerationRecord:
    return a_generation(array, submitted_s=array, directives=DIRECTIVES | directives)


def lives(array: int, **change: str) -> ServiceView:
    said = next(one.directives for one in RECORDS if one.array_job_id == array)
    # Slurm changes when it was submitted where tasks are requeued.
    return a_service(array_job_id=array, submit_s=99_999, directives=said | change)


RECORDS = (record(820, model="n"), record(814, concurrency="2"), record(800))


def test_each_generation_says_what_it_has_changed_and_whether_it_lives():
    past = history(RECORDS, (lives(820), lives(814)))
    assert [one.state for one in past] == ["newest", "being replaced", "ended"]
    assert past[0].changes == (KeyChange("model", "m", "n"), KeyChange("concurrency", "2", "1"))
    assert past[1].changes == (KeyChange("concurrency", "1", "2"),)
    assert past[2].changes == ()


def test_an_array_job_id_that_slurm_has_given_again_is_another_generation():
    later = lives(814, concurrency="7")
    assert {one.state for one in history(RECORDS, (later,))} == {"ended"}


@pytest.mark.parametrize(
    ("living", "back_to"),
    [
        ((820, 814), 814),
        ((820,), 814),
        # The roll-over to 820 was aborted.
        ((814,), 800),
        # It has been deleted.
        ((), 820),
    ],
)
def test_a_rollback_goes_to_the_one_before_the_one_that_counts(
    living: tuple[int, ...], back_to: int
):
    past = history(RECORDS, tuple(map(lives, living)))
    assert to_go_back_to(past, None).array_job_id == back_to


def test_or_to_the_one_that_is_named():
    past = history(RECORDS, (lives(820),))
    chosen = to_go_back_to(past, 800)
    assert (chosen.array_job_id, chosen.directives) == (800, RECORDS[2].directives)
    with pytest.raises(InvalidInputError, match=r"with array job 7\. Recorded: 820, 814, 800"):
        to_go_back_to(past, 7)


def test_the_first_one_has_none_before_it():
    with pytest.raises(InvalidInputError, match="no generation before the newest") as caught:
        to_go_back_to(history(RECORDS[2:], (lives(800),)), None)
    assert caught.value.refusal.code == "SW-NAME-UNKNOWN"
