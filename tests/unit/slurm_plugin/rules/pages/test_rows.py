"""Tests how long lists are cut, whatever a query asks for."""

import pytest

from slicewise.slurm_plugin.rules.pages.rows import (
    ENTRIES,
    entries_page,
    named,
    rows_page,
    whole_number,
)


@pytest.mark.parametrize(
    ("asked", "first", "last", "before", "after"),
    [
        ("", 1, 10, None, 2),
        ("2", 11, 20, 1, 3),
        ("3", 21, 25, 2, None),
        ("99", 21, 25, 2, None),
        ("0", 1, 10, None, 2),
        ("-1", 1, 10, None, 2),
        ("<script>", 1, 10, None, 2),
    ],
)
def test_a_list_is_cut_into_pages(
    asked: str, first: int, last: int, before: int | None, after: int | None
):
    page = rows_page(range(25), asked, 10)
    assert (page.first, page.last, page.whole) == (first, last, 25)
    assert (page.before, page.after) == (before, after)
    assert list(page.rows) == list(range(first - 1, last))


def test_an_empty_list_has_one_empty_page():
    page = rows_page((), "7")
    assert (list(page.rows), page.whole, page.before, page.after) == ([], 0, None, None)


@pytest.mark.parametrize(
    ("many", "more", "older"),
    [
        (ENTRIES + 1, 50, 100 - ENTRIES + 1),
        (ENTRIES + 1, None, 100 - ENTRIES + 1),
        (ENTRIES, 7, 7),
        (3, None, None),
        (0, None, None),
    ],
)
def test_a_journal_goes_on_before_the_last_entry_shown(
    many: int, more: int | None, older: int | None
):
    """Numbers of entries fall from 100."""
    page = entries_page(range(100, 100 - many, -1), more, int)
    assert list(page.entries) == list(range(100, 100 - min(many, ENTRIES), -1))
    assert page.older == older


def test_only_plain_numbers_are_numbers():
    assert [whole_number(one) for one in ("7", "", "+7", "٧", "9" * 10)] == [
        7,
        None,
        None,
        None,
        None,
    ]


def test_names_are_found_by_a_part_whatever_its_case():
    assert named(["Vision", "nlp", "television"], " VIS", str) == ["Vision", "television"]
    assert named(["a"], "", str) == ["a"]
