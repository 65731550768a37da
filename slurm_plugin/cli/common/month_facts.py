"""Gathers a month: what was charged by the books, and how things were by history."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from zoneinfo import ZoneInfo

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.periods import Period, date_text, next_start_s
from slicewise.cluster.rpc.history_messages import CLUSTER, HistoryAnswer, HistoryRequest
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.cli.common.books import Books
from slicewise.slurm_plugin.cli.common.ledger_days import ledger_days
from slicewise.slurm_plugin.page.report import CHARTED, SERVICES_CHARTED
from slicewise.slurm_plugin.rules.accounting.statement import by_day, by_service, part, totals
from slicewise.slurm_plugin.rules.accounting.types import InvoiceLine
from slicewise.slurm_plugin.rules.common.history import HOUR_S
from slicewise.slurm_plugin.rules.pages.month import MonthFacts, ServiceMonth, TenantMonth


def month_facts(
    books: Books, settings: Settings, tenant: str | None, begin_s: int, now_s: int
) -> MonthFacts:
    """Read the month that begins at ``begin_s``, up to now if it is not over.

    Of one tenant if it is named, else of all that the caller may see. Raises what ``books`` does.
    """
    zone = settings.ledger.time_zone
    until_s = min(next_start_s(Period.MONTH, begin_s, zone) or now_s, now_s)
    days = tuple(ledger_days(begin_s, until_s - 1, ZoneInfo(zone)))
    paid = books.statement(tenant, begin_s)[0].rows
    whole = tuple(row for row in paid if tenant in (None, row.run.tenant))
    rows = part(whole, begin_s, until_s)
    of_all = books.shares(tenant, begin_s, until_s)
    shares = tuple(share for share in of_all if tenant in (None, share.tenant))
    charged = {total.tenant: total for total in totals(rows, shares)}
    currency, costs = _costs(books, tenant, begin_s, until_s)
    energy = books.energy(tenant, begin_s, until_s)
    names = books.tenants() if tenant is None else (tenant,)
    names = (*names, *(name for name in charged if name not in names))
    by_use = sorted(charged.values(), key=lambda total: (-total.charged_millislice_s, total.tenant))
    charted = {total.tenant for total in by_use[:CHARTED]}
    of_days = _by_tenant(by_day(whole, days, begin_s, until_s, shares))
    of_services = _by_tenant(by_service(rows, shares))

    # An hour that a month's end divides, in zones with half hours, is of the later month: what a
    # budget has left is of the hour's end.
    last_s = until_s if until_s == now_s else until_s // HOUR_S * HOUR_S

    def history(about: str) -> HistoryAnswer:
        return books.history(HistoryRequest(about=about, since_s=begin_s, until_s=last_s))

    def services(name: str) -> tuple[ServiceMonth, ...]:
        lines = sorted(
            of_services.get(name, ()),
            key=lambda invoice_line: (-invoice_line.charged_millislice_s, invoice_line.key),
        )
        own = [line.key for line in lines if line.key and (line.runs or line.pooled_millislice_s)]
        drawn = own[:SERVICES_CHARTED] if name in charted else []
        return tuple(
            ServiceMonth(
                line.key,
                line.charged_millislice_s,
                _of_service(history, f"{name}/{line.key}") if line.key in drawn else None,
            )
            for line in lines
        )

    return MonthFacts(
        cluster=settings.cluster.name,
        month=date_text(begin_s, zone)[:7],
        from_s=begin_s,
        until_s=until_s,
        zone=zone,
        days=days,
        slices=history(CLUSTER),
        currency=currency,
        tenants=tuple(
            TenantMonth(
                name=name,
                charged=charged.get(name),
                days=of_days.get(name, ()),
                services=services(name),
                history=history(f"{name}/" if name == CLUSTER else name),
                millionths=costs.get(name),
                energy_mj=None if energy is None else energy.get(name, 0),
            )
            for name in names
        ),
    )


def _costs(
    books: Books, tenant: str | None, begin_s: int, until_s: int
) -> tuple[str, Mapping[str, int]]:
    """The currency, and what each tenant's own use costs: of who had any with a tariff."""
    currency, lines = books.charges(tenant, begin_s, until_s)
    costs = defaultdict[str, int](int)
    for line in lines:
        if line.of.price is not None:
            costs[line.of.tenant] += line.millionths or 0
    return currency, costs


def _by_tenant(lines: Iterable[InvoiceLine]) -> Mapping[str, tuple[InvoiceLine, ...]]:
    found = defaultdict[str, list[InvoiceLine]](list)
    for line in lines:
        found[line.tenant].append(line)
    return {name: tuple(of_one) for name, of_one in found.items()}


def _of_service(history: Callable[[str], HistoryAnswer], about: str) -> HistoryAnswer | None:
    """What was recorded of a service; None if it ran before anything was."""
    try:
        return history(about)
    except InvalidInputError as error:
        if error.refusal.code != Code.SERVICE_UNKNOWN:
            raise
        return None
