"""Tests that ColdFront's answer becomes accounts: a recorded one of 1.1.10, and broken ones."""

from pathlib import Path

import pytest

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.slurm_plugin.rules.quota.coldfront import parse_allocations

ANSWER = Path(__file__).parents[4] / "assets" / "coldfront" / "allocations.json"


def test_standing_allocations_are_accounts_with_their_own_quota():
    found = {one.account: one for one in parse_allocations(ANSWER.read_text())}
    assert sorted(found) == ["lasers", "optics", "physics", "typed"]
    assert found["physics"].grp_tres == {"gres/gpu": 4}
    assert found["physics"].grp_tres_mins == {"gres/gpu": 60000}
    assert (found["optics"].parent, found["optics"].grp_tres) == ("physics", {"gres/gpu": 3})
    assert found["optics"].quota.startswith('nominal = 6, borrowing_limit = "unlimited"')
    # The answer has the whole text, which the dump tears.
    assert found["typed"].grp_tres == {"gres/gpu:1g.10gb": 3, "gres/gpu:3g.40gb": 2}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[{"status": "Active", "allocation_attributes": null}]', "it has no attributes"),
        ('[{"detail": "Authentication credentials were not provided."}]', "no list"),
        ("[7]", "no list"),
        ("[", "no list"),
    ],
)
def test_another_answer_is_refused(text: str, why: str):
    with pytest.raises(InvalidInputError, match=rf"{why}.*\[SW-INPUT-FILE\]"):
        parse_allocations(text)
