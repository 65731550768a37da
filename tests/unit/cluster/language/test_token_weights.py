"""Tests how much tokens weigh."""

import pytest

from slicewise.cluster.language.measurements import Measurement, TokenFigures
from slicewise.cluster.language.token_weights import (
    DEFAULT,
    MOST_WEIGHT,
    TokenWeights,
    measured_weights,
    weights_of,
)


def row(
    concurrency: int, throughput_mrps: int, ttft_us: int = 100_000, *, prompt: int = 1000
) -> Measurement:
    return Measurement(
        model="m", board="A100-80GB", type="1g.10gb", batch=concurrency, processes=1,
        throughput_mrps=throughput_mrps, latency_us=1, samples=9, steady=True, reason="",
        tokens=TokenFigures(
            load="1000+100", prompt_tokens=prompt, output_tokens=100, ttft_p50_us=ttft_us
        ),
    )  # fmt: skip


def test_cached_tokens_are_a_part_of_the_prompt():
    weights = TokenWeights(prompt=1000, cached_prompt=100, output=4000)
    assert weights.weigh(10, 4, 3) == 6 * 1000 + 4 * 100 + 3 * 4000
    assert weights.weigh(10, 11, 0) == weights.weigh(10, 10, 0) == 1000


def test_an_answer_weighs_what_it_takes_of_the_busy_instance_beside_its_prompt():
    # 100 us for a token of the prompt. At 2 requests a second each takes 500 ms of the instance:
    # 400 ms are left for 100 tokens of the answer, 4 ms for each.
    found = measured_weights([row(1, 500), row(8, 2000), row(4, 1500, 300_000)])
    assert found == TokenWeights(prompt=1000, cached_prompt=100, output=40_000)


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [row(8, 2000)],
        [row(1, 0)],
        [row(1, 500, 0)],
        [row(1, 500, prompt=0)],
        [row(1, 10_000)],
        [row(1, 500).model_copy(update={"tokens": None})],
    ],
)
def test_without_figures_that_tell_it_the_weights_are_the_default(rows: list[Measurement]):
    assert measured_weights(rows) == DEFAULT


def test_no_figure_makes_a_token_weigh_nothing_or_without_bound():
    assert measured_weights([row(1, 9999, 99_999)]).output >= 1
    assert measured_weights([row(1, 1, 1)]).output == MOST_WEIGHT


def test_a_service_has_the_weights_that_are_set_for_it():
    assert weights_of("a/b", {"a/b": 4.25}) == TokenWeights(1000, 100, 4250)
    assert weights_of("a/c", {"a/b": 4.25}) == DEFAULT
