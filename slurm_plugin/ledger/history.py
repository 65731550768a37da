"""Keeps figures of ten seconds, sums them up by the minute and hour, and deletes what is old.

A row is never changed: each is of one look, or made of all the rows of a time that is over. So
everything here may be done twice.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, fields
from itertools import pairwise
from typing import Any

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Connection,
    Double,
    Select,
    Table,
    Text,
    and_,
    bindparam,
    cast,
    delete,
    func,
    literal,
    select,
    true,
    tuple_,
)
from sqlalchemy.dialects.postgresql import aggregate_order_by, insert
from sqlalchemy.sql.selectable import NamedFromClause

from slicewise.cluster.runtime.database import reading, writing
from slicewise.slurm_plugin.ledger.base import DEADLINE, LedgerPart
from slicewise.slurm_plugin.ledger.history_tables import (
    HISTORY,
    MAX,
    SAMPLES,
    history_cluster,
    history_services,
    history_subjects,
    history_tenants,
)
from slicewise.slurm_plugin.rules.common.history import (
    HOUR_S,
    MINUTE_S,
    STORED_S,
    TEN_S,
    ClusterFigures,
    HistorySample,
    HistorySteps,
    ServiceFigures,
    TenantFigures,
)

_MOST = 2**31 - 1
"""Millislices that a column holds: two million slices. More is written as this."""
_KEYS = ("subject_id", "step_s", "at_s", SAMPLES)
_STEPS_AT_ONCE = {MINUTE_S: 15, HOUR_S: 4}
"""Steps that one statement sums up at most, after a time in which none was: half a second's work
with 1,000 tenants."""

Figures = ClusterFigures | TenantFigures | ServiceFigures
HistoryRow = Mapping[str, float | None]
"""A figure's mean by its name, and its maximum by this name after ``max_``."""


