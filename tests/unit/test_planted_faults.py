"""Checks that each planted fault can still be planted where its entry says."""

import ast

import fault_detection
import plant_faults
import pytest
from plant_faults import ROOT, Fault

FAULTS = plant_faults.faults()
ALL = {one.name: one for one in (*FAULTS, *fault_detection.listed())}


def test_names_tell_faults_apart() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 30


def test_each_fault_names_tests_that_find_it() -> None:
    assert all(fault.killed_by for fault in FAULTS)


@pytest.mark.parametrize("fault", ALL.values(), ids=ALL)
def test_a_fault_is_one_changed_line_that_is_there_once(fault: Fault) -> None:
    before = (ROOT / fault.file).read_text(encoding="utf-8")
    after = fault.planted(before)
    lines = zip(before.splitlines(), after.splitlines(), strict=True)
    assert sum(old != new for old, new in lines) == 1
    if fault.file.endswith(".py"):
        ast.parse(after)
    assert all((ROOT / test.partition("::")[0]).is_file() for test in fault.killed_by)


@pytest.mark.parametrize("text", ["", "here here"])
def test_what_is_not_there_once_is_not_planted(text: str) -> None:
    fault = Fault("a fault", "file.py", "here", "there", ())
    with pytest.raises(ValueError, match=r"a fault: file\.py has its old text"):
        fault.planted(text)
