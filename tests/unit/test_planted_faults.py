"""Checks that each planted fault can still be planted where its entry says."""

import ast

import plant_faults
import pytest
from plant_faults import ROOT, Fault

FAULTS = plant_faults.faults()


def test_names_tell_faults_apart() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 30


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_a_fault_is_one_changed_line_that_is_there_once(fault: Fault) -> None:
    before = (ROOT / fault.file).read_text(encoding="utf-8")
    after = fault.planted(before)
    lines = zip(before.splitlines(), after.splitlines(), strict=True)
    assert sum(old != new for old, new in lines) == 1
    if fault.file.endswith(".py"):
        ast.parse(after)
    assert fault.killed_by
    assert all((ROOT / test.partition("::")[0]).is_file() for test in fault.killed_by)


@pytest.mark.parametrize("text", ["", "here here"])
def test_what_is_not_there_once_is_not_planted(text: str) -> None:
    fault = Fault("a fault", "file.py", "here", "there", ())
    with pytest.raises(ValueError, match=r"a fault: file\.py has its old text"):
        fault.planted(text)
