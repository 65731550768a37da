"""Keeps limits on the requests of tenants, persons and keys."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Select, func, select
from sqlalchemy.dialects.postgresql import insert

from slicewise.cluster.rpc.limit_messages import RequestLimits, SubjectLimits
from slicewise.cluster.rpc.usage_messages import AllowanceSubject
from slicewise.cluster.runtime.database import reading, writing
from slicewise.slurm_plugin.ledger.base import DEADLINE, LedgerPart
from slicewise.slurm_plugin.ledger.request_limit_tables import request_limits

_NONE = RequestLimits()


class LimitsOfRequests(LedgerPart):
    """Limits on requests. Each change is a row of its own; a subject's newest one holds."""

    def standing_limits(self) -> tuple[SubjectLimits, ...]:
        """The limits of each subject that has any, in order."""
        with reading(self._engine) as connection:
            connection.execute(DEADLINE)
            subjects = [_of_subject(row) for row in connection.execute(self._newest())]
        return tuple(subject for subject in subjects if subject.limits != _NONE)

    def change_limits(
        self,
        subject: AllowanceSubject,
        change: Callable[[SubjectLimits], RequestLimits],
        author: str,
        *,
        by_operator: bool,
    ) -> None:
        """Give a subject the limits that ``change`` makes of those that hold.

        Changes come one after the other. What ``change`` raises leaves all as it was.
        """
        with writing(self._engine) as connection:
            connection.execute(DEADLINE)
            connection.execute(select(func.slicewise.lock_policy(f"limits of {self._cluster}")))
            before = self._held(connection, subject)
            limits = change(before)
            if limits == before.limits and by_operator == before.by_operator:
                return
            values = {
                "cluster": self._cluster,
                **_subject_of(subject).model_dump(),
                **limits.model_dump(),
                "by_operator": by_operator,
                "author": author,
            }
            connection.execute(insert(request_limits).values(values))

    def _held(self, connection: Connection, subject: AllowanceSubject) -> SubjectLimits:
        column, named = request_limits.c, _subject_of(subject)
        query = self._newest().where(
            column.tenant == named.tenant,
            column.person == named.person,
            column.key_id == named.key_id,
        )
        row = connection.execute(query).one_or_none()
        if row is None:
            return SubjectLimits(**named.model_dump(), limits=_NONE, by_operator=False)
        return _of_subject(row)

    def _newest(self) -> Select[Any]:
        column = request_limits.c
        subject = (column.tenant, column.person, column.key_id)
        ids = select(func.max(column.id)).where(column.cluster == self._cluster).group_by(*subject)
        return select(request_limits).where(column.id.in_(ids)).order_by(*subject)


def _subject_of(subject: AllowanceSubject) -> AllowanceSubject:
    return AllowanceSubject(tenant=subject.tenant, person=subject.person, key_id=subject.key_id)


def _of_subject(row: Any) -> SubjectLimits:
    limits = {name: getattr(row, name) for name in RequestLimits.model_fields}
    return SubjectLimits(
        tenant=row.tenant,
        person=row.person,
        key_id=row.key_id,
        limits=RequestLimits(**limits),
        by_operator=row.by_operator,
    )