class History(LedgerPart):
    """Figures over time. Several daemons may write the same: what is there stays."""

    def add(self, samples: Sequence[HistorySample]) -> None:
        """Write what was seen; of ten seconds that have rows nothing is changed."""
        with writing(self._engine) as connection:
            connection.execute(DEADLINE)
            for sample in samples:
                self._name(connection, sample)
                self._write(connection, history_cluster, sample.at_s, (sample.cluster,))
                self._write(connection, history_tenants, sample.at_s, sample.tenants)
                self._write(connection, history_services, sample.at_s, sample.services)

    def sum_up(self, now_s: int) -> None:
        """Make rows of the next minutes and hours that were over at ``now_s``."""
        with writing(self._engine) as connection:
            connection.execute(DEADLINE)
            up_to_s = now_s
            for finer_s, step_s in pairwise(STORED_S):
                up_to_s = self._sum_up(connection, finer_s, step_s, up_to_s)

    def forget(self, now_s: int, kept_s: Mapping[int, int], most: int) -> bool:
        """Delete at most ``most`` old rows of each table and step; return whether all are gone.

        ``kept_s``: how long each step is kept, in seconds. Rows that are not summed up stay,
        however old.
        """
        done = []
        for step_s, coarser_s in zip(STORED_S, (*STORED_S[1:], None), strict=True):
            with writing(self._engine) as connection:
                connection.execute(DEADLINE)
                before_s = now_s - kept_s[step_s]
                if coarser_s is not None:
                    newest_s = self._newest_s(connection, coarser_s, now_s)
                    before_s = min(before_s, 0 if newest_s is None else newest_s + coarser_s)
                gone = [
                    self._forget(connection, table, step_s, before_s, most) for table in HISTORY
                ]
                done.append(max(gone) < most)
        return all(done)

    def forget_names(self) -> None:
        """Delete the names of what has no rows any more."""
        named = history_subjects.c
        used = (
            select(table.c.subject_id).where(table.c.subject_id == named.id) for table in HISTORY
        )
        unused = (~table.exists() for table in used)
        with writing(self._engine) as connection:
            connection.execute(DEADLINE)
            # While another leader adds rows, their names seem unused. Who adds names has a lock on
            # their table from then on, and this waits for its end.
            connection.exec_driver_sql(f"LOCK TABLE {history_subjects} IN SHARE ROW EXCLUSIVE MODE")
            connection.execute(
                delete(history_subjects).where(named.cluster == self._cluster, *unused)
            )

    def knows(self, tenant: str, service: str) -> bool:
        """Whether anything was written about the tenant, or the service."""
        with reading(self._engine) as connection:
            return connection.execute(self._subject(tenant, service)).first() is not None

    def rows(self, tenant: str, service: str, steps: HistorySteps) -> Mapping[int, HistoryRow]:
        """The figures of a service, of a tenant with service "", or of the cluster with both "",
        and by ``SAMPLES`` the number of looks that they are made of.

        By the Unix second at which each of the steps begins; those without rows are left out.
        """
        if not steps.times_s:
            return {}
        since_s, until_s = steps.times_s[0], steps.times_s[-1] + steps.step_s
        table = history_services if service else history_tenants if tenant else history_cluster
        of = table.c
        begin = of.at_s - of.at_s % steps.step_s
        query = (
            select(begin.label("at_s"), func.sum(of.samples).label(SAMPLES), *_aggregates(table))
            .where(of.subject_id == self._subject(tenant, service).scalar_subquery())
            .where(of.step_s == steps.stored_s, of.at_s >= since_s, of.at_s < until_s)
            .group_by(begin)
        )
        with reading(self._engine) as connection:
            found = connection.execute(query).mappings().all()
        return {row["at_s"]: {k: v for k, v in row.items() if k != "at_s"} for row in found}

    def _subject(self, tenant: str, service: str) -> Select[tuple[int]]:
        named = history_subjects.c
        mine = (named.cluster == self._cluster, named.tenant == tenant, named.service == service)
        return select(named.id).where(*mine)

    def _name(self, connection: Connection, sample: HistorySample) -> None:
        """Give numbers to what has none yet. Others' are left: an identity would be used up."""
        seen: tuple[Figures, ...] = (sample.cluster, *sample.tenants, *sample.services)
        given = _given("given", tenant=Text(), service=Text())
        named = history_subjects.c
        known = select(named.id).where(
            named.cluster == self._cluster,
            named.tenant == given.c.tenant,
            named.service == given.c.service,
        )
        new = (
            select(literal(self._cluster), given.c.tenant, given.c.service)
            .where(~known.exists())
            .order_by(given.c.tenant, given.c.service)
        )
        statement = insert(history_subjects).from_select(("cluster", "tenant", "service"), new)
        tenants, services = zip(*map(_name_of, seen), strict=True)
        values = {"tenant": list(tenants), "service": list(services)}
        connection.execute(statement.on_conflict_do_nothing(), values)

    def _write(
        self, connection: Connection, table: Table, at_s: int, rows: Sequence[Figures]
    ) -> None:
        if not rows:
            return
        figures = [column for column in table.columns if column.name not in _KEYS]
        means = [column for column in figures if not column.name.startswith(MAX)]
        types = {column.name: column.type for column in means}
        given = _given("given", tenant=Text(), service=Text(), **types)
        named = history_subjects.c
        subject = and_(
            named.cluster == self._cluster,
            named.tenant == given.c.tenant,
            named.service == given.c.service,
        )
        values = [given.c[column.name.removeprefix(MAX)] for column in figures]
        seen = select(named.id, literal(TEN_S), literal(at_s), literal(1), *values).select_from(
            given.join(history_subjects, subject)
        )
        columns = (*_KEYS, *(column.name for column in figures))
        statement = insert(table).from_select(columns, seen).on_conflict_do_nothing()
        connection.execute(statement, _columns(rows, tuple(types)))

    def _newest_s(self, connection: Connection, step_s: int, now_s: int) -> int | None:
        """When the newest row begins, but for those of a clock that was ahead."""
        of = history_cluster.c
        mine = of.subject_id == self._subject("", "").scalar_subquery()
        newest = select(func.max(of.at_s)).where(mine, of.step_s == step_s, of.at_s < now_s)
        return connection.execute(newest).scalar_one_or_none()

    def _sum_up(self, connection: Connection, finer_s: int, step_s: int, up_to_s: int) -> int:
        """Sum up the next steps that are over at ``up_to_s``; return up to when all are."""
        newest_s, of = self._newest_s(connection, step_s, up_to_s), history_cluster.c
        oldest = select(func.min(of.at_s)).where(
            of.subject_id == self._subject("", "").scalar_subquery(),
            of.step_s == finer_s,
            of.at_s >= (0 if newest_s is None else newest_s + step_s),
        )
        over_s = up_to_s // step_s * step_s
        oldest_s: int | None = connection.execute(oldest).scalar_one_or_none()
        if oldest_s is None or oldest_s >= over_s:
            return over_s
        since_s = oldest_s // step_s * step_s
        until_s = min(over_s, since_s + _STEPS_AT_ONCE[step_s] * step_s)
        for table in HISTORY:
            self._sum_up_table(connection, table, (finer_s, step_s), (since_s, until_s))
        return until_s

    def _sum_up_table(
        self, connection: Connection, table: Table, steps: tuple[int, int], span: tuple[int, int]
    ) -> None:
        (finer_s, step_s), (since_s, until_s) = steps, span
        of, named = table.c, history_subjects.c
        begin = of.at_s - of.at_s % step_s
        aggregates = _aggregates(table)
        # One subject after the other by the key: the planner would rather read all of the table.
        sums = (
            select(begin.label("at_s"), func.sum(of.samples).label("samples"), *aggregates)
            .where(of.subject_id == named.id, of.step_s == finer_s)
            .where(of.at_s >= since_s, of.at_s < until_s)
            .group_by(begin)
            .lateral("sums")
        )
        of_each = (
            select(named.id, literal(step_s), *sums.c)
            .select_from(history_subjects.join(sums, true()))
            .where(named.cluster == self._cluster)
        )
        columns = (*_KEYS, *(aggregate.name for aggregate in aggregates))
        connection.execute(insert(table).from_select(columns, of_each).on_conflict_do_nothing())

    def _forget(
        self, connection: Connection, table: Table, step_s: int, before_s: int, most: int
    ) -> int:
        of, named = table.c, history_subjects.c
        old = (
            select(of.at_s)
            .where(of.subject_id == named.id, of.step_s == step_s, of.at_s < before_s)
            .limit(most)
            .lateral("old")
        )
        of_all = (
            select(named.id, literal(step_s), old.c.at_s)
            .select_from(history_subjects.join(old, true()))
            .where(named.cluster == self._cluster)
            .limit(most)
        )
        keys = tuple_(of.subject_id, of.step_s, of.at_s)
        return int(connection.execute(delete(table).where(keys.in_(of_all))).rowcount)


