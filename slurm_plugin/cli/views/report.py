"""A month's report for terminals."""

from collections.abc import Iterator

from slicewise.cluster.language.palette import FIGURES
from slicewise.cluster.runtime.console import Column, FittingTable, column
from slicewise.slurm_plugin.page.report import hours, money, percent, slices
from slicewise.slurm_plugin.rules.pages.month import (
    MonthFacts,
    in_use,
    kept,
    kept_by_tenant,
    mean,
    recorded,
)
from slicewise.slurm_plugin.rules.pages.words import kwh_text


def report_table(facts: MonthFacts) -> FittingTable:
    """One line per tenant: what it was charged, and its means in slices."""
    months = facts.tenants
    means = {
        name: [slices(mean(month.history, name)) for month in months]
        for name in ("nominal", "in_use", "borrowed", "lent", "waiting")
    }
    return FittingTable(
        (
            column("tenant", (month.name for month in months)),
            column(
                "slice-hours", (hours(month.charged_millislice_s) for month in months), right=True
            ),
            *_money_and_energy(facts),
            *(
                column(FIGURES[name].word, cells, right=True, rank=1)
                for name, cells in means.items()
            ),
            column(
                "in time", (percent(kept_by_tenant(month.history)) for month in months), right=True
            ),
        )
    )


def _money_and_energy(facts: MonthFacts) -> Iterator[Column]:
    if facts.currency:
        costs = (money(tenant.millionths) for tenant in facts.tenants)
        yield column(facts.currency, costs, right=True)
    if any(tenant.energy_mj != 0 for tenant in facts.tenants):
        yield column(
            "kWh", (kwh_text(tenant.energy_mj) for tenant in facts.tenants), right=True, rank=1
        )


def report_text(facts: MonthFacts) -> str:
    """Say how the cluster was: ``2026-10: 71.3 % of all slices in use, ...``."""
    return (
        f"{facts.month}, {facts.zone}: {percent(in_use(facts.slices))} of all slices in use,"
        f" {percent(kept(facts.slices))} of guaranteed slices in time;"
        f" {percent(recorded(facts.slices))} of the time was recorded."
    )
