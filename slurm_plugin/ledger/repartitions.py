"""Keeps the journal of repartitioning, and the last look at each GPU node."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, Text, cast, delete, extract, func, select, update
from sqlalchemy.dialects.postgresql import insert

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.cluster.language.gpus.repartitions import (
    Direction,
    PlannedRepartition,
    Repartition,
    RepartitionState,
    RepartitionStep,
    RepartitionStepOutcome,
    RepartitionStepRecord,
)
from slicewise.cluster.runtime.database import reading, writing
from slicewise.slurm_plugin.ledger.base import DEADLINE, LedgerPart, seconds
from slicewise.slurm_plugin.ledger.journal_entries import entries_of, newest_of, with_steps
from slicewise.slurm_plugin.ledger.repartition_tables import (
    mig_nodes,
    repartition_steps,
    repartitions,
)
from slicewise.slurm_plugin.rules.mig.repartition_steps import (
    UNFINISHED,
    Next,
)

_NEWEST_STEPS = 500
"""Newest steps that are read to measure how long steps take."""


@dataclass(frozen=True)
class NodeSurvey:
    """The last look at a node.

    ``inventory`` is what ``slicewise node probe --json`` printed. It is a text, since checking
    while reading it takes half the time of reading it first.
    """

    seen_s: float
    inventory: str


class Repartitions(LedgerPart):
    """The journal. Every step is on disk before it begins."""

    def open(self, planned: PlannedRepartition, author: str) -> Repartition:
        """Open a repartition; OutsideError (SW-LEDGER-REFUSED) if an unfinished one has that
        GPU.
        """
        values = {
            "cluster": self._cluster,
            "node": planned.node,
            "gpu_uuid": planned.gpu,
            "before": _written(planned.before),
            "after": _written(planned.after),
            "moves": list(planned.moves),
            "ends": list(planned.ends),
            "reason": planned.reason,
            "author": author,
            "gain_millislice_s": planned.gain_millislice_s,
            "drained_millislice_s": planned.drained_millislice_s,
        }
        with writing(self._engine) as connection:
            made = insert(repartitions).values(values).returning(repartitions.c.id)
            repartition_id = connection.execute(made).scalar_one()
            return self._repartition(connection, repartition_id)

    def unfinished(self) -> tuple[Repartition, ...]:
        """Repartitions that are running or stuck, the oldest first."""
        mine = self._mine().where(repartitions.c.state.in_(UNFINISHED)).order_by(repartitions.c.id)
        with reading(self._engine) as connection:
            return _repartitions(connection, mine)

    def history(self, limit: int, before: int | None = None) -> tuple[Repartition, ...]:
        """The newest ``limit`` repartitions, newest first, with their steps; those before an id."""
        newest = newest_of(self._mine(), repartitions, limit, before)
        with reading(self._engine) as connection:
            return _repartitions(connection, newest)

    def find(self, repartition_id: int) -> Repartition:
        """The repartition with that id. Raises InvalidInputError (SW-NAME-UNKNOWN) if there is
        none.
        """
        with reading(self._engine) as connection:
            return self._repartition(connection, repartition_id)

    def begin_step(self, repartition_id: int, step: Next) -> int:
        """Record that a step begins; return the record's id, for ``end_step``."""
        values = {"repartition_id": repartition_id, "step": step.step, "direction": step.direction}
        made = insert(repartition_steps).values(values).returning(repartition_steps.c.id)
        with writing(self._engine) as connection:
            return int(connection.execute(made).scalar_one())

    def end_step(self, record_id: int, outcome: RepartitionStepOutcome, words: str) -> None:
        """Record the step's outcome: done or failed."""
        ended = {"outcome": outcome, "words": words, "ended_at": func.now()}
        with writing(self._engine) as connection:
            connection.execute(
                update(repartition_steps).where(repartition_steps.c.id == record_id).values(ended)
            )

    def keep_texts(self, repartition_id: int, slurm_conf: str, gres_conf: str) -> Repartition:
        """Keep both files as they were before Slurm was told; texts kept earlier stay."""
        first = {"slurm_conf": slurm_conf, "gres_conf": gres_conf}
        with writing(self._engine) as connection:
            connection.execute(
                update(repartitions)
                .where(repartitions.c.id == repartition_id, repartitions.c.gres_conf.is_(None))
                .values(first)
            )
            return self._repartition(connection, repartition_id)

    def finish(self, repartition_id: int, state: RepartitionState, error: str) -> None:
        """Record the repartition's state. Unless it is running or stuck, it has ended: then both
        files' texts are deleted.
        """
        values: dict[str, Any] = {"state": state, "error": error, "ended_at": None}
        if state not in UNFINISHED:
            values |= {"ended_at": func.now(), "slurm_conf": None, "gres_conf": None}
        with writing(self._engine) as connection:
            connection.execute(
                update(repartitions).where(repartitions.c.id == repartition_id).values(values)
            )

    def forget(self, before_s: float, most: int) -> int:
        """Delete at most ``most`` repartitions that ended before ``before_s``, the oldest first;
        return how many.
        """
        of = repartitions.c
        old = (
            select(of.id)
            .where(of.cluster == self._cluster, of.ended_at < func.to_timestamp(before_s))
            .order_by(of.id)
            .limit(most)
        )
        with writing(self._engine) as connection:
            connection.execute(DEADLINE)
            ids = connection.execute(old).scalars().all()
            connection.execute(
                delete(repartition_steps).where(repartition_steps.c.repartition_id.in_(ids))
            )
            connection.execute(delete(repartitions).where(of.id.in_(ids)))
        return len(ids)

    def step_seconds(self) -> Mapping[RepartitionStep, list[float]]:
        """Seconds that each step forward took in repartitions that are done, the newest first."""
        of = repartition_steps.c
        seconds = extract("epoch", of.ended_at - of.started_at).label("seconds")
        found = (
            select(of.step, seconds)
            .join(repartitions, repartitions.c.id == of.repartition_id)
            .where(
                repartitions.c.cluster == self._cluster,
                repartitions.c.state == RepartitionState.DONE,
            )
            .where(of.direction == Direction.FORWARD, of.outcome == RepartitionStepOutcome.DONE)
            .order_by(of.id.desc())
            .limit(_NEWEST_STEPS)
        )
        with reading(self._engine) as connection:
            rows = connection.execute(found).all()
        return {
            name: [float(row.seconds) for row in rows if row.step == name]
            for name in RepartitionStep
        }

    def save_inventory(self, node: str, inventory: Mapping[str, Any]) -> None:
        """Save the last look at a node, in place of the one before."""
        values = {"cluster": self._cluster, "node": node, "inventory": dict(inventory)}
        seen = insert(mig_nodes).values(values)
        newer = {"inventory": seen.excluded.inventory, "seen_at": func.now()}
        with writing(self._engine) as connection:
            connection.execute(
                seen.on_conflict_do_update(
                    index_elements=[mig_nodes.c.cluster, mig_nodes.c.node], set_=newer
                )
            )

    def inventories(self) -> Mapping[str, NodeSurvey]:
        """The last look at each node, by name."""
        of = mig_nodes.c
        seen_s = extract("epoch", of.seen_at).label("seen_s")
        inventory = cast(of.inventory, Text).label("inventory")
        mine = select(of.node, seen_s, inventory).where(of.cluster == self._cluster)
        with reading(self._engine) as connection:
            rows = connection.execute(mine).all()
        return {row.node: NodeSurvey(float(row.seen_s), row.inventory) for row in rows}

    def _mine(self) -> Select[Any]:
        return entries_of(repartitions, self._cluster)

    def _repartition(self, connection: Connection, repartition_id: int) -> Repartition:
        found = _repartitions(connection, self._mine().where(repartitions.c.id == repartition_id))
        if not found:
            raise InvalidInputError(
                Code.NAME_UNKNOWN,
                f"There is no repartition {repartition_id}.",
                "List them: slicewise repartition history",
            )
        return found[0]


