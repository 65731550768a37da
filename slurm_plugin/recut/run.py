"""One run of re-cutting: what is unfinished first, then what the plan says now."""

from collections.abc import Awaitable, Callable, Sequence

from slurm_plugin.decide.mig.recut_steps import Planned, Recut, State
from slurm_plugin.recut.executor import Executor

Opened = Callable[[Planned], Recut]
"""Write a re-cut into the journal, before anything is done about it."""


async def run(
    executor: Executor,
    unfinished: Sequence[Recut],
    plan: Callable[[], Awaitable[Sequence[Planned]]],
    opened: Opened,
) -> tuple[Recut, ...]:
    """Those that it took up or began, as they are then.

    After those nothing new is begun: Slurm starts who waited for them first. Nor is after one that
    does not end as planned: what was in its way may be in others', too. Those that are stuck and
    are not taken up (``is_due``) keep their own nodes only. Raises what ``Executor.carry_out`` and
    ``plan`` raise.
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
