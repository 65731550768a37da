"""Reads sums of requests and tokens, for people."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Select,
    and_,
    case,
    cast,
    func,
    literal,
    or_,
    select,
    text,
    tuple_,
)

from slicewise.cluster.language.persons import NOBODY
from slicewise.cluster.runtime.database import reading
from slicewise.slurm_plugin.common.usage_requests import (
    LINE_FIELDS,
    TokenLine,
    TokenUsageRequest,
    Unattributed,
)
from slicewise.slurm_plugin.ledger.base import LedgerPart
from slicewise.slurm_plugin.ledger.usage_tables import engine_counters, usage_costs, usage_hours

_DEADLINE = text("SET LOCAL statement_timeout = '8s'")
_MOST_SERVICES = 1000
_MOST = 2**53 - 1
"""Engines say what they like: more is shown as this, and hides no other's sums."""
_HOUR = usage_costs.c
_OWNER = func.split_part(_HOUR.service, "/", 1)


@dataclass(frozen=True)
class UsageReader:
    """Who reads.

    Attributes:
        user: sees the requests of the person of that name.
        owned: tenants whose services the user may look at; None is all, with all names.
    """

    user: str
    owned: Collection[str] | None


class UsageReads(LedgerPart):
    """Sums of usage. Raises UnreachableError (SW-DATABASE-DOWN) if PostgreSQL takes too long."""

    def lines(
        self, request: TokenUsageRequest, reader: UsageReader, zone: str, most: int
    ) -> tuple[TokenLine, ...]:
        """So many lines of what the reader may see, in the order of what they are about."""
        with reading(self._engine) as connection:
            connection.execute(_DEADLINE)
            seen = self._seen(connection, request, reader)
            page = self._page(request, reader, zone, seen).limit(most)
            return tuple(_line(row) for row in connection.execute(page).mappings())

    def _seen(
        self, connection: Connection, request: TokenUsageRequest, reader: UsageReader
    ) -> ColumnElement[bool]:
        """What a reader may see.

        Costs are divided within a payer's hour of a run: so the payers of the reader's own requests
        are named, and no others' hours are read.
        """
        if reader.owned is None:
            return literal(True)
        hour, is_owned = usage_hours.c, _OWNER.in_(reader.owned)
        own = select(hour.payer).where(hour.cluster == self._cluster, hour.person == reader.user)
        own = own.where(hour.hour_s >= request.since_s // 3600 * 3600).distinct()
        payers = connection.execute(own).scalars().all()
        return and_(
            or_(_HOUR.payer.in_(payers), is_owned), or_(_HOUR.person == reader.user, is_owned)
        )

    def _page(
        self,
        request: TokenUsageRequest,
        reader: UsageReader,
        zone: str,
        is_seen: ColumnElement[bool],
    ) -> Select[Any]:
        named = _named(reader, zone)
        fields = LINE_FIELDS[request.by]
        about = tuple(named[field].label(field) for field in fields)
        query = (
            select(
                *about,
                *(
                    cast(func.sum(_HOUR[name]), BigInteger).label(name)
                    for name in (
                        *("requests", "prompt_tokens", "cached_prompt_tokens", "output_tokens"),
                        *("first_tokens", "first_token_ms", "millislice_s"),
                    )
                ),
            )
            .where(_HOUR.cluster == self._cluster, is_seen, *_asked(request, named))
            .group_by(*about)
        )
        sums = query.subquery()
        keys = tuple(sums.c[field].collate("C") for field in fields)
        page: Select[Any] = select(sums).order_by(*keys)
        if request.after is not None:
            page = page.where(tuple_(*keys) > tuple_(*(literal(word) for word in request.after)))
        return page

    def unattributed(
        self, request: TokenUsageRequest, reader: UsageReader
    ) -> tuple[Unattributed, ...]:
        """What engines counted and nobody's request has, of runs that were seen in that time."""
        run = engine_counters.c
        posted = (
            select(
                func.coalesce(
                    func.sum(
                        usage_hours.c.prompt_tokens
                        - case((run.counts_cached, 0), else_=usage_hours.c.cached_prompt_tokens)
                    ),
                    0,
                ).label("prompts"),
                func.coalesce(func.sum(usage_hours.c.output_tokens), 0).label("outputs"),
            )
            .where(
                usage_hours.c.cluster == run.cluster,
                usage_hours.c.array_job_id == run.array_job_id,
                usage_hours.c.index == run.index,
                usage_hours.c.run_start_s == run.run_start_s,
            )
            .lateral("posted")
        )
        prompts = func.sum(func.greatest(0, run.prompt_tokens - posted.c.prompts))
        outputs = func.sum(func.greatest(0, run.output_tokens - posted.c.outputs))
        bounded = (cast(func.least(sum_, _MOST), BigInteger) for sum_ in (prompts, outputs))
        query = (
            select(run.service, *bounded)
            .join(posted, literal(True))
            .where(run.cluster == self._cluster)
            .where(run.seen_at >= func.to_timestamp(request.since_s))
            .group_by(run.service)
            .having(prompts + outputs > 0)
            .order_by(run.service)
            .limit(_MOST_SERVICES)
        )
        if request.until_s is not None:
            query = query.where(run.run_start_s < request.until_s)
        if request.service is not None:
            query = query.where(run.service == request.service)
        if reader.owned is not None:
            query = query.where(func.split_part(run.service, "/", 1).in_(reader.owned))
        with reading(self._engine) as connection:
            connection.execute(_DEADLINE)
            return tuple(
                Unattributed(service=service, prompt_tokens=prompts, output_tokens=outputs)
                for service, prompts, outputs in connection.execute(query)
            )


def _named(reader: UsageReader, zone: str) -> dict[str, ColumnElement[str]]:
    """What a line may be about, as the reader may see it."""
    day = func.timezone(zone, func.to_timestamp(_HOUR.hour_s))
    seen: dict[str, ColumnElement[str]] = {
        "day": func.to_char(day, "YYYY-MM-DD"),
        "service": _HOUR.service,
        "tenant": _HOUR.payer,
        "person": _HOUR.person,
        "key_id": _HOUR.key_id,
    }
    if reader.owned is not None:
        is_own = _HOUR.person == reader.user
        for name in ("person", "key_id"):
            seen[name] = case((is_own, seen[name]), else_=NOBODY)
    return seen


def _asked(
    request: TokenUsageRequest, named: dict[str, ColumnElement[str]]
) -> list[ColumnElement[bool]]:
    asked: list[ColumnElement[bool]] = [_HOUR.hour_s >= request.since_s // 3600 * 3600]
    if request.until_s is not None:
        asked.append(_HOUR.hour_s < request.until_s)
    words = {
        "tenant": request.tenant,
        "person": request.person,
        "key_id": request.key_id,
        "service": request.service,
    }
    asked.extend(named[name] == word for name, word in words.items() if word is not None)
    return asked


def _line(row: Any) -> TokenLine:
    columns = dict(row)
    count, waited_ms = columns.pop("first_tokens"), columns.pop("first_token_ms")
    return TokenLine(**columns, first_token_ms=round(waited_ms / count, 1) if count else None)
