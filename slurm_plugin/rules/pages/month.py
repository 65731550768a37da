"""What a month was like: the figures of ``slicewise report``, from history and from the books."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slicewise.cluster.language.palette import STATES
from slicewise.cluster.rpc.history_messages import HistoryAnswer
from slicewise.slurm_plugin.rules.accounting.statement import Day
from slicewise.slurm_plugin.rules.accounting.types import InvoiceLine, TenantTotal
from slicewise.slurm_plugin.rules.common.history import TEN_S

HELD = ("nominal", "in_use", "borrowed", "lent", "waiting", "late")
"""A tenant's series of millislices."""


@dataclass(frozen=True)
class ServiceMonth:
    """A service that was charged; its history is None where it is not asked for."""

    name: str
    charged_millislice_s: int
    history: HistoryAnswer | None


@dataclass(frozen=True)
class TenantMonth:
    """A tenant's month.

    Attributes:
        charged: the sum of its statement; None if it has none.
        days: the same by day.
        services: its services, those that were charged most first; OWNER/NAME of another's, of
            other jobs the name is "".
        history: of the tenant with the tenants below it.
        millionths: what its own use costs, of the currency; None without a tariff.
        energy_mj: what boards took for its own runs, in millijoules; None if it could not be added
            up.
    """

    name: str
    charged: TenantTotal | None
    days: tuple[InvoiceLine, ...]
    services: tuple[ServiceMonth, ...]
    history: HistoryAnswer
    millionths: int | None = None
    energy_mj: int | None = 0

    @property
    def charged_millislice_s(self) -> int:
        """What it was charged: its own runs, less what others were of these, and shares."""
        return self.charged.charged_millislice_s if self.charged else 0


@dataclass(frozen=True)
class MonthFacts:
    """All that a report says.

    Attributes:
        month: as ``2026-10``.
        from_s, until_s: begin and end, or the time of the report if the month is not over.
        zone: the ledger's time zone.
        days: the days of the month that have begun.
        currency: "" without a tariff.
    """

    cluster: str
    month: str
    from_s: int
    until_s: int
    zone: str
    days: tuple[Day, ...]
    slices: HistoryAnswer
    tenants: tuple[TenantMonth, ...]
    currency: str = ""


@dataclass(frozen=True)
class ReportService:
    """What a service was charged in a month; of a tenant's other jobs the name is empty."""

    service: str
    charged_millislice_s: int


@dataclass(frozen=True, kw_only=True)
class ReportFigures:
    """What a tenant was charged, and means of what it had with the tenants below it; None is not
    known.
    """

    tenant: str
    charged_millislice_s: int
    waived_millislice_s: int
    nominal_millislices: int | None
    in_use_millislices: int | None
    borrowed_millislices: int | None
    lent_millislices: int | None
    waiting_millislices: int | None
    late_millislices: int | None
    budget_left_millislice_s: int | None


@dataclass(frozen=True, kw_only=True)
class ReportTenant(ReportFigures):
    """A tenant's month.

    Attributes:
        guarantee_kept: the part of the guaranteed slices that were wanted and there in time.
        millionths, energy_mj: what its own use costs, and what boards took for it; None is not
            known.
    """

    runs: int
    millionths: int | None
    energy_mj: int | None
    guarantee_kept: float | None
    services: Sequence[ReportService]


@dataclass(frozen=True)
class MonthReport:
    """A month: parts of 1, of the time that was recorded, and slices by state."""

    cluster: str
    month: str
    from_s: int
    until_s: int
    zone: str
    in_use: float | None
    guarantee_kept: float | None
    recorded: float | None
    slices_millislice_s: Mapping[str, int]
    currency: str
    tenants: Sequence[ReportTenant]


@dataclass(frozen=True, kw_only=True)
class ReportDay(ReportFigures):
    """A row of the report's CSV: a tenant on a day."""

    day: str


def values_of(answer: HistoryAnswer, name: str) -> tuple[float | None, ...]:
    """The means of a series; all gaps if there is none of that name."""
    drawn = (series.values for series in answer.series if series.name == name)
    return next(drawn, (None,) * len(answer.times_s))


def highest_of(answer: HistoryAnswer, name: str) -> float | None:
    """The greatest maximum of a series; None if nothing is known."""
    highest = (series.highest for series in answer.series if series.name == name)
    return max((value for value in next(highest, ()) if value is not None), default=None)


