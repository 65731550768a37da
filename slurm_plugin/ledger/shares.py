"""Divides hours of shared services' runs among the tenants that asked them."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, cast, func, select, text
from sqlalchemy.dialects.postgresql import JSONB

from slicewise.cluster.language.audience import audience_of
from slicewise.cluster.language.token_weights import TokenWeights
from slicewise.cluster.language.units import Millislices
from slicewise.cluster.runtime.database import reading, writing
from slicewise.slurm_plugin.ledger import share_queries
from slicewise.slurm_plugin.ledger.base import LedgerPart
from slicewise.slurm_plugin.rules.accounting.shared_runs import (
    CORRECTED_S,
    Divided,
    Division,
    DueHour,
    HourUse,
    SharedRun,
    values,
)
from slicewise.slurm_plugin.rules.accounting.shares import Share, TimeKind
from slicewise.slurm_plugin.rules.accounting.types import RunKey, ShareLine

Due = Callable[[SharedRun], Iterable[DueHour]]
"""Which hours of a run are to be divided."""


@dataclass(frozen=True)
class WantedShares:
    """Which shares a reader wants: of days that begin from ``since_s`` up to ``until_s``.

    Attributes:
        tenant: whose they are, or who pays for them; None: of all.
        tenants: which tenants' the reader may see; None: all.
        after: begin of the day, tenant, payer and service of the last line of the page before.
    """

    tenant: str | None = None
    tenants: Collection[str] | None = None
    since_s: int = 0
    until_s: int | None = None
    after: tuple[int, str, str, str] | None = None


class Shares(LedgerPart):
    """Divides hours, each once for what is known of it."""

    def due(self, now_s: int, due: Due, most: int) -> Sequence[tuple[DueHour, HourUse]]:
        """The hours that ``due`` names, at most so many, with what was used in them.

        Read in one look. Hours more than ``CORRECTED_S`` before ``now_s`` stay as they are.
        """
        since = {"cluster": self._cluster, "since_s": now_s - CORRECTED_S}
        with reading(self._engine) as connection:
            found = connection.execute(text(share_queries.RUNS), since).all()
            hours = [hour for row in found for hour in due(_run(self._cluster, row))][:most]
            uses = self._uses(connection, hours)
        return [(hour, uses[hour.run.run_id, hour.hour_s]) for hour in hours]

    def _uses(
        self, connection: Connection, hours: Sequence[DueHour]
    ) -> Mapping[tuple[int, int], HourUse]:
        if not hours:
            return {}
        wanted = json.dumps(
            [
                {
                    "run_id": hour.run.run_id,
                    "hour_s": hour.hour_s,
                    "from_s": hour.from_s,
                    "until_s": hour.until_s,
                }
                for hour in hours
            ]
        )
        connection.execute(text(share_queries.SETTING))
        given = {"cluster": self._cluster, "due": wanted}
        result = connection.execute(text(share_queries.USES), given)
        return {(row.run_id, row.hour_s): _use(row) for row in result}

    def book(self, divisions: Sequence[Division], zone: str) -> int:
        """Book the divisions of hours, all or none; return how many were booked.

        An hour that was divided otherwise meanwhile is left out: it is decided again. ``zone`` is
        the time zone of the days to which the hours belong.
        """
        if not divisions:
            return 0
        hours = [values(division) for division in divisions]
        share = select(func.slicewise.share(cast(hours, JSONB), zone))
        with writing(self._engine) as connection:
            return len(connection.execute(share).scalar_one())

    def lines(self, wanted: WantedShares, zone: str, most: int) -> tuple[ShareLine, ...]:
        """So many lines of shares by the day. Raises UnreachableError (SW-DATABASE-DOWN) if it
        takes too long.
        """
        start_s, tenant, payer, service = wanted.after or (-1, "", "", "")
        given = {
            "cluster": self._cluster,
            "zone": zone,
            "tenant": wanted.tenant,
            "tenants": None if wanted.tenants is None else sorted(wanted.tenants),
            "since_s": wanted.since_s,
            "until_s": wanted.until_s,
            "after_s": start_s,
            "after_tenant": tenant,
            "after_payer": payer,
            "after_service": service,
            "most": most,
        }
        with self._reading() as connection:
            rows = connection.execute(text(share_queries.LINES), given)
            return tuple(ShareLine(*row) for row in rows)

    def paid_since(self, payer: str, since_s: int) -> int:
        """Millislice-seconds that a budget has paid since then for shares of others' runs.

        Less what others took of the runs that it pays for, so it may be below 0.
        """
        given = {"cluster": self._cluster, "payer": payer, "since_s": since_s}
        with reading(self._engine) as connection:
            return int(connection.execute(text(share_queries.PAID_SINCE), given).scalar_one())


def _run(cluster: str, row: Any) -> SharedRun:
    return SharedRun(
        row.id,
        RunKey(cluster, row.job_id, row.start_s),
        row.tenant,
        row.payer,
        Millislices(row.cost_millislices),
        None if row.is_open else row.end_s,
        row.used,
        tuple((from_s, audience_of(directives)) for from_s, directives in row.submitted or ()),
        {int(hour_s): requests for hour_s, requests in (row.counted or {}).items()},
        {
            int(hour_s): Divided(number, requests, amount, TokenWeights(**weights), idle)
            for hour_s, (number, requests, amount, weights, idle) in (row.divided or {}).items()
        },
        f"{row.tenant}/{row.name}" if row.name else "",
    )


def _use(row: Any) -> HourUse:
    booked: dict[Share, int] = {}
    for tenant, part, amount, _ in row.booked or ():
        share = Share(tenant, TimeKind(part))
        booked[share] = booked.get(share, 0) + amount
    return HourUse(
        row.requests,
        row.busy_ms,
        {payer: tuple(tokens) for payer, tokens in (row.tokens or {}).items()},
        booked,
        {tenant: payer for tenant, _, _, payer in row.booked or ()},
    )
