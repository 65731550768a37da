"""The steps of a repartition of one GPU, and which step comes next, given the journal's records.

A repartition goes forward until a step fails, then back to the layout before. The way back has the
same steps with before and after swapped: a GPU is cut first, then Slurm is told, since slurmd needs
the devices of its gres.conf to exist. Steps that were never begun forward are not undone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from slicewise.cluster.language.gpus.repartitions import (
    Direction,
    Repartition,
    RepartitionState,
    RepartitionStep,
    RepartitionStepOutcome,
    RepartitionStepRecord,
)

POLL_S = 2.0
"""Seconds between two looks at whether a step is through."""


UNFINISHED = (RepartitionState.RUNNING, RepartitionState.STUCK)
_AGAIN_S, _LATEST_AGAIN_S = 300.0, 21_600.0
"""Seconds until a stuck repartition is tried again: first and longest pause. Each failure doubles
it.
"""
_ALL = tuple(RepartitionStep)


@dataclass(frozen=True)
class Next:
    """The step that comes next."""

    step: RepartitionStep
    direction: Direction


@dataclass(frozen=True)
class RepartitionEnd:
    """The end of a repartition in a run; ``state`` is the repartition's state from then on."""

    state: RepartitionState


def is_due(repartition: Repartition, now_s: float) -> bool:
    """Whether a run that no operator asked for takes the repartition up.

    Each try may restart slurmctld. The pauses keep one node's answers from delaying other nodes'
    repartitions, and all submitters, every few minutes forever.
    """
    failed = [step for step in repartition.steps if step.outcome is RepartitionStepOutcome.FAILED]
    if repartition.state is not RepartitionState.STUCK or not failed:
        return True
    tries = sum(step_record.direction is Direction.BACK for step_record in failed)
    rest_s = min(_AGAIN_S * 2.0 ** min(tries - 1, 16), _LATEST_AGAIN_S)
    return now_s >= (failed[-1].ended_s or failed[-1].started_s) + rest_s


def next_step(
    records: Sequence[RepartitionStepRecord], *, taken_up: bool = False
) -> Next | RepartitionEnd:
    """The step that follows these records. Without ``taken_up`` the last of them has ended.

    ``taken_up`` means that another process had begun the repartition. Its reservation may have
    ended meanwhile, so the reservation comes first again; then, unless the GPU is cut, the wait
    until no job holds what is destroyed.
    """
    way = direction(records)
    last = records[-1] if records else None
    if (
        last is not None
        and last.step is RepartitionStep.RESUME
        and last.outcome is RepartitionStepOutcome.DONE
    ):
        return RepartitionEnd(
            RepartitionState.DONE if way is Direction.FORWARD else RepartitionState.ROLLED_BACK
        )
    if last is None or taken_up:
        due = _ways(records, way)
        return Next(RepartitionStep.RESERVE if len(due) > 1 else due[0], way)
    if last.outcome is RepartitionStepOutcome.FAILED:
        return _after_failure(records, last, way)
    return Next(_following(records, last.step, way), way)


def direction(records: Sequence[RepartitionStepRecord]) -> Direction:
    """Back once a step has failed, unless all is done forward and only the reservation remains."""
    is_done = _is_done(records, RepartitionStep.VERIFY, Direction.FORWARD)
    failed = any(record.outcome is RepartitionStepOutcome.FAILED for record in records)
    return Direction.BACK if failed and not is_done else Direction.FORWARD


def _after_failure(
    records: Sequence[RepartitionStepRecord], last: RepartitionStepRecord, way: Direction
) -> Next | RepartitionEnd:
    if last.step is RepartitionStep.RESUME or way is Direction.FORWARD:
        return RepartitionEnd(RepartitionState.RUNNING)
    if last.direction is Direction.BACK:
        return RepartitionEnd(RepartitionState.STUCK)
    return Next(_ways(records, way)[0], way)


def _following(
    records: Sequence[RepartitionStepRecord], last: RepartitionStep, way: Direction
) -> RepartitionStep:
    """The first step due after ``last``.

    After a repeated reservation, steps that are done already are left out.
    """
    due = _ways(records, way)
    if last is RepartitionStep.RESERVE and _is_done(records, RepartitionStep.CUT, way):
        due = [step for step in due if not _is_done(records, step, way)]
        return next(
            step for step in due if step not in {RepartitionStep.RESERVE, RepartitionStep.MOVE}
        )
    return next(step for step in due if _ALL.index(step) > _ALL.index(last))


def _ways(records: Sequence[RepartitionStepRecord], way: Direction) -> list[RepartitionStep]:
    """All steps of that way. The way back has only steps whose counterpart was begun."""
    if way is Direction.FORWARD:
        return list(_ALL)
    begun = {record.step for record in records if record.direction is Direction.FORWARD}
    if RepartitionStep.CUT not in begun:
        return [RepartitionStep.RESUME]
    tell = [RepartitionStep.TELL] if RepartitionStep.TELL in begun else []
    return [RepartitionStep.CUT, *tell, RepartitionStep.VERIFY, RepartitionStep.RESUME]


def _is_done(
    records: Sequence[RepartitionStepRecord], step: RepartitionStep, way: Direction
) -> bool:
    return any(
        record.step is step
        and record.direction is way
        and record.outcome is RepartitionStepOutcome.DONE
        for record in records
    )
