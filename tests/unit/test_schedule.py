"""Tests which tests run beside which."""

import fcntl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from schedule import in_order, needs_no_sandbox, turn


def item(nodeid: str, *, on_sandbox: bool = False) -> Any:
    mark = pytest.mark.integration if on_sandbox else None
    return SimpleNamespace(nodeid=nodeid, get_closest_marker=lambda _name: mark)


def is_free(lock_file: Path, kind: int) -> bool:
    with lock_file.open("a") as lock:
        try:
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_who_must_be_alone_comes_last_and_who_waits_first():
    alone = item("tests/integration/alone/test_a.py::t", on_sandbox=True)
    waits = item("tests/integration/test_b.py::t", on_sandbox=True)
    starts = item("tests/process/test_d.py::t")
    computes = item("tests/unit/test_c.py::t[alone/x]")
    assert in_order([alone, computes, starts, waits]) == [waits, starts, computes, alone]


def test_a_sandbox_is_kept_until_no_test_needs_it_any_more():
    waits = item("tests/integration/test_b.py::t", on_sandbox=True)
    alone = item("tests/integration/alone/test_a.py::t", on_sandbox=True)
    computes = item("tests/unit/test_c.py::t")
    assert needs_no_sandbox(computes, [waits, computes])
    assert not needs_no_sandbox(waits, [waits, computes])
    assert not needs_no_sandbox(computes, [waits, computes, alone])
    assert not needs_no_sandbox(None, [waits, computes])


def test_others_run_beside_each_other_and_nobody_beside_who_is_alone(tmp_path: Path):
    lock_file = tmp_path / "turn"
    for other in ("tests/unit/test_c.py::t", "tests/process/test_d.py::t"):
        with turn(item(other), lock_file):
            assert is_free(lock_file, fcntl.LOCK_SH)
            assert not is_free(lock_file, fcntl.LOCK_EX)
    with turn(item("tests/integration/alone/test_a.py::t"), lock_file):
        assert not is_free(lock_file, fcntl.LOCK_SH)
    assert is_free(lock_file, fcntl.LOCK_EX)
