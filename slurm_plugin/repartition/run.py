"""One run of repartitioning: first unfinished repartitions, then what the plan says now."""

from collections.abc import Awaitable, Callable, Sequence

from slicewise.cluster.language.gpus.repartitions import (
    PlannedRepartition,
    Repartition,
    RepartitionState,
)
from slicewise.slurm_plugin.repartition.executor import Executor
from slicewise.slurm_plugin.rules.mig.cuts_due import MOST_IN_A_RUN, STARTS_S

Opened = Callable[[PlannedRepartition], Repartition]
"""Writes a repartition into the journal before anything is done about it."""


async def run(
    executor: Executor,
    unfinished: Sequence[Repartition],
    plan: Callable[[], Awaitable[Sequence[PlannedRepartition]]],
    opened: Opened,
) -> tuple[Repartition, ...]:
    """Take up the ``unfinished`` repartitions, or begin the planned ones; return them as they are
    then.

    If any was unfinished, no new one is begun: Slurm first starts the jobs that waited for it. None
    is begun either after one that does not end as planned: its obstacle may stop others, too. Stuck
    repartitions that are not taken up (``is_due``) occupy only their own nodes. Before each further
    one the plan is made anew, so that a job that has come meanwhile and is owed its type waits for
    one repartition at most. A run makes ``MOST_IN_A_RUN``: where no daemon runs, limits wait for
    its end. Raises what ``Executor.carry_out`` and ``plan`` raise.
    """
    ended = [await executor.carry_out(repartition, taken_up=True) for repartition in unfinished]
    if ended:
        return tuple(ended)
    while len(ended) < MOST_IN_A_RUN and (due := await plan()):
        repartition = await executor.carry_out(opened(due[0]), taken_up=False)
        ended.append(repartition)
        if repartition.state is not RepartitionState.DONE:
            break
        await executor.wait(STARTS_S)
    return tuple(ended)
