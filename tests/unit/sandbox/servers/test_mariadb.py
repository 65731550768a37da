"""Tests which SQL files make MariaDB's system tables, by the names of each version."""

from pathlib import Path

import pytest

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.sandbox.servers import mariadb

TABLES = ("system_tables", "performance_tables", "system_tables_data")


@pytest.mark.parametrize("begin", ["mysql", "mariadb"])
def test_it_is_found_by_either_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: str
) -> None:
    """MariaDB 10.11 (Debian 12) and 11.8 (Debian 13)."""
    monkeypatch.setattr(mariadb, "_SHARE", (tmp_path / "none", tmp_path))
    for table in TABLES:
        (tmp_path / f"{begin}_{table}.sql").write_text(f"-- {table}\n")
    lines = [one for one in mariadb._bootstrap_sql("slurm").splitlines() if one.startswith("--")]
    assert lines == [f"-- {table}" for table in TABLES]


def test_where_one_is_missing_the_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mariadb, "_SHARE", (tmp_path,))
    (tmp_path / "mariadb_system_tables.sql").write_text("")
    with pytest.raises(SlicewiseError, match=r"mariadb_system_tables\.sql") as caught:
        mariadb._bootstrap_sql("slurm")
    assert "mariadb-server-core" in caught.value.refusal.hint
