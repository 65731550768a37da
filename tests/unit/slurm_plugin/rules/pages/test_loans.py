"""Tests the drawing of loans: who lends to whom, how much, and that names are texts."""

import re
import xml.etree.ElementTree as ET

from slicewise.slurm_plugin.rules.pages.loans import loan_map, loans_of
from slicewise.slurm_plugin.rules.quota.loan_lines import LoanLine


def loan(lender: str, borrower: str, amount: int = 2000, *, is_recalled: bool = False) -> LoanLine:
    return LoanLine(
        lender=lender,
        borrower=borrower,
        amount_millislices=amount,
        is_recalled=is_recalled,
        since_s=1,
        until_s=None,
    )


def titles(*loans: LoanLine) -> list[str]:
    svg = ET.fromstring(loan_map(loans))  # noqa: S314 -- our own
    return [one.text or "" for one in svg.iter("title")]


def test_each_loan_says_who_lends_how_much_to_whom():
    assert titles(loan("vision", "nlp"), loan("", "bio", 1000, is_recalled=True)) == [
        "vision lends 2 slices to nlp",
        "other tenants lends 1 slice to bio, recalled",
    ]


def test_a_lender_is_drawn_once_and_its_flows_below_each_other():
    drawn = loan_map([loan("a", "b", 3000), loan("a", "c", 2000)])
    assert drawn.count("<rect") == 3
    starts = [float(one) for one in re.findall(r"M\d+ ([\d.]+)C", drawn)]
    assert starts[1] - starts[0] == 30


def test_the_largest_loans_are_drawn_and_the_label_says_of_how_many():
    loans = [loan(f"a{number}", "b", 1000 + number) for number in range(40)]
    drawn = loan_map(loans)
    assert drawn.count("<path") == 12
    assert "a39" in drawn
    assert "a27 " not in drawn
    assert 'aria-label="12 of 40 loans' in drawn


def test_names_are_texts_and_not_longer_than_their_place():
    hostile = '<script>"&' + "x" * 500 + "\x1b[31m"
    drawn = loan_map([loan(hostile, "b")])
    assert "<script" not in drawn
    assert "\x1b" not in drawn
    texts = [one.text or "" for one in ET.fromstring(drawn).iter("text")]  # noqa: S314 -- our own
    assert max(map(len, texts)) <= 22


def test_loans_of_a_tenant_are_those_from_it_and_to_it():
    found = [loan("a", "b"), loan("b", "c"), loan("c", "d")]
    assert loans_of(found, "b") == found[:2]
