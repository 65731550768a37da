"""Lines of an invoice in words."""

from dataclasses import replace
from decimal import Decimal

from slicewise.slurm_plugin.rules.accounting.charge_lines import Charged, ChargeLine
from slicewise.slurm_plugin.rules.accounting.invoice import invoice_sums
from slicewise.slurm_plugin.rules.pages.invoice import (
    amount_words,
    charged_words,
    has_others,
    price_words,
)

RUN = Charged(
    *(0, 86_400, "2026-11-01", "vision", "vision", "chat", "alice", ("1g.10gb", "3g.40gb")),
    price=Decimal("0.350000"),
)


def test_each_kind_of_line_has_its_words() -> None:
    requests = replace(RUN, kind="request", gpu_types=(), meter="cached-prompt-tokens")
    joules = replace(RUN, kind="energy", gpu_types=(), meter="shared-millijoules", price=None)
    pooled = replace(RUN, kind="pool")
    assert [charged_words(of) for of in (RUN, pooled, requests, joules)] == [
        "1g.10gb + 3g.40gb",
        "pool of 1g.10gb + 3g.40gb",
        "cached tokens",
        "energy of shared boards",
    ]
    lines = (
        ChargeLine(RUN, 7_200_000),
        ChargeLine(requests, 7_200_000),
        ChargeLine(joules, 9 * 10**9),
    )
    assert [amount_words(line) for line in lines] == [
        "2.000 slice-hours",
        "7,200,000",
        "2.500 kWh",
    ]
    assert [price_words(line.of) for line in lines] == [
        "0.35 a slice-hour",
        "0.35 a million",
        "",
    ]


def test_who_pays_for_another_is_seen() -> None:
    own, other = ChargeLine(RUN, 1), ChargeLine(replace(RUN, payer="science"), 1)
    assert not has_others(invoice_sums([own], "tenant"))
    assert has_others(invoice_sums([own, other], "tenant"))
