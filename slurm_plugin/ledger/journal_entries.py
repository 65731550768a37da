"""Reads the ledger's journals: entries that begin and end, each with its steps."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Column, Connection, Row, Select, Table, extract, select


def entries_of(entries: Table, cluster: str) -> Select[Any]:
    """Select a cluster's entries, with Unix seconds of their begin and end, for ``with_steps``."""
    of = entries.c
    return select(
        entries,
        extract("epoch", of.started_at).label("started_s"),
        extract("epoch", of.ended_at).label("ended_s"),
    ).where(of.cluster == cluster)


def newest_of(wanted: Select[Any], entries: Table, limit: int, before: int | None) -> Select[Any]:
    """Select the newest ``limit`` of the ``wanted`` entries, those before an id if one is given."""
    earlier = wanted if before is None else wanted.where(entries.c.id < before)
    return earlier.order_by(entries.c.id.desc()).limit(limit)


def with_steps(
    connection: Connection, wanted: Select[Any], steps: Table, entry_id: Column[Any]
) -> list[tuple[Row[Any], list[Row[Any]]]]:
    """The ``wanted`` entries in order, each with its steps in order.

    ``entry_id`` is the column of ``steps`` that names the entry.
    """
    entries = connection.execute(wanted).all()
    found: defaultdict[int, list[Row[Any]]] = defaultdict(list)
    for step in _steps(connection, [entry.id for entry in entries], steps, entry_id):
        found[getattr(step, entry_id.name)].append(step)
    return [(entry, found[entry.id]) for entry in entries]


def _steps(
    connection: Connection, entry_ids: Sequence[int], steps: Table, entry_id: Column[Any]
) -> Sequence[Row[Any]]:
    of = steps.c
    return connection.execute(
        select(
            steps,
            extract("epoch", of.started_at).label("started_s"),
            extract("epoch", of.ended_at).label("ended_s"),
        )
        .where(entry_id.in_(entry_ids))
        .order_by(of.id)
    ).all()
