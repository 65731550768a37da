"""The steps of a re-cut of one GPU, and which step comes next, given the journal's records.

A re-cut goes forward until a step fails, then back to the layout before. The way back has the same
steps with before and after swapped: a GPU is cut first, then Slurm is told, since slurmd needs the
devices of its gres.conf to exist. Steps that were never begun forward are not undone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from cluster.language.jobs import RECUT_RESERVATION
from cluster.mig.layouts import Placement


class StepName(StrEnum):
    """The steps of a re-cut, in their order."""

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


class Outcome(StrEnum):
    """Outcome of a step. ``begun``: the step is under way, or its process was killed."""

    BEGUN = "begun"
    DONE = "done"
    FAILED = "failed"


class State(StrEnum):
    """State of a re-cut. The next run takes up re-cuts that are ``running`` or ``stuck``."""

    RUNNING = "running"
    STUCK = "stuck"
    DONE = "done"
    ROLLED_BACK = "rolled back"
    CLOSED = "closed"


UNFINISHED = (State.RUNNING, State.STUCK)
_AGAIN_S, _LATEST_AGAIN_S = 300.0, 21_600.0
"""Seconds until a stuck re-cut is tried again: first and longest pause. Each failure doubles it."""
_ALL = tuple(StepName)


@dataclass(frozen=True)
class Planned:
    """A planned re-cut of one GPU.

    Attributes:
        before: the GPU's instances as the plan saw them.
        after: the instances that it is to have.
        moves: job ids or names of the replicas that leave first, for people to read.
        reason: why the GPU is cut, in one line.
        gain_millislice_s, drained_millislice_s: gain and loss as the plan computed them.
    """

    node: str
    gpu_uuid: str
    before: tuple[Placement, ...]
    after: tuple[Placement, ...]
    moves: tuple[str, ...]
    reason: str
    gain_millislice_s: int
    drained_millislice_s: int


@dataclass(frozen=True)
class StepRecord:
    """A step as the journal has it.

    Attributes:
        began_s: Unix seconds.
        ended_s: Unix seconds; None while the step is under way, or if its process was killed.
        words: what was done, or what went wrong.
        record_id: number of the record in the journal; 0 before it is stored.
    """

    step: StepName
    direction: Direction
    outcome: Outcome
    began_s: float
    ended_s: float | None = None
    words: str = ""
    record_id: int = 0


@dataclass(frozen=True)
class Recut:
    """One re-cut of one GPU.

    Attributes:
        error: why it was rolled back or is stuck; "" otherwise.
        slurm_conf, gres_conf: texts of the files before Slurm was told; stored from then until the
            re-cut ends, None otherwise.
        records: its steps in the order of their beginnings.
    """

    recut_id: int
    planned: Planned
    author: str
    state: State
    error: str
    begun_s: float
    ended_s: float | None
    slurm_conf: str | None
    gres_conf: str | None
    records: tuple[StepRecord, ...] = ()

    @property
    def reservation(self) -> str:
        """Name of the re-cut's reservation in Slurm."""
        return f"{RECUT_RESERVATION}{self.recut_id}"

    @property
    def drain_reason(self) -> str:
        """Beginning of the reason with which the node is drained if going back fails."""
        return f"slicewise re-cut {self.recut_id}:"

    def layouts(self, direction: Direction) -> tuple[tuple[Placement, ...], tuple[Placement, ...]]:
        """The layouts at the start and at the end of that way."""
        pair = self.planned.before, self.planned.after
        return pair if direction is Direction.FORWARD else pair[::-1]


@dataclass(frozen=True)
class Next:
    """The step that comes next."""

    step: StepName
    direction: Direction


@dataclass(frozen=True)
class End:
    """The end of a re-cut in a run; ``state`` is the re-cut's state from then on."""

    state: State


def is_due(recut: Recut, now_s: float) -> bool:
    """Whether a run that no operator asked for takes the re-cut up.

    Each try may restart slurmctld. The pauses keep one node's answers from delaying other nodes'
    re-cuts, and all submitters, every few minutes forever.
    """
    failed = [one for one in recut.records if one.outcome is Outcome.FAILED]
    if recut.state is not State.STUCK or not failed:
        return True
    tries = sum(one.direction is Direction.BACK for one in failed)
    rest_s = min(_AGAIN_S * 2.0 ** min(tries - 1, 16), _LATEST_AGAIN_S)
    return now_s >= (failed[-1].ended_s or failed[-1].began_s) + rest_s


def next_step(records: Sequence[StepRecord], *, taken_up: bool = False) -> Next | End:
    """The step that follows these records. Without ``taken_up`` the last of them has ended.

    ``taken_up`` means that another process had begun the re-cut. Its reservation may have ended
    meanwhile, so the reservation comes first again; then, unless the GPU is cut, the wait until no
    job holds what is destroyed.
    """
    way = direction(records)
    last = records[-1] if records else None
    if last is not None and last.step is StepName.RESUME and last.outcome is Outcome.DONE:
        return End(State.DONE if way is Direction.FORWARD else State.ROLLED_BACK)
    if last is None or taken_up:
        due = _ways(records, way)
        return Next(StepName.RESERVE if len(due) > 1 else due[0], way)
    if last.outcome is Outcome.FAILED:
        return _after_failure(records, last, way)
    return Next(_following(records, last.step, way), way)


def direction(records: Sequence[StepRecord]) -> Direction:
    """Back once a step has failed, unless all is done forward and only the reservation remains."""
    is_done = _is_done(records, StepName.VERIFY, Direction.FORWARD)
    failed = any(one.outcome is Outcome.FAILED for one in records)
    return Direction.BACK if failed and not is_done else Direction.FORWARD


def _after_failure(records: Sequence[StepRecord], last: StepRecord, way: Direction) -> Next | End:
    if last.step is StepName.RESUME or way is Direction.FORWARD:
        return End(State.RUNNING)
    if last.direction is Direction.BACK:
        return End(State.STUCK)
    return Next(_ways(records, way)[0], way)


def _following(records: Sequence[StepRecord], last: StepName, way: Direction) -> StepName:
    """The first step due after ``last``.

    After a repeated reservation, steps that are done already are left out.
    """
    due = _ways(records, way)
    if last is StepName.RESERVE and _is_done(records, StepName.CUT, way):
        due = [one for one in due if not _is_done(records, one, way)]
        return next(one for one in due if one not in {StepName.RESERVE, StepName.MOVE})
    return next(one for one in due if _ALL.index(one) > _ALL.index(last))


def _ways(records: Sequence[StepRecord], way: Direction) -> list[StepName]:
    """All steps of that way. The way back has only steps whose counterpart was begun."""
    if way is Direction.FORWARD:
        return list(_ALL)
    begun = {one.step for one in records if one.direction is Direction.FORWARD}
    if StepName.CUT not in begun:
        return [StepName.RESUME]
    tell = [StepName.TELL] if StepName.TELL in begun else []
    return [StepName.CUT, *tell, StepName.VERIFY, StepName.RESUME]


def _is_done(records: Sequence[StepRecord], step: StepName, way: Direction) -> bool:
    return any(
        one.step is step and one.direction is way and one.outcome is Outcome.DONE for one in records
    )
