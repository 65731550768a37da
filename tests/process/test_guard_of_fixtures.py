"""Tests the guard of tests/unit on what pytest runs beside a test: fixtures, imports, their ends.

Each case is a module of its own in a folder that is guarded, in a pytest of its own.
"""

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

TESTS = Path(__file__).resolve().parents[1]
CONFTEST = """
import guard

def pytest_configure(config):
    config.pluginmanager.register(guard.Shared())
"""
HEAD = """
import socket, subprocess, time
from contextlib import suppress
import pytest

def program():
    subprocess.run(("true",))

def swallowed():
    with suppress(BaseException):
        program()

def listen():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
"""
MODULE = "@pytest.fixture(scope='module')\ndef made():\n    {does}\n"
SESSION = MODULE.replace("module", "session")
END = "@pytest.fixture\ndef made():\n    yield\n    {does}\n"
END_OF_MODULE, END_OF_SESSION = (
    one.replace("    {", "    yield\n    {") for one in (MODULE, SESSION)
)
DOES = ("program()", "swallowed()", "listen()", "time.sleep(0.001)", "time.time()")
TEST = "\ndef test_it(made, clock): ...\n"
TEST_ALONE = TEST.replace("made, ", "")
WELL = """
@pytest.fixture
def made():
    return time.time()

def test_it(clock, made): ...
"""
"""A fixture of one test may read its clock."""
NOT_WELL = re.compile(r"^(ERROR|FAILED) unit/test_(\w+)\.py", re.MULTILINE)


def outcomes(pytester: pytest.Pytester, modules: Mapping[str, str]) -> dict[str, str]:
    """What pytest says in its last lines of each module that is not well."""
    pytester.makeconftest(CONFTEST)
    shutil.copy(TESTS / "guard.py", pytester.path / "guard.py")
    folder = pytester.mkdir("unit")
    (folder / "conftest.py").write_text("from guard import *\n")
    for name, text in modules.items():
        (folder / f"test_{name}.py").write_text(HEAD + text)
    done = pytester.runpytest_subprocess(
        "-p", "no:xdist", "--continue-on-collection-errors", "-rEf", "unit"
    )
    return {name: kind for kind, name in NOT_WELL.findall(done.stdout.str())}


@pytest.fixture(autouse=True)
def _with_stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))


def test_what_is_no_test_itself_is_guarded_as_one(pytester: pytest.Pytester) -> None:
    made = [where.format(does=does) for where in (MODULE, SESSION, END_OF_MODULE) for does in DOES]
    # A fixture of one test may sleep by the clock of that test, and read it.
    made += [END.format(does=does) for does in DOES if "time" not in does]
    modules = [text + TEST for text in made]
    modules += [f"{does}\n{TEST_ALONE}" for does in ("program()", "listen()", "time.time()")]
    cases = {f"case_{number}": text for number, text in enumerate(modules)}
    assert outcomes(pytester, {**cases, "well": WELL}) == dict.fromkeys(cases, "ERROR")


@pytest.mark.parametrize("does", ["swallowed()", "time.time()"])
def test_so_is_the_end_of_what_all_tests_share(pytester: pytest.Pytester, does: str) -> None:
    cases = {"it": END_OF_SESSION.format(does=does) + TEST}
    assert outcomes(pytester, cases) == {"it": "ERROR"}
