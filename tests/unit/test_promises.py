"""Checks that each promise is held by one test, and that the page lists them."""

from collections import Counter
from pathlib import Path

import pytest

from docs import promises

PROMISES = promises.promises()


def test_the_page_lists_each_with_its_test():
    rows = [line for line in promises.page() if line.startswith("| ") and "`" in line]
    assert len(rows) == len(PROMISES)
    for one, row in zip(PROMISES, rows, strict=True):
        assert one.sentence in row
        assert f"`{one.module}::{one.test}`" in row


def test_there_are_about_seventy():
    assert 55 <= len(PROMISES) <= 85


@pytest.mark.parametrize("part", ["sentence", "test"])
def test_none_stands_there_twice(part: str):
    """A test that held several promises would say of none of them that it is broken."""
    counts = Counter(getattr(promise, part) for promise in PROMISES)
    assert [value for value, count in counts.items() if count > 1] == []


def test_each_is_a_sentence():
    assert [one.sentence for one in PROMISES if not one.sentence.endswith(".")] == []


def test_each_test_is_an_integration_test_of_every_run():
    """Only ``make test`` chooses by promise, and only among integration tests."""
    for one in PROMISES:
        source = (Path(promises._TESTS) / one.module).read_text(encoding="utf-8")
        assert "pytest.mark.integration" in source, one.module
        above = source[: source.index(f"def {one.test}(")].rpartition("\n\n")[2]
        assert "nightly" not in above, one.test


def test_a_case_of_a_parametrised_test_may_hold_one(tmp_path: Path):
    (tmp_path / "test_a.py").write_text(
        '@pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.promise("Two."))])\n'
        "def test_of_numbers(n): ...\n\n"
        '@pytest.mark.promise("It waits.")\nasync def test_waits(): ...\n\n'
        "def test_of_no_promise(): ...\n"
    )
    found = promises.promises(tmp_path)
    assert [(one.test, one.sentence) for one in found] == [
        ("test_of_numbers", "Two."),
        ("test_waits", "It waits."),
    ]


def test_a_marker_without_its_sentence_is_refused(tmp_path: Path):
    (tmp_path / "test_a.py").write_text("@pytest.mark.promise(WORDS)\ndef test_it(): ...\n")
    with pytest.raises(ValueError, match=r"test_a\.py:1: a promise is one sentence"):
        promises.promises(tmp_path)