def _name_of(figures: Figures) -> tuple[str, str]:
    return (getattr(figures, "tenant", ""), getattr(figures, "service", ""))


def _given(name: str, **types: Any) -> NamedFromClause:
    """Rows whose columns come as one array each."""
    arrays = (bindparam(key, type_=ARRAY(kind)) for key, kind in types.items())
    return func.unnest(*arrays).table_valued(*types).render_derived(name)


def _columns(rows: Sequence[Figures], figures: Sequence[str]) -> Mapping[str, list[Any]]:
    """What ``_given`` takes: each figure of all rows."""
    tenants, services = zip(*map(_name_of, rows), strict=True)
    names = [field.name for field in fields(rows[0])]
    values = dict(zip(names, zip(*map(astuple, rows), strict=True), strict=True))
    return {"tenant": list(tenants), "service": list(services)} | {
        name: list(values[name] if name == "budget_left" else map(_bounded, values[name]))
        for name in figures
    }


def _bounded(value: float | None) -> float | None:
    """Cut off what a column can't hold; None for what is no number."""
    if value is None or not math.isfinite(value):
        return None
    return max(-_MOST, min(value, _MOST))


def _aggregates(table: Table) -> list[ColumnElement[Any]]:
    """Each figure of several rows: its mean, by the number of looks; its maximum; the last one."""
    return list(_each_aggregate(table))


def _each_aggregate(table: Table) -> Iterator[ColumnElement[Any]]:
    of = table.c
    for column in table.columns:
        if column.name in _KEYS:
            continue
        if column.name.startswith(MAX):
            found: ColumnElement[Any] = func.max(column)
        elif column.name == "budget_left":
            found = func.array_agg(aggregate_order_by(column, of.at_s.desc()))[1]
        else:
            known = column.is_not(None)
            whole = func.sum(cast(column, Double) * of.samples).filter(known)
            found = whole / func.sum(of.samples).filter(known)
        yield found.label(column.name)