def mean(answer: HistoryAnswer, name: str, within: range | None = None) -> float | None:
    """The mean of a series over the time that is known, or over that part of it which begins
    ``within`` these Unix seconds; None if nothing is known.
    """
    whole, looks = 0.0, 0
    for at_s, value, samples in zip(
        answer.times_s, values_of(answer, name), answer.samples, strict=True
    ):
        if value is not None and (within is None or at_s in within):
            whole += value * samples
            looks += samples
    return ratio(whole, looks)


def sum_millislice_s(answer: HistoryAnswer, name: str) -> int:
    """Millislices times seconds of a series, over the time that is known."""
    pairs = zip(values_of(answer, name), answer.samples, strict=True)
    return round(sum(value * samples * TEN_S for value, samples in pairs if value is not None))


def ratio(part: float, whole: float) -> float | None:
    """Part of the whole; None of nothing."""
    return part / whole if whole else None


def recorded(answer: HistoryAnswer) -> float | None:
    """The part of the time of which something is known."""
    return ratio(sum(answer.samples) * TEN_S, len(answer.times_s) * answer.step_s)


def in_use(slices: HistoryAnswer) -> float | None:
    """The part of all slices that jobs held."""
    amounts = [sum_millislice_s(slices, name) for name in STATES]
    return ratio(amounts[0] + amounts[1], sum(amounts))


def kept(answer: HistoryAnswer) -> float | None:
    """Of the guaranteed slices that were wanted, the part that was there in time.

    1 if nothing waited within guaranteed quota longer than a recall may take.
    """
    held, late = sum_millislice_s(answer, "used"), sum_millislice_s(answer, "late")
    return ratio(held, held + late)


def day_rows(facts: MonthFacts) -> list[ReportDay]:
    """A row for each tenant and day: what was charged, and the day's means; None is not known."""
    return [row for tenant in facts.tenants for row in _days_of(tenant, facts)]


def _days_of(tenant: TenantMonth, facts: MonthFacts) -> Iterable[ReportDay]:
    charged = {line.key: line for line in tenant.days}
    ends_s = (*(day.start_s for day in facts.days[1:]), facts.until_s)
    for day, end_s in zip(facts.days, ends_s, strict=True):
        figures = _figures(tenant, charged.get(day.text), range(day.start_s, end_s))
        yield ReportDay(**figures, day=day.text)


def _figures(
    tenant: TenantMonth, charged: TenantTotal | InvoiceLine | None, within: range | None = None
) -> Mapping[str, Any]:
    history = tenant.history
    return {
        "tenant": tenant.name,
        "charged_millislice_s": charged.charged_millislice_s if charged else 0,
        "waived_millislice_s": charged.waived_millislice_s if charged else 0,
        **{f"{name}_millislices": _whole(mean(history, name, within)) for name in HELD},
        "budget_left_millislice_s": _whole(last(history, "budget_left", within)),
    }


def last(answer: HistoryAnswer, name: str, within: range | None = None) -> float | None:
    """The last value of a series that is known, of that time as for ``mean``."""
    pairs = zip(reversed(answer.times_s), reversed(values_of(answer, name)), strict=True)
    values = (value for at_s, value in pairs if within is None or at_s in within)
    return next((value for value in values if value is not None), None)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def month_report(facts: MonthFacts) -> MonthReport:
    """The month with amounts in integers; means of what is known, null where nothing is."""
    return MonthReport(
        cluster=facts.cluster,
        month=facts.month,
        from_s=facts.from_s,
        until_s=facts.until_s,
        zone=facts.zone,
        in_use=in_use(facts.slices),
        guarantee_kept=kept(facts.slices),
        recorded=recorded(facts.slices),
        slices_millislice_s={name: sum_millislice_s(facts.slices, name) for name in STATES},
        currency=facts.currency,
        tenants=[_tenant(tenant) for tenant in facts.tenants],
    )


def _tenant(tenant: TenantMonth) -> ReportTenant:
    return ReportTenant(
        **_figures(tenant, tenant.charged),
        runs=tenant.charged.runs if tenant.charged else 0,
        millionths=tenant.millionths,
        energy_mj=tenant.energy_mj,
        guarantee_kept=kept_by_tenant(tenant.history),
        services=[
            ReportService(service.name, service.charged_millislice_s) for service in tenant.services
        ],
    )


def kept_by_tenant(history: HistoryAnswer) -> float | None:
    """As ``kept``, of what a tenant held within its guarantee, by the means of each step: what it
    held beyond in a part of an hour counts for the rest of that hour.
    """
    held = late = 0.0
    series = (values_of(history, name) for name in ("in_use", "nominal", "late"))
    for used, nominal, waited, samples in zip(*series, history.samples, strict=True):
        held += min(used or 0.0, nominal or 0.0) * samples
        late += (waited or 0.0) * samples
    return ratio(held, held + late)
