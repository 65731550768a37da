"""Takes repartitions through their steps, and continues those that an earlier process left."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from slicewise.cluster.language.errors import SlicewiseError, UnreachableError
from slicewise.cluster.language.gpus.repartitions import (
    Repartition,
    RepartitionState,
    RepartitionStepOutcome,
    RepartitionStepRecord,
)
from slicewise.cluster.language.slurm.node_states import is_drained
from slicewise.slurm_plugin.repartition.actions import LostLockError, RepartitionActions
from slicewise.slurm_plugin.repartition.ports import Journal
from slicewise.slurm_plugin.rules.mig.repartition_steps import (
    Next,
    next_step,
)

_REASON_LENGTH = 200
"""Most characters of a drain's reason; Slurm bounds it."""


class Executor:
    """Carries out one repartition at a time.

    Attributes:
        progress: called for each step when it begins and when it has ended.
    """

    def __init__(
        self,
        work: RepartitionActions,
        journal: Journal,
        progress: Callable[[Repartition, RepartitionStepRecord], None],
    ) -> None:
        self._work, self._journal = work, journal
        self.progress = progress

    async def carry_out(self, repartition: Repartition, *, taken_up: bool) -> Repartition:
        """Carry a repartition out to its end, or until this run can do no more; return it as it is
        then.

        ``taken_up``: another process had begun it. Raises what the journal raises, and
        LostLockError: then nothing is undone, and the next run goes on.
        """
        while isinstance(due := next_step(repartition.steps, taken_up=taken_up), Next):
            taken_up = False
            repartition = await self._step(repartition, due)
        await self._end(repartition, due.state)
        return await self._read(repartition)

    async def wait(self, seconds: float) -> None:
        """Let that much time pass."""
        await self._work.site.wait(seconds)

    async def _step(self, repartition: Repartition, due: Next) -> Repartition:
        begin, end = self._journal.begin_step, self._journal.end_step
        record_id = await asyncio.to_thread(begin, repartition.repartition_id, due)
        repartition = await self._read(repartition)
        self.progress(repartition, repartition.steps[-1])
        outcome, words = await self._tried(repartition, due)
        await asyncio.to_thread(end, record_id, outcome, words)
        repartition = await self._read(repartition)
        self.progress(repartition, repartition.steps[-1])
        return repartition

    async def _tried(
        self, repartition: Repartition, due: Next
    ) -> tuple[RepartitionStepOutcome, str]:
        try:
            return RepartitionStepOutcome.DONE, await self._work.do(repartition, due)
        except LostLockError:
            raise
        except SlicewiseError as error:
            return RepartitionStepOutcome.FAILED, str(error)
        except Exception as error:  # noqa: BLE001 -- else the node would wait for ever
            return RepartitionStepOutcome.FAILED, f"{type(error).__name__}: {error}"

    async def _end(self, repartition: Repartition, state: RepartitionState) -> None:
        failed = [
            step.words
            for step in repartition.steps
            if step.outcome is RepartitionStepOutcome.FAILED
        ]
        if state is RepartitionState.STUCK:
            failed[-1] += await self._left(repartition, failed[-1])
        else:
            self._work.site.forget_told(repartition)
        error = "" if state is RepartitionState.DONE or not failed else _error(state, failed)
        await asyncio.to_thread(self._journal.finish, repartition.repartition_id, state, error)

    async def _left(self, repartition: Repartition, words: str) -> str:
        """Leave a stuck repartition's node so that nothing starts there, and its files as they were
        before.

        So whatever keeps slurmctld from starting is out of the files again; if slurmctld was told
        and does not answer, it is started again. Returns what went wrong, with a blank before it,
        or "".
        """
        answers, site = await self._drain(repartition, words), self._work.site
        try:
            site.put_back(repartition)
        except (SlicewiseError, OSError) as error:
            return f" slurm.conf and gres.conf were not put back: {error}"
        if not answers and repartition.slurm_conf is not None:
            with suppress(SlicewiseError):
                await site.restart_controller(repartition.node)
            await self._drain(repartition, words)
        return ""

    async def _drain(self, repartition: Repartition, words: str) -> bool:
        """Drain the node: unlike its reservation a drain does not end. An existing drain keeps its
        reason.

        False if Slurm does not answer; nothing starts there then.
        """
        site, name = self._work.site, repartition.node
        reason = f"{repartition.drain_reason} {words}"[:_REASON_LENGTH]
        try:
            node = await site.node(name)
            if node is not None and not is_drained(node):
                await site.drain(name, reason)
        except UnreachableError:
            return False
        except SlicewiseError:
            return True
        return True

    async def _read(self, repartition: Repartition) -> Repartition:
        return await asyncio.to_thread(self._journal.find, repartition.repartition_id)


def _error(state: RepartitionState, failed: list[str]) -> str:
    """Why the repartition turned back and, if it is stuck, why it could not go back."""
    return failed[0] if state is not RepartitionState.STUCK else f"{failed[0]} Then: {failed[-1]}"
