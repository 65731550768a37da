"""Tests how much tokens weigh."""

from slicewise.cluster.language.token_weights import TokenWeights


def test_cached_tokens_are_a_part_of_the_prompt():
    weights = TokenWeights(prompt=1000, cached_prompt=100, output=4000)
    assert weights.weigh(10, 4, 3) == 6 * 1000 + 4 * 100 + 3 * 4000
    assert weights.weigh(10, 11, 0) == weights.weigh(10, 10, 0) == 1000
