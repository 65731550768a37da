"""Keeps the journal of ``slicewise rebalance``: what each run saw, decided and did, and why."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, Row, Select, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.rebalances import (
    RebalanceRun,
    RunOutcome,
    StepName,
    StepOutcome,
    StepRecord,
)
from slicewise.cluster.runtime.database import reading, writing
from slicewise.slurm_plugin.ledger import reads
from slicewise.slurm_plugin.ledger.base import LedgerPart, seconds
from slicewise.slurm_plugin.ledger.journal_entries import entries_of, newest_of, with_steps
from slicewise.slurm_plugin.ledger.rebalance_tables import rebalance_runs, rebalance_steps
from slicewise.slurm_plugin.rules.common.clock import SETTLED_S

KEPT_DAYS = 14
"""Days for which runs are kept. A run every half a minute writes 23,000 rows a day."""


class Rebalances(LedgerPart):
    """The journal. Every step is on disk before it begins. A writer must hold
    ``Locks.rebalancing``.
    """

    def open(self, author: str, host: str) -> int:
        """Open a new run and return its id.

        Runs that were never finished become ``abandoned``, and runs older than ``KEPT_DAYS`` are
        deleted.
        """
        values = {"cluster": self._cluster, "author": author, "host": host}
        with writing(self._engine) as connection:
            self._abandon(connection)
            self._forget_old_runs(connection)
            made = insert(rebalance_runs).values(values).returning(rebalance_runs.c.id)
            return int(connection.execute(made).scalar_one())

    def begin_step(self, run_id: int, step: StepName) -> int:
        """Record that a step begins; return the record's id, for ``end_step``."""
        values = {"run_id": run_id, "step": step}
        made = insert(rebalance_steps).values(values).returning(rebalance_steps.c.id)
        with writing(self._engine) as connection:
            return int(connection.execute(made).scalar_one())

    def end_step(
        self,
        record_id: int,
        outcome: StepOutcome,
        saw: Mapping[str, object],
        did: Sequence[str],
        why: str,
    ) -> None:
        """Record the step's outcome: done, skipped or failed. ``saw`` must be fit for JSON."""
        of = rebalance_steps.c
        ended = {
            "outcome": outcome,
            "saw": dict(saw),
            "did": list(did),
            "why": why,
            "ended_at": func.now(),
        }
        begun = (of.id == record_id, of.outcome == StepOutcome.RUNNING)
        with writing(self._engine) as connection:
            connection.execute(update(rebalance_steps).where(*begun).values(ended))

    def finish(self, run_id: int, outcome: RunOutcome) -> None:
        """Record the run's end: done or failed. A run that was abandoned stays abandoned."""
        of = rebalance_runs.c
        ended = {"outcome": outcome, "ended_at": func.now()}
        running = (of.id == run_id, of.outcome == RunOutcome.RUNNING)
        with writing(self._engine) as connection:
            connection.execute(update(rebalance_runs).where(*running).values(ended))

    def history(self, limit: int, before: int | None = None) -> tuple[RebalanceRun, ...]:
        """The newest ``limit`` runs, newest first, with their steps; those before a run's id."""
        newest = newest_of(self._runs(), rebalance_runs, limit, before)
        with reading(self._engine) as connection:
            return _runs(connection, newest)

    def find(self, run_id: int) -> RebalanceRun:
        """The run with that id; raises InvalidInputError (SW-NAME-UNKNOWN) without one."""
        with reading(self._engine) as connection:
            runs = _runs(connection, self._runs().where(rebalance_runs.c.id == run_id))
        if not runs:
            raise InvalidInputError(
                Code.NAME_UNKNOWN,
                f"There is no run {run_id} of slicewise rebalance.",
                "List them: slicewise rebalance history",
            )
        return runs[0]

    def now_s(self) -> int:
        """Unix seconds of PostgreSQL's clock."""
        with reading(self._engine) as connection:
            return reads.now_s(connection)

    def begun_before_s(self, at_s: float) -> float | None:
        """Unix seconds when the newest run began that had begun by ``at_s``; None without one."""
        of = rebalance_runs.c
        begun = func.extract("epoch", func.max(of.started_at))
        until = func.to_timestamp(at_s)
        with reading(self._engine) as connection:
            found = select(begun).where(of.cluster == self._cluster, of.started_at <= until)
            return seconds(connection.execute(found).scalar_one())

    def _forget_old_runs(self, connection: Connection) -> None:
        """Delete runs older than ``KEPT_DAYS``, except the newest that is older than ``SETTLED_S``.

        A clock that was set just now has not dated that run, and ``begun_before_s`` asks for it.
        """
        of = rebalance_runs.c
        settled = func.now() - timedelta(seconds=SETTLED_S)
        newest = select(func.max(of.started_at)).where(
            of.cluster == self._cluster, of.started_at <= settled
        )
        is_old = of.started_at < func.least(
            func.now() - timedelta(days=KEPT_DAYS), newest.scalar_subquery()
        )
        old = select(of.id).where(of.cluster == self._cluster, is_old)
        connection.execute(delete(rebalance_steps).where(rebalance_steps.c.run_id.in_(old)))
        connection.execute(delete(rebalance_runs).where(of.id.in_(old)))

    def _abandon(self, connection: Connection) -> None:
        """Mark unfinished runs abandoned: this process has the lock, so theirs have ended."""
        run, step = rebalance_runs.c, rebalance_steps.c
        unfinished = (run.cluster == self._cluster, run.outcome == RunOutcome.RUNNING)
        ids = select(run.id).where(*unfinished)
        killed = {
            "outcome": StepOutcome.FAILED,
            "why": "The run ended in the middle of this step.",
            "ended_at": func.now(),
        }
        connection.execute(
            update(rebalance_steps)
            .where(step.run_id.in_(ids), step.outcome == StepOutcome.RUNNING)
            .values(killed)
        )
        abandoned = {"outcome": RunOutcome.ABANDONED, "ended_at": func.now()}
        connection.execute(update(rebalance_runs).where(*unfinished).values(abandoned))

    def _runs(self) -> Select[Any]:
        return entries_of(rebalance_runs, self._cluster)


def _runs(connection: Connection, wanted: Select[Any]) -> tuple[RebalanceRun, ...]:
    found = with_steps(connection, wanted, rebalance_steps, rebalance_steps.c.run_id)
    return tuple(
        RebalanceRun(
            run_id=row.id,
            author=row.author,
            host=row.host,
            outcome=RunOutcome(row.outcome),
            started_s=float(row.started_s),
            ended_s=seconds(row.ended_s),
            steps=tuple(map(_record, steps)),
        )
        for row, steps in found
    )


def _record(row: Row[Any]) -> StepRecord:
    return StepRecord(
        step=StepName(row.step),
        outcome=StepOutcome(row.outcome),
        started_s=float(row.started_s),
        ended_s=seconds(row.ended_s),
        saw=row.saw,
        did=tuple(row.did),
        why=row.why,
        record_id=row.id,
    )
