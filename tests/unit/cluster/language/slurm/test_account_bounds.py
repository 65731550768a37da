"""Tests the reader of what administrators alone set in slurmdbd."""

from slicewise.cluster.language.slurm.account_bounds import BOUNDS, parse_admins, parse_qos_bounds


def test_bounds_that_are_set_are_read_by_qos() -> None:
    empty = "|" * (len(BOUNDS) - 1)
    text = f"normal|{empty}\nslicewise_a|gres/gpu=0,node=2{empty}\nshort|x\n\n"
    assert parse_qos_bounds(text) == {"slicewise_a": {"MaxTRESPerUser": "gres/gpu=0,node=2"}}


def test_who_may_change_limits_is_read_with_the_level() -> None:
    text = "root|Administrator\nalice|None\nbob|Operator\nx\n"
    assert parse_admins(text) == {"root": "Administrator", "bob": "Operator"}
