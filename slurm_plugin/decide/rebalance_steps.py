"""What one run of ``slicewise rebalance`` consists of, and what its journal keeps."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class StepName(StrEnum):
    """In their order."""

    RECONCILE = "reconcile"
    ROLL = "roll"
    LEND = "lend"
    RECLAIM = "reclaim"
    COMPILE = "compile"
    PRIORITISE = "prioritise"
    CUT = "cut"


class StepOutcome(StrEnum):
    """``begun`` without more: it is under way, or its process was killed."""

    BEGUN = "begun"
    DONE = "done"
    SKIPPED = "skipped"
    FAILED = "failed"


class RunOutcome(StrEnum):
    """Of a whole run. One that the next run finds ``running`` was killed: ``abandoned``."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    ABANDONED = "abandoned"


@dataclass(frozen=True)
class StepRecord:
    """A step as the journal has it.

    Attributes:
        began_s, ended_s: Unix seconds; no end while it is under way.
        saw: what it decided on, in numbers and names.
        did: what it changed, one line each.
        why: in one line; of a step that failed or was skipped, the reason.
        record_id: the journal's own.
    """

    step: StepName
    outcome: StepOutcome
    began_s: float
    ended_s: float | None = None
    saw: Mapping[str, object] = field(default_factory=dict, hash=False)
    did: tuple[str, ...] = ()
    why: str = ""
    record_id: int = 0


@dataclass(frozen=True)
class RebalanceRun:
    """One run.

    Attributes:
        author: who ran it.
        host: where.
        begun_s, ended_s: Unix seconds; no end while it runs.
        records: its steps in the order of their beginnings.
    """

    run_id: int
    author: str
    host: str
    outcome: RunOutcome
    begun_s: float
    ended_s: float | None = None
    records: tuple[StepRecord, ...] = ()
