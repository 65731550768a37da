from fractions import Fraction

import pytest

from cluster.errors import InvalidInputError
from cluster.mig_profiles import Board, MigProfile, board, boards, cost_millislices

ONE = Fraction(1)


@pytest.mark.parametrize(
    ("profile", "millislices"),
    [("1g.10gb", 1000), ("1g.20gb", 1750), ("2g.20gb", 2000), ("3g.40gb", 3500), ("7g.80gb", 7000)],
)
def test_costs_on_an_80_gb_a100(profile: str, millislices: int) -> None:
    assert cost_millislices(board("A100-80GB"), profile, ONE) == millislices


def test_no_cost_is_above_the_whole_board_or_below_a_share() -> None:
    for model in boards().values():
        for profile in model.profiles.values():
            cost = cost_millislices(model, profile.name, ONE)
            share = Fraction(profile.compute_slices, model.compute_slices)
            assert 7000 * share <= cost <= 7000, (model.model, profile.name)


def test_weights_scale_and_round_up() -> None:
    assert cost_millislices(board("A100-80GB"), "3g.40gb", Fraction(3, 2)) == 5250
    third = Board("b", 3, 3, {"1g": MigProfile("1g", 1, 1, None)})
    assert cost_millislices(third, "1g", ONE) == 2334


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(InvalidInputError, match=r"A100-80GB.*\[SW-GPU-MODEL\]"):
        board("GTX")
    with pytest.raises(InvalidInputError, match=r"1g\.10gb.*\[SW-MIG-PROFILE\]"):
        cost_millislices(board("A100-80GB"), "9g.90gb", ONE)
