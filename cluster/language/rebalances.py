"""Types for the steps of one run of ``slicewise rebalance``, and for its journal."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

from pydantic import computed_field

from slicewise.cluster.language.documents import HIDDEN


class StepName(StrEnum):
    """The steps of a run, in their order."""

    RECONCILE = "reconcile"
    ROLL = "roll"
    LEND = "lend"
    RECLAIM = "reclaim"
    COMPILE = "compile"
    PRIORITISE = "prioritise"
    CUT = "cut"


class StepOutcome(StrEnum):
    """Outcome of a step. ``running``: the step is under way, or its process was killed."""

    RUNNING = "running"
    DONE = "done"
    SKIPPED = "skipped"
    FAILED = "failed"


class RunOutcome(StrEnum):
    """Outcome of a run. A run that the next one finds ``running`` was killed: ``abandoned``."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    ABANDONED = "abandoned"


@dataclass(frozen=True)
class StepRecord:
    """A step as the journal has it.

    Attributes:
        started_s, ended_s: Unix seconds; no end while the step is under way.
        saw: numbers and names on which the step decided.
        did: what the step changed, one line each.
        why: explanation in one line; for a step that failed or was skipped, the reason.
        left_out: number of further lines of what it did, or of ``saw`` where it only planned, of
            which an answer has the first.
    """

    step: StepName
    outcome: StepOutcome
    started_s: float
    ended_s: float | None = None
    saw: Mapping[str, Any] = field(default_factory=dict, hash=False)
    did: tuple[str, ...] = ()
    why: str = ""
    record_id: Annotated[int, HIDDEN] = 0
    """Number of the record in the journal."""
    left_out: int = 0

    @computed_field
    @property
    def took_s(self) -> float | None:
        """Seconds that the step took, to the millisecond; None while it is under way."""
        return None if self.ended_s is None else round(self.ended_s - self.started_s, 3)


@dataclass(frozen=True)
class RebalanceRun:
    """One run of ``slicewise rebalance``.

    Attributes:
        author: user who ran it.
        host: host on which it ran.
        started_s, ended_s: Unix seconds; no end while it runs.
        steps: in the order of their beginnings.
    """

    run_id: int
    author: str
    host: str
    outcome: RunOutcome
    started_s: float
    ended_s: float | None = None
    steps: tuple[StepRecord, ...] = ()

    @computed_field
    @property
    def took_s(self) -> float | None:
        """Seconds that the run took, to the millisecond; None while it runs."""
        return None if self.ended_s is None else round(self.ended_s - self.started_s, 3)
