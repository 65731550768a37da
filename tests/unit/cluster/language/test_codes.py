import re
from collections import Counter
from pathlib import Path

import pytest

from slicewise.cluster.language.codes import Area, Code, known
from slicewise.cluster.language.exit_codes import ExitCode

ROOT = Path(__file__).parents[4]
PRODUCT = ("cluster", "launcher", "migrations", "sandbox", "simulation", "slurm_plugin")
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs", "etc")
TABLE = ROOT / "cluster" / "language" / "codes.py"
SUFFIXES = frozenset({".lua", ".j2", ".md", ".py", ".toml", ".yml"})
TEXT = re.compile(r"\bSW-[A-Z]+(?:-[A-Z]+)*\b(?!-)")
MEMBER = re.compile(r"\bCode\.([A-Z_]+)\b")


def texts(*places: str) -> list[str]:
    """The text of each file there, the table itself left out."""
    files = [file for place in places for file in (ROOT / place, *(ROOT / place).rglob("*"))]
    read = [file for file in files if file.suffix in SUFFIXES and file != TABLE]
    assert read
    return [file.read_text(encoding="utf-8") for file in read]


@pytest.mark.parametrize("place", [*PRODUCT, "templates", *DOCUMENTS])
def test_each_code_that_is_written_is_defined(place: str) -> None:
    """Also in docstrings, Lua, templates and documents, where no type checker looks."""
    written = {code for text in texts(place) for code in TEXT.findall(text)}
    assert written - {*Code} == set()


def test_each_code_that_is_defined_is_used() -> None:
    in_python = {name for text in texts(*PRODUCT) for name in MEMBER.findall(text)}
    elsewhere = texts("templates", "slurm_plugin/lua")
    written = {code for text in elsewhere for code in TEXT.findall(text)}
    assert {code for code in Code if code.name not in in_python} - written == set()


def test_a_code_is_called_as_its_member() -> None:
    assert [code.value for code in Code] == [f"SW-{code.name.replace('_', '-')}" for code in Code]


def test_no_two_codes_have_one_remedy() -> None:
    """Else they are one code."""
    remedies = Counter(code.remedy for code in Code)
    assert [remedy for remedy, count in remedies.items() if count > 1] == []
    assert all(code.happened.endswith(".") and code.remedy for code in Code)


def test_three_refusals_of_a_submission_are_as_of_a_limit_of_slurm() -> None:
    """slicewise.lua tells them by how they begin."""
    ours = [code for code in Code if code.startswith("SW-QUOTA-") and code.area is Area.JOBS]
    assert ours == ["SW-QUOTA-NONE", "SW-QUOTA-BORROW", "SW-QUOTA-EXCEEDED"]


def test_a_code_of_another_version_is_a_failure_of_the_wire() -> None:
    assert known("SW-BUSY") is Code.BUSY
    assert known("SW-OF-A-LATER-VERSION") is Code.WIRE


@pytest.mark.parametrize(
    ("code", "number"),
    [
        ("SW-LEDGER-IMBALANCE", 1),
        ("SW-SETTINGS", 2),
        ("SW-SERVICE-UNKNOWN", 3),
        ("SW-FORBIDDEN", 4),
        ("SW-QUOTA-EXCEEDED", 5),
        ("SW-DAEMON-DOWN", 6),
        ("SW-TIMEOUT", 7),
        ("SW-SERVICE-FAILING", 1),
        ("SW-TENANT-IMPORT", 8),
        ("SW-BUSY", 75),
        ("SW-WIRE", 1),
    ],
)
def test_scripts_rely_on_these_numbers(code: str, number: int) -> None:
    assert Code(code).exit_code == number


def test_what_clients_of_the_gateway_get_ends_no_command() -> None:
    clients = {code for code in Code if code.area is Area.CLIENTS}
    assert {code.exit_code for code in clients} == {ExitCode.FAILED}
    raised = {
        name
        for text in texts("launcher", "slurm_plugin", "sandbox")
        for name in re.findall(r"(?:Error|Refusal)\(\s*Code\.(\w+)", text)
    }
    assert {code for code in clients if code.name in raised} == set()
