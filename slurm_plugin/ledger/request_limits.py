"""Keeps limits on the requests of tenants, persons and keys."""

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.dialects.postgresql import insert

from slicewise.cluster.rpc.limit_messages import (
    LimitChangeRequest,
    LimitRank,
    RequestLimits,
    SubjectLimits,
)
from slicewise.cluster.rpc.usage_messages import AllowanceSubject
from slicewise.cluster.runtime.database import reading, writing
from slicewise.slurm_plugin.ledger.base import DEADLINE, LedgerPart
from slicewise.slurm_plugin.ledger.request_limit_tables import request_limits
from slicewise.slurm_plugin.rules.services.limit_layers import changed_layers, together

_NONE = RequestLimits()


class LimitsOfRequests(LedgerPart):
    """Limits on requests. Each change is a row of its own; a subject's newest one of each rank
    holds.
    """

    def standing_limits(self) -> tuple[SubjectLimits, ...]:
        """The limits of each subject that has any, in order."""
        with reading(self._engine) as connection:
            connection.execute(DEADLINE)
            rows = connection.execute(self._newest()).all()
        subjects = [
            SubjectLimits(**subject.model_dump(), limits=together(map(_limits_of, layers)))
            for subject, layers in groupby(rows, _subject_of)
        ]
        return tuple(subject for subject in subjects if subject.limits != _NONE)

    def change_limits(
        self, subject: AllowanceSubject, change: LimitChangeRequest, author: str, rank: LimitRank
    ) -> None:
        """Change a subject's limits as somebody of that rank. Changes come one after the other."""
        column = request_limits.c
        query = self._newest().where(
            column.tenant == subject.tenant,
            column.person == subject.person,
            column.key_id == subject.key_id,
        )
        with writing(self._engine) as connection:
            connection.execute(DEADLINE)
            connection.execute(select(func.slicewise.lock_policy(f"limits of {self._cluster}")))
            before: Mapping[LimitRank, RequestLimits] = {
                row.rank: _limits_of(row) for row in connection.execute(query)
            }
            about = {"cluster": self._cluster, **_subject_of(subject).model_dump()}
            for changed, limits in changed_layers(before, change, rank).items():
                values = {**about, **limits.model_dump(), "rank": changed, "author": author}
                connection.execute(insert(request_limits).values(values))

    def _newest(self) -> Select[Any]:
        column = request_limits.c
        subject = (column.tenant, column.person, column.key_id, column.rank)
        ids = select(func.max(column.id)).where(column.cluster == self._cluster).group_by(*subject)
        return select(request_limits).where(column.id.in_(ids)).order_by(*subject)


def _subject_of(row: Any) -> AllowanceSubject:
    return AllowanceSubject(tenant=row.tenant, person=row.person, key_id=row.key_id)


def _limits_of(row: Any) -> RequestLimits:
    return RequestLimits(**{name: getattr(row, name) for name in RequestLimits.model_fields})
