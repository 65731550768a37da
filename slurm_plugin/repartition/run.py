"""One run of repartitioning: first unfinished repartitions, then what the plan says now."""

from collections.abc import Awaitable, Callable, Sequence

from slurm_plugin.mig.steps import PlannedRepartition, Repartition, RepartitionState
from slurm_plugin.repartition.executor import Executor

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
    repartitions that are not taken up (``is_due``) occupy only their own nodes. Raises what
    ``Executor.carry_out`` and ``plan`` raise.
    """
    ended = [await executor.carry_out(repartition, taken_up=True) for repartition in unfinished]
    if ended:
        return tuple(ended)
    for planned in await plan():
        repartition = await executor.carry_out(opened(planned), taken_up=False)
        ended.append(repartition)
        if repartition.state is not RepartitionState.DONE:
            break
    return tuple(ended)
