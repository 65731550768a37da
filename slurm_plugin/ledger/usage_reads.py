"""Reads sums of requests and tokens, for people."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Date,
    Select,
    TableClause,
    and_,
    case,
    cast,
    func,
    literal,
    or_,
    outerjoin,
    select,
    tuple_,
)
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from slicewise.cluster.language.persons import NOBODY
from slicewise.slurm_plugin.common.usage_requests import (
    LINE_FIELDS,
    TokenLine,
    TokenUsageRequest,
    Unattributed,
)
from slicewise.slurm_plugin.ledger.base import LedgerPart
from slicewise.slurm_plugin.ledger.usage_tables import (
    engine_counters,
    usage_costs,
    usage_days,
    usage_runs,
    usage_sums,
)

_MOST_SERVICES = 1000
_MOST = 2**53 - 1
"""Engines say what they like: more is shown as this, and hides no other's sums."""
Columns = ReadOnlyColumnCollection[str, Any]


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
        self,
        request: TokenUsageRequest,
        reader: UsageReader,
        zone: str,
        most: int,
        *,
        fields: Sequence[str] = (),
        between: tuple[Sequence[str], Sequence[str]] | None = None,
    ) -> tuple[TokenLine, ...]:
        """So many lines of what the reader may see, in the order of what they are about.

        That is what the request says, unless fields are named. ``between`` are what the first and
        the last one are about: the values of so many of the fields.
        """
        with self._reading() as connection:
            seen = self._seen(connection, request, reader, zone)
            about = fields or LINE_FIELDS[request.by]
            page = self._page(request, reader, zone, seen, fields=about, between=between).limit(
                most
            )
            return tuple(_line(row) for row in connection.execute(page).mappings())

    def _seen(
        self, connection: Connection, request: TokenUsageRequest, reader: UsageReader, zone: str
    ) -> ColumnElement[bool]:
        """What a reader may see.

        Costs are divided within a payer's day of a service: so the payers of the reader's own
        requests are named, and no others' days are read.
        """
        if reader.owned is None:
            return literal(True)
        costs, row = usage_costs.c, usage_days.c
        is_owned = func.split_part(costs.service, "/", 1).in_(reader.owned)
        own = select(row.payer).where(row.cluster == self._cluster, row.person == reader.user)
        own = own.where(*_within(row.day, request, zone)).distinct()
        payers = connection.execute(own).scalars().all()
        return and_(
            or_(costs.payer.in_(payers), is_owned), or_(costs.person == reader.user, is_owned)
        )

    def _page(
        self,
        request: TokenUsageRequest,
        reader: UsageReader,
        zone: str,
        is_seen: ColumnElement[bool],
        *,
        fields: Sequence[str],
        between: tuple[Sequence[str], Sequence[str]] | None,
    ) -> Select[Any]:
        columns = _view(request, reader).c
        named = _named(columns, reader)
        about = tuple(named[field].label(field) for field in fields)
        query = (
            select(
                *about,
                *(
                    cast(func.sum(columns[name]), BigInteger).label(name)
                    for name in (
                        *("requests", "prompt_tokens", "cached_prompt_tokens", "output_tokens"),
                        *("first_tokens", "first_token_ms", "millislice_s"),
                    )
                ),
            )
            .where(columns.cluster == self._cluster, is_seen)
            .where(*_within(columns.day, request, zone), *_asked(request, named))
            .group_by(*about)
        )
        sums = query.subquery()
        keys = tuple(sums.c[field].collate("C") for field in fields)
        page: Select[Any] = select(sums).order_by(*keys)
        if request.after is not None:
            page = page.where(tuple_(*keys) > tuple_(*map(literal, request.after)))
        if between is not None:
            first, last = (tuple_(*map(literal, words)) for words in between)
            about_keys = tuple_(*keys[: len(between[0])])
            page = page.where(about_keys >= first, about_keys <= last)
        return page

    def unattributed(
        self, request: TokenUsageRequest, reader: UsageReader
    ) -> tuple[tuple[Unattributed, ...], int]:
        """What engines counted and nobody's request has, of runs that were seen in that time.

        Of so many services at most; the second value is how many more there are.
        """
        run, posted = engine_counters.c, usage_runs.c
        is_same = and_(*(run[key.name] == key for key in usage_runs.primary_key))
        asked = posted.prompt_tokens - case(
            (run.counts_cached, 0), else_=posted.cached_prompt_tokens
        )
        prompts, outputs = (
            func.sum(func.greatest(0, counted - func.coalesce(known, 0)))
            for counted, known in (
                (run.prompt_tokens, asked),
                (run.output_tokens, posted.output_tokens),
            )
        )
        bounded = (cast(func.least(sum_, _MOST), BigInteger) for sum_ in (prompts, outputs))
        query = (
            select(run.service, *bounded, func.count().over())
            .select_from(outerjoin(engine_counters, usage_runs, is_same))
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
        with self._reading() as connection:
            rows = connection.execute(query).all()
        told = tuple(
            Unattributed(service=service, prompt_tokens=prompts, output_tokens=outputs)
            for service, prompts, outputs, _ in rows
        )
        return told, (rows[0][-1] if rows else 0) - len(told)


def _view(request: TokenUsageRequest, reader: UsageReader) -> TableClause:
    """The view that has what is asked for: costs are divided among persons only where it shows."""
    of_persons = request.by in {"person", "key"} or request.person or request.key_id
    return usage_costs if of_persons or reader.owned is not None else usage_sums


def _named(columns: Columns, reader: UsageReader) -> dict[str, ColumnElement[str]]:
    """What a line may be about, as the reader may see it."""
    seen: dict[str, ColumnElement[str]] = {
        "day": func.to_char(columns.day, "YYYY-MM-DD"),
        "month": func.to_char(columns.day, "YYYY-MM"),
        "service": columns.service,
        "tenant": columns.payer,
        "person": columns.person,
        "key_id": columns.key_id,
    }
    if reader.owned is not None:
        is_own = columns.person == reader.user
        for name in ("person", "key_id"):
            seen[name] = case((is_own, seen[name]), else_=NOBODY)
    return seen


def _within(
    day: ColumnElement[date], request: TokenUsageRequest, zone: str
) -> list[ColumnElement[bool]]:
    """Whether a day is one that was asked for: the first one whole, and the last."""
    within: list[ColumnElement[bool]] = []
    if request.since_s:
        within.append(day >= _day(request.since_s, zone))
    if request.until_s is not None:
        within.append(day <= _day(request.until_s - 1, zone))
    return within


def _day(at_s: int, zone: str) -> ColumnElement[date]:
    return cast(func.timezone(zone, func.to_timestamp(at_s)), Date)


def _asked(
    request: TokenUsageRequest, named: dict[str, ColumnElement[str]]
) -> list[ColumnElement[bool]]:
    words = {
        "tenant": request.tenant,
        "person": request.person,
        "key_id": request.key_id,
        "service": request.service,
    }
    return [named[name] == word for name, word in words.items() if word is not None]


def _line(row: Any) -> TokenLine:
    columns = dict(row)
    count, waited_ms = columns.pop("first_tokens"), columns.pop("first_token_ms")
    return TokenLine(**columns, first_token_ms=round(waited_ms / count, 1) if count else None)
