"""Tests the moments and phases of a start."""

from typing import get_args

import pytest

from slicewise.cluster.language.palette import START_PHASES
from slicewise.cluster.language.starts import (
    MOMENTS,
    PHASE_TEXTS,
    Moment,
    StartPhase,
    StartState,
    StartTrace,
    Weights,
    bytes_per_s,
    class_times,
    in_order,
    longest_words,
    phases_of,
    total_s,
    weights_words,
)

WHOLE: dict[Moment, float] = {
    moment: 100.0 + number for number, moment in enumerate(MOMENTS[: MOMENTS.index("ended")])
}


def trace(state: StartState = "ready", seen_s: float | None = None, **at_s: float) -> StartTrace:
    return StartTrace(814, 0, at_s, state, seen_s=seen_s)  # type: ignore[arg-type]


def test_the_phases_of_a_whole_start_follow_each_other_from_first_to_last_moment():
    phases = phases_of(StartTrace(814, 0, WHOLE, "ready"))
    assert [phase.phase for phase in phases] == [
        *("notice", "decide", "grant", "queue", "boot", "launch", "copy", "step", "load"),
        *("check", "route", "answer"),
    ]
    assert {phase.seconds for phase in phases} == {1.0}
    assert total_s(StartTrace(814, 0, WHOLE, "ready")) == 12.0


def test_a_phase_whose_beginning_is_not_known_has_those_before_it():
    phases = phases_of(trace(desired=10.0, released=10.5, ready=14.0, routed=14.25))
    assert [(phase.phase, phase.seconds) for phase in phases] == [
        ("grant", 0.5),
        ("check", 3.5),
        ("route", 0.25),
    ]


@pytest.mark.parametrize(
    ("last", "goes_on"),
    [
        ("desired", "grant"),
        ("released", "queue"),
        ("started", "load"),
        ("brought", "load"),
        ("routed", "answer"),
    ],
)
def test_the_phase_of_a_start_under_way_goes_on(last: Moment, goes_on: StartPhase):
    begun = StartTrace(814, 0, {"desired": 9.0, last: 10.0}, seen_s=12.0)
    assert phases_of(begun)[-1].phase == goes_on
    assert phases_of(begun)[-1].seconds == 2.0


def test_what_slurm_and_the_node_tell_stays_between_what_the_launcher_has_seen():
    """A script that lies costs only its own picture, and Slurm counts in whole seconds."""
    told = in_order(
        {
            "desired": 10.0,
            "released": 10.2,
            "started": 11.2,
            "script": 10.9,
            "engine": 99.0,
            "loaded": 13.0,
            "ready": 13.1,
        }
    )
    assert told == {
        "desired": 10.0,
        "released": 10.2,
        "started": 10.9,
        "script": 10.9,
        "engine": 13.0,
        "loaded": 13.0,
        "ready": 13.1,
    }
    early = in_order({"released": 10.2, "script": -5.0, "engine": 3.0, "ready": 13.1})
    assert (early["script"], early["engine"]) == (10.2, 10.2)


def test_of_a_class_those_count_that_became_ready():
    traces = [trace(desired=0.0, ready=float(seconds)) for seconds in range(1, 21)]
    traces += [trace("ended", desired=0.0, ended=500.0), trace("starting", 900.0, desired=0.0)]
    (times,) = class_times(traces)
    assert (times.start_class, times.starts, times.p50_s, times.p95_s) == ("remote", 20, 10.0, 19.0)
    assert class_times([]) == ()


def test_the_longest_phases_come_first():
    words = longest_words(trace(desired=0.0, released=0.5, started=1.5, ready=9.0), most=2)
    assert words == "check 7.50 s, queue 1.00 s"


def test_every_phase_has_a_text_and_a_look():
    assert set(PHASE_TEXTS) == set(START_PHASES) == set(get_args(StartPhase))


@pytest.mark.parametrize(
    ("weights", "expected", "words"),
    [
        (Weights("copied", 8 << 20), 4.0 * (1 << 20), "copied 8.0 MiB, 4.0 MiB/s"),
        (Weights("node", 8 << 20), 1.0 * (1 << 20), "node 8.0 MiB, 1.0 MiB/s"),
        (Weights("remote", 8 << 20, "room"), 1.0 * (1 << 20), "remote (room) 8.0 MiB, 1.0 MiB/s"),
        (Weights("remote", None, "folder"), None, "remote (folder)"),
        (Weights(), None, "remote"),
    ],
)
def test_files_were_read_in_the_copy_or_else_in_the_load(
    weights: Weights, expected: float | None, words: str
):
    """Of a start that is under way it is not known yet."""
    at_s: dict[Moment, float] = {
        "script": 10.0,
        "brought": 12.0,
        "engine": 12.5,
        "loaded": 20.5,
        "ready": 21.0,
    }
    over = StartTrace(814, 0, at_s, "ready", weights)
    assert bytes_per_s(over) == expected
    assert weights_words(over) == words
    assert bytes_per_s(StartTrace(814, 0, at_s, "starting", weights)) is None
