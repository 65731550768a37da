"""Tests whose keys let requests in, and from when a tenant's services want keys."""

import pytest

from slicewise.slurm_plugin.rules.services.key_rights import Members, Opening, wanted_from_s

MEMBERS = Members({"anna": frozenset({"lab"})}, frozenset({"root"}))


@pytest.mark.parametrize(
    ("person", "tenant", "has_left"),
    [
        ("anna", "lab", False),
        ("anna", "nlp", True),
        ("bob", "lab", True),
        ("root", "lab", False),
        # Of a marketplace's keys another knows whose they are.
        ("-", "lab", False),
    ],
)
def test_who_is_no_member_has_left(person: str, tenant: str, has_left: bool):
    assert MEMBERS.has_left(person, tenant) is has_left
    # Nothing was read of Slurm yet.
    assert not Members({}, frozenset({"root"})).has_left(person, tenant)


@pytest.mark.parametrize(
    ("made_s", "opening", "wanted_s"),
    [
        (None, None, None),
        (5.0, None, 5.0),
        (5.0, Opening(4.0), 5.0),
        (5.0, Opening(6.0), None),
        (5.0, Opening(5.0), None),
        (None, Opening(6.0), None),
        (5.0, Opening(6.0, 9.0), 9.0),
        (7.0, Opening(6.0, 9.0), 9.0),
        (None, Opening(6.0, 9.0), 9.0),
    ],
)
def test_the_last_word_about_a_tenant_holds(
    made_s: float | None, opening: Opening | None, wanted_s: float | None
):
    made = {} if made_s is None else {"lab": made_s}
    openings = {} if opening is None else {"lab": opening}
    assert wanted_from_s(made, openings).get("lab") == wanted_s
