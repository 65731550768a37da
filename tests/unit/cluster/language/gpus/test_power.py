import re
from math import inf, nan
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.cluster.language.gpus.mig_profiles import boards
from slicewise.cluster.language.gpus.power import POWERS, BoardPower, power_w

BOARD = BoardPower(70, 50, 600, "made")
_PAGE = Path(__file__).parents[5] / "docs" / "reference" / "mig.md"

shares = st.floats(0, 1)


@pytest.mark.parametrize(
    ("has_context", "activity", "watts"),
    [(False, 0, 70), (True, 0, 120), (True, 1, 600), (True, 1 / 7, 225.6), (True, 0.5, 418.1)],
)
def test_a_board_is_idle_awake_or_at_work(has_context: bool, activity: float, watts: float) -> None:
    assert power_w(BOARD, has_context, activity) == pytest.approx(watts, abs=0.1)


def test_what_works_has_a_context() -> None:
    assert power_w(BOARD, False, 0.3) == power_w(BOARD, True, 0.3)


@pytest.mark.parametrize("activity", [1.07, inf])
def test_more_than_all_counts_as_all(activity: float) -> None:
    assert power_w(BOARD, True, activity) == BOARD.load_w


@pytest.mark.parametrize("activity", [-0.01, nan])
def test_no_activity_is_read_as_another(activity: float) -> None:
    with pytest.raises(ValueError, match="activity"):
        power_w(BOARD, True, activity)


@given(shares, shares, shares, st.sampled_from(sorted(POWERS)))
def test_more_work_never_draws_less_and_the_curve_is_concave(
    first: float, second: float, part: float, model: str
) -> None:
    board = POWERS[model]
    low, high = sorted((first, second))
    assert power_w(board, True, low) <= power_w(board, True, high) + 1e-9
    between = power_w(board, True, part * low + (1 - part) * high)
    chord = part * power_w(board, True, low) + (1 - part) * power_w(board, True, high)
    assert between >= chord - 1e-6


@given(st.integers(1, 6), st.sampled_from(sorted(POWERS)))
def test_work_on_one_board_draws_less_than_on_two(sevenths: int, model: str) -> None:
    board = POWERS[model]
    together = power_w(board, True, (sevenths + 1) / 7) + board.idle_w
    apart = power_w(board, True, sevenths / 7) + power_w(board, True, 1 / 7)
    assert together < apart


def test_each_board_is_one_of_the_table_and_has_its_sources() -> None:
    assert POWERS.keys() - boards().keys() == {"L40S-48GB"}
    for board in POWERS.values():
        assert 0 < board.idle_w < board.idle_w + board.context_w < board.load_w
        assert "idle" in board.source
        assert "load" in board.source


def test_the_page_has_the_same_watts() -> None:
    text = _PAGE.read_text(encoding="utf-8").partition("## Watts\n")[2]
    rows = re.findall(r"^\| ([\w-]+GB) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|", text, re.MULTILINE)
    assert {model: tuple(map(float, watts)) for model, *watts in rows} == {
        model: (board.idle_w, board.context_w, board.load_w) for model, board in POWERS.items()
    }
