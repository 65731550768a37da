"""The journal of re-cutting in PostgreSQL: what a killed process has left is all there."""

import json
from dataclasses import replace

import pytest
from recut_world import AFTER, BEFORE, planned

from cluster.language.errors import InvalidInputError, OutsideError
from slurm_plugin.ledger.store import Ledger
from slurm_plugin.mig.steps import Direction, Next, Outcome, Recut, State, StepName

pytestmark = pytest.mark.integration

CUT = Next(StepName.CUT, Direction.FORWARD)


def test_a_re_cut_is_read_as_it_was_opened(ledger: Ledger) -> None:
    opened = ledger.recuts.open(planned(), "olga")
    assert opened.planned == planned()
    assert (opened.planned.before, opened.planned.after) == (BEFORE, AFTER)
    assert (opened.author, opened.state, opened.ended_s) == ("olga", State.RUNNING, None)
    assert ledger.recuts.unfinished() == (opened,)


def test_a_step_that_was_begun_is_seen_before_it_has_ended(ledger: Ledger) -> None:
    recut_id = ledger.recuts.open(planned(), "olga").recut_id
    record_id = ledger.recuts.begin_step(recut_id, CUT)
    (record,) = ledger.recuts.find(recut_id).records
    assert (record.step, record.outcome, record.ended_s) == (StepName.CUT, Outcome.BEGUN, None)
    ledger.recuts.end_step(record_id, Outcome.FAILED, "busy")
    (record,) = ledger.recuts.find(recut_id).records
    assert (record.outcome, record.words) == (Outcome.FAILED, "busy")
    assert record.ended_s is not None
    assert record.ended_s >= record.began_s


def test_one_gpu_is_in_one_unfinished_re_cut(ledger: Ledger) -> None:
    first = ledger.recuts.open(planned(), "olga")
    with pytest.raises(OutsideError, match="SW-LEDGER-REFUSED"):
        ledger.recuts.open(planned(), "olga")
    ledger.recuts.finish(first.recut_id, State.DONE, "")
    assert ledger.recuts.open(planned(), "olga").recut_id > first.recut_id


def test_stuck_is_no_end(ledger: Ledger) -> None:
    recut_id = ledger.recuts.open(planned(), "olga").recut_id
    ledger.recuts.finish(recut_id, State.STUCK, "no way back")
    (stuck,) = ledger.recuts.unfinished()
    assert (stuck.state, stuck.error, stuck.ended_s) == (State.STUCK, "no way back", None)
    ledger.recuts.finish(recut_id, State.CLOSED, "closed by olga")
    assert ledger.recuts.unfinished() == ()
    assert ledger.recuts.find(recut_id).ended_s is not None


def test_what_the_files_were_before_is_never_overwritten(ledger: Ledger) -> None:
    recut_id = ledger.recuts.open(planned(), "olga").recut_id
    ledger.recuts.keep_texts(recut_id, "slurm", "gres")
    kept = ledger.recuts.keep_texts(recut_id, "later", "later")
    assert (kept.slurm_conf, kept.gres_conf) == ("slurm", "gres")
    ledger.recuts.finish(recut_id, State.DONE, "")
    ended = ledger.recuts.find(recut_id)
    assert (ended.slurm_conf, ended.gres_conf) == (None, None)


def opened_on(ledger: Ledger, gpu_uuid: str) -> Recut:
    return ledger.recuts.open(replace(planned(), gpu_uuid=gpu_uuid), "olga")


def test_history_is_the_newest_first_and_of_this_cluster(ledger: Ledger, database: str) -> None:
    ids = [opened_on(ledger, name).recut_id for name in ("a", "b", "c")]
    assert [one.recut_id for one in ledger.recuts.history(2)] == [ids[2], ids[1]]
    with Ledger(database, "another") as other:
        assert other.recuts.history(10) == ()
        with pytest.raises(InvalidInputError, match="SW-RECUT-UNKNOWN"):
            other.recuts.find(ids[0])


def test_seconds_are_those_of_steps_of_re_cuts_that_are_done(ledger: Ledger) -> None:
    for name, state in (("a", State.DONE), ("b", State.ROLLED_BACK)):
        recut_id = opened_on(ledger, name).recut_id
        ledger.recuts.end_step(ledger.recuts.begin_step(recut_id, CUT), Outcome.DONE, "")
        ledger.recuts.finish(recut_id, state, "")
    seconds = ledger.recuts.step_seconds()
    assert len(seconds[StepName.CUT]) == 1
    assert seconds[StepName.TELL] == []


def test_a_node_s_last_look_replaces_the_one_before(ledger: Ledger) -> None:
    ledger.recuts.save_inventory("gpu01", {"driver": "1"})
    first = ledger.recuts.inventories()["gpu01"]
    ledger.recuts.save_inventory("gpu01", {"driver": "2"})
    second = ledger.recuts.inventories()["gpu01"]
    assert json.loads(second.inventory) == {"driver": "2"}
    assert second.seen_s > first.seen_s


def test_one_process_re_cuts_at_a_time_and_the_other_hears_which(ledger: Ledger) -> None:
    first, second = (
        ledger.locks.recutting("head, process 7"),
        ledger.locks.recutting("head, process 8"),
    )
    assert first.hold()
    assert not second.hold()
    assert second.holder() == "head, process 7"
    first.give_up()
    second.give_up()
