"""Tests the notes that a service's users see."""

import pytest
from builders.service_views import a_service, a_slot

from slicewise.cluster.rpc.messages import DesiredSlotsRequest, ServiceView, SlotState
from slicewise.launcher.rules.pools.types import RefusedModel
from slicewise.launcher.rules.turn.notes import (
    LONGEST,
    failure_text,
    note,
    refused_text,
    waiting_text,
)


def view(*slots: tuple[SlotState, str]) -> ServiceView:
    shown = (a_slot(i, state, reason=reason) for i, (state, reason) in enumerate(slots))
    return a_service(name="bert", slots=tuple(shown))


@pytest.mark.parametrize(("failures", "start"), [(1, "1 start has"), (3, "3 starts in a row have")])
def test_failed_starts_name_the_command_that_shows_the_log(failures: int, start: str):
    assert failure_text(view(), failures) == f"{start} failed: slicewise service logs bert"


def test_they_say_how_the_last_one_ended_and_who_serves_meanwhile():
    slots = (
        a_slot(last_failure="ended with 1"),
        a_slot(1),
    )
    said = view().model_copy(update={"slots": slots})
    text = failure_text(said, 3, falls_back=True)
    assert text.endswith("; the generation before it still serves; the last one ended with 1")
    assert len(text) < LONGEST


def test_a_start_that_took_too_long_is_said_and_not_how_it_was_ended():
    slots = (a_slot(last_failure="ended with 130"),)
    text = failure_text(view().model_copy(update={"slots": slots}), 1, late_s=60)
    assert text.endswith("; the last one was not ready within 60 s (start_timeout_s)")


def test_a_note_is_one_that_the_daemon_takes():
    text = note(("", "caf\u00e9\n", "y" * 600))
    assert text.startswith("caf??; yyy")
    assert (
        DesiredSlotsRequest(array_job_id=814, slots=(), note=text, replaces_version=0).note == text
    )


def test_a_model_that_could_not_be_loaded_names_the_replica_and_whose_log_says_more():
    refusal = RefusedModel((12, 3), "nlp/host", "its server ended with 1: out of memory")
    text = refused_text("m5", [refusal, refusal])
    assert text.startswith(
        "replica 12_3 of nlp/host and 1 more could not load m5: its server ended with 1: out of"
        " memory (its log: slicewise service logs host); "
    )
    assert refused_text("m5", []) == ""


def test_nothing_failed_nothing_said():
    assert failure_text(view(), 0) == ""


WHY = "(explained by: slicewise why 814_0)"


def test_of_one_reason_the_details_are_told_once():
    plain, whole = "ReqNodeNotAvail", "ReqNodeNotAvail, UnavailableNodes:gpu[01-02]"
    seen = view(("released", whole), ("released", plain), ("released", "Reservation"))
    assert waiting_text(seen) == f"Slurm: {whole}; Reservation {WHY}"


@pytest.mark.parametrize(
    ("slot", "expected"),
    [
        (("held", "BadConstraints"), f"Slurm: BadConstraints {WHY}"),
        (("released", "ReqNodeNotAvail"), f"Slurm: ReqNodeNotAvail {WHY}"),
        (
            ("released", "QOSGrpBillingRunMinutes"),
            f"Slurm: the budget does not allow a run this long now {WHY}",
        ),
        (("released", "QOSGrpBilling"), f"Slurm: its tenant is at its limit {WHY}"),
        (
            ("released", "QOSGrpGRES"),
            f"Slurm: its tenant's guaranteed part has no more instances of this type {WHY}",
        ),
        (("released", "Resources"), ""),
        (("released", "Priority"), ""),
        (("held", "JobHeldAdmin"), ""),
        (("running", "None"), ""),
    ],
)
def test_slurms_reasons_that_are_not_the_usual_ones(slot: tuple[SlotState, str], expected: str):
    assert waiting_text(view(slot, slot, ("held", "JobHeldAdmin"))) == expected
