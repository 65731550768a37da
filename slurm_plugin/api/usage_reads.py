"""Who may see which sums of tokens, and the answer page by page."""

from collections import Counter

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
from slicewise.slurm_plugin.rules.accounting.charge_lines import RequestDay, key_cost, spans_of_days
from slicewise.slurm_plugin.rules.accounting.tariff import list_price, money

PAGE_LINES = 1000
"""Lines of one answer: some 200 KB."""
_MOST_PARTS = 20_000
"""Parts of lines, each of a day, tenant and service, that are priced at most."""


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
    more = None
    if len(lines) > PAGE_LINES:
        more = tuple(getattr(shown[-1], name) for name in LINE_FIELDS[request.by])
    unattributed = ledger.usage_reads.unattributed(request, reader) if is_first else ()
    shown = _priced(shown, request, reader, ledger, zone)
    return TokenUsageAnswer(lines=shown, unattributed=unattributed, more=more)


def _priced(
    lines: tuple[TokenLine, ...],
    request: TokenUsageRequest,
    reader: UsageReader,
    ledger: Ledger,
    zone: str,
) -> tuple[TokenLine, ...]:
    """The lines with what they cost: prices are those of days, tenants and services."""
    book, about = ledger.tariffs.book(zone), LINE_FIELDS[request.by]
    if not lines or not book.records:
        return lines
    fields = tuple(dict.fromkeys((*about, "day", "tenant", "service")))
    whole = request.model_copy(update={"after": None})
    parts = ledger.usage_reads.lines(whole, reader, zone, _MOST_PARTS + 1, fields=fields)
    if not parts or len(parts) > _MOST_PARTS:
        return lines
    spans_of = spans_of_days({part.day for part in parts}, book)
    costs: Counter[tuple[str, ...]] = Counter()
    listed: dict[tuple[str, ...], int] = {}
    for part in parts:
        key, of_day = tuple(getattr(part, name) for name in about), spans_of[part.day]
        counts = part.requests, part.prompt_tokens, part.cached_prompt_tokens, part.output_tokens
        use = RequestDay(part.day, part.tenant, part.person, part.person, part.service, *counts)
        costs[key] += key_cost(use, part.millislice_s, of_day, book)
        price = list_price(of_day[0].tariff, part.service)
        if price is not None:
            tokens = part.prompt_tokens + part.output_tokens
            listed[key] = listed.get(key, 0) + money(OUTPUT_TOKENS.name, tokens, price)
    keys = [tuple(getattr(line, name) for name in about) for line in lines]
    return tuple(
        line.model_copy(update={"millionths": costs[key], "list_millionths": listed.get(key)})
        for line, key in zip(lines, keys, strict=True)
    )
