"""Who may see which sums of tokens, and the answer page by page."""

from collections import Counter
from collections.abc import Mapping, Sequence

from slicewise.cluster.language.meters import OUTPUT_TOKENS
from slicewise.cluster.language.persons import is_guest
from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.common.usage_requests import (
    LINE_FIELDS,
    TokenLine,
    TokenUsageAnswer,
    TokenUsageRequest,
)
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.ledger.usage_reads import UsageReader
from slicewise.slurm_plugin.rules.accounting.charge_lines import RequestDay
from slicewise.slurm_plugin.rules.accounting.tariff import PriceBook, list_price, money
from slicewise.slurm_plugin.rules.accounting.usage_costs import (
    TypeMixes,
    UsedPart,
    spans_of_days,
    usage_costs,
)

PAGE_LINES = 1000
"""Lines of one answer: some 200 KB."""
_MOST_PARTS = 20_000
"""Parts of lines, each of a day, tenant and service, that are priced at most in one answer."""


def token_usage(
    request: TokenUsageRequest, principal: Principal, ledger: Ledger, zone: str
) -> TokenUsageAnswer:
    """A page of what a user may see: own requests with their names; of others' requests to the
    services of the user's tenants their sums by tenant. Of no person another's.
    """
    # A guest's own requests are all that a guest sees of a tenant.
    owned = frozenset[str]() if is_guest(principal.user) else principal.tenants
    reader = UsageReader(principal.user, owned)
    lines = ledger.usage_reads.lines(request, reader, zone, PAGE_LINES + 1)
    of_one = request.tenant or request.person or request.key_id
    is_first = request.after is None and not of_one
    shown = lines[:PAGE_LINES]
    unattributed, left_out = (
        ledger.usage_reads.unattributed(request, reader) if is_first else ((), 0)
    )
    shown = _priced(shown, request, reader, ledger, zone)
    more = _key(shown[-1], LINE_FIELDS[request.by]) if len(lines) > len(shown) else None
    return TokenUsageAnswer(
        lines=shown, unattributed=unattributed, unattributed_left_out=left_out, more=more
    )


def _priced(
    lines: tuple[TokenLine, ...],
    request: TokenUsageRequest,
    reader: UsageReader,
    ledger: Ledger,
    zone: str,
) -> tuple[TokenLine, ...]:
    """The first of these lines with what they cost: prices are those of days, tenants and services.

    They are as many as have ``_MOST_PARTS`` parts together; a line that has more is alone, and has
    no cost.
    """
    book, about = ledger.tariffs.book(zone), LINE_FIELDS[request.by]
    if not lines or not book.records:
        return lines
    persons = () if reader.owned is None else ("person",)
    fields = tuple(dict.fromkeys((*about, "day", "tenant", "service", *persons)))
    keys = [_key(line, about) for line in lines]
    whole = request.model_copy(update={"after": None})
    parts = ledger.usage_reads.lines(
        *(whole, reader, zone, _MOST_PARTS + 1), fields=fields, between=(keys[0], keys[-1])
    )
    if len(parts) > _MOST_PARTS:
        cut = keys.index(_key(parts[-1], about))
        if not cut:
            return lines[:1]
        lines, parts = lines[:cut], tuple(part for part in parts if _key(part, about) != keys[cut])
    places = {(part.day, part.tenant, part.service) for part in parts if part.millislice_s}
    sums = _sums(parts, about, reader, book, ledger.tariffs.type_mixes(places))
    return tuple(_with_costs(line, sums.get(_key(line, about), Counter())) for line in lines)


def _key(line: TokenLine, about: Sequence[str]) -> tuple[str, ...]:
    return tuple(getattr(line, name) for name in about)


def _sums(
    parts: Sequence[TokenLine],
    about: Sequence[str],
    reader: UsageReader,
    book: PriceBook,
    mixes: TypeMixes,
) -> Mapping[tuple[str, ...], Counter[str]]:
    """By what a line is about: costs, the tokens that have them, and whether there are any."""
    if not parts:
        return {}
    used = [UsedPart(_request_day(part), part.millislice_s) for part in parts]
    spans_of = spans_of_days({part.day for part in parts}, book)
    sums: dict[tuple[str, ...], Counter[str]] = {}
    for part, cost in zip(parts, usage_costs(used, mixes, book), strict=True):
        own = sums.setdefault(_key(part, about), Counter())
        tokens = part.prompt_tokens + part.output_tokens
        if cost is not None and _is_own(part, reader):
            own.update(millionths=cost, priced_tokens=tokens, priced=1)
        price = list_price(spans_of[part.day][0].tariff, part.service)
        if price is not None:
            of_list = money(OUTPUT_TOKENS.name, tokens, price)
            own.update(list_millionths=of_list, listed_tokens=tokens, listed=1)
    return sums


def _with_costs(line: TokenLine, sums: Counter[str]) -> TokenLine:
    return line.model_copy(
        update={
            "millionths": sums["millionths"] if sums["priced"] else None,
            "priced_tokens": sums["priced_tokens"],
            "list_millionths": sums["list_millionths"] if sums["listed"] else None,
            "listed_tokens": sums["listed_tokens"],
        }
    )


def _is_own(part: TokenLine, reader: UsageReader) -> bool:
    """Whether the reader may see what it cost: other tenants' prices are theirs."""
    return reader.owned is None or part.tenant in reader.owned or part.person == reader.user


def _request_day(part: TokenLine) -> RequestDay:
    counts = part.requests, part.prompt_tokens, part.cached_prompt_tokens, part.output_tokens
    return RequestDay(part.day, part.tenant, part.person, part.service, *counts)
