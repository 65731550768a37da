"""Messages about what Slicewise has done by itself: runs of rebalancing, repartitions of GPUs.

Both journals name tenants, their jobs and loans, so that only operators read them.
"""

from typing import Annotated

from pydantic import Field

from slicewise.cluster.rpc.message import Answer, Asks, Message, Request

EntryId = Annotated[int, Field(ge=1, le=2**62)]
"""Number of an entry in its journal."""


class RebalanceStepDone(Message):
    """A step of a run of rebalancing.

    Attributes:
        step: reconcile, roll, lend, reclaim, compile, prioritise or cut.
        outcome: done, skipped or failed; ``running`` while it goes on, or if its process was
            killed.
        started_s: Unix seconds.
        took_s: seconds; None while it goes on.
        saw: counts on which it decided, by name.
        did: the first lines of what it changed, in order; ``did_lines`` is the number of all.
        planned: the first lines of what it would have changed, in a mode other than enforce;
            ``planned_lines`` is the number of all.
        why: of a step that failed or was skipped, the reason.
    """

    step: str
    outcome: str
    started_s: float
    took_s: float | None = None
    saw: dict[str, int]
    did: tuple[str, ...] = ()
    did_lines: int = 0
    planned: tuple[str, ...] = ()
    planned_lines: int = 0
    why: str = ""


class RebalanceDone(Message):
    """One run of ``slicewise rebalance``.

    Attributes:
        author, host: who ran it, and where.
        outcome: running, done, failed or abandoned: killed.
        started_s, ended_s: Unix seconds; no end while it runs.
        took_s: seconds; None while it runs.
        steps: in the order of their beginnings.
    """

    run_id: int
    author: str
    host: str
    outcome: str
    started_s: float
    ended_s: float | None = None
    took_s: float | None = None
    steps: tuple[RebalanceStepDone, ...]


class RebalancesAnswer(Answer):
    """One page of runs. ``more`` is ``before`` of the next page; None after the last page."""

    runs: tuple[RebalanceDone, ...]
    more: int | None = None


class RebalancesRequest(Request, Asks[RebalancesAnswer], get="rebalances", asker="operators"):
    """Root or SlurmUser: asks for runs of rebalancing with their steps, the newest first.

    ``before`` is ``more`` of an earlier answer.
    """

    before: EntryId | None = None


class PlacedInstance(Message):
    """A MIG instance: its profile, and the memory slices of the GPU that it takes."""

    profile: str
    start: int
    size: int


class RepartitionStepDone(Message):
    """A step of a repartition.

    Attributes:
        step: reserve, move, cut, tell, verify or resume.
        direction: ``forward`` to the new layout, ``back`` to the one before.
        outcome: done or failed; ``running`` while it goes on, or if its process was killed.
        started_s: Unix seconds.
        took_s: seconds; None while it goes on.
        words: what was done, or what went wrong.
    """

    step: str
    direction: str
    outcome: str
    started_s: float
    took_s: float | None = None
    words: str = ""


class RepartitionDone(Message):
    """One repartition of one GPU.

    Attributes:
        gpu: the driver's UUID of it.
        before, after: the instances that it had, and that it was to have.
        moves: replicas that left first.
        reason: why it was cut; ``error``: why it was rolled back or is stuck, "" otherwise.
        gain_millislice_s, drained_millislice_s: gain and loss as the plan computed them.
        state: running, stuck, done, rolled back or closed.
        started_s, ended_s: Unix seconds; no end while it goes on or is stuck.
        took_s: seconds; None without an end.
        steps: the last ones, in the order of their beginnings; ``earlier_steps`` is the number of
            those before.
    """

    repartition_id: int
    node: str
    gpu: str
    before: tuple[PlacedInstance, ...]
    after: tuple[PlacedInstance, ...]
    moves: tuple[str, ...]
    reason: str
    gain_millislice_s: int
    drained_millislice_s: int
    author: str
    state: str
    error: str = ""
    started_s: float
    ended_s: float | None = None
    took_s: float | None = None
    steps: tuple[RepartitionStepDone, ...]
    earlier_steps: int = 0


class RepartitionsAnswer(Answer):
    """One page of them. ``more`` is ``before`` of the next page; None after the last page."""

    repartitions: tuple[RepartitionDone, ...]
    more: int | None = None


class RepartitionsRequest(Request, Asks[RepartitionsAnswer], get="repartitions", asker="operators"):
    """Root or SlurmUser: asks for repartitions of GPUs with their steps, the newest first.

    ``before`` is ``more`` of an earlier answer.
    """

    before: EntryId | None = None
