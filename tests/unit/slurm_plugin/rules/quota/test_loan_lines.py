"""Tests until when loans are promised."""

import pytest

from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.quota.loan_lines import loan_lines
from slicewise.slurm_plugin.rules.quota.types import Loan, LoanTerm

NOON = 43_200


@pytest.mark.parametrize(("term_s", "until_s"), [(0, None), (100, None), (101, NOON + 1)])
def test_a_loan_that_is_older_than_its_term_is_promised_no_longer(term_s: int, until_s: int | None):
    loan = Loan("physics", "bio", Millislices(2000))
    terms = [LoanTerm(loan, NOON - 900, NOON - 100)]
    (line,) = loan_lines(terms, (), now_s=NOON, grace_s=60, term_s=term_s)
    assert (line.since_s, line.until_s) == (NOON - 900, until_s)
