"""Tests what each key of ``slicewise top`` does."""

from dataclasses import replace

import pytest

from slicewise.slurm_plugin.cli.views.top_state import (
    MOST_TYPED,
    VIEWS,
    Rows,
    TopState,
    pressed,
    within,
)

ROWS = Rows((("vision",), ("nlp",), ("bio",)), sorts=2)
GPU = Rows((("", "7", ""), ("9",)), sorts=0)


def after(*keys: str, state: TopState | None = None, rows: Rows = ROWS) -> TopState:
    found = state or TopState()
    for key in keys:
        found = pressed(found, key, rows)
    return found


def test_numbers_and_tab_change_the_view():
    assert [after(str(nth)).view for nth in range(1, 7)] == list(VIEWS)
    assert after("tab").view == "services"
    assert after("back-tab").view == "attention"
    assert after("down", "s", "3") == TopState(view="services")
    for key in ("0", "7", "9", "\u0663", "x"):
        assert after(key).view == "tenants"


def test_a_selection_stays_within_the_rows():
    assert after("down", "j").row == 2
    assert after("down", "down", "down", "down").row == 2
    assert after("k", "up").row == 0
    assert after("page-down").row == 2
    assert after("G", "g").row == after("end", "home").row == 0
    assert after("down", rows=Rows((), 0)) == TopState()
    assert within(TopState(row=7, seat=3), ROWS) == TopState(row=2)


def test_on_a_gpu_each_instance_can_be_selected():
    assert after("right", rows=GPU).seat == 1
    assert after("right", "right", "right", rows=GPU).seat == 2
    assert after("right", "left", "left", rows=GPU).seat == 0
    assert after("right", "down", rows=GPU) == TopState(row=1, seat=0)
    assert after("right", "enter", rows=GPU).about == "7"
    assert after("enter", rows=GPU).about == ""


def test_enter_opens_an_explanation_that_scrolls_and_closes():
    opened = after("down", "enter")
    assert opened.about == "nlp"
    assert after("down", "j", "page-down", state=opened).scroll == 12
    assert after("up", state=opened).scroll == 0
    for key in ("escape", "q", "enter", "backspace", "left"):
        assert after(key, state=opened) == replace(opened, about="")
    assert after("s", "2", "/", state=opened) == opened


def test_sorting_goes_through_the_columns_and_back_to_their_own_order():
    assert [after(*["s"] * nth).sort for nth in range(4)] == [None, 0, 1, None]
    assert after("r").is_reversed
    assert not after("r", "r").is_reversed
    assert after("down", "s").row == 0


def test_a_filter_is_typed_edited_kept_and_cleared():
    typed = after("/", "q", "5", " ", "x", "backspace")
    assert (typed.filter, typed.is_typing, typed.has_ended) == ("q5 ", True, False)
    kept = after("enter", state=typed)
    assert (kept.filter, kept.is_typing) == ("q5 ", False)
    assert after("3", state=kept) == TopState(view="services", filter="q5 ")
    assert after("escape", state=kept).filter == ""
    assert after("escape", state=typed) == TopState()
    assert after("/", "\x1b", "\x00", "up", "tab").filter == ""
    assert len(after("/", *"a" * 100).filter) == MOST_TYPED


@pytest.mark.parametrize(
    "keys", [("q",), ("interrupt",), ("/", "interrupt"), ("enter", "interrupt")]
)
def test_q_and_ctrl_c_end_it(keys: tuple[str, ...]):
    assert after(*keys).has_ended
