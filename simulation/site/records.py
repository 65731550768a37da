"""What a simulated site leaves behind: which jobs waited and ran, and when."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ReplayedRun:
    """One run of a job; ``end_s`` is None if it still ran when the simulation stopped.

    Attributes:
        is_on_loan: whether it ran in a borrowed QOS of Slicewise.
    """

    start_s: float
    end_s: float | None
    is_on_loan: bool = False


@dataclass(frozen=True)
class ReplayedJob:
    """A job of the history, as the simulated Slurm ran it.

    Attributes:
        number: its place in the history; -1 for what ran or waited already at the beginning.
        tenant: the account that was charged.
        runs: in order; several if it was requeued.
        run_s: seconds that it runs if nothing ends it.
        given_up_s: when it was cancelled while it waited; None if it was not.
        waits_again: whether it waited after its last run when the simulation stopped.
    """

    number: int
    tenant: str
    cost_millislices: int
    submit_s: float
    run_s: float
    runs: tuple[ReplayedRun, ...] = ()
    given_up_s: float | None = None
    waits_again: bool = False


@dataclass(frozen=True)
class SiteRecord:
    """What one simulation of a site left behind.

    Attributes:
        begin_s, stopped_s: Unix seconds between which it was simulated.
        refused: the numbers of jobs that admission refused, with the error's code.
        rounds: rounds of quotas.
    """

    begin_s: float
    stopped_s: float
    jobs: tuple[ReplayedJob, ...]
    refused: tuple[tuple[int, str], ...] = ()
    rounds: int = 0
