"""Tests what tokens cost, and which measured point is the cheapest within an objective."""

import pytest

from slicewise.cluster.language.measurements import Measurement, TokenFigures
from slicewise.cluster.language.token_cost import (
    TokenObjective,
    cheapest,
    slice_hours,
    token_cost,
)

COSTS = {"1g.10gb": 1000, "2g.20gb": 2000}


def row(
    kind: str = "1g.10gb",
    concurrency: int = 1,
    *,
    tokens_per_s: int = 100,
    ttft_ms: int = 100,
    tpot_ms: int = 10,
    p95_ms: int = 1_000,
) -> Measurement:
    return Measurement(
        model="m", board="A100-80GB", type=kind, batch=concurrency, processes=1,
        throughput_mrps=tokens_per_s and 1_000, latency_us=1000 * p95_ms, samples=9, steady=True,
        reason="",
        tokens=TokenFigures(
            load="1+1", output_mtps=1000 * tokens_per_s,
            ttft_p50_us=1, ttft_p99_us=1000 * ttft_ms, tpot_p50_us=1, tpot_p99_us=1000 * tpot_ms,
        ),
    )  # fmt: skip


def test_a_million_tokens_take_the_instance_for_as_long_as_it_makes_them():
    cost = token_cost(row(tokens_per_s=100), COSTS)
    assert cost is not None
    # 1 slice for 10,000 s.
    assert cost.millislice_s == 10_000_000
    assert slice_hours(cost.millislice_s) == "2.78"


@pytest.mark.parametrize(
    ("hours", "text"),
    [(0.0123, "0.012"), (0.5, "0.500"), (1.234, "1.23"), (12.34, "12.3"), (1234.5, "1,234")],
)
def test_hours_have_three_digits(hours: float, text: str):
    assert slice_hours(round(hours * 3_600_000)) == text


def test_what_makes_no_tokens_or_has_no_price_costs_nothing_known():
    assert token_cost(row(tokens_per_s=0), COSTS) is None
    assert token_cost(row("other"), COSTS) is None
    assert token_cost(row().model_copy(update={"tokens": None}), COSTS) is None


ROWS = [
    row(concurrency=1, tokens_per_s=50, ttft_ms=50, tpot_ms=5, p95_ms=500),
    row(concurrency=8, tokens_per_s=300, ttft_ms=200, tpot_ms=20, p95_ms=2_000),
    row("2g.20gb", concurrency=8, tokens_per_s=500, ttft_ms=100, tpot_ms=10, p95_ms=1_000),
    row("2g.20gb", concurrency=32, tokens_per_s=0),
]


@pytest.mark.parametrize(
    ("objective", "kind", "concurrency"),
    [
        (TokenObjective(), "1g.10gb", 8),
        (TokenObjective(ttft_ms=200, tpot_ms=20, p95_ms=2_000), "1g.10gb", 8),
        (TokenObjective(ttft_ms=199), "2g.20gb", 8),
        (TokenObjective(tpot_ms=19), "2g.20gb", 8),
        (TokenObjective(p95_ms=1_999), "2g.20gb", 8),
        (TokenObjective(ttft_ms=99), "1g.10gb", 1),
    ],
)
def test_the_cheapest_that_keeps_the_objective(
    objective: TokenObjective, kind: str, concurrency: int
):
    found = cheapest(ROWS, COSTS, objective)
    assert found is not None
    assert (found.row.type, found.row.batch) == (kind, concurrency)


def test_nothing_may_keep_it():
    assert cheapest(ROWS, COSTS, TokenObjective(ttft_ms=49)) is None
    assert cheapest(ROWS, {}, TokenObjective()) is None


def test_an_unknown_time_between_tokens_keeps_no_bound_of_it():
    unknown = row(tpot_ms=0)
    assert unknown.tokens is not None
    tokens = unknown.tokens.model_copy(update={"output_tokens": 50})
    unknown = unknown.model_copy(update={"tokens": tokens})
    assert not TokenObjective(tpot_ms=50).is_kept(unknown)
    assert TokenObjective(ttft_ms=100).is_kept(unknown)
    assert TokenObjective(tpot_ms=50).is_kept(row(tpot_ms=0))


def test_of_one_cost_the_quicker_one():
    slow, quick = row(concurrency=2, p95_ms=900), row(concurrency=1, p95_ms=800)
    found = cheapest([slow, quick], COSTS, TokenObjective())
    assert found is not None
    assert found.row == quick


def test_its_keys_are_those_of_a_service():
    assert TokenObjective(ttft_ms=5, p95_ms=7).keys == {"ttft_ms": 5, "p95_ms": 7}
