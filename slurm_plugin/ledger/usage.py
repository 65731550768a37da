"""Books what requests used, and keeps what engines counted."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from types import MappingProxyType

from sqlalchemy import func, literal, select, text
from sqlalchemy.dialects.postgresql import JSONB

from slicewise.cluster.rpc.usage_messages import EngineCounters, UsageRecord
from slicewise.cluster.runtime.database import writing
from slicewise.slurm_plugin.ledger.base import DEADLINE, LedgerPart
from slicewise.slurm_plugin.ledger.booking import book


@dataclass(frozen=True)
class ForgottenDay:
    """A day in which a person was forgotten, None if there is none; and in how many records."""

    day: date | None
    records: int


_POST = "SELECT slicewise.post_usage($1)"


class Usage(LedgerPart):
    """Records of requests, each booked once for its gateway and number."""

    def post(
        self,
        boot: str,
        records: Sequence[UsageRecord],
        zone: str,
        payers: Mapping[str, str] = MappingProxyType({}),
    ) -> frozenset[int]:
        """Book all records in one transaction or none; return the numbers of those that are new.

        Records must have been checked; ``zone`` is the calendar's time zone, by which months begin.
        Posting the same ones again changes nothing. ``payers`` are the tenants whose budgets of
        tokens pay, by tenant; one that is missing pays itself.
        """
        if not records:
            return frozenset()
        batch = {
            "cluster": self._cluster,
            "boot": boot,
            "zone": zone,
            "records": [record.model_dump() for record in records],
            "budgets": {
                name: payer
                for name in {record.payer for record in records}
                if (payer := payers.get(name, name)) != name
            },
        }
        return frozenset(book(self._database.booking, _POST, json.dumps(batch)))

    def note_counters(self, runs: Sequence[EngineCounters]) -> None:
        """Keep what engines have counted; of each run the largest that was seen."""
        counted = literal([run.model_dump() for run in runs], JSONB)
        noted = func.slicewise.note_engine_counters(self._cluster, counted)
        with writing(self._engine) as connection:
            connection.execute(DEADLINE)
            connection.execute(select(noted))

    def forget(self, before_s: float, most: int) -> int:
        """Delete that many records of requests that ended before; return how many. Sums stay."""
        gone = func.slicewise.forget_usage(self._cluster, int(before_s * 1000), most)
        with writing(self._engine) as connection:
            return int(connection.execute(select(gone)).scalar_one())

    def bar_person(self, person: str, tenant: str | None = None) -> None:
        """Bar a person's name from records of requests that have ended, whoever tells of them yet.

        In one tenant or in all (None).
        """
        barred = func.slicewise.bar_person(self._cluster, tenant or "", person)
        with writing(self._engine) as connection:
            connection.execute(DEADLINE)
            connection.execute(select(barred))

    def forget_person(self, person: str, tenant: str | None, after: date | None) -> ForgottenDay:
        """Put ``-`` in the place of a person's name and keys, in the first day after ``after``.

        In one tenant or in all. Every sum stays what it was. One day at a time: no lock is long.
        """
        gone = func.slicewise.forget_person(self._cluster, tenant or "", person, after)
        query = select(text("of_day, coalesce(records, 0)")).select_from(gone.alias("gone"))
        with writing(self._engine) as connection:
            return ForgottenDay(*connection.execute(query).one())
