"""Keeps what is remembered right when the host's clock is set.

Times are remembered in Unix seconds, so that the launcher that leads next can read them, and
Slurm's and the daemon's are such times, too. If the clock is set forward by an hour, every drain,
start and pause would look an hour old; if it is set back, a pause after a failed start would last
for an hour more.
"""

from collections.abc import Mapping
from dataclasses import replace

from slicewise.launcher.rules.autoscale.attainment import Attainment
from slicewise.launcher.rules.autoscale.forecasts import Forecasts
from slicewise.launcher.rules.autoscale.policy import Memory
from slicewise.launcher.rules.turn.outliers import Watch
from slicewise.launcher.rules.turn.start_traces import moved
from slicewise.launcher.rules.turn.state import GenerationState, ServiceState, State

STEP_S = 1.0
"""Seconds between two turns up to which a clock is slewed, not set: NTP does 0.5 ms a second."""


def after_step(state: State, step_s: float) -> State:
    """Move every time that is remembered by the seconds by which the clock was set forward."""
    return {key: _service(service_state, step_s) for key, service_state in state.items()}


def not_ahead(state: State, now_s: float) -> State:
    """Move back what was saved by a clock that has been set back since, while no launcher worked.

    Nothing that was saved has yet to come; the last look at a service, or request for it, counts as
    one of now. Clocks that were set forward can't be told from a launcher that was away for long.
    """
    return {
        key: _service(service_state, min(0.0, now_s - _latest_s(service_state)))
        for key, service_state in state.items()
    }


def _latest_s(state: ServiceState) -> float:
    seen = None if state.memory is None else state.memory.seen
    asked_s = (
        0.0 if generation.desired is None else generation.desired.at_s
        for generation in state.generations.values()
    )
    begun_s = (
        max(generation.seen_s, generation.retired_s) for generation in state.generations.values()
    )
    return max(0.0 if seen is None else seen.at_s, *asked_s, *begun_s, 0.0)


def _service(state: ServiceState, step_s: float) -> ServiceState:
    return replace(
        state,
        memory=None if state.memory is None else _memory(state.memory, step_s),
        generations={
            key: _generation(generation, step_s) for key, generation in state.generations.items()
        },
        starts=moved(state.starts, step_s),
        model_work=replace(
            state.model_work,
            at_s=_moved(state.model_work.at_s, step_s),
            waits_since_s=_moved(state.model_work.waits_since_s, step_s),
        ),
    )


def _generation(state: GenerationState, step_s: float) -> GenerationState:
    backoff, desired = state.backoff, state.desired
    return replace(
        state,
        backoff=replace(backoff, failed_s=_moved(backoff.failed_s, step_s)),
        verified={
            i: replace(proof, at_s=proof.at_s + step_s) for i, proof in state.verified.items()
        },
        draining_since_s={i: at_s + step_s for i, at_s in state.draining_since_s.items()},
        down={i: replace(mark, since_s=mark.since_s + step_s) for i, mark in state.down.items()},
        desired=None if desired is None else replace(desired, at_s=desired.at_s + step_s),
        retired_s=_moved(state.retired_s, step_s),
        seen_s=_moved(state.seen_s, step_s),
        watched=_watched(state.watched, step_s),
        removed_s=tuple(at_s + step_s for at_s in state.removed_s),
        given_back_s=tuple(at_s + step_s for at_s in state.given_back_s),
        failures=tuple(replace(failure, at_s=failure.at_s + step_s) for failure in state.failures),
        models={
            index: replace(
                told,
                refused_s={name: at_s + step_s for name, at_s in told.refused_s.items()},
                silent_s=None if told.silent_s is None else told.silent_s + step_s,
            )
            for index, told in state.models.items()
        },
    )


def _watched(watched: Mapping[int, Watch], step_s: float) -> Mapping[int, Watch]:
    return {
        index: replace(
            generation,
            seen_s=generation.seen_s + step_s,
            moved_s=_moved(generation.moved_s, step_s),
            passed_s=_moved(generation.passed_s, step_s),
            doubt=None
            if (doubt := generation.doubt) is None
            else replace(doubt, since_s=doubt.since_s + step_s, from_s=doubt.from_s + step_s),
        )
        for index, generation in watched.items()
    }


def _memory(memory: Memory, step_s: float) -> Memory:
    seen, idle = memory.seen, memory.idle
    return replace(
        memory,
        seen=None if seen is None else replace(seen, at_s=seen.at_s + step_s),
        forecasts=_forecasts(memory.forecasts, step_s),
        idle=idle if idle.since_s is None else replace(idle, since_s=idle.since_s + step_s),
        peaks=tuple(replace(peak, until_s=peak.until_s + step_s) for peak in memory.peaks),
        woke_s=_moved(memory.woke_s, step_s),
        crests=tuple(
            replace(crest, begun_s=crest.begun_s + step_s, last_s=crest.last_s + step_s)
            for crest in memory.crests
        ),
        attained=_attained(memory.attained, step_s),
    )


def _attained(attained: Attainment, step_s: float) -> Attainment:
    waiting = tuple(
        replace(cohort, key_s=cohort.key_s + step_s, at_s=cohort.at_s + step_s)
        for cohort in attained.waiting
    )
    return replace(attained, waiting=waiting)


def _forecasts(forecasts: Forecasts, step_s: float) -> Forecasts:
    steps = tuple(replace(step, at_s=step.at_s + step_s) for step in forecasts.under_way)
    return replace(forecasts, under_way=steps)


def _moved(at_s: float, step_s: float) -> float:
    """Leave 0 as it is: it says that this has never been."""
    return at_s + step_s if at_s else at_s