def _repartitions(connection: Connection, wanted: Select[Any]) -> tuple[Repartition, ...]:
    found = with_steps(connection, wanted, repartition_steps, repartition_steps.c.repartition_id)
    return tuple(_repartition_of(row, tuple(map(_record, steps))) for row, steps in found)


def _repartition_of(row: Row[Any], steps: tuple[RepartitionStepRecord, ...]) -> Repartition:
    return Repartition(
        node=row.node,
        gpu=row.gpu_uuid,
        before=_read(row.before),
        after=_read(row.after),
        moves=tuple(row.moves),
        reason=row.reason,
        gain_millislice_s=row.gain_millislice_s,
        drained_millislice_s=row.drained_millislice_s,
        ends=tuple(row.ends),
        repartition_id=row.id,
        author=row.author,
        state=RepartitionState(row.state),
        error=row.error,
        started_s=float(row.started_s),
        ended_s=seconds(row.ended_s),
        slurm_conf=row.slurm_conf,
        gres_conf=row.gres_conf,
        steps=steps,
    )


def _record(row: Row[Any]) -> RepartitionStepRecord:
    return RepartitionStepRecord(
        step=RepartitionStep(row.step),
        direction=Direction(row.direction),
        outcome=RepartitionStepOutcome(row.outcome),
        started_s=float(row.started_s),
        ended_s=seconds(row.ended_s),
        words=row.words,
        record_id=row.id,
    )


def _written(placements: Sequence[Placement]) -> list[list[str | int]]:
    return [[placement.profile, placement.start, placement.size] for placement in placements]


def _read(placements: Sequence[tuple[str, int, int]]) -> tuple[Placement, ...]:
    return tuple(Placement(*placement) for placement in placements)
