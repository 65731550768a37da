"""Repartitions of GPUs: planned, under way, and as the journal has them."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import computed_field

from slicewise.cluster.language.documents import HIDDEN
from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.cluster.language.jobs import REPARTITION_RESERVATION


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


@dataclass(frozen=True)
class PlannedRepartition:
    """A planned repartition of one GPU.

    Attributes:
        gpu: the driver's UUID of it.
        before: the GPU's instances as the plan saw them.
        after: the instances that it is to have.
        moves: job ids or names of the replicas that leave first, for people to read.
        reason: why the GPU is cut, in one line.
        gain_millislice_s, drained_millislice_s: gain and loss as the plan computed them.
        ends: jobs on loan that are ended first, for a job that is owed its type.
    """

    node: str
    gpu: str
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
    record_id: Annotated[int, HIDDEN] = 0

    @computed_field
    @property
    def took_s(self) -> float | None:
        """Seconds that the step took, to the millisecond; None while it is under way."""
        return None if self.ended_s is None else round(self.ended_s - self.started_s, 3)


@dataclass(frozen=True, kw_only=True)
class Repartition(PlannedRepartition):
    """One repartition of one GPU.

    Attributes:
        state: running, stuck, done, rolled back or closed.
        error: why it was rolled back or is stuck; "" otherwise.
        started_s, ended_s: Unix seconds; no end while it goes on or is stuck.
        steps: in the order of their beginnings; ``earlier_steps`` is the number of those before,
            where not all are told.
    """

    repartition_id: int
    author: str
    state: RepartitionState
    error: str = ""
    started_s: float
    ended_s: float | None = None
    slurm_conf: Annotated[str | None, HIDDEN] = None
    """Text of the file before Slurm was told; kept from then until the repartition ends."""
    gres_conf: Annotated[str | None, HIDDEN] = None
    """The same."""
    steps: tuple[RepartitionStepRecord, ...] = ()
    earlier_steps: int = 0

    @computed_field
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
        pair = self.before, self.after
        return pair if direction is Direction.FORWARD else pair[::-1]
