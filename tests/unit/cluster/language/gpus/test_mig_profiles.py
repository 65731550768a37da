from fractions import Fraction

import pytest

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.gpus.mig_profiles import (
    Board,
    MigProfile,
    board,
    boards,
    cost_millislices,
    model_of,
    profile_of,
    sources,
)

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
    third = Board("b", 3, 3, {"1g": MigProfile("1g", 1, 1, None, (0, 1, 2), 3, 19)})
    assert cost_millislices(third, "1g", ONE) == 2334


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(InvalidInputError, match=r"A100-80GB.*\[SW-VALUE\]"):
        board("GTX")
    with pytest.raises(InvalidInputError, match=r"1g\.10gb.*\[SW-VALUE\]"):
        cost_millislices(board("A100-80GB"), "9g.90gb", ONE)


def test_a_full_type_name_costs_what_its_profile_does() -> None:
    on = board("A100-80GB")
    assert profile_of(on, "nvidia_a100_3g.40gb") == profile_of(on, "3g.40gb")
    assert cost_millislices(on, "nvidia_a100_3g.40gb", ONE) == 3500
    with pytest.raises(InvalidInputError, match="SW-VALUE"):
        profile_of(on, "nvidia_a100_3g.20gb")


def test_what_another_driver_calls_it_costs_the_same() -> None:
    on = board("GB200-186GB")
    assert profile_of(on, "1g.24gb") == profile_of(on, "nvidia_gb200_1g.24gb")
    assert cost_millislices(on, "1g.24gb", ONE) == cost_millislices(on, "1g.23gb", ONE) == 1000


def test_no_alias_is_another_profile_s_name() -> None:
    for on in boards().values():
        names = [name for one in on.profiles.values() for name in (one.name, *one.aliases)]
        assert len(set(names)) == len(names), on.model


def test_a_board_is_known_by_its_pci_device() -> None:
    assert model_of(0x2335) == "H200-141GB"
    assert model_of(0xFFFF) is None
    numbers = [number for one in boards().values() for number in one.pci_device_ids]
    assert len(numbers) == len(set(numbers))


@pytest.mark.parametrize("model", sorted(boards()))
def test_every_row_has_sources_and_starts_that_lie_on_the_board(model: str) -> None:
    on = board(model)
    for profile in on.profiles.values():
        assert profile.sources
        assert set(profile.sources) <= sources().keys()
        assert profile.starts == tuple(sorted(set(profile.starts)))
        assert profile.starts[-1] + profile.memory_slices <= on.memory_slices
        assert 1 <= profile.max_instances <= len(profile.starts)
    ids = [one.gi_profile_id for one in on.profiles.values()]
    assert len(ids) == len(set(ids))
