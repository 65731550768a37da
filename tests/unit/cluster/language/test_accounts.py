"""Tests the one form of an account's name."""

import pytest

from slicewise.cluster.language.accounts import account_name


@pytest.mark.parametrize(
    ("written", "account"),
    [("VISION", "vision"), ("BLOC\N{KELVIN SIGN}", "bloc\N{KELVIN SIGN}"), ("ÄRZTE", "Ärzte")],
)
def test_letters_are_made_small_as_slurm_does(written: str, account: str) -> None:
    assert account_name(written) == account
