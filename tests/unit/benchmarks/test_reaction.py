"""Tests how the benchmark reads logs, and how its report is made and shown."""

import pytest
from rich.console import Console

from benchmarks import reaction
from benchmarks.reaction import (
    LOAN_STEPS,
    RETURN_STEPS,
    events,
    first_s,
    has_event,
    last_s,
    spread,
    steps_s,
)

LOG = """\
time=1970-01-01T00:00:10.500Z level=info program=daemon event=release array=2 slots=3
noise
time=1970-01-01T00:00:11.000Z level=info program=daemon event=release array=2 slots=4
"""


def test_events_are_found_by_name_and_words() -> None:
    found = events(LOG)
    assert first_s(found, "release", "") == 10.5
    assert last_s(found, "release", "") == 11.0
    assert has_event(found, "release", "")
    assert not has_event(found, "release", "no such words")
    assert first_s(found, "release", "slots=4") == 11.0


def test_steps_are_from_one_time_to_the_next() -> None:
    assert spread([3.0, 1.0, 2.0]) == {"p50": 2.0, "p95": 3.0}
    assert steps_s(("a", "b"), [(0.0, 1.0, 3.0)]) == {
        "a": {"p50": 1.0, "p95": 1.0},
        "b": {"p50": 2.0, "p95": 2.0},
    }


@pytest.mark.parametrize(("own_start_s", "missed"), [(0.9, False), (1.1, True)])
def test_a_missed_aim_is_shown(
    own_start_s: float, monkeypatch: pytest.MonkeyPatch, *, missed: bool
) -> None:
    def scene(own_s: float) -> dict[str, object]:
        took = {"p50": own_s, "p95": own_s}
        return {
            **dict.fromkeys(("loan_s", "return_s", "own_start_s"), took),
            "loan_steps_s": dict.fromkeys(LOAN_STEPS, took),
            "return_steps_s": dict.fromkeys(RETURN_STEPS, took),
        }

    scenes = {name: scene(3.0) for name in ("default_scheduler", "many_jobs")}
    console = Console(record=True, width=120)
    monkeypatch.setattr(reaction, "Console", lambda **_: console)
    reaction.show({**scenes, "idle": scene(own_start_s), "jobs": 20_000, "aim_s": 1.0})
    assert ("missed" in console.export_text()) == missed
