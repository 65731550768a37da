"""The steps of a repartition of one GPU, and which step comes next, given the journal's records.

A repartition goes forward until a step fails, then back to the layout before. The way back has the
same steps with before and after swapped: a GPU is cut first, then Slurm is told, since slurmd needs
the devices of its gres.conf to exist. Steps that were never begun forward are not undone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.cluster.language.jobs import REPARTITION_RESERVATION

POLL_S = 2.0
"""Seconds between two looks at whether a step is through."""


class RepartitionStep(StrEnum):
    """The steps of a repartition, in their order."""

    RESERVE = "reserve"
    MOVE = "move"
    CUT = "cut"
    TELL = "tell"
    VERIFY = "verify"
    RESUME = "resume"


class Direction(StrEnum):
    """Whether a step leads to the new layout or back to the old one."""

    FORWARD = "forward"
    BACK = "back"


class RepartitionStepOutcome(StrEnum):
    """Outcome of a step. ``running``: the step is under way, or its process was killed."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class RepartitionState(StrEnum):
    """State of a repartition. The next run takes up repartitions that are ``running`` or
    ``stuck``.
    """

    RUNNING = "running"
    STUCK = "stuck"
    DONE = "done"
    ROLLED_BACK = "rolled back"
    CLOSED = "closed"


UNFINISHED = (RepartitionState.RUNNING, RepartitionState.STUCK)
_AGAIN_S, _LATEST_AGAIN_S = 300.0, 21_600.0
"""Seconds until a stuck repartition is tried again: first and longest pause. Each failure doubles
it.
"""
_ALL = tuple(RepartitionStep)


@dataclass(frozen=True)
class PlannedRepartition:
    """A planned repartition of one GPU.

    Attributes:
        before: the GPU's instances as the plan saw them.
        after: the instances that it is to have.
        moves: job ids or names of the replicas that leave first, for people to read.
        reason: why the GPU is cut, in one line.
        gain_millislice_s, drained_millislice_s: gain and loss as the plan computed them.
        ends: jobs on loan that are ended first, for a job that is owed its type.
    """

    node: str
    gpu_uuid: str
    before: tuple[Placement, ...]
    after: tuple[Placement, ...]
    moves: tuple[str, ...]
    reason: str
    gain_millislice_s: int
    drained_millislice_s: int
    ends: tuple[str, ...] = ()


@dataclass(frozen=True)
class RepartitionStepRecord:
    """A step as the journal has it.

    Attributes:
        started_s: Unix seconds.
        ended_s: Unix seconds; None while the step is under way, or if its process was killed.
        words: what was done, or what went wrong.
        record_id: number of the record in the journal; 0 before it is stored.
    """

    step: RepartitionStep
    direction: Direction
    outcome: RepartitionStepOutcome
    started_s: float
    ended_s: float | None = None
    words: str = ""
    record_id: int = 0

    @property
    def took_s(self) -> float | None:
        """Seconds that the step took, to the millisecond; None while it is under way."""
        return None if self.ended_s is None else round(self.ended_s - self.started_s, 3)


@dataclass(frozen=True)
class Repartition:
    """One repartition of one GPU.

    Attributes:
        error: why it was rolled back or is stuck; "" otherwise.
        slurm_conf, gres_conf: texts of the files before Slurm was told; stored from then until the
            repartition ends, None otherwise.
        records: its steps in the order of their beginnings.
    """

    repartition_id: int
    planned: PlannedRepartition
    author: str
    state: RepartitionState
    error: str
    started_s: float
    ended_s: float | None
    slurm_conf: str | None
    gres_conf: str | None
    records: tuple[RepartitionStepRecord, ...] = ()

    @property
    def took_s(self) -> float | None:
        """Seconds that it took, to the millisecond; None while it goes on or is stuck."""
        return None if self.ended_s is None else round(self.ended_s - self.started_s, 3)

    @property
    def reservation(self) -> str:
        """Name of the repartition's reservation in Slurm."""
        return f"{REPARTITION_RESERVATION}{self.repartition_id}"

    @property
    def drain_reason(self) -> str:
        """Beginning of the reason with which the node is drained if going back fails."""
        return f"slicewise repartition {self.repartition_id}:"

    def layouts(self, direction: Direction) -> tuple[tuple[Placement, ...], tuple[Placement, ...]]:
        """The layouts at the start and at the end of that way."""
        pair = self.planned.before, self.planned.after
        return pair if direction is Direction.FORWARD else pair[::-1]


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
    failed = [one for one in repartition.records if one.outcome is RepartitionStepOutcome.FAILED]
    if repartition.state is not RepartitionState.STUCK or not failed:
        return True
    tries = sum(one.direction is Direction.BACK for one in failed)
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
    failed = any(one.outcome is RepartitionStepOutcome.FAILED for one in records)
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
        due = [one for one in due if not _is_done(records, one, way)]
        return next(
            one for one in due if one not in {RepartitionStep.RESERVE, RepartitionStep.MOVE}
        )
    return next(one for one in due if _ALL.index(one) > _ALL.index(last))


def _ways(records: Sequence[RepartitionStepRecord], way: Direction) -> list[RepartitionStep]:
    """All steps of that way. The way back has only steps whose counterpart was begun."""
    if way is Direction.FORWARD:
        return list(_ALL)
    begun = {one.step for one in records if one.direction is Direction.FORWARD}
    if RepartitionStep.CUT not in begun:
        return [RepartitionStep.RESUME]
    tell = [RepartitionStep.TELL] if RepartitionStep.TELL in begun else []
    return [RepartitionStep.CUT, *tell, RepartitionStep.VERIFY, RepartitionStep.RESUME]


def _is_done(
    records: Sequence[RepartitionStepRecord], step: RepartitionStep, way: Direction
) -> bool:
    return any(
        one.step is step and one.direction is way and one.outcome is RepartitionStepOutcome.DONE
        for one in records
    )
