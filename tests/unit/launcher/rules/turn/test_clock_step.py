"""Tests that each time that is remembered moves with a clock that is set, and nothing else does."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass

from slicewise.launcher.rules.autoscale.arrivals import Arrivals
from slicewise.launcher.rules.autoscale.attainment import Attainment, Cohort
from slicewise.launcher.rules.autoscale.crests import Crest
from slicewise.launcher.rules.autoscale.forecasts import Forecasts, ForecastStep, SeenLoad
from slicewise.launcher.rules.autoscale.idle import Pauses
from slicewise.launcher.rules.autoscale.policy import LastCounters, Memory, Peak
from slicewise.launcher.rules.gateway.types import Endpoint
from slicewise.launcher.rules.pools.model_work import ModelWork
from slicewise.launcher.rules.pools.types import Told
from slicewise.launcher.rules.turn.backoff import Backoff
from slicewise.launcher.rules.turn.clock_step import after_step, not_ahead
from slicewise.launcher.rules.turn.endpoints import Down, ReplicaRun, Verified
from slicewise.launcher.rules.turn.outliers import Doubt, Watch
from slicewise.launcher.rules.turn.state import DesiredSlots, Failure, GenerationState, ServiceState

THEN_S = 1_700_000_000.0
"""No count and no duration is as large."""
OTHERS = {
    *("late_s", "lasted_s", "silent_s", "busy_s", "load_s", "queue_s", "service_s", "start_s"),
    *("full_s", "replica_s", "first_s", "token_s", "total_s", "lately_busy_s", "used_s"),
    *("total_used_s", "requests_per_s", "millislice_s"),
}
"""Durations, and Slurm's own time of a run's start, by which it is known."""
RUN = ReplicaRun(1, 1, Endpoint("10.0.0.1", 5, 6, "CCCC"))
FULL = ServiceState(
    Memory(
        seen=LastCounters(THEN_S, 1, 1, 1),
        forecasts=Forecasts(under_way=(ForecastStep(THEN_S + 1, (), SeenLoad(1, 1)),)),
        idle=Pauses(THEN_S + 2),
        peaks=(Peak(THEN_S + 3, 1),),
        woke_s=THEN_S + 18,
        crests=(Crest(THEN_S + 19, THEN_S + 20),),
        attained=Attainment((Cohort(THEN_S + 21, THEN_S + 22, 1),)),
    ),
    {
        7: GenerationState(
            backoff=Backoff(1, THEN_S + 4),
            verified={0: Verified(RUN, THEN_S + 5)},
            draining_since_s={0: THEN_S + 6},
            down={0: Down(RUN, THEN_S + 7, starts=True, unfit=False)},
            desired=DesiredSlots(frozenset({0}), THEN_S + 8),
            retired_s=THEN_S + 9,
            seen_s=THEN_S + 10,
            watched={
                0: Watch(
                    start=(1, 1),
                    answers=1,
                    errors=1,
                    seen_s=THEN_S + 11,
                    moved_s=THEN_S + 12,
                    doubt=Doubt(THEN_S + 13, THEN_S + 14, "", is_worse=True, is_out=True),
                    passed_s=THEN_S + 15,
                )
            },
            removed_s=(THEN_S + 16,),
            given_back_s=(THEN_S + 17,),
            failures=(Failure("gpu01", THEN_S + 17),),
            models={0: Told(1, {"bert": 7}, {"resnet": THEN_S + 24})},
        )
    },
    model_work=ModelWork(THEN_S + 23, 0.5, 0.1, THEN_S + 25, arrived=1),
)


def numbers(found: object, name: str = "") -> Iterator[tuple[str, float]]:
    """Each with the name of the field in which it lies."""
    if is_dataclass(found):
        for field in fields(found):
            name = "lasted_s" if isinstance(found, Arrivals) else field.name
            yield from numbers(getattr(found, field.name), name)
    elif isinstance(found, Mapping):
        for value in found.values():
            yield from numbers(value, name)
    elif isinstance(found, tuple | frozenset):
        for value in found:
            yield from numbers(value, name)
    elif isinstance(found, int | float):
        yield name, float(found)


def test_every_time_moves_and_nothing_else():
    before = list(numbers(FULL))
    after = list(numbers(after_step({"t/a": FULL}, -3600.0)["t/a"]))
    assert after == [(name, n - 3600 * (n >= THEN_S)) for name, n in before]
    assert len({n for _, n in before if n >= THEN_S}) == 26


def test_the_example_has_every_time():
    """A field for a further one must be moved, too."""
    unset = {name for name, n in numbers(FULL) if name.endswith("_s") and n < THEN_S}
    assert unset <= OTHERS


def test_what_has_never_been_has_still_never_been():
    state = {"t/a": ServiceState(None, {7: GenerationState(watched={0: Watch((1, 1), 0, 0, 5.0)})})}
    (moved,) = after_step(state, 3600.0)["t/a"].generations.values()
    assert (moved.retired_s, moved.seen_s, moved.backoff.until_s) == (0.0, 0.0, 0.0)
    assert (moved.watched[0].moved_s, moved.watched[0].passed_s) == (0.0, 0.0)


def test_only_what_has_yet_to_come_is_moved_back_to_now():
    """Its newest time is that of its last look, of a request or of a generation's first one."""
    assert not_ahead({"t/a": FULL}, THEN_S + 10) == {"t/a": FULL}
    assert not_ahead({"t/a": FULL}, THEN_S - 10) == after_step({"t/a": FULL}, -20.0)
    asked = ServiceState(None, {7: GenerationState(desired=DesiredSlots(frozenset(), THEN_S))})
    assert not_ahead({"t/a": asked}, THEN_S - 10) == after_step({"t/a": asked}, -10.0)
    new = {"t/a": ServiceState(), "t/b": ServiceState(None, {7: GenerationState()})}
    assert not_ahead(new, THEN_S) == new
