from pathlib import Path

import pytest

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.toml_text import read_toml
from slicewise.cluster.settings.read import load_settings
from slicewise.launcher.services.service_file import read_tables

LONG = ("9" * 5000, "0x" + "f" * 5000, "9" * 4000, "-" + "9" * 19, "0b" + "1" * 64)
"""Numbers that Python reads not at all, or reads and can't print, or that no column holds."""


@pytest.mark.parametrize("number", LONG)
def test_a_number_that_is_no_number_of_toml_is_refused(number: str) -> None:
    for text in (f"a = {number}", f"a = [[1, {{ b = {number} }}]]", f"[t]\n[[t.u]]\na = {number}"):
        with pytest.raises(ValueError, match="digits"):
            read_toml(text)


def test_what_toml_may_say_is_read() -> None:
    text = "a = 9223372036854775807\nb = 1.5\nc = true\n[d]\ne = [-9223372036854775807]\n"
    assert read_toml(text, parse_float=str) == {
        "a": 2**63 - 1,
        "b": "1.5",
        "c": True,
        "d": {"e": [1 - 2**63]},
    }
    with pytest.raises(ValueError, match="without end"):
        read_toml("a = " + "[" * 100_000)


@pytest.mark.parametrize("number", LONG)
def test_files_with_such_numbers_have_a_code_and_no_traceback(tmp_path: Path, number: str) -> None:
    file = tmp_path / "file.toml"
    file.write_text(f"[daemon]\ninterval = {number}\n")
    with pytest.raises(InvalidInputError, match="SW-SETTINGS"):
        load_settings(file)
    file.write_text(f"[service]\nmax_replicas = {number}\n")
    with pytest.raises(InvalidInputError, match="SW-SERVICE"):
        read_tables(file)
