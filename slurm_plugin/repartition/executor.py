"""Takes re-cuts through their steps, and continues those that an earlier process left."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from cluster.language.errors import SlicewiseError, UnreachableError
from cluster.slurm.node_states import is_drained
from slurm_plugin.mig.steps import Next, Outcome, Recut, State, StepRecord, next_step
from slurm_plugin.repartition.actions import LostLockError, Work
from slurm_plugin.repartition.ports import Journal

_REASON_LENGTH = 200
"""Most characters of a drain's reason; Slurm bounds it."""


class Executor:
    """Carries out one re-cut at a time.

    Attributes:
        progress: called for each step when it begins and when it has ended.
    """

    def __init__(
        self, work: Work, journal: Journal, progress: Callable[[Recut, StepRecord], None]
    ) -> None:
        self._work, self._journal = work, journal
        self.progress = progress

    async def carry_out(self, recut: Recut, *, taken_up: bool) -> Recut:
        """Carry a re-cut out to its end, or until this run can do no more; return it as it is then.

        ``taken_up``: another process had begun it. Raises what the journal raises, and
        LostLockError: then nothing is undone, and the next run goes on.
        """
        while isinstance(due := next_step(recut.records, taken_up=taken_up), Next):
            taken_up = False
            recut = await self._step(recut, due)
        await self._end(recut, due.state)
        return await self._read(recut)

    async def _step(self, recut: Recut, due: Next) -> Recut:
        begin, end = self._journal.begin_step, self._journal.end_step
        record_id = await asyncio.to_thread(begin, recut.recut_id, due)
        recut = await self._read(recut)
        self.progress(recut, recut.records[-1])
        outcome, words = await self._tried(recut, due)
        await asyncio.to_thread(end, record_id, outcome, words)
        recut = await self._read(recut)
        self.progress(recut, recut.records[-1])
        return recut

    async def _tried(self, recut: Recut, due: Next) -> tuple[Outcome, str]:
        try:
            return Outcome.DONE, await self._work.do(recut, due)
        except LostLockError:
            raise
        except SlicewiseError as error:
            return Outcome.FAILED, str(error)
        except Exception as error:  # noqa: BLE001 -- else the node would wait for ever
            return Outcome.FAILED, f"{type(error).__name__}: {error}"

    async def _end(self, recut: Recut, state: State) -> None:
        failed = [one.words for one in recut.records if one.outcome is Outcome.FAILED]
        if state is State.STUCK:
            failed[-1] += await self._left(recut, failed[-1])
        else:
            self._work.site.forget_told(recut)
        error = "" if state is State.DONE or not failed else _error(state, failed)
        await asyncio.to_thread(self._journal.finish, recut.recut_id, state, error)

    async def _left(self, recut: Recut, words: str) -> str:
        """Leave a stuck re-cut's node so that nothing starts there, and its files as they were
        before.

        So whatever keeps slurmctld from starting is out of the files again; if slurmctld was told
        and does not answer, it is started again. Returns what went wrong, with a blank before it,
        or "".
        """
        answers, site = await self._drain(recut, words), self._work.site
        try:
            site.put_back(recut)
        except (SlicewiseError, OSError) as error:
            return f" slurm.conf and gres.conf were not put back: {error}"
        if not answers and recut.slurm_conf is not None:
            with suppress(SlicewiseError):
                await site.restart_controller(recut.planned.node)
            await self._drain(recut, words)
        return ""

    async def _drain(self, recut: Recut, words: str) -> bool:
        """Drain the node: unlike its reservation a drain does not end. An existing drain keeps its
        reason.

        False if Slurm does not answer; nothing starts there then.
        """
        site, name = self._work.site, recut.planned.node
        reason = f"{recut.drain_reason} {words}"[:_REASON_LENGTH]
        try:
            node = await site.node(name)
            if node is not None and not is_drained(node):
                await site.drain(name, reason)
        except UnreachableError:
            return False
        except SlicewiseError:
            return True
        return True

    async def _read(self, recut: Recut) -> Recut:
        return await asyncio.to_thread(self._journal.find, recut.recut_id)


def _error(state: State, failed: list[str]) -> str:
    """Why the re-cut turned back and, if it is stuck, why it could not go back."""
    return failed[0] if state is not State.STUCK else f"{failed[0]} Then: {failed[-1]}"
