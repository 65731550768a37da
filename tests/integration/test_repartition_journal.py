"""The journal of repartitioning in PostgreSQL: what a killed process has left is all there."""

import json
import time
from dataclasses import replace

import psycopg
import pytest
from stand_ins.repartition_world import AFTER, BEFORE, planned

from slicewise.cluster.language.errors import InvalidInputError, OutsideError
from slicewise.cluster.language.gpus.repartitions import (
    Direction,
    Repartition,
    RepartitionState,
    RepartitionStep,
    RepartitionStepOutcome,
)
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.mig.repartition_steps import (
    Next,
)

pytestmark = pytest.mark.integration

CUT = Next(RepartitionStep.CUT, Direction.FORWARD)


def test_a_re_cut_is_read_as_it_was_opened(ledger: Ledger) -> None:
    ending = replace(planned(), ends=("job 12",))
    opened = ledger.repartitions.open(ending, "olga")
    assert {name: getattr(opened, name) for name in vars(ending)} == vars(ending)
    assert (opened.before, opened.after) == (BEFORE, AFTER)
    assert (opened.author, opened.state, opened.ended_s) == ("olga", RepartitionState.RUNNING, None)
    assert ledger.repartitions.unfinished() == (opened,)


def test_a_step_that_was_begun_is_seen_before_it_has_ended(ledger: Ledger) -> None:
    repartition_id = ledger.repartitions.open(planned(), "olga").repartition_id
    record_id = ledger.repartitions.begin_step(repartition_id, CUT)
    (record,) = ledger.repartitions.find(repartition_id).steps
    assert (record.step, record.outcome, record.ended_s) == (
        RepartitionStep.CUT,
        RepartitionStepOutcome.RUNNING,
        None,
    )
    ledger.repartitions.end_step(record_id, RepartitionStepOutcome.FAILED, "busy")
    (record,) = ledger.repartitions.find(repartition_id).steps
    assert (record.outcome, record.words) == (RepartitionStepOutcome.FAILED, "busy")
    assert record.ended_s is not None
    assert record.ended_s >= record.started_s


def test_one_gpu_is_in_one_unfinished_re_cut(ledger: Ledger) -> None:
    first = ledger.repartitions.open(planned(), "olga")
    with pytest.raises(OutsideError, match="SW-LEDGER-REFUSED"):
        ledger.repartitions.open(planned(), "olga")
    ledger.repartitions.finish(first.repartition_id, RepartitionState.DONE, "")
    assert ledger.repartitions.open(planned(), "olga").repartition_id > first.repartition_id


def test_stuck_is_no_end(ledger: Ledger) -> None:
    repartition_id = ledger.repartitions.open(planned(), "olga").repartition_id
    ledger.repartitions.finish(repartition_id, RepartitionState.STUCK, "no way back")
    (stuck,) = ledger.repartitions.unfinished()
    assert (stuck.state, stuck.error, stuck.ended_s) == (
        RepartitionState.STUCK,
        "no way back",
        None,
    )
    ledger.repartitions.finish(repartition_id, RepartitionState.CLOSED, "closed by olga")
    assert ledger.repartitions.unfinished() == ()
    assert ledger.repartitions.find(repartition_id).ended_s is not None


def test_what_the_files_were_before_is_never_overwritten(ledger: Ledger) -> None:
    repartition_id = ledger.repartitions.open(planned(), "olga").repartition_id
    ledger.repartitions.keep_texts(repartition_id, "slurm", "gres")
    kept = ledger.repartitions.keep_texts(repartition_id, "later", "later")
    assert (kept.slurm_conf, kept.gres_conf) == ("slurm", "gres")
    ledger.repartitions.finish(repartition_id, RepartitionState.DONE, "")
    ended = ledger.repartitions.find(repartition_id)
    assert (ended.slurm_conf, ended.gres_conf) == (None, None)


def opened_on(ledger: Ledger, gpu_uuid: str) -> Repartition:
    return ledger.repartitions.open(replace(planned(), gpu=gpu_uuid), "olga")


def test_history_is_the_newest_first_and_of_this_cluster(ledger: Ledger, database: str) -> None:
    ids = [opened_on(ledger, name).repartition_id for name in ("a", "b", "c")]
    assert [one.repartition_id for one in ledger.repartitions.history(2)] == [ids[2], ids[1]]
    assert [one.repartition_id for one in ledger.repartitions.history(2, ids[1])] == [ids[0]]
    with Ledger(database, "another") as other:
        assert other.repartitions.history(10) == ()
        with pytest.raises(InvalidInputError, match="SW-NAME-UNKNOWN"):
            other.repartitions.find(ids[0])


def test_seconds_are_those_of_steps_of_re_cuts_that_are_done(ledger: Ledger) -> None:
    for name, state in (("a", RepartitionState.DONE), ("b", RepartitionState.ROLLED_BACK)):
        repartition_id = opened_on(ledger, name).repartition_id
        ledger.repartitions.end_step(
            ledger.repartitions.begin_step(repartition_id, CUT), RepartitionStepOutcome.DONE, ""
        )
        ledger.repartitions.finish(repartition_id, state, "")
    seconds = ledger.repartitions.step_seconds()
    assert len(seconds[RepartitionStep.CUT]) == 1
    assert seconds[RepartitionStep.TELL] == []


def test_a_node_s_last_look_replaces_the_one_before(ledger: Ledger) -> None:
    ledger.repartitions.save_inventory("gpu01", {"driver": "1"})
    first = ledger.repartitions.inventories()["gpu01"]
    ledger.repartitions.save_inventory("gpu01", {"driver": "2"})
    second = ledger.repartitions.inventories()["gpu01"]
    assert json.loads(second.inventory) == {"driver": "2"}
    assert second.seen_s > first.seen_s


def test_one_process_re_cuts_at_a_time_and_the_other_hears_which(ledger: Ledger) -> None:
    first, second = (
        ledger.locks.repartitioning("head, process 7"),
        ledger.locks.repartitioning("head, process 8"),
    )
    assert first.hold()
    assert not second.hold()
    assert second.holder() == "head, process 7"
    first.give_up()
    second.give_up()


def test_old_re_cuts_go_and_what_is_unfinished_stays(ledger: Ledger, database: str) -> None:
    ids = []
    for number in range(4):
        opened = ledger.repartitions.open(replace(planned(), gpu=f"GPU-{number}"), "olga")
        ledger.repartitions.begin_step(opened.repartition_id, CUT)
        ids.append(opened.repartition_id)
    for one in ids[:3]:
        ledger.repartitions.finish(one, RepartitionState.DONE, "")
    with psycopg.connect(database) as connection:
        connection.execute(
            "UPDATE slicewise.repartitions SET started_at = now() - interval '401 days',"
            " ended_at = ended_at - (CASE id WHEN %s THEN 399 ELSE 401 END) * interval '1 day'",
            (ids[2],),
        )
    before_s = time.time() - 400 * 86_400
    with Ledger(database, "other") as other:
        assert other.repartitions.forget(before_s, 10) == 0
    assert [ledger.repartitions.forget(before_s, 1) for _ in range(3)] == [1, 1, 0]
    assert [one.repartition_id for one in ledger.repartitions.history(9)] == ids[:1:-1]
    assert all(len(one.steps) == 1 for one in ledger.repartitions.history(9))
