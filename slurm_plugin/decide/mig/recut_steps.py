"""How one GPU is cut anew, step by step, and what comes next after what the journal has.

A re-cut goes forward until a step fails, then back to what was before. Back is the same way with
before and after swapped: a GPU is cut first, then Slurm is told, since slurmd wants the devices of
its gres.conf to be there. What was never begun forward need not be undone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from cluster.jobs import RECUT_RESERVATION
from cluster.mig.layouts import Placement


class StepName(StrEnum):
    """In their order."""

    RESERVE = "reserve"
    MOVE = "move"
    CUT = "cut"
    TELL = "tell"
    VERIFY = "verify"
    RESUME = "resume"


class Direction(StrEnum):
    """Whether a step leads to the new layout or to the old one."""

    FORWARD = "forward"
    BACK = "back"


class Outcome(StrEnum):
    """``begun`` without more: it is under way, or its process was killed."""

    BEGUN = "begun"
    DONE = "done"
    FAILED = "failed"


class State(StrEnum):
    """Of a whole re-cut. ``running`` and ``stuck`` are taken up by the next run."""

    RUNNING = "running"
    STUCK = "stuck"
    DONE = "done"
    ROLLED_BACK = "rolled back"
    CLOSED = "closed"


UNFINISHED = (State.RUNNING, State.STUCK)
_AGAIN_S, _LATEST_AGAIN_S = 300.0, 21_600.0
"""What is stuck is tried again after the first of these, then twice as late after each failure, and
never later than the second."""
_ALL = tuple(StepName)


@dataclass(frozen=True)
class Planned:
    """What is to be done on one GPU.

    Attributes:
        before: its instances as the plan saw them.
        after: those that it shall have.
        moves: job ids or names of the replicas that leave first, for people.
        reason: in one line.
        gain_millislice_s, drained_millislice_s: as the plan has them.
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
    """A step as the journal has it; in the order of their beginnings.

    Attributes:
        record_id: the journal's own; 0 before it is there.
        ended_s: None while it is under way, or if its process was killed. Unix seconds.
        words: what was done, or what went wrong.
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
        slurm_conf, gres_conf: as they were before, from when Slurm is told until its end.
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
        """Its name in Slurm."""
        return f"{RECUT_RESERVATION}{self.recut_id}"

    @property
    def drain_reason(self) -> str:
        """How the reason begins for which a node is drained, if going back fails."""
        return f"slicewise re-cut {self.recut_id}:"

    def layouts(self, direction: Direction) -> tuple[tuple[Placement, ...], tuple[Placement, ...]]:
        """From which layout to which that way leads."""
        pair = self.planned.before, self.planned.after
        return pair if direction is Direction.FORWARD else pair[::-1]


@dataclass(frozen=True)
class Next:
    """The step that comes next."""

    step: StepName
    direction: Direction


@dataclass(frozen=True)
class End:
    """Nothing more is done by this run; ``state`` is then the re-cut's."""

    state: State


def is_due(recut: Recut, now_s: float) -> bool:
    """Whether a run for which nobody has asked takes it up.

    Each try may restart slurmctld. What a node answers keeps no other node's GPUs from being cut
    anew, and no submitter waiting, every few minutes for ever.
    """
    failed = [one for one in recut.records if one.outcome is Outcome.FAILED]
    if recut.state is not State.STUCK or not failed:
        return True
    tries = sum(one.direction is Direction.BACK for one in failed)
    rest_s = min(_AGAIN_S * 2.0 ** min(tries - 1, 16), _LATEST_AGAIN_S)
    return now_s >= (failed[-1].ended_s or failed[-1].began_s) + rest_s


def next_step(records: Sequence[StepRecord], *, taken_up: bool = False) -> Next | End:
    """What comes next after these; without ``taken_up`` the last of them has ended.

    With ``taken_up`` another process had begun it: its reservation may have ended meanwhile, so
    that comes first, and as long as the GPU is not cut, nobody may hold what is destroyed.
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
    """Back since a step forward has failed, unless all was done and only the reservation stays."""
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
    """The first after it that is due; after a reservation all that is done already is left out."""
    due = _ways(records, way)
    if last is StepName.RESERVE and _is_done(records, StepName.CUT, way):
        due = [one for one in due if not _is_done(records, one, way)]
        return next(one for one in due if one not in {StepName.RESERVE, StepName.MOVE})
    return next(one for one in due if _ALL.index(one) > _ALL.index(last))


def _ways(records: Sequence[StepRecord], way: Direction) -> list[StepName]:
    """All steps of that way. Back there are only those whose counterpart was begun."""
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
