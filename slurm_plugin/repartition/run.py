"""One run of re-cutting: first unfinished re-cuts, then what the plan says now."""

from collections.abc import Awaitable, Callable, Sequence

from slurm_plugin.mig.steps import Planned, Recut, State
from slurm_plugin.repartition.executor import Executor

Opened = Callable[[Planned], Recut]
"""Writes a re-cut into the journal before anything is done about it."""


async def run(
    executor: Executor,
    unfinished: Sequence[Recut],
    plan: Callable[[], Awaitable[Sequence[Planned]]],
    opened: Opened,
) -> tuple[Recut, ...]:
    """Take up the ``unfinished`` re-cuts, or begin the planned ones; return them as they are then.

    If any was unfinished, no new one is begun: Slurm first starts the jobs that waited for it. None
    is begun either after one that does not end as planned: its obstacle may stop others, too. Stuck
    re-cuts that are not taken up (``is_due``) occupy only their own nodes. Raises what
    ``Executor.carry_out`` and ``plan`` raise.
    """
    ended = [await executor.carry_out(recut, taken_up=True) for recut in unfinished]
    if ended:
        return tuple(ended)
    for planned in await plan():
        recut = await executor.carry_out(opened(planned), taken_up=False)
        ended.append(recut)
        if recut.state is not State.DONE:
            break
    return tuple(ended)
