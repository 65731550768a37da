"""Tests the model of a full service's queue, and that the fair order keeps what it promises."""

import pytest

from studies.queue_order import CASES, LONG, SEED, SELDOM, SHORT, Payer, measured


@pytest.mark.parametrize("case", list(CASES))
def test_shares_are_within_five_percent_of_the_weights(case: str):
    found = measured(CASES[case], 0.1, SEED, fair=True)
    assert found["off"] < 0.05
    assert measured(CASES[case], 0.1, SEED, fair=False)["off"] > 0.3


def test_who_asks_seldom_waits_for_no_flood():
    alone = measured((SELDOM,), 0.1, SEED, fair=True)
    found = measured(CASES["equal weights"], 0.1, SEED, fair=True)
    assert found["first_p95_s"] < alone["first_p95_s"] + found["longest_s"]
    came = measured(CASES["equal weights"], 0.1, SEED, fair=False)
    assert came["first_p95_s"] > 10 * found["first_p95_s"]


@pytest.mark.parametrize("payer", [SHORT, LONG])
def test_whoever_is_alone_has_it_all(payer: Payer):
    (share,) = measured((payer,), 0.1, SEED, fair=True)["shares"].values()
    assert share == 1
